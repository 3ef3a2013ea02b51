"""The wheel, installed where there is neither Node nor torch: both extensions are on by themselves."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

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
