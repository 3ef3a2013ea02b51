"""Jobs in other environments than the cluster's own: preloaded, too, and as mortal as any job of their node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_hyperpod.backends.local import foreign
from jupyter_hyperpod.backends.types import HEAD
from jupyter_hyperpod.system.processes import Identity, alive, identify, is_stopped, session_members, start_ticks
from tests.test_local_backend import Bench, Wait

TREE = Path(__file__).resolve().parents[1]


def make_environment(path: Path, folders: list[str]) -> str:
    """Another virtual environment; packages of ``folders`` are importable there. Returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    (packages,) = path.glob("lib/python*/site-packages")
    (packages / "shared.pth").write_text("".join(f"{folder}\n" for folder in folders))
    return str(path / "bin" / "python")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = [folder for folder in sys.path if folder.endswith("site-packages")]
    return make_environment(tmp_path_factory.mktemp("environment") / "venv", [str(TREE), *found])


@pytest.fixture
def bench(tmp_path: Path, eventually: Wait) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    try:
        eventually(bench.ready)
        yield bench
    finally:
        arms = [arm for node in (bench.host.head, *bench.host.nodes.values()) for arm in node.arms]
        bench.host.close()
        assert not any(alive(arm) for arm in arms)
        assert list(bench.cluster.glob("*.sock")) == []


def sleeping(bench: Bench, python: str, eventually: Wait, node: str = "node-1") -> tuple[Identity, list[int]]:
    """Start a job that sleeps, with a child; returns its arm, and all processes of the arm's session."""
    assert bench.start(bench.plan("sleep", python=python), node)
    eventually(lambda: bench.turn() and "child" in bench.log(node))
    place = bench.host.head if node == HEAD else bench.host.nodes[node]
    eventually(lambda: bench.turn() and place.arms and place.jobs["job-aaaaaaaa"].pid)
    (arm,) = place.arms
    return arm, session_members(arm)


