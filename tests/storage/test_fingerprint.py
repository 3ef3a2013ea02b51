"""Fingerprints of real files: planted differences are all named; nothing secret is kept; nothing is waited for long."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.core.errors import NotFound, StoreError
from jupyter_hyperpod.policy import parity
from jupyter_hyperpod.storage.fingerprint import git_state, machine, record
from jupyter_hyperpod.storage.fingerprint.distributions import RecordCache, digest_of_files, installed, origin_of
from tests import wheels

SECRET = "hf_0123456789secret"


def git(directory: Path, *words: str) -> str:
    command = ["git", "-C", str(directory), "-c", "user.name=A", "-c", "user.email=a@b.c", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def repository(directory: Path) -> Path:
    directory.mkdir()
    git(directory, "init", "-q", "-b", "main")
    for name in ("model.py", "gone.py", "with space.py"):
        (directory / name).write_text("one\n")
    git(directory, "add", ".")
    git(directory, "commit", "-q", "-m", "first")
    return directory


def hardware(root: Path, cpu: str, flags: str, driver: str, gpus: list[str], nccl: str) -> Path:
    """The files in which Linux and NVIDIA's driver describe a machine."""
    (root / "proc").mkdir(parents=True)
    (root / "proc/cpuinfo").write_text(f"processor\t: 0\nmodel name\t: {cpu}\nflags\t\t: fpu {flags}\n\n")
    (root / "sys/module/nvidia").mkdir(parents=True)
    (root / "sys/module/nvidia/version").write_text(f"{driver}\n")
    for number, model in enumerate(gpus):
        folder = root / f"proc/driver/nvidia/gpus/0000:{number}"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 1\n")
    libraries = root / "usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    (libraries / "libnccl.so.2").symlink_to(f"libnccl.so.{nccl}")
    return root


def torch_of(site: Path, cuda: str, version: str = "2.6.0") -> None:
    text = f"__version__ = '{version}'\ncuda: Optional[str] = '{cuda}'\nhip: Optional[str] = None\n"
    wheels.unpack(site, "torch", version, {"torch/version.py": text})


def taken(site: Path, project: Path, root: Path, patch: pytest.MonkeyPatch, **about: str) -> record.Fingerprint:
    patch.setattr(sys, "path", [str(site)])
    found = record.take(str(project))
    packages = record.packages_of(found)
    found["machine"] = machine.processor(root)
    found["devices"] = machine.devices([str(site)], packages, root)
    found["python"] |= about
    return found


