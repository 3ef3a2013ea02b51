"""What nodes use: how often it is sampled, how events gather it, and what a real job's processes use."""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.control.runs.resources import newest_table, resources_for_browser, shown
from jupyter_hyperpod.core.events import Event, encode
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.runtime.agent import node_sampler
from jupyter_hyperpod.runtime.agent.node_sampler import NodeSampler, interval_s
from jupyter_hyperpod.runtime.comm.mesh import all_gather
from jupyter_hyperpod.runtime.coordinator.node_samples import GATHERED_S, NODES_AT_ONCE, NodeSamples
from jupyter_hyperpod.runtime.coordinator.roster import Member
from jupyter_hyperpod.runtime.progress import WorkerProgress
from jupyter_hyperpod.runtime.protocol.facts import NodeSampled
from jupyter_hyperpod.storage.resources.node_uses import NodeUses
from jupyter_hyperpod.storage.resources.samples import PHASES, Use, uses
from jupyter_hyperpod.system import usage, variables
from jupyter_hyperpod.system.addresses import SOCKETS_ONLY_VARIABLE
from tests.runtime.conftest import Submit
from tests.runtime.meshes import BOUND_S, meshes, nothing, together

KILOBYTE = 1000
TIMES = (0, 0.0, 0.0, 0.0)


def sampler(backend: str = "slurm", nodes: int = 2) -> NodeSampler:
    return NodeSampler(JobSpec("job", "0" * 64, nodes=nodes, backend=backend))


def sample(**more: Any) -> NodeSampled:
    known = {"ms": 10_000, "every_s": 10.0, "cpu_ms": 123_456, "cores": 96, "memory": 123 << 30, "limit": 1 << 40}
    known |= {"steps": 1234, "compute_ms": 8000, "exchange_ms": 1000, "waits_ms": 500}
    return NodeSampled(**known | {"received": 987_654_321, "sent": 987_654_321} | more)


def varied(at: int) -> NodeSampled:
    memory, sent, spent = (123 << 30) + at, 987_654_000 + at, {"compute_ms": 8000 + at % 999, "waits_ms": 500 + at % 99}
    return sample(cpu_ms=100_000 + at, memory=memory, sent=sent, exchange_ms=1000 + at % 999, **spent)


def test_samples_come_quickly_at_first_and_rarely_of_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "tree", lambda pid: [pid])
    monkeypatch.setattr(node_sampler, "PART", 0)  # how long it takes here is no matter
    clock = time.time()
    monkeypatch.setattr(time, "time", lambda: clock)
    one, at, moments = sampler(), 0.0, []
    while at < 60.0:
        if (found := one.due(at, TIMES)) is not None:
            moments.append((at, found.every_s))
            assert found.memory >= 0 and found.received is not None
        at, clock = at + 0.1, clock + 0.1
    assert moments[0][0] < 2.0 and 7 <= len(moments) <= 10
    assert [every_s for _, every_s in moments[:5]] == [1.0, 2.0, 4.0, 8.0, 10.0]
    assert interval_s(2) == 10.0 and interval_s(1000) == 90.0 and interval_s(10_000) == 900.0


def test_a_sample_takes_at_most_a_thousandth_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter([0.0, 0.0, 0.0, 0.05, 0.05, 0.05])
    monkeypatch.setattr(time, "thread_time", lambda: next(spent))
    one = sampler()
    assert one.due(0.0, TIMES) is None and one.due(10.0, TIMES) is not None
    assert one.due(59.0, TIMES) is None and one.due(60.1, TIMES) is not None


def test_the_network_of_a_machine_is_not_that_of_one_of_its_local_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_sampler, "PART", 0)
    for backend, own, counted in (("local", "", False), ("local", "1", True), ("slurm", "", True)):
        monkeypatch.delenv(SOCKETS_ONLY_VARIABLE, raising=False)
        if own:
            monkeypatch.setenv(SOCKETS_ONLY_VARIABLE, own)
        monkeypatch.setattr(usage, "network_bytes", lambda text: text and (1, 1))
        one = sampler(backend)
        one.due(0.0, TIMES)
        found = one.due(100.0, TIMES)
        assert found is not None and (found.received is not None) is counted


def test_where_the_system_does_not_tell_nothing_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    one = sampler()
    assert one.due(0.0, TIMES) is None and one.due(100.0, TIMES) is None


