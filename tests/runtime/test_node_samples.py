"""What nodes use: how often it is sampled, how events gather it, and what a real job's processes use."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jupyter_hyperpod.control.runs.resources import resources_for_browser
from jupyter_hyperpod.core.events import Event, encode
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.runtime.agent import node_sampler
from jupyter_hyperpod.runtime.agent.node_sampler import NodeSampler, interval_s
from jupyter_hyperpod.runtime.coordinator.node_samples import GATHERED_S, NODES_AT_ONCE, NodeSamples
from jupyter_hyperpod.runtime.coordinator.roster import Member
from jupyter_hyperpod.runtime.protocol.facts import NodeSampled
from jupyter_hyperpod.runtime.worker.group_base import SOCKETS_ONLY_VARIABLE
from jupyter_hyperpod.storage.resources.samples import uses
from jupyter_hyperpod.system import usage
from tests.runtime.conftest import Submit

KILOBYTE = 1000


def sampler(backend: str = "slurm", nodes: int = 2) -> NodeSampler:
    return NodeSampler(JobSpec("job", "0" * 64, nodes=nodes, backend=backend))


def sample(**more: Any) -> NodeSampled:
    known = {"ms": 10_000, "every_s": 10.0, "cpu_ms": 123_456, "cores": 96, "memory": 123 << 30, "limit": 1 << 40}
    return NodeSampled(**known | {"received": 987_654_321, "sent": 987_654_321} | more)


def test_samples_come_quickly_at_first_and_rarely_of_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "tree", lambda pid: [pid])
    monkeypatch.setattr(node_sampler, "PART", 0)  # how long it takes here is no matter
    clock = time.time()
    monkeypatch.setattr(time, "time", lambda: clock)
    one, at, moments = sampler(), 0.0, []
    while at < 60.0:
        if (found := one.due(at)) is not None:
            moments.append((at, found.every_s))
            assert found.memory >= 0 and found.received is not None
        at, clock = at + 0.1, clock + 0.1
    assert moments[0][0] < 2.0 and 7 <= len(moments) <= 10
    assert [every_s for _, every_s in moments[:5]] == [1.0, 2.0, 4.0, 8.0, 10.0]
    assert interval_s(2) == 10.0 and interval_s(1000) == 60.0 and interval_s(10_000) == 600.0


def test_a_sample_takes_at_most_a_thousandth_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter([0.0, 0.0, 0.0, 0.05, 0.05, 0.05])
    monkeypatch.setattr(time, "thread_time", lambda: next(spent))
    one = sampler()
    assert one.due(0.0) is None and one.due(10.0) is not None
    assert one.due(59.0) is None and one.due(60.1) is not None


def test_the_network_of_a_machine_is_not_that_of_one_of_its_local_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_sampler, "PART", 0)
    for backend, own, counted in (("local", "", False), ("local", "1", True), ("slurm", "", True)):
        monkeypatch.delenv(SOCKETS_ONLY_VARIABLE, raising=False)
        if own:
            monkeypatch.setenv(SOCKETS_ONLY_VARIABLE, own)
        monkeypatch.setattr(usage, "network_bytes", lambda text: text and (1, 1))
        one = sampler(backend)
        one.due(0.0)
        found = one.due(100.0)
        assert found is not None and (found.received is not None) is counted


def test_where_the_system_does_not_tell_nothing_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    one = sampler()
    assert one.due(0.0) is None and one.due(100.0) is None


def test_nodes_share_events_and_a_journal_gets_a_kilobyte_per_second_at_most() -> None:
    for nodes in (1, 100, 1000):
        samples, written = NodeSamples(), 0
        for at in range(nodes):
            member = cast(Member, SimpleNamespace(node=f"ip-10-0-12-{at}"))
            samples._sampled(member, sample(cpu_ms=100_000 + at, memory=(123 << 30) + at, sent=987_654_000 + at))
        now_s = time.monotonic()
        assert not list(samples.take(now_s)), "others may come"
        events = list(samples.take(now_s + GATHERED_S + 1.0))
        assert len(events) == -(-nodes // NODES_AT_ONCE)
        for data in events:
            written += len(encode(Event("coordinator.12345678", 123_456, 1795790760.5715117, "nodes.sampled", data)))
        assert sum(len(list(uses(data))) for data in events) == nodes
        assert written / interval_s(nodes) < KILOBYTE
        assert not list(samples.take(now_s + 60.0))


BUSY = """
import time
kept = bytearray(300_000_000)
while time.process_time() < 4.0:
    pass
"""


@pytest.mark.slow
def test_what_the_processes_of_a_real_job_use(job: Submit) -> None:
    run = job(BUSY, nodes=2, spares=0)
    run.finish()
    found = resources_for_browser(run.store, run.job_id)
    assert found["nodes"] == len(found["lines"]) == 2 and not found["many"]
    assert found["times_s"] == sorted(found["times_s"]) and len(found["times_s"]) > 1
    limit = found["limits"]["limit"]
    for cpu, memory in zip(found["curves"]["cpu"], found["curves"]["memory"], strict=True):
        assert max(one for one in cpu if one is not None) > 5.0, "both are busy, on cores that others use, too"
        assert 300e6 < max(one for one in memory if one is not None) < limit
    assert "received" not in found["curves"] and "gpu" not in found["curves"]