def test_every_planted_difference_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = repository(tmp_path / "project")
    before, after = tmp_path / "before" / "site", tmp_path / "after" / "site"
    for site in (before, after):
        wheels.unpack(site, "same", "1.0")
    editable = '{"url": "file:///home/a/%s", "dir_info": {"editable": true}}'
    vcs = '{"url": "https://me:' + SECRET + '@host/x.git?a=b", "vcs_info": {"vcs": "git", "commit_id": "%s"}}'
    wheels.unpack(before, "gone", "2.0")
    wheels.unpack(after, "new", "3.0")
    wheels.unpack(before, "numpy", "1.26.4")
    wheels.unpack(after, "numpy", "2.0.1")
    wheels.unpack(before, "patched", "1.0.1")
    wheels.unpack(after, "patched", "1.0.2")
    wheels.unpack(before, "rebuilt", "1.0", {"rebuilt.py": "1\n"})
    wheels.unpack(after, "rebuilt", "1.0", {"rebuilt.py": "2\n"})
    wheels.unpack(before, "mine", "1.0", {"mine.pth": "/a\n"}, editable % "one")
    wheels.unpack(after, "mine", "1.0", {"mine.pth": "/b\n"}, editable % "two")
    wheels.unpack(before, "from-git", "1.0", {"from_git.py": "1\n"}, vcs % ("a" * 40))
    wheels.unpack(after, "from-git", "1.0", {"from_git.py": "2\n"}, vcs % ("b" * 40))
    wheels.unpack(before, "nvidia-cudnn-cu12", "9.1")
    wheels.unpack(after, "nvidia-cudnn-cu12", "9.5")
    torch_of(before, "12.4")
    torch_of(after, "12.6")
    old = hardware(tmp_path / "old", "Xeon A", "avx2", "535.129.03", ["NVIDIA A100"], "2.18.3")
    new = hardware(tmp_path / "new", "Xeon B", "avx2 avx512f", "550.54.15", ["NVIDIA H100"] * 2, "2.21.5")

    monkeypatch.setenv("OMP_NUM_THREADS", SECRET)
    first = taken(before, project, old, monkeypatch, version="3.11.2", implementation="cpython", kind="venv")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", SECRET)
    monkeypatch.setenv("MY_FLAG", SECRET)
    monkeypatch.setenv("TERM_PROGRAM", "a terminal's, which changes nothing")
    git(project, "commit", "-q", "--allow-empty", "-m", "second")
    git(project, "checkout", "-q", "-b", "try")
    (project / "model.py").write_text("two\n")
    (project / "gone.py").unlink()
    (project / "new.py").write_text("new\n")
    git(project, "mv", "with space.py", "renamed to.py")
    second = taken(after, project, new, monkeypatch, version="3.12.1", implementation="pypy", kind="conda")

    planted = {
        *(("package", "gone"), ("package", "new"), ("package", "numpy"), ("package", "patched")),
        *(("files", "rebuilt"), ("origin", "mine"), ("origin", "from-git"), ("package", "nvidia-cudnn-cu12")),
        *(("python", "Python"), ("python", "Python's kind"), ("python", "Python's environment")),
        *(("variable", "OMP_NUM_THREADS"), ("variable", "CUDA_VISIBLE_DEVICES"), ("variable", "MY_FLAG")),
        *(("git", "git commit"), ("git", "git branch"), ("git", "file model.py"), ("git", "file gone.py")),
        *(("git", "file new.py"), ("git", "file renamed to.py")),
        *(("device", "CUDA of torch"), ("device", "GPU driver"), ("device", "NCCL"), ("device", "cuDNN")),
        *(("device", "GPUs"), ("machine", "processor"), ("machine", "vector instructions"), ("files", "torch")),
    }
    found = parity.differences(first, second)
    assert {(one.kind, one.name) for one in found} == planted and len(planted) >= 20
    assert all(one.change and one.there != one.here for one in found)
    assert [one.rank for one in found] == sorted(one.rank for one in found)
    told = {one.name: one for one in found}
    assert (told["numpy"].there, told["numpy"].here) == ("1.26.4", "2.0.1")
    assert (told["GPUs"].there, told["GPUs"].here) == ("1 x NVIDIA A100", "2 x NVIDIA H100")
    assert (told["gone"].there, told["gone"].here) == ("2.0", "not installed")
    assert told["from-git"].there == f"git+https://host/x.git@{'a' * 40}"
    assert SECRET not in json.dumps([first, second]), "names of variables only, and no password of a URL"
    assert parity.digest(first) != parity.digest(second)
    assert parity.differences(first, first) == [] == parity.unknown(first, second)


def test_what_is_not_known_is_compared_with_nothing() -> None:
    known: dict[str, Any] = {"packages": {"a": ["1", "x", ""]}, "git": {"known": True, "commit": "1"}}
    blind: dict[str, Any] = {"packages": {"a": ["1", "", ""]}, "git": {"known": False}}
    assert parity.differences(known, blind) == []
    assert parity.unknown(known, blind)[-2:] == ["the state of git", "the files of 1 of 1 packages"]
    assert [one.name for one in parity.differences(known, {"packages": {"a": ["2", "", ""]}})] == ["a"]