def zygotes(bench: Bench) -> list[int]:
    """The preloaded interpreters of other environments."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            zygote = bench.host._zygote.identity
            here = (
                str(bench.cluster).encode() in words and b"jupyter_hyperpod.backends.local.environment_zygote" in words
            )
            if here and zygote is not None and parent == zygote.pid:
                found.append(int(name))
    return found


def test_jobs_of_an_environment_are_forked_from_one_interpreter(bench: Bench, python: str, eventually: Wait) -> None:
    for number, node in enumerate(("node-1", "node-2", "node-1", HEAD), 1):
        assert bench.start(bench.plan("7", python=python), node)
        eventually(lambda number=number: len(bench.exits()) == number)
    assert [(r.job_id, r.node, r.status) for r in bench.exits()] == [
        ("job-aaaaaaaa", node, 7) for node in ("node-1", "node-2", "node-1", HEAD)
    ]
    assert bench.log("node-2") == f"node-2 hello {bench.directory} ['--x', '1']\nproblem\n"
    assert len(zygotes(bench)) == 1
    assert len({arm for node in bench.host.nodes.values() for arm in node.arms}) == 2


def test_a_job_runs_the_python_of_its_environment(bench: Bench, python: str, eventually: Wait) -> None:
    (bench.directory / "modules" / "tiny_job.py").write_text("import sys\ndef main(): print(sys.prefix, flush=True)\n")
    for count in (1, 2):
        assert bench.start(bench.plan("0", python=python), "node-1")
        eventually(lambda count=count: len(bench.exits()) == count)
    assert bench.log("node-1").split() == [str(Path(python).parents[1])] * 2


@pytest.mark.parametrize("own_process_only", [False, True])
def test_what_kills_a_node_kills_its_arms(bench: Bench, python: str, eventually: Wait, own_process_only: bool) -> None:
    arm, there = sleeping(bench, python, eventually)
    assert len(there) == 3, "the arm, the job and its child"
    node = bench.host.nodes["node-1"]
    assert node.process is not None
    if own_process_only:
        os.kill(node.process.pid, signal.SIGKILL)
    else:
        assert bench.host.signal_node("node-1", signal.SIGKILL)
    eventually(lambda: session_members(arm) == [])
    eventually(lambda: bench.exits() and bench.ready() and node.incarnation == 2)
    assert [(r.job_id, r.status) for r in bench.exits()] == [("job-aaaaaaaa", None)]
    assert bench.start(bench.plan("5", python=python), "node-1")
    eventually(lambda: len(bench.exits()) == 2)


def test_a_node_that_stands_still_has_arms_that_do(bench: Bench, python: str, eventually: Wait) -> None:
    arm, there = sleeping(bench, python, eventually)
    assert bench.host.signal_node("node-1", signal.SIGSTOP)
    eventually(lambda: all(is_stopped(pid) for pid in there))
    eventually(lambda: bench.ready() and bench.host.nodes["node-1"].incarnation == 2)
    eventually(lambda: session_members(arm) == [])


def test_a_killed_arm_is_the_end_of_its_jobs_alone(bench: Bench, python: str, eventually: Wait) -> None:
    arm, there = sleeping(bench, python, eventually)
    os.kill(arm.pid, signal.SIGKILL)
    eventually(bench.exits)
    assert [(r.job_id, r.status) for r in bench.exits()] == [("job-aaaaaaaa", foreign.KILLED)]
    eventually(lambda: not any(start_ticks(pid) for pid in there))
    assert bench.host.nodes["node-1"].incarnation == 1
    assert bench.start(bench.plan("5", python=python), "node-1")
    eventually(lambda: len(bench.exits()) == 2)
    assert bench.exits()[1].status == 5


def test_jobs_outlive_the_interpreter_that_forked_them(bench: Bench, python: str, eventually: Wait) -> None:
    _, there = sleeping(bench, python, eventually)
    (zygote,) = zygotes(bench)
    os.kill(zygote, signal.SIGKILL)
    assert bench.start(bench.plan("5", python=python, job_id="job-bbbbbbbb"), "node-2")
    eventually(bench.exits)
    assert [(r.job_id, r.status) for r in bench.exits()] == [("job-bbbbbbbb", 5)]
    assert all(start_ticks(pid) for pid in there)
    bench.host.signal("job-aaaaaaaa", "node-1", signal.SIGTERM)
    eventually(lambda: len(bench.exits()) == 2)
    assert bench.exits()[1].status == -signal.SIGTERM


@pytest.mark.parametrize("whom", ["the interpreter", "the arm"])
def test_a_job_does_not_wait_for_one_that_stands_still(bench: Bench, python: str, eventually: Wait, whom: str) -> None:
    assert bench.start(bench.plan("1", python=python), "node-1")
    eventually(lambda: len(bench.exits()) == 1 and bench.host.nodes["node-1"].arms)
    (zygote,), (arm,) = zygotes(bench), bench.host.nodes["node-1"].arms
    victim = identify(zygote) if whom == "the interpreter" else arm
    os.kill(victim.pid, signal.SIGSTOP)
    assert bench.start(bench.plan("5", python=python), "node-2" if whom == "the interpreter" else "node-1")
    eventually(lambda: len(bench.exits()) == 2)
    assert bench.exits()[1].status == 5
    eventually(lambda: not alive(victim))


def test_a_head_leads_a_group_in_its_environment_too(bench: Bench, python: str, eventually: Wait) -> None:
    arm, _ = sleeping(bench, python, eventually, HEAD)
    head = bench.host.head.sessions["job-aaaaaaaa"]
    assert len(session_members(head)) == 2 and len(session_members(arm)) == 1
    bench.host.signal("job-aaaaaaaa", HEAD, signal.SIGKILL)
    eventually(bench.exits)
    eventually(lambda: session_members(head) == [])


def test_a_new_supervisor_adopts_arms_and_what_runs_on_them(bench: Bench, python: str, eventually: Wait) -> None:
    arm, _ = sleeping(bench, python, eventually)
    zygote = bench.host._zygote.process
    bench.abandon()
    bench.host = bench.supervise()
    bench.host._zygote.process = zygote
    eventually(bench.ready)
    assert bench.host.nodes["node-1"].arms == [arm]
    assert list(bench.host.nodes["node-1"].jobs) == ["job-aaaaaaaa"]
    bench.host.signal("job-aaaaaaaa", "node-1", signal.SIGKILL)
    eventually(bench.exits)


def test_a_package_installed_meanwhile_renews_the_interpreter(bench: Bench, python: str, eventually: Wait) -> None:
    assert bench.start(bench.plan("1", python=python), "node-1")
    eventually(bench.exits)
    before, arms = zygotes(bench), list(bench.host.nodes["node-1"].arms)
    (packages,) = Path(python).parents[1].glob("lib/python*/site-packages")
    (packages / "newcomer.py").write_text("")
    try:
        for count in (2, 3):
            assert bench.start(bench.plan("2", python=python), "node-1")
            eventually(lambda count=count: len(bench.exits()) == count)
    finally:
        (packages / "newcomer.py").unlink()
    assert [r.status for r in bench.exits()] == [1, 2, 2]
    assert zygotes(bench) != before and bench.host.nodes["node-1"].arms != arms
    eventually(lambda: bench.turn() and not any(alive(arm) for arm in arms))


def test_an_environment_that_cannot_be_preloaded_is_started_for_each_job(
    tmp_path: Path, bench: Bench, eventually: Wait
) -> None:
    older = tmp_path / "python"  # its package has no such module
    older.write_text(f'#!/bin/sh\ncase "$2" in *environment_zygote) exit 1;; esac\nexec {sys.executable} "$@"\n')
    older.chmod(0o755)
    for count in (1, 2):
        assert bench.start(bench.plan("4", python=str(older)), "node-1")
        eventually(lambda count=count: len(bench.exits()) == count)
    assert [r.status for r in bench.exits()] == [4, 4]
    assert bench.log("node-1").count("hello") == 2
    assert bench.host.nodes["node-1"].arms == []


def test_an_environment_that_is_gone_is_refused(tmp_path: Path, bench: Bench, eventually: Wait) -> None:
    assert bench.start(bench.plan("4", python=str(tmp_path / "gone" / "python")), "node-1")
    eventually(bench.exits)
    assert bench.exits()[0].status == 1


def test_a_job_that_is_cancelled_before_its_interpreter_is_ready_never_begins(
    bench: Bench, python: str, eventually: Wait
) -> None:
    assert bench.start(bench.plan("sleep", python=python), "node-1")
    bench.host.signal("job-aaaaaaaa", "node-1", signal.SIGKILL)
    eventually(bench.exits)
    assert [r.status for r in bench.exits()] == [-signal.SIGKILL]
    assert bench.start(bench.plan("5", python=python, job_id="job-bbbbbbbb"), "node-1")
    eventually(lambda: len(bench.exits()) == 2)
    assert bench.exits()[1].status == 5
    assert "child" not in bench.log("node-1")


def test_only_the_owner_may_talk_to_them(bench: Bench, python: str, eventually: Wait) -> None:
    sleeping(bench, python, eventually)
    sockets = list(bench.cluster.glob("*.sock"))
    assert len(sockets) == 6, "the zygote, the head, two nodes, the environment and its arm"
    assert {path.stat().st_mode & 0o777 for path in sockets} == {0o600}
