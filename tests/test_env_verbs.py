"""``env show|diff|lock|replay``: the same for the command line and the magics; environments are really built again."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control.parity import environment_verbs, installer, requirements
from jupyter_hyperpod.control.parity.replay import replay
from jupyter_hyperpod.core.errors import NotFound, SpecError, StoreError
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.notebook.arguments import parse, verb_parser
from jupyter_hyperpod.storage.fingerprint import record
from jupyter_hyperpod.storage.store import JobStore, Store
from jupyter_hyperpod.system.processes import start_ticks
from tests import wheels
from tests.test_magics import make_shell

FEW = {f"tiny-{number}": f"1.{number}" for number in range(3)}


def fingerprint(site: Path, packages: dict[str, str], patch: pytest.MonkeyPatch) -> record.Fingerprint:
    """The fingerprint of an environment with these packages, which an index has, too."""
    for name, version in packages.items():
        wheels.unpack(site, name, version)
    with patch.context() as inner:
        inner.setattr(sys, "path", [str(site)])
        return record.take(str(site))


def job_with(store: Store, found: record.Fingerprint) -> JobStore:
    job = store.create_job(JobSpec(name="job", cell_digest="0" * 64))
    record.leave(job.path, found)
    return job


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only packages that pip and uv find: the wheels in this folder."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for variable in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(variable)
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


@pytest.fixture
def without_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "uv", lambda: None)


def asked(store: Store, *words: str, last: str = "") -> Any:
    parser = argparse.ArgumentParser()
    environment_verbs.add_options(parser)
    return environment_verbs.run(parser.parse_args(words), store, last)


def test_a_job_is_shown_compared_and_locked(
    store: Store, tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = job_with(store, fingerprint(tmp_path / "site", FEW, monkeypatch))
    (tmp_path / "other").mkdir()
    two = job_with(store, fingerprint(tmp_path / "other" / "site", {**FEW, "tiny-1": "9.0"}, monkeypatch))
    assert main(["env", "show", one.id, "--all"]) == 0
    shown = capsys.readouterr().out
    assert "3, 3 with a digest of their files" in shown and "tiny-2" in shown and sys.version.split()[0] in shown
    assert main(["env", "diff", one.id, two.id]) == 0
    told = capsys.readouterr().out
    assert told.splitlines()[1].split() == [
        *("tiny-1", "1.1", "9.0", "names", "and", "behaviour", "may", "have", "changed"),
    ]
    assert main(["env", "diff", one.id, one.id, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["same"] is True
    given = [store.create_job(JobSpec(name="job", cell_digest="0" * 64, env={"LR": rate})) for rate in ("1e-2", "2e-2")]
    for job in given:
        record.leave(job.path, {**record.of_job(one.path), "variables": ["LR"]})
    assert main(["env", "diff", given[0].id, given[1].id]) == 0
    told = capsys.readouterr().out
    assert "no difference in what was compared" in told and "the values of 1 variable set with --env (LR)" in told
    assert main(["env", "diff", one.id]) == 0
    assert "pytest" in capsys.readouterr().out, "of this process"
    written = tmp_path / "requirements.txt"
    assert main(["env", "lock", one.id, "--output", str(written)]) == 0
    lines = [line for line in written.read_text().splitlines() if not line.startswith("#")]
    assert lines == ["tiny-0==1.0", "tiny-1==1.1", "tiny-2==1.2"]
    assert main(["env", "lock", one.id, "--output", str(written)]) == 2
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("diff",), "needs a job to compare"),
        (("show", ".", "other"), "a second job belongs to `env diff`"),
        (("show", "--hashes"), "--hashes belongs to `env lock`"),
        (("diff", "--python", "a"), "--python belongs to `env replay`"),
        (("show", "nonsense"), "no job 'nonsense'"),
    ],
)
def test_bad_use_is_a_sentence(store: Store, words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises((SpecError, NotFound), match=sentence):
        asked(store, *words)


def test_options_may_stand_between_the_words(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_with(store, fingerprint(tmp_path / "site", FEW, monkeypatch))
    for words in (["show", "--all", job.id], ["lock", "--json", job.id], ["diff", "--json", job.id, job.id]):
        assert main(["env", *words]) == 0
        assert "tiny-1" in (said := capsys.readouterr().out) or '"same": true' in said
    assert main(["env", "diff", job.id, "--json", job.id]) == 0
    assert json.loads(capsys.readouterr().out)["here"] == job.id
    with pytest.raises(SystemExit):
        main(["env", "diff", "--jsn", job.id])
    assert "unrecognized arguments: --jsn (did you mean --json?)" in capsys.readouterr().err
    assert parse(verb_parser(), f"env show --all {job.id}").job == job.id


def test_the_last_job_of_a_notebook_is_meant(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_with(store, fingerprint(tmp_path / "site", FEW, monkeypatch))
    assert asked(store, "show", last=job.id).record["environment"] == job.id
    assert asked(store, "diff", last=job.id).record["here"] == "here"
    assert asked(store, "show", ".", last=job.id).record["environment"] == "here"


def test_the_magic_does_the_same(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_with(store, fingerprint(tmp_path / "site", FEW, monkeypatch))
    shell = make_shell()
    found = shell.run_line_magic("hyperpod", f"env diff {job.id} .")
    assert "tiny-1" in repr(found) and any(one["name"] == "tiny-1" for one in found)
    assert shell.run_line_magic("hyperpod", f"env lock {job.id}") is None
    assert "tiny-2==1.2" in capsys.readouterr().out


def test_no_line_of_a_fingerprint_steers_an_installer() -> None:
    packages = {
        "good": ["1.0", "", ""],
        "--index-url": ["1.0", "", ""],
        "a\n-e /tmp": ["1.0", "", ""],
        "version": ["1.0\n--extra-index-url x", "", ""],
        "space": ["1.0", "", "https://host/a.whl --hash x"],
        "line": ["1.0", "", "https://host/a.whl\n-e ."],
        "folder": ["1.0", "", "folder /home/a/b"],
        "mine": ["1.0", "", "editable /home/a/c\nd"],
        "archive": ["1.0", "", "https://host/a.whl#sha256=ab"],
        "jupyter-hyperpod": ["0.1", "", "editable /work"],
        "pip": ["1", "", ""],
    }
    made = requirements.lock({"packages": packages, "python": {"version": "3.11.2\n-e ."}})
    assert dict(made.lines) == {"good": "good==1.0", "archive": "archive @ https://host/a.whl#sha256=ab"}
    text = made.text("title")
    assert [line for line in text.splitlines() if not line.startswith("#")] == list(made.lines.values())
    assert "not in this file: folder: installed from /home/a/b; build a wheel of it" in text
    assert made.left_out["jupyter-hyperpod"] == "each job brings it along"


def test_hashes_of_the_index(
    store: Store, tmp_path: Path, index: Path, without_uv: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fingerprint(tmp_path / "site", FEW, monkeypatch)  # the wheels that it unpacks are those of the index
    job = job_with(store, found)
    text = asked(store, "lock", job.id, "--hashes").record["text"]
    for wheel in index.glob("*.whl"):
        assert f"--hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}" in text
    (tmp_path / "locked.txt").write_text(text)
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    install = [sys.executable, "-m", "pip", "--python", str(place / "bin/python"), "install", "--no-deps", "-q"]
    subprocess.run([*install, "--require-hashes", "-r", str(tmp_path / "locked.txt")], check=True)
    next(index.glob("tiny_1*")).unlink()
    with pytest.raises(SpecError, match="the package index does not have all of it: .*tiny-1"):
        asked(store, "lock", job.id, "--hashes")
    made = requirements.lock(found)
    partly = made.text("title", {"tiny-0": ["ab"]})
    assert "\ntiny-0==1.0\n#   --hash=sha256:ab\n" in partly and "these packages have none: tiny-1, tiny-2" in partly


def test_an_environment_is_built_once_and_is_the_same(
    store: Store, tmp_path: Path, index: Path, without_uv: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_with(store, fingerprint(tmp_path / "site", FEW, monkeypatch))
    first = asked(store, "replay", job.id)
    assert first.ok and first.record["built"] and first.record["other"] == [] and first.record["with"] == "pip"
    python = first.record["python"]
    told = subprocess.run([python, "-c", "import tiny_1; print(tiny_1.__version__)"], capture_output=True, text=True)
    assert told.stdout == "1.1\n"
    second = asked(store, "replay", job.id)
    assert second.record["python"] == python and not second.record["built"]
    (Path(python).parents[1] / "replay.json").unlink()  # as if it had been interrupted
    assert asked(store, "replay", job.id).record["built"]


def test_what_cannot_be_had_is_named_and_the_rest_is_there(
    store: Store, tmp_path: Path, index: Path, without_uv: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fingerprint(tmp_path / "site", FEW, monkeypatch)
    gone = next(index.glob("tiny_1*"))
    gone.rename(tmp_path / gone.name)
    wheels.build(index, "tiny-2", "1.2", {"tiny_2.py": "# another build\n__version__ = '1.2'\n"})
    found["packages"]["own"] = ["1.0", "", "folder /somewhere/own"]
    done = replay(store, found)
    assert set(done.missing) == {"tiny-1", "own"} and "tiny-1==1.1" in done.missing["tiny-1"]
    assert [(one.kind, one.name) for one in done.other] == [("files", "tiny-2")]
    shutil.move(tmp_path / gone.name, gone)
    later = replay(store, found)
    assert set(later.missing) == {"own"} and later.python == done.python, "only what was missing is installed"
    answer = asked(store, "replay", job_with(store, found).id)
    assert not answer.ok and any("could not be had: own: installed from /somewhere/own" in one for one in answer.lines)


def test_a_python_that_is_not_here(store: Store, tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = fingerprint(tmp_path / "site", FEW, monkeypatch)
    found["python"]["version"] = "3.99.1"
    with pytest.raises(NotFound, match=r"the job had Python 3.99.1, .* no python3.99 is on PATH; install it, or"):
        replay(store, found)
    with pytest.raises(StoreError, match="cannot make a virtual environment"):
        replay(store, found, python="/bin/false")
    with pytest.raises(SpecError, match="the packages of that environment are not known"):
        replay(store, {"packages": {}})


def test_what_is_not_a_python_is_a_sentence_and_leaves_nothing(
    store: Store, tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fingerprint(tmp_path / "site", FEW, monkeypatch)
    with pytest.raises(StoreError, match=r"/usr/bin/false cannot make .* is /usr/bin/false a Python with the module"):
        replay(store, found, python="/usr/bin/false")
    with pytest.raises(StoreError, match=r"/nope cannot make .* No such file"):
        replay(store, found, python="/nope")
    assert os.listdir(store.root / "environments") == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_who_is_interrupted_leaves_no_installer_and_no_half(
    store: Store,
    tmp_path: Path,
    index: Path,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., Any],
    number: signal.Signals,
) -> None:
    job = job_with(store, fingerprint(tmp_path / "site", FEW, monkeypatch))
    python = tmp_path / "python"  # it never gets ready, and neither does what it started
    written = f"{tmp_path}/written"
    python.write_text(f"#!/bin/sh\nsleep 600 & echo $$ $! > {written} && mv {written} {tmp_path}/pids\nwait\n")
    python.chmod(0o700)
    words = ["--store", str(store.root), "env", "replay", job.id, "--python", str(python)]
    begin = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "  # a shell may ignore it
    begin += "from jupyter_hyperpod.cli import main; sys.exit(main())"
    process = subprocess.Popen([sys.executable, "-c", begin, *words], stderr=subprocess.PIPE, text=True)
    eventually((tmp_path / "pids").exists, timeout_s=60)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert f"building 3 packages for {job.id} with " in said
    eventually(lambda: start_ticks(pids[0]) is None, timeout_s=60)
    if number == signal.SIGKILL:  # the kernel ends the installer; what that one started is not known to it
        os.kill(pids[1], signal.SIGKILL)
        return
    eventually(lambda: start_ticks(pids[1]) is None, timeout_s=60)
    assert process.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}[number]
    assert "interrupted: the installer was ended, and nothing of it is left" in said
    assert os.listdir(store.root / "environments") == []


@pytest.mark.parametrize("threads", [0, 1])
def test_who_is_interrupted_while_an_installer_starts_leaves_none(
    threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    pids = tmp_path / "pids"

    class Slow(subprocess.Popen[str]):
        """It returns when the program has started another one, and meanwhile somebody interrupts."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            eventually(lambda: pids.exists() and pids.read_text().endswith("\n"), timeout_s=60)
            os.kill(os.getpid(), signal.SIGTERM)
            until_s = time.monotonic() + 1.0
            while threads and time.monotonic() < until_s:
                time.sleep(0.01)  # a signal that another thread gets is handled here, a moment later

    monkeypatch.setattr(subprocess, "Popen", Slow)
    done = threading.Event()
    others = [threading.Thread(target=done.wait) for _ in range(threads)]
    for other in others:
        other.start()
    try:
        with pytest.raises(SystemExit), installer.terminated_as_interrupted():
            installer.run_installer(["sh", "-c", f"sleep 600 & echo $$ $! > {pids}; wait"], 60.0)
    finally:
        done.set()
        for other in others:
            other.join()
    for pid in map(int, pids.read_text().split()):
        eventually(lambda pid=pid: start_ticks(pid) is None, timeout_s=60)


