"""The wheel, installed where there is neither Node nor torch: both extensions are on by themselves."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import free_port

TREE = Path(__file__).resolve().parents[2]
VERSION = json.loads((TREE / "package.json").read_text())["version"]

pytestmark = pytest.mark.wheel


def run(command: list[str | Path], environment: dict[str, str] | None = None, cwd: Path = TREE) -> str:
    """Run a command and return what it prints on both streams; fail with it where it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        env=environment,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout[-4000:]}"
    return re.sub(r"\x1b\[\d+m", "", done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert (TREE / "labextension/dist/static/style.js").exists(), "the lab extension is not built: run `make install`"
    directory = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", directory, TREE])
    (path,) = directory.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A fresh environment with the wheel in it, and the variables of a machine that has nothing else."""
    directory = tmp_path_factory.mktemp("machine")
    (directory / "home").mkdir()
    run([sys.executable, "-m", "venv", directory / "venv"])
    bin_directory = directory / "venv" / "bin"
    run([bin_directory / "python", "-m", "pip", "install", "--quiet", "-c", TREE / "constraints.txt", wheel])
    environment = {"PATH": str(bin_directory), "HOME": str(directory / "home"), "LANG": "C.UTF-8"}
    environment["TMPDIR"] = os.environ.get("TMPDIR", "/tmp")
    return bin_directory, environment


def test_what_the_wheel_holds(wheel: Path) -> None:
    assert wheel.name == f"jupyter_hyperpod-{VERSION}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    data = f"jupyter_hyperpod-{VERSION}.data/data"
    lab = f"{data}/share/jupyter/labextensions/jupyter_hyperpod"
    for needed in (
        "jupyter_hyperpod/__init__.py",
        "jupyter_hyperpod/py.typed",
        "jupyter_hyperpod/health/kernel_log.toml",
        "jupyter_hyperpod/recipes/data/llama-tiny.toml",
        "jupyter_hyperpod/locale/de_DE/LC_MESSAGES/jupyter_hyperpod.json",
        "jupyter_hyperpod/locale/ja_JP/LC_MESSAGES/jupyter_hyperpod.json",
        f"{lab}/package.json",
        f"{lab}/install.json",
        f"{lab}/static/style.js",
        f"{data}/etc/jupyter/jupyter_server_config.d/jupyter_hyperpod.json",
        f"jupyter_hyperpod-{VERSION}.dist-info/licenses/LICENSE",
    ):
        assert needed in names
    assert [name for name in names if re.search(rf"{lab}/static/remoteEntry\.\w+\.js$", name)]
    assert [name for name in names if re.search(rf"{lab}/schemas/.*\.json$", name)]
    assert not [name for name in names if re.search(r"\.map$|\.tsx?$|\.pyc$|/tests?/|node_modules|\.jsonl$", name)]
    roots = {name.split("/")[0] for name in names}
    assert roots == {"jupyter_hyperpod", f"jupyter_hyperpod-{VERSION}.data", f"jupyter_hyperpod-{VERSION}.dist-info"}


def test_every_python_file_of_the_tree_is_in_the_wheel(wheel: Path) -> None:
    tracked = run(["git", "ls-files", "jupyter_hyperpod/"]).split()
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in tracked if name.endswith(".py")} <= set(names)


def test_the_wheel_has_only_the_benchmarks_of_a_machine_of_ones_own(wheel: Path) -> None:
    held = {Path(name).stem for name in zipfile.ZipFile(wheel).namelist() if "/bench/" in name}
    measured, needed = {"latency", "recovery", "model"}, {"language_model", "laboratory", "report", "stalls"}
    assert held == {"__init__", "proof"} | measured | needed


def test_what_is_not_installed_is_named_with_its_place(installed: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    bin_directory, environment = installed
    for name, said in (("chaos", "in the folder benchmarks/"), ("latency", "jupyter_hyperpod[train]")):
        command = [bin_directory / "jupyter", "hyperpod", "bench", name]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode and said in done.stderr and "Traceback" not in done.stderr


def test_both_extensions_are_on_without_node(installed: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    bin_directory, environment = installed
    assert not (bin_directory / "node").exists()
    lab = run([bin_directory / "jupyter", "labextension", "list"], environment, tmp_path)
    assert re.search(rf"jupyter_hyperpod v{re.escape(VERSION)} enabled OK \(python, jupyter_hyperpod\)", lab), lab
    server = run([bin_directory / "jupyter", "server", "extension", "list"], environment, tmp_path)
    assert re.search(r"jupyter_hyperpod enabled", server), server
    assert re.search(rf"jupyter_hyperpod {re.escape(VERSION)} OK", server), server


def test_jupyterlab_has_our_texts_in_german_and_japanese(
    installed: tuple[Path, dict[str, str]], tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    """With JupyterLab's own language packs beside us, as its switch of languages asks for them."""
    bin_directory, environment = installed
    packs = ("jupyterlab-language-pack-de-DE", "jupyterlab-language-pack-ja-JP")
    run([bin_directory / "python", "-m", "pip", "install", "--quiet", "-c", TREE / "constraints.txt", *packs])
    port, token = free_port(), secrets.token_hex(16)
    command = [bin_directory / "jupyter", "lab", "--no-browser", "--allow-root", f"--ServerApp.port={port}"]
    command += ["--ServerApp.port_retries=0", f"--ServerApp.root_dir={tmp_path}"]

    def ask(path: str) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/lab/api/translations/{path}")
        request.add_header("Authorization", f"token {token}")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except ConnectionError:
            return None
        except urllib.error.URLError as error:
            assert isinstance(error.reason, ConnectionError) and server.poll() is None, log.read_text()
            return None

    log = tmp_path / "log"
    with log.open("w") as stream:
        environment = environment | {"JUPYTER_TOKEN": token}
        server = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=stream, stderr=stream)
    try:
        languages = eventually(lambda: ask(""), timeout_s=60)["data"]
        assert {"de_DE", "ja_JP"} <= languages.keys()
        for language, running in (("de_DE", "Läuft"), ("ja_JP", "実行中")):
            answer = ask(language)
            assert not answer["message"]
            ours = answer["data"]["jupyter_hyperpod"]
            assert ours["Running"] == [running]
            assert ours[""]["language"] == answer["data"]["jupyterlab"][""]["language"].replace("_", "-")
    finally:
        server.terminate()
        server.wait(30)


def test_the_command_line_works_without_torch(installed: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    bin_directory, environment = installed
    assert VERSION in run([bin_directory / "jupyter", "hyperpod", "--version"], environment, tmp_path)
    listed = run([bin_directory / "jupyter", "hyperpod", "list", "--json"], environment, tmp_path)
    assert json.loads(listed) in ([], {"jobs": []})


def test_what_is_missing_is_said_by_name(installed: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    bin_directory, environment = installed
    code = "import jupyter_hyperpod as hp\ntry: hp.Session\nexcept ImportError as error: print(error)"
    assert "jupyter_hyperpod[train]" in run([bin_directory / "python", "-c", code], environment, tmp_path)


def test_the_source_distribution_needs_no_node_either(tmp_path: Path) -> None:
    run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path])
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"labextension/dist/package.json", "labextension/dist/static/style.js", "package.json", "LICENSE"} <= names
    assert not [name for name in names if name.startswith((".venv", "node_modules", "lib/"))]
