"""Nodes as processes: real forks, real kills, no torch needed."""

from __future__ import annotations

import os
import selectors
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jupyter_hyperpod.backends import preload
from jupyter_hyperpod.backends.local import supervisor_watchdog
from jupyter_hyperpod.backends.local.host import LocalHost
from jupyter_hyperpod.backends.local.supervisor_watchdog import STOPPED_S, SupervisorWatchdog
from jupyter_hyperpod.backends.source import same_interpreter, source_digest
from jupyter_hyperpod.backends.types import HEAD, ExitReport, LaunchRequest, NodeReport, Report, Surroundings
from jupyter_hyperpod.control.cluster import daemon_environment
from jupyter_hyperpod.core.errors import ClusterError, ProtocolError
from jupyter_hyperpod.core.spec import LaunchPlan
from jupyter_hyperpod.system.json_lines import accept, connect, listen
from jupyter_hyperpod.system.processes import Identity, alive, identify, is_stopped, session_members, signal_group

TINY = """
import os, subprocess, sys, time
def main():
    print(os.environ["HYPERPOD_NODE"], os.environ["WORD"], os.getcwd(), sys.argv[1:], flush=True)
    print("problem", file=sys.stderr, flush=True)
    what = os.environ["WHAT"]
    if what == "raise":
        raise RuntimeError("on purpose")
    if what == "sleep":
        child = subprocess.Popen(["sleep", "1000"])
        print("child", child.pid, flush=True)
        time.sleep(1000)
    return int(what)
if __name__ == "__main__":
    sys.exit(main())
"""
SHAPE = {"node-1": False, "node-2": True}
Wait = Callable[..., object]


class Bench:
    """A host with its selector turned by hand."""

    def __init__(
        self,
        directory: Path,
        preload: tuple[str, ...] = ("tiny_job",),
        isolated: bool = False,
        shape: Mapping[str, bool] = SHAPE,
    ) -> None:
        self.directory = directory
        self.isolated = isolated
        self.cluster = directory / "cluster"
        self.cluster.mkdir(mode=0o700, exist_ok=True)
        modules = directory / "modules"
        modules.mkdir(exist_ok=True)
        (modules / "tiny_job.py").write_text(TINY)
        self.environment = daemon_environment(os.environ)
        paths = [str(modules), self.environment.get("PYTHONPATH", "")]
        self.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self.reports: list[Report] = []
        self.preload, self.shape = preload, shape
        self.host = self.supervise()

    def supervise(self) -> LocalHost:
        self.selector = selectors.DefaultSelector()
        surroundings = Surroundings(
            self.cluster, self.selector, self.reports.append, self.environment, self.preload, self.isolated
        )
        host = LocalHost(surroundings)
        host.open(self.shape)
        return host

    def abandon(self) -> None:
        """Forget everything, as a killed supervisor does; only descriptors are closed."""
        for node in (self.host.head, *self.host.nodes.values()):
            self.host._detach(node)
        if self.host._zygote._channel is not None:
            self.host._zygote._channel.close()
        self.selector.close()

    def start(self, plan: LaunchPlan, node: str) -> bool:
        if node == HEAD:
            return self.host.launch_head(plan)
        return self.host.launch(plan, LaunchRequest((node,))).exception() is None

    def turn(self, seconds: float = 0.02) -> bool:
        for key, _ in self.selector.select(seconds):
            key.data()
        self.host.tick(time.monotonic())
        return True

    def ready(self) -> bool:
        self.turn()
        return all(node.state == "idle" for node in (self.host.head, *self.host.nodes.values()))

    def exits(self) -> list[ExitReport]:
        self.turn()
        return [report for report in self.reports if isinstance(report, ExitReport)]

    def plan(
        self, what: str, *, warm_key: str | None = None, job_id: str = "job-aaaaaaaa", python: str = sys.executable
    ) -> LaunchPlan:
        return LaunchPlan(
            job_id=job_id,
            module="tiny_job",
            head_module="tiny_job",
            arguments=("--x", "1"),
            env={"WORD": "hello", "WHAT": what, "PYTHONPATH": self.environment["PYTHONPATH"]},
            python=python,
            working_directory=str(self.directory),
            log_directory=str(self.directory / "logs"),
            warm_key=self.host.warm_key if warm_key is None else warm_key,
        )

    def log(self, node: str) -> str:
        path = self.directory / "logs" / f"{node}.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def bench(tmp_path: Path, eventually: Wait) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    try:
        eventually(bench.ready)
        yield bench
    finally:
        bench.host.close()