def test_a_digest_differs_where_something_differs_and_is_absent_where_that_is_not_known() -> None:
    here = record.take("/", ["LR"])
    here["packages"] = {"a": ["1", "x", ""], "b": ["2", "y", "folder /b"]}
    idle = {**here, "taken_s": 0.0, "directory": "/other", "variables": [*here["variables"], "SSH_TTY_OF_A_TEST"]}
    idle["packages"] = {**here["packages"], "b": ["2", "y", "folder /moved"]}
    assert parity.differences(here, idle) == [] and parity.digest(here) == parity.digest(idle) != ""
    changed = {
        "python": {**here["python"], "kind": "conda"},
        "packages": {**here["packages"], "a": ["1", "z", ""]},
        "machine": {**here["machine"], "vectors": "mmx"},
        "variables": [*here["variables"], "OMP_PLACES_OF_A_TEST"],
    }
    for part, value in changed.items():
        other = {**here, part: value}
        assert parity.differences(here, other) and parity.digest(here) != parity.digest(other), part
    blind = {**here, "packages": {**here["packages"], "a": ["1", "", ""]}}
    assert parity.differences(here, blind) == [] and parity.digest(blind) == ""
    for part in ("python", "packages", "machine", "devices", "variables", "git"):
        assert parity.digest({**here, part: None}) == "", part


def test_values_that_are_not_kept_are_not_called_equal() -> None:
    one = {"variables": ["HOME", "LR"], "given": ["LR"]}
    said = "the values of 1 variable set with --env (LR)"
    assert parity.unknown(one, one)[-1] == parity.unknown(one, {"variables": ["LR"]})[-1] == said
    assert said not in parity.unknown(one, {"variables": ["HOME"]}), "that is a difference"


def test_a_wheel_has_one_digest_whoever_installed_it() -> None:
    wheel = b"a.py,sha256=x,1\na-1.dist-info/METADATA,sha256=y,2\na-1.dist-info/RECORD,,\n"
    by_pip = b"../../../bin/a,sha256=q,9\r\na-1.dist-info/INSTALLER,sha256=z,4\r\na-1.dist-info/METADATA,sha256=y,2\r\n"
    by_pip += (
        b"a-1.dist-info/RECORD,,\r\na-1.dist-info/REQUESTED,sha256=w,0\r\n__pycache__/a.pyc,,\r\na.py,sha256=x,1\r\n"
    )
    assert digest_of_files(wheel, "a-1.dist-info") == digest_of_files(by_pip, "a-1.dist-info")
    assert digest_of_files(wheel.replace(b"=x", b"=v"), "a-1.dist-info") != digest_of_files(wheel, "a-1.dist-info")


def test_digests_are_kept_by_time_and_size(tmp_path: Path) -> None:
    site, kept = tmp_path / "site", tmp_path / "distributions.json"
    info = wheels.unpack(site, "one", "1.0")
    before = installed([str(site)], RecordCache(kept))["one"]
    assert kept.stat().st_mode & 0o777 == 0o600 and before.content
    assert installed([str(site)], RecordCache(kept), budget_s=0.0)["one"] == before, "no time was needed"
    with open(info / "RECORD", "a") as file:
        file.write("more.py,sha256=x,1\n")
    assert installed([str(site)], RecordCache(kept), budget_s=0.0)["one"].content == "", "no stale digest"
    assert installed([str(site)], RecordCache(kept))["one"].content not in ("", before.content)
    for nonsense in ("{", "[1]", '{"a": 3}', json.dumps({str(info): [1, 2]})):
        kept.write_text(nonsense)
        assert installed([str(site)], RecordCache(kept))["one"].content
    shutil.rmtree(info)
    assert installed([str(site)], RecordCache(kept)) == {}