def test_nodes_share_events_and_a_journal_gets_a_kilobyte_per_second_at_most() -> None:
    for nodes in (1, 100, 1000):
        samples, written = NodeSamples(), 0
        began_s = time.monotonic()
        for at in range(nodes):
            member = cast(Member, SimpleNamespace(node=f"ip-10-0-12-{at}"))
            samples._sampled(member, varied(at))
        assert not list(samples.take(began_s)), "others may come"
        now_s = time.monotonic()
        events = list(samples.take(now_s + GATHERED_S + 1.0))
        assert len(events) == -(-nodes // NODES_AT_ONCE)
        for data in events:
            written += len(encode(Event("coordinator.12345678", 123_456, 1795790760.5715117, "nodes.sampled", data)))
        assert sum(len(list(uses(data))) for data in events) == nodes
        assert written / interval_s(nodes) < KILOBYTE
        assert not list(samples.take(now_s + 60.0))


def test_the_newest_sample_of_each_node_is_a_table() -> None:
    use = {"ms": 10_000, "cpu_ms": 5_000, "cores": 2, "memory": 3_000_000_000}
    table = newest_table({"node-10": use, "node-2": use | {"sent": 10_000_000}})
    assert table.headers == ("NODE", ">CPU", ">MEMORY", ">SENT")
    assert [list(row) for row in table.rows] == [["node-2", "25 %", "3 GB", "1 MB/s"], ["node-10", "25 %", "3 GB", "-"]]
    assert newest_table({}).rows == []


BUSY = """
import time
kept = bytearray(300_000_000)
while time.process_time() < 4.0:
    pass
"""


@pytest.mark.slow
def test_a_job_whose_person_wants_no_samples_has_none(job: Submit) -> None:
    both = job(BUSY, nodes=2, spares=0, env={variables.SAMPLES_VARIABLE: "off"}), job(BUSY, nodes=2, spares=0)
    for run in both:
        run.finish()
    without, with_samples = (resources_for_browser(run.store, run.job_id) for run in both)
    assert without["times_s"] == [] and without["lines"] == [], without
    assert len(with_samples["times_s"]) > 1


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


def test_a_sample_says_what_the_steps_of_its_time_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_sampler, "PART", 0)
    one = sampler()

    def spent(now_s: float, *times: Any) -> tuple[Any, ...]:
        found = one.due(now_s, times)
        assert found is not None
        return found.steps, found.compute_ms, found.exchange_ms, found.waits_ms

    one.due(0.0, (5, 1.0, 2.0, 3.0))
    assert spent(100.0, 9, 1.5, 2.25, 3.1) == (4, 500, 250, 100)
    assert spent(200.0, 9, 1.5, 2.25, 3.1) == (None,) * 4
    assert spent(300.0, 2, 0.5, 0.1, 0.0) == (2, 500, 100, 0), "of another worker"


def test_a_worker_shows_what_its_steps_took() -> None:
    progress = WorkerProgress()
    assert progress.times() == TIMES
    for _ in range(3):
        progress.add_step(0.5, 0.25, 0.125)
    assert progress.times() == (3, 1.5, 0.75, 0.375)


@given(
    st.dictionaries(
        st.integers(0, 30),
        st.fixed_dictionaries({"ms": st.integers(1, 20_000)}, optional=dict.fromkeys(PHASES, st.integers(0, 60_000))),
        min_size=1,
    )
)
def test_parts_of_a_sample_are_no_more_than_its_time(places: dict[int, Use]) -> None:
    """A step of several samples was in the samples before, too: all of it is shown, as far as there were some."""
    numbers = sorted(places)
    found = NodeUses(width_s=10, nodes={"node-1": {at: {**places[at], "steps": 1} for at in numbers}})
    phases = shown(found, 0.0)["phases"]["node-1"]
    rows = [phases[name.removesuffix("_ms")] for name in PHASES]
    sums = [sum(parts) for parts in zip(*rows, strict=True)]
    assert all(part <= 1002 for part in sums)
    ms = sum(one["ms"] for one in places.values())
    spent = sum(one.get(name, 0) for one in places.values() for name in PHASES)
    shown_ms = sum(part * places[at]["ms"] for part, at in zip(sums, numbers, strict=True)) / 1000
    assert shown_ms <= min(ms, spent) + 0.002 * ms
    if sums[0] < 990:  # else some may have been before the first
        assert shown_ms >= spent - 0.002 * ms


def test_a_step_that_took_three_samples_is_in_all_of_them() -> None:
    places: dict[int, Use] = {at: {"ms": 10_000} for at in range(4)}
    places[3] |= {"steps": 1, "compute_ms": 24_000, "exchange_ms": 3_000, "waits_ms": 3_000}
    phases = shown(NodeUses(width_s=10, nodes={"node-1": places}), 0.0)["phases"]["node-1"]
    assert phases == {
        "compute": [0, 800, 800, 800],
        "exchange": [0, 100, 100, 100],
        "waits": [0, 100, 100, 100],
        "steps": [0, 0, 0, 1],
    }


UNEVEN = """
import time, torch, jupyter_hyperpod as hp
model = torch.nn.Linear(4, 1)
data = [(torch.ones(4), torch.ones(1))] * 16
with hp.Session(model, torch.optim.SGD(model.parameters(), lr=0.1), data, global_batch=2, micro_batch=1) as session:
    def loss_fn(batch):
        time.sleep(0.2 if session.rank == 0 else 0.05)
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    for step in session.steps(30):
        step.run(loss_fn)
"""


@pytest.mark.slow
def test_the_fast_member_of_a_real_job_waits_for_the_slow_one(job: Submit) -> None:
    run = job(UNEVEN, nodes=2, spares=0)
    run.finish()
    found = resources_for_browser(run.store, run.job_id)
    by_rank = jobs.job_view(run.store, run.job_id)["generations"][0]["nodes"]
    slow, fast = (found["phases"][node] for node in by_rank)
    # The first places have the start, and the last may have the end.
    full = [at for at, steps in enumerate(slow["steps"]) if steps and steps > 2 and fast["steps"][at]]
    assert full, found["phases"]
    for at in full:
        assert slow["compute"][at] > fast["compute"][at] and slow["waits"][at] < fast["waits"][at]
    assert max(fast["waits"][at] for at in full) > 300 > max(slow["waits"][at] for at in full)


def test_an_exchange_waits_until_the_slowest_has_sent_something() -> None:
    """Who comes last waits for nobody: all bytes of the others are there."""
    late = threading.Event()
    found = meshes(3)

    def life(rank: int) -> float:
        mesh = found[rank]
        if rank == 2:
            assert late.wait(BOUND_S)
        else:
            threading.Timer(1.0, late.set).start()
        all_gather(lambda sends, receives: mesh.exchange(sends, receives, -1, nothing), rank, 3, b"x" * 1000)
        return mesh.waited_s

    first, second, last = together(3, life)
    for mesh in found:
        mesh.close()
    assert first > 0.5 and second > 0.5 and last < min(first, second) / 2