def test_an_interpreter_for_heads_gives_way_when_nodes_are_wanted_and_the_heads_go_on(
    tmp_path: Path, eventually: Wait
) -> None:
    bench = Bench(tmp_path, ("tiny_job", "wave"), shape={})
    try:
        eventually(bench.ready)
        first, head = bench.host._zygote.identity, bench.host.head.process
        assert bench.start(bench.plan("sleep"), HEAD)
        eventually(lambda: bench.turn() and "child" in bench.log(HEAD))
        bench.host.extend(SHAPE)
        eventually(lambda: bench.ready() and bench.host._zygote.ready)
        assert bench.host._zygote.identity != first and bench.host.head.process == head
        assert bench.exits() == []
        assert bench.start(bench.plan("7", job_id="job-bbbbbbbb"), "node-1")
        eventually(bench.exits)
        assert [(r.job_id, r.node, r.status) for r in bench.exits()] == [("job-bbbbbbbb", "node-1", 7)]
    finally:
        bench.host.close()


def test_a_forked_process_is_as_if_started_with_python_m(bench: Bench, eventually: Wait) -> None:
    assert bench.start(bench.plan("7"), "node-1")
    eventually(bench.exits)
    assert [(r.job_id, r.node, r.status) for r in bench.exits()] == [("job-aaaaaaaa", "node-1", 7)]
    assert bench.log("node-1") == f"node-1 hello {bench.directory} ['--x', '1']\nproblem\n"


def test_other_source_is_started_cold_and_says_the_same(bench: Bench, eventually: Wait) -> None:
    assert bench.start(bench.plan("3", warm_key="another digest"), "node-1")
    eventually(bench.exits)
    assert [r.status for r in bench.exits()] == [3]
    assert bench.log("node-1") == f"node-1 hello {bench.directory} ['--x', '1']\nproblem\n"


def test_an_exception_in_a_forked_process_is_status_1_with_a_traceback(bench: Bench, eventually: Wait) -> None:
    bench.start(bench.plan("raise"), "node-1")
    eventually(bench.exits)
    assert [r.status for r in bench.exits()] == [1]
    assert "RuntimeError: on purpose" in bench.log("node-1")


def test_killing_a_node_kills_all_that_runs_on_it_and_a_new_one_takes_its_name(bench: Bench, eventually: Wait) -> None:
    bench.start(bench.plan("sleep"), "node-1")
    eventually(lambda: bench.turn() and "child" in bench.log("node-1"))
    old = bench.host.nodes["node-1"].process
    assert old is not None and len(session_members(old)) == 3
    assert bench.host.signal_node("node-1", signal.SIGKILL)
    node = bench.host.nodes["node-1"]
    eventually(lambda: bench.turn() and node.incarnation == 2)
    assert (node.state, node.reason) == ("starting", "starts again: its process ended")
    eventually(lambda: bench.exits() and bench.ready())
    assert bench.exits()[0].status is None
    assert bench.host.nodes["node-1"].incarnation == 2
    assert session_members(old) == []
    assert NodeReport("node-1", False, "its process ended") in bench.reports


def test_when_only_the_nodes_own_process_dies_nothing_of_it_goes_on(bench: Bench, eventually: Wait) -> None:
    bench.start(bench.plan("sleep"), "node-1")
    eventually(lambda: bench.turn() and "child" in bench.log("node-1"))
    old = bench.host.nodes["node-1"].process
    assert old is not None
    os.kill(old.pid, signal.SIGKILL)
    eventually(lambda: bench.ready() and bench.host.nodes["node-1"].incarnation == 2)
    eventually(lambda: session_members(old) == [])


