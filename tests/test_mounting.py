"""The verbs of shared storage, in a terminal and in a cell, and the commands of docs/storage.md as they are printed."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.errors import Conflict, NotFound
from jupyter_hyperpod.core.mount_spec import DRIVERS
from jupyter_hyperpod.mounts import table
from jupyter_hyperpod.storage.store import Store

TREE = Path(__file__).resolve().parents[1]
GUIDE = (TREE / "docs" / "storage.md").read_text()


def ask(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> Any:
    assert main([*words, "--json"]) == status, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) == 2
    return capsys.readouterr().err


def test_the_commands_of_the_guide(store: Store, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("hello")
    said = []
    for line in re.findall(r"```bash\n(.*?)```", GUIDE, re.DOTALL)[0].splitlines():
        words = shlex.split(line)
        assert words[:2] == ["jupyter", "hyperpod"]
        command = [sys.executable, "-m", "jupyter_hyperpod", *words[2:]]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert "README.md" in said[2] and "5 B" in said[2]
    assert re.search(r"data +ready .* of 1 TB", said[3])
    assert re.search(r"atomic rename +pass", said[4])
    own = tmp_path / "data" / "users" / table.login()
    assert (own / "notes" / "README.md").read_text() == "hello", "what was in a mount stays when it is removed"
    assert own.stat().st_mode & 0o777 == 0o700


def test_every_driver_is_in_the_guide(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(DRIVERS) <= set(re.findall(r"`(\w+)`", GUIDE))
    verified = {one["name"]: one["verified"] for one in ask(capsys, "mount", "drivers")}
    assert {name for name, tested in verified.items() if not tested} == {"nfs", "lustre"}


def test_files_go_in_and_out(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask(capsys, "mount", "add", "d", "--path", str(tmp_path / "d"))
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "a").write_bytes(b"1" * 10)
    (tree / "sub" / "b").write_bytes(b"2" * 20)
    assert len(ask(capsys, "cp", str(tree), "shared://d/copy", "--recursive")) == 2
    assert [one["name"] for one in ask(capsys, "ls", "shared://d/copy")] == ["a", "sub"]
    ask(capsys, "cp", "d://copy/sub/b", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == b"2" * 20
    assert (tmp_path / "d" / "copy" / "a").stat().st_mode & 0o777 == 0o600
    assert "give --recursive" in refused(capsys, "cp", str(tree), "shared://d/x")
    assert "cannot be copied into itself" in refused(capsys, "cp", str(tree), str(tree / "in"), "--recursive")
    assert "not there" in refused(capsys, "cp", str(tmp_path / "nothing"), "shared://d/x")
    assert "leaves its mount" in refused(capsys, "cp", str(tree / "a"), "shared://d/../x")
    assert "is on no mount" in refused(capsys, "ls", str(tree))


def test_what_is_read_only_stays_so_and_quotas_are_kept(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(b"x" * 600)
    ask(capsys, "mount", "add", "ro", "--path", str(tmp_path / "ro"), "--read-only")
    ask(capsys, "mount", "add", "q", "--path", str(tmp_path / "q"), "--quota", "1kB")
    assert "'ro' is read-only" in refused(capsys, "cp", str(tmp_path / "file"), "shared://ro/x")
    assert "'ro' is read-only" in refused(capsys, "cp", str(tmp_path / "file"), str(tmp_path / "ro" / "x"))
    ask(capsys, "cp", str(tmp_path / "file"), "shared://q/one")
    assert "would pass its quota of 1 kB" in refused(capsys, "cp", str(tmp_path / "file"), "shared://q/two")
    (found,) = ask(capsys, "df", "q")
    assert (found["used_bytes"], found["quota_bytes"]) == (600, 1000)


def test_bad_use_is_one_clear_line(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "belongs to `mount add`, not to `mount list`" in refused(capsys, "mount", "list", "--driver", "nfs")
    assert "needs the name of a mount" in refused(capsys, "mount", "check")
    assert "needs --path" in refused(capsys, "mount", "add", "x")
    assert "has no repository" in refused(capsys, "mount", "files", "shared")
    assert "known mounts: shared" in refused(capsys, "mount", "attach", "x")
    assert "cannot be removed" in refused(capsys, "mount", "remove", "shared")
    assert "holds a password" in refused(
        capsys, "mount", "add", "x", "--driver", "juicefs", "--source", "redis://a:b@c"
    )
    ask(capsys, "mount", "add", "n", "--driver", "nfs", "--source", "h:/e", "--path", str(tmp_path / "n"))
    assert "mount 'n' is detached" in refused(capsys, "ls", "shared://n")
    assert "mount 'n' is detached" in refused(capsys, "mount", "check", "n")


def test_the_same_in_a_cell(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}), colors="nocolor")
    shell.run_line_magic("load_ext", "jupyter_hyperpod")
    shell.run_cell(f"%hyperpod mount add d --path {tmp_path / 'd'}").raise_error()
    assert "shared://d/" in capsys.readouterr().out
    (tmp_path / "file").write_text("x")
    shell.run_cell(f"%hyperpod cp {tmp_path / 'file'} shared://d/").raise_error()
    assert [one["name"] for one in shell.run_cell("%hyperpod ls shared://d").result] == ["file"]
    assert {one["name"]: one["state"] for one in shell.run_cell("%hyperpod df").result} == {
        "shared": "ready",
        "d": "ready",
    }
    assert isinstance(shell.run_cell("%hyperpod umount x").error_in_exec, NotFound)
    with provisionalcompleter():
        line = "%hyperpod mount attach "
        assert "d" in [completion.text for completion in shell.Completer.completions(line, len(line))]


def test_a_job_takes_the_table_as_it_is(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask(capsys, "mount", "add", "fsx", "--path", str(tmp_path / "here"), "--node-path", "/fsx")
    from jupyter_hyperpod.supervisor.launch import environment

    fields = jobs.complete({})
    assert "mounts" not in fields
    spec = jobs.make_spec(fields | {"mounts": jobs.mounts_of(store)}, "0" * 64)
    made = store.create_job(spec)
    told = json.loads(environment(store, made, made.spec())["HYPERPOD_MOUNTS"])
    assert told == {"shared": str(store.shared), "fsx": "/fsx"}


def test_a_repository_from_the_command_line(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its objects are files here: fsspec reads a directory as it reads a bucket."""
    (tmp_path / "bucket" / "sub").mkdir(parents=True)
    (tmp_path / "bucket" / "a").write_text("a")
    (tmp_path / "bucket" / "sub" / "b").write_text("bb")
    ask(capsys, "mount", "add", "r", "--path", str(tmp_path / "r"), "--repository", f"file://{tmp_path / 'bucket'}")
    assert ask(capsys, "mount", "import", "r")["files"] == []
    assert {one["name"]: one["state"] for one in ask(capsys, "ls", "shared://r")} == {"a": "released", "sub": ""}
    assert ask(capsys, "ls", "shared://r/sub")[0]["state"] == "released"
    assert ask(capsys, "mount", "import", "r", "sub")["files"] == ["sub/b"]
    ask(capsys, "cp", "shared://r/a", str(tmp_path / "read"))
    assert (tmp_path / "read").read_text() == "a", "the first read brings the content"
    (tmp_path / "new").write_text("new")
    ask(capsys, "cp", str(tmp_path / "new"), "shared://r/new")
    assert (tmp_path / "bucket" / "new").read_text() == "new", "what cp writes is exported"
    assert ask(capsys, "mount", "release", "r", "sub")["files"] == ["sub/b"]
    found = {one["path"]: one["state"] for one in ask(capsys, "mount", "files", "r")}
    assert found == {"a": "imported", "new": "exported", "sub/b": "released"}


def test_submitting_never_waits_for_a_mount(store: Store, tmp_path: Path) -> None:
    """The table is read, no mount is asked."""
    table.add(store, table.default_mount(store).__class__("x", str(tmp_path / "x"), "/x"))
    assert [spec.name for spec in jobs.mounts_of(store)] == ["x"]
    with pytest.raises(Conflict):
        table.add(store, table.get(store, "x"))