def test_a_lock_is_written_whole_or_not_at_all(
    store: Store, tmp_path: Path, index: Path, without_uv: None, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    job = job_with(store, fingerprint(tmp_path / "site", {**FEW, "pip": "1.0"}, monkeypatch))
    target, limits = tmp_path / "new" / "locked.txt", resource.getrlimit(resource.RLIMIT_FSIZE)
    target.parent.mkdir()
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))  # as a full disk refuses what is beyond
    try:
        with pytest.raises(StoreError, match=r"cannot write .*locked.txt: File too large; nothing of it is left"):
            asked(store, "lock", job.id, "--output", str(target))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(target.parent) == []
    assert main(["env", "lock", "--hashes", job.id, "--output", str(target)]) == 0
    said = capsys.readouterr()
    assert "not in it: pip: it installs the others" in said.out and "not in this file: pip:" in target.read_text()
    assert "asking the package index with pip for the hashes of 3 packages" in said.err
    assert os.listdir(target.parent) == ["locked.txt"]


@pytest.mark.slow
def test_forty_packages_from_a_warm_cache(
    store: Store, tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = {f"package-{number}": f"1.{number}" for number in range(40)}
    found = fingerprint(tmp_path / "site", packages, monkeypatch)
    began_s = time.process_time()
    done = replay(store, found)
    assert done.built and done.missing == {} and done.other == []
    assert done.took_s < 20 or time.process_time() - began_s < 20, done.took_s


@pytest.mark.slow
def test_a_job_runs_in_the_environment_that_was_built_again(
    cluster: Store, tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = fingerprint(tmp_path / "site", FEW, monkeypatch)
    done = replay(cluster, found)
    (packages,) = Path(done.python).parents[1].glob("lib/python*/site-packages")
    here = [folder for folder in sys.path if folder.endswith("site-packages")]
    (packages / "shared.pth").write_text("".join(f"{folder}\n" for folder in here))  # torch is in no index of a test
    cell = tmp_path / "cell.py"
    cell.write_text("import tiny_1; print('version', tiny_1.__version__)")
    assert main(["submit", str(cell), "--python", done.python, "--follow"]) == 0
    assert "version 1.1" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("uv") is None, reason="NOT VERIFIED HERE WITH UV: it is not installed")
def test_uv_builds_the_same(store: Store, tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = replay(store, fingerprint(tmp_path / "site", FEW, monkeypatch))
    assert done.with_tool == "uv" and done.missing == {} and done.other == []
    text = asked(store, "lock", job_with(store, fingerprint(tmp_path / "site", FEW, monkeypatch)).id, "--hashes")
    assert text.record["text"].count("--hash=sha256:") == 3