def test_a_node_that_stands_still_is_replaced(bench: Bench, eventually: Wait) -> None:
    bench.host.signal_node("node-1", signal.SIGSTOP)
    eventually(lambda: bench.turn() and bench.ready() and bench.host.nodes["node-1"].incarnation == 2)
    assert any(isinstance(r, NodeReport) and "did not answer" in r.reason for r in bench.reports)


def test_heads_live_beside_each_other_and_die_alone(bench: Bench, eventually: Wait) -> None:
    for job_id in ("job-aaaaaaaa", "job-bbbbbbbb"):
        bench.start(bench.plan("sleep", job_id=job_id), HEAD)
    eventually(lambda: bench.turn() and bench.log(HEAD).count("child") == 2)
    bench.host.signal("job-aaaaaaaa", HEAD, signal.SIGKILL)
    eventually(bench.exits)
    assert [(r.job_id, r.status) for r in bench.exits()] == [("job-aaaaaaaa", -signal.SIGKILL)]
    assert list(bench.host.head.jobs) == ["job-bbbbbbbb"]


def test_a_new_supervisor_adopts_nodes_and_what_runs_on_them(bench: Bench, eventually: Wait) -> None:
    bench.start(bench.plan("sleep"), "node-1")
    jobs = bench.host.nodes["node-1"].jobs
    eventually(lambda: bench.turn() and "child" in bench.log("node-1") and all(handle.pid for handle in jobs.values()))
    before = {name: node.process for name, node in bench.host.nodes.items()}
    handles = dict(bench.host.nodes["node-1"].jobs)
    zygote = bench.host._zygote.process
    bench.abandon()
    bench.host = bench.supervise()
    bench.host._zygote.process = zygote
    eventually(bench.ready)
    assert {name: node.process for name, node in bench.host.nodes.items()} == before
    assert bench.host.nodes["node-1"].jobs == handles
    assert all(node.incarnation == 1 for node in bench.host.nodes.values())


def test_nodes_outlive_the_zygote_and_a_new_one_is_started(bench: Bench, eventually: Wait) -> None:
    zygote = bench.host._zygote.identity
    assert zygote is not None
    os.kill(zygote.pid, signal.SIGKILL)
    eventually(lambda: bench.turn() and bench.host._zygote.ready and bench.host._zygote.identity != zygote)
    assert all(node.incarnation == 1 and node.state == "idle" for node in bench.host.nodes.values())
    bench.host.signal_node("node-1", signal.SIGKILL)
    eventually(lambda: bench.ready() and bench.host.nodes["node-1"].incarnation == 2)


def test_sockets_and_logs_are_their_owners_alone(bench: Bench, eventually: Wait) -> None:
    bench.start(bench.plan("0"), "node-1")
    eventually(bench.exits)
    for path in [*bench.cluster.glob("*.sock"), *bench.cluster.glob("logs/*"), bench.directory / "logs/node-1.log"]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((bench.directory / "logs").stat().st_mode) == 0o700


def test_closing_leaves_no_process_and_no_socket(bench: Bench) -> None:
    processes = [node.process for node in (bench.host.head, *bench.host.nodes.values())]
    bench.host.close()
    assert not any(alive(process) for process in processes if process)
    assert list(bench.cluster.glob("*.sock")) == []


def test_the_zygote_begins_again_without_a_module_that_starts_threads(tmp_path: Path, eventually: Wait) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
    )
    bench = Bench(tmp_path, preload=("tiny_job", "threaded"))
    try:
        eventually(bench.ready)
        assert "beginning again without it" in (bench.cluster / "logs/warm.log").read_text()
        assert os.listdir(f"/proc/{bench.host.nodes['node-1'].pid}/task") == [str(bench.host.nodes["node-1"].pid)]
    finally:
        bench.host.close()


