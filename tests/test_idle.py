"""A local cluster that nobody uses ends by itself, and comes back as it was; one that has a job goes on."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from traitlets import TraitError

from jupyter_hyperpod.backends.types import HostNode
from jupyter_hyperpod.control import cluster as control
from jupyter_hyperpod.control import jobs, report
from jupyter_hyperpod.control.clusters import shape
from jupyter_hyperpod.control.schedules import schedule_file
from jupyter_hyperpod.control.schedules.schedule_file import Schedule
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.core.views import new_cluster_view
from jupyter_hyperpod.server.extension import HyperpodExtension
from jupyter_hyperpod.storage.journal_writer import JournalWriter
from jupyter_hyperpod.storage.store import JobStore, Store
from jupyter_hyperpod.supervisor.entry import JobEntry
from jupyter_hyperpod.supervisor.idle_watch import HIDDEN, IdleWatch
from jupyter_hyperpod.supervisor.scheduled import ScheduleWatch
from tests.conftest import running_cluster

Wait = Callable[..., Any]
COUNT = """
import os, time
number = 0
while not os.path.exists(os.environ["HYPERPOD_JOB_DIR"] + "/go"):
    print("number", number, flush=True)
    number += 1
    time.sleep(0.05)
"""


@pytest.fixture
def short(store: Store) -> Iterator[Store]:
    """A cluster of one node and a queue, which ends after two seconds without use."""
    with pytest.MonkeyPatch.context() as patch:
        size = {"nodes": 1, "spares": 0, "queues": {"research": 1}}
        yield from running_cluster(store, patch, "TEST_IDLE_MARK", ready=False, idle_timeout_s=2.0, **size)


@pytest.mark.slow
def test_a_job_keeps_a_cluster_and_without_one_it_ends_and_comes_back_as_it_was(short: Store, eventually: Wait) -> None:
    job_id = jobs.submit(short, COUNT, nodes=1, queue="research")

    def counted() -> int:
        text = "".join(piece["text"] for piece in jobs.job_view(short, job_id)["output"])
        return max(map(int, re.findall(r"number (\d+)", text)), default=0)

    eventually(lambda: counted() >= 80, 60, message="it is to run for twice as long as a cluster may be idle")
    assert control.status(short)["state"] == "running" and control.status(short)["idle"] is None
    (short.jobs / job_id / "go").touch()
    assert jobs.wait(short, job_id, timeout_s=60)["state"] == "succeeded"

    eventually(lambda: control.status(short)["idle"], message="nobody says when it ends")
    eventually(lambda: control.status(short)["state"] == "stopped")
    view = control.status(short)
    assert "it ended by itself after 2.0 s without a job" in view["reason"] and view["nodes"] == []
    assert view["idle"]["ends_s"] - view["idle"]["since_s"] >= 1.9
    eventually(lambda: not control.connectable(short) and list(short.cluster.glob("supervisor.*")))
    assert not (short.cluster / HIDDEN).exists() and list(short.cluster.glob("*.sock")) == []

    control.ensure_started(short)
    answer = control.request(short, {"op": "status"})
    assert (answer["nodes"], answer["spares"], answer["queues"]) == (1, 0, {"research": 1})
    control.ensure_started(short, idle_timeout_s=math.inf)
    eventually(lambda: json.loads((short.cluster / shape.IDLE).read_text())["timeout_s"] is None)
    control.stop(short)
    assert shape.usual_shape(short) == shape.DEFAULT_SHAPE, "somebody stopped it: the next one begins anew"


class StandIn:
    """A stand-in for a supervisor, without processes: it only has what `IdleWatch` looks at."""

    def __init__(self, store: Store, happens: Callable[[StandIn], object] = lambda cluster: None) -> None:
        self.store, self.directory = store, store.cluster
        self.host: Any = type("NoNodes", (), {"nodes": {}, "head": HostNode("head", "idle")})()
        self.journal = JournalWriter(store.cluster_events, "supervisor")
        self.entries: dict[str, JobEntry] = {}
        self.reading: dict[str, JobEntry] = {}
        self.settled: set[str] = set()
        self.shape = {"node-1": False}
        self.scheduled = ScheduleWatch(store)
        self.stopping, self.reason = False, ""
        self.now_s = 1000.0
        self.idle = IdleWatch(self, lambda: self.now_s)
        self._happens = happens

    def load(self, job: JobStore) -> None:
        self.reading[job.id] = JobEntry(self.store, job)

    def read_on(self) -> None:
        pass

    def attend(self, patience_s: float) -> bool:
        assert not (self.directory / control.SOCKET).exists(), "clients still find it"
        self._happens(self)
        return False

    def stop(self, reason: str) -> None:
        self.stopping, self.reason = True, reason

    def close(self) -> None:
        for entry in self.reading.values():
            entry.journal.close()
        self.journal.close()


def submitted(cluster: StandIn) -> None:
    jobs._create(cluster.store, jobs.make_spec(jobs.complete({"name": "late"}), cluster.store.put_cell("pass")))


@pytest.mark.parametrize(
    ("happens", "ends"),
    [
        (lambda cluster: None, True),
        (submitted, False),
        (lambda cluster: cluster.idle.used(), False),
    ],
    ids=["nothing", "a job", "a request"],
)
def test_what_comes_at_the_last_moment_keeps_it(store: Store, happens: Callable[[StandIn], object], ends: bool) -> None:
    shape.keep_idle_timeout(store, 60.0)
    cluster = StandIn(store, happens)
    (store.cluster / control.SOCKET).touch()
    cluster.now_s += 30.0
    cluster.idle.step()
    assert not cluster.stopping
    cluster.now_s += 31.0
    cluster.idle.step()
    cluster.close()
    assert cluster.stopping is ends is cluster.idle.ended
    assert (store.cluster / control.SOCKET).exists() is not ends
    ends_s = control.status(store)["idle"]["ends_s"]
    assert ends_s == pytest.approx(time.time() + 30, abs=10)


@pytest.mark.parametrize("place", ["head", "node-1"])
def test_a_job_that_runs_keeps_it_also_where_its_journal_could_not_be_read(store: Store, place: str) -> None:
    shape.keep_idle_timeout(store, 60.0)
    cluster = StandIn(store)
    (store.cluster / control.SOCKET).touch()
    node = cluster.host.head if place == "head" else cluster.host.nodes.setdefault(place, HostNode(place, "idle"))
    node.jobs["train-1234"] = None
    cluster.settled.add("train-1234")  # as the supervisor does where it leaves a job alone
    cluster.now_s += 61.0
    cluster.idle.step()
    assert not cluster.stopping
    node.jobs.clear()
    cluster.now_s += 61.0
    cluster.idle.step()
    cluster.close()
    assert cluster.stopping


def test_nodes_that_start_keep_it_and_the_time_begins_when_they_are_up(store: Store) -> None:
    shape.keep_idle_timeout(store, 3.0)
    cluster = StandIn(store)
    (store.cluster / control.SOCKET).touch()
    node = cluster.host.nodes.setdefault("node-1", HostNode("node-1", "starting"))
    for _ in range(2):
        cluster.now_s += 2.0
        cluster.idle.step()
    node.state = "idle"
    cluster.now_s += 2.0
    cluster.idle.step()
    assert not cluster.stopping
    cluster.now_s += 2.0
    cluster.idle.step()
    cluster.close()
    assert cluster.stopping


def test_a_schedule_keeps_it_unless_it_is_paused_or_over(store: Store) -> None:
    watch, now_s = ScheduleWatch(store), time.time()
    assert watch.waiting() == ()
    for name, paused in (("nightly", False), ("paused", True)):
        schedule = Schedule(name, "0 3 * * *", "UTC", now_s, now_s, paused=paused)
        fields = jobs.complete({"name": name})
        schedule_file.create(store, "pass", fields, schedule)
    watch.step()
    assert watch.waiting() == ("nightly",)
    (store.root / "schedules" / "paused" / schedule_file.FILE).write_text("{")
    watch.step()
    watch.close()
    assert watch.waiting() == ("nightly", "paused"), "one that cannot be read may have a time to come"


def test_how_long_a_cluster_may_be_idle(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = store.cluster
    monkeypatch.delenv(shape.IDLE_VARIABLE, raising=False)
    assert shape.idle_timeout(directory) == shape.DEFAULT_IDLE_S
    monkeypatch.setenv(shape.IDLE_VARIABLE, "30min")
    assert shape.idle_timeout(directory) == 1800.0
    shape.keep_idle_timeout(store, math.inf)
    assert shape.idle_timeout(directory) == math.inf
    (directory / shape.IDLE).unlink()
    monkeypatch.setenv(shape.IDLE_VARIABLE, "soon")
    with pytest.raises(SpecError, match=r"\$JUPYTER_HYPERPOD_IDLE_TIMEOUT: duration 'soon'"):
        shape.idle_timeout(directory)
    for text in ("0", "10ms"):
        with pytest.raises(SpecError, match="too short; write for example 30min or 4h, or off for never"):
            shape.parse_idle_timeout(text)


def test_a_servers_setting_is_a_time() -> None:
    assert HyperpodExtension(idle_timeout="off").idle_timeout == "off"
    with pytest.raises(TraitError, match="HyperpodExtension.idle_timeout: duration 'soon'"):
        HyperpodExtension(idle_timeout="soon")


def test_the_command_line_says_when_it_ends_and_when_it_did() -> None:
    now_s = time.time()
    view = new_cluster_view() | {"state": "running", "idle": {"since_s": now_s, "ends_s": now_s + 725.0}}
    assert report.cluster_line(view) == "cluster running · idle, ends in 12 min"
    view |= {"state": "stopped", "reason": "it ended by itself", "idle": {"since_s": 0.0, "ends_s": now_s - 7200}}
    assert report.cluster_line(view).startswith("cluster stopped · it ended by itself (2 h")