def test_the_first_package_on_the_path_counts_and_names_are_normal(tmp_path: Path) -> None:
    wheels.unpack(tmp_path / "a" / "site", "My-Package", "1.0")
    wheels.unpack(tmp_path / "b" / "site", "my_package", "2.0")
    (tmp_path / "b" / "site" / "Old-3.1-py3.11.egg-info").mkdir()
    found = installed([str(tmp_path / "a/site"), str(tmp_path / "b/site"), str(tmp_path / "missing")])
    assert {name: one.version for name, one in found.items()} == {"my-package": "1.0", "old": "3.1"}


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"url": 1, "vcs_info": {}}', '{"url": "a", "dir_info": 3}'])
def test_odd_origins_are_no_origins(tmp_path: Path, text: str) -> None:
    wheels.unpack(tmp_path / "site", "one", "1.0", None, text)
    assert installed([str(tmp_path / "site")], RecordCache(None))["one"].origin == ""


def test_an_archive_has_its_hash() -> None:
    about = {"url": f"https://u:{SECRET}@host/a.whl?token=1", "archive_info": {"hashes": {"sha256": "ab"}}}
    assert origin_of(about) == "https://host/a.whl#sha256=ab"


def test_git_gets_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = repository(tmp_path / "project")
    (project / "below").mkdir()
    assert git_state.GitLook(str(project / "below")).state(10)["branch"] == "main"
    assert git_state.GitLook(str(tmp_path)).state(10) == {}
    slow = tmp_path / "bin"
    slow.mkdir()
    (slow / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    (slow / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow}:/usr/bin:/bin")
    began_s = time.monotonic()
    assert git_state.GitLook(str(project)).state(0.05) == {"root": str(project), "known": False}
    assert time.monotonic() - began_s < 30
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state.GitLook(str(project)).state(10) == {"root": str(project), "known": False}


def test_many_and_large_files_are_counted_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = repository(tmp_path / "project")
    monkeypatch.setattr(git_state, "MOST_FILES", 3)
    monkeypatch.setattr(git_state, "MOST_READ", 8)
    for number in range(5):
        (project / f"new-{number}").write_text("x" * (100 if number == 1 else 1))
    (project / "folder").mkdir()
    (project / "folder" / "file").write_text("")
    found = git_state.GitLook(str(project)).state(10)
    assert found["more"] == 3 and found["files"]["folder/"] == git_state.UNREAD
    assert found["files"]["new-1"] == git_state.UNREAD and len(found["files"]["new-0"]) == 16


def test_a_repository_starts_no_program_of_its_own(tmp_path: Path) -> None:
    project, proof = repository(tmp_path / "project"), tmp_path / "ran"
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {proof}\n")
    hook.chmod(0o755)
    git(project, "config", "core.fsmonitor", str(hook))
    assert git_state.GitLook(str(project)).state(10)["known"]
    assert not proof.exists()


def test_what_is_kept_with_a_job(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="submitted without a fingerprint"):
        record.of_job(tmp_path)
    (tmp_path / record.OLD_FILE).write_text('{"PyYAML": "6.0"}')
    assert record.of_job(tmp_path) == {"packages": {"pyyaml": ["6.0", "", ""]}}
    found = record.take(str(tmp_path), ["GIVEN"])
    record.leave(tmp_path, found)
    kept = tmp_path / record.FILE
    assert kept.stat().st_mode & 0o777 == 0o600 and kept.stat().st_size < 200_000
    assert record.of_job(tmp_path) == json.loads(json.dumps(found)) and "GIVEN" in found["variables"]
    assert found["git"] == {} and found["packages"]["pytest"][1]


def test_another_interpreter_is_asked(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not say what it has"):
        record.take(str(tmp_path), python=str(tmp_path / "python"))
    with pytest.raises(StoreError, match="does not say what it has"):
        record.take(str(tmp_path), python="/bin/true")
    there = record.take(str(tmp_path), python=sys.executable)
    here = record.take(str(tmp_path))
    ours = {one.name for one in parity.of_members(here, there)}
    assert "numpy" not in ours and there["python"]["version"] == here["python"]["version"]