def test_a_watchdog_that_stood_still_itself_ends_no_supervisor_that_is_only_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Wait
) -> None:
    """When a machine goes on that stood still, the watchdog may run before the supervisor does."""
    now_s = [1000.0]
    monkeypatch.setattr(supervisor_watchdog, "time", SimpleNamespace(monotonic=lambda: now_s[0], time=time.time))
    watchdog, channel = SupervisorWatchdog(tmp_path, lambda arguments: None), cast(Any, object())
    with subprocess.Popen(["sleep", "1000"]) as process:
        real = identify(process.pid)
        watchdog.heard({"successor": ["x"], "mark": "sock", "supervisor": [real.pid, real.start]}, channel)
        watchdog.check()
        process.send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: is_stopped(process.pid))
            for away_s in (60.0, 1.0, 60.0, 0.5):
                now_s[0] += away_s
                watchdog.check()
                assert alive(real), "only 1.5 s are its own"
            watchdog.heard({"op": "ping"}, channel)
            for _ in range(2):
                now_s[0] += STOPPED_S / 2
                watchdog.check()
                assert alive(real)
            now_s[0] += 0.1
            watchdog.check()
            assert process.wait(60) == -signal.SIGKILL, "it is stopped, and the watchdog is not"
        finally:
            process.kill()


def test_a_module_that_cannot_be_imported_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert preload.preload(["json", "no_such_module_at_all"]) == ["json"]
    assert "no_such_module_at_all is not preloaded" in capsys.readouterr().err


def test_a_reused_pid_is_not_signalled() -> None:
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as process:
        real = identify(process.pid)
        assert not signal_group(Identity(real.pid, real.start - 1), signal.SIGKILL)
        assert alive(real) and not alive(Identity(real.pid, real.start - 1))
        assert signal_group(real, signal.SIGKILL)


def test_a_socket_path_may_be_longer_than_the_kernel_allows(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120) / ("e" * 120)
    deep.mkdir(parents=True)
    with listen(deep, "x.sock") as listener:
        client = connect(deep, "x.sock")
        assert client is not None
        server = accept(listener)
        assert server is not None
        client.send({"a": 1})
        assert server.receive() == [{"a": 1}]
        client.close()
        server.close()


def test_a_stale_socket_is_nobody_and_is_replaced(tmp_path: Path) -> None:
    listen(tmp_path, "x.sock").close()
    assert (tmp_path / "x.sock").exists()
    assert connect(tmp_path, "x.sock") is None
    listen(tmp_path, "x.sock").close()


def test_nonsense_and_silence_on_a_socket_are_errors(tmp_path: Path) -> None:
    with listen(tmp_path, "x.sock") as listener:
        client = connect(tmp_path, "x.sock")
        assert client is not None
        server = accept(listener)
        assert server is not None
        server._socket.sendall(b"[1]\n")
        with pytest.raises(ProtocolError, match="expected a JSON object"):
            client.ask({"op": "x"}, 1.0)
        with pytest.raises(ClusterError, match="no answer within"):
            client.ask({"op": "x"}, 0.01)
        server.close()
        with pytest.raises(ClusterError):
            client.ask({"op": "x"}, 1.0)
        client.close()


def test_a_package_that_is_installed_meanwhile_makes_a_preloaded_interpreter_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    before = source_digest()
    assert source_digest() == before
    (site / "package-2.0.dist-info").mkdir()
    assert source_digest() != before


def test_an_interpreter_has_several_names_in_one_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.path.realpath(sys.executable)
    for environment in ("one", "other"):
        (tmp_path / environment).mkdir()
        for name in ("python", "python3"):
            (tmp_path / environment / name).symlink_to(real)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "one" / "python"))
    assert same_interpreter(str(tmp_path / "one" / "python3"))
    assert not same_interpreter(str(tmp_path / "other" / "python"))
    assert not same_interpreter(real)
