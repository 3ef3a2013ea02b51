"""What the nodes of a job have used: written, thinned with age and read in places of time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.core.events import Event, decode_event, encode
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage import journal_keeper, segments
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.resources import node_uses
from jupyter_hyperpod.storage.resources.node_uses import FOLDER, fold, read, read_newest
from jupyter_hyperpod.storage.resources.samples import KIND, SUMS, Use, as_event, uses
from jupyter_hyperpod.storage.resources.samples_writer import samples_writer
from jupyter_hyperpod.storage.resources.thinned_samples import thinned
from jupyter_hyperpod.storage.store import JobStore, Store

EVERY_S = 10.0
use = st.fixed_dictionaries(
    {"ms": st.integers(1, 10**6), "cpu_ms": st.integers(0, 10**6), "cores": st.integers(1, 64)},
    optional={name: st.integers(0, 10**12) for name in ("memory", "limit", "received", "gpu_ms", "gpu_memory")},
)
nodes = st.dictionaries(st.sampled_from(["node-1", "node-2", "node-3"]), use, min_size=1)


@pytest.fixture
def job(tmp_path: Path) -> JobStore:
    store = Store(tmp_path / "store").prepare()
    return store.create_job(JobSpec(name="long", cell_digest="0" * 64, nodes=2))


@given(nodes)
def test_an_event_says_what_each_node_has_used(found: dict[str, Use]) -> None:
    line = encode(Event("w", 1, 1.0, KIND, as_event(found, EVERY_S)))
    assert dict(uses(decode_event(line).data)) == found


@given(st.lists(nodes, min_size=1, max_size=60), st.sampled_from([8, 64]))
def test_thinned_samples_are_the_same_in_places_that_are_as_long(found: list[dict[str, Use]], stride: int) -> None:
    """The ends of segments may divide a stretch of time: thinned twice, in parts, gives the same, too."""
    events = [
        Event("w", at + 1, 1e9 + EVERY_S * at + 0.5, KIND, as_event(one, EVERY_S)) for at, one in enumerate(found)
    ]
    lines = [encode(event) for event in events]
    middle = len(lines) // 2
    parts = [*thinned(lines[:middle], 8), *thinned(lines[middle:], 8)]
    for kept in (list(thinned(lines, stride)), list(thinned(parts, stride))):
        after = [decode_event(line) for line in kept]
        assert after[-1].seq == events[-1].seq and len(after) <= len(lines) // stride + 3
        whole, some = ({node: by_width(e, node, stride) for node in ("node-1", "node-2")} for e in (events, after))
        assert whole == some


def by_width(events: list[Event], node: str, stride: int) -> dict[int, Use]:
    found: dict[int, Use] = {}
    for event in events:
        for name, one in uses(event.data):
            at = int(event.time_s // (EVERY_S * stride))
            if name == node:
                known = found.setdefault(at, {})
                for quantity, value in one.items():
                    before = known.get(quantity, 0)
                    known[quantity] = before + value if quantity in SUMS else max(before, value)
    return found


def test_other_lines_are_kept() -> None:
    other = encode(Event("w", 2, 1.0, "warning.raised", {"text": "x"}))
    for lines in ([b"torn", other], [other, b'{"kind":"nodes.sampled"}\n'], [b"[]\n"]):
        assert list(thinned(lines, 8)) == lines


@pytest.mark.parametrize(
    "values",
    [{"ms": "x"}, {"ms": [1]}, {"ms": []}, {"ms": None}, {"ms": 10, "cpu_ms": "much"}, {"ms": -5}, {"ms": 1 << 80}, {}],
)
def test_strange_values_are_left_out(values: dict[str, Any]) -> None:
    for node, found in uses({"nodes": ["a", "b", 3], "values": values, "every_s": 1.0}):
        assert isinstance(node, str) and found.keys() == {"ms"}
    assert not list(uses({"nodes": {}, "values": values})) and not list(uses({"nodes": ["a"], "values": []}))


def write(job: JobStore, count: int, members: int = 2) -> None:
    (job.path / FOLDER).mkdir(exist_ok=True)
    moments = (1e9 + EVERY_S * at + 0.5 for at in range(count))
    with event_writer(job.path / FOLDER, "coordinator", 4000, clock=lambda: next(moments)) as journal:
        for at in range(count):
            found: dict[str, Use] = {
                f"node-{name}": {"ms": 10_000, "cpu_ms": 10 * (at % 1000), "cores": 2, "memory": 1000 + at}
                for name in range(members)
            }
            journal.append(KIND, as_event(found, EVERY_S))


def test_old_samples_are_thinned_and_the_charts_stay_as_they_were(job: JobStore) -> None:
    write(job, 12_000)
    folder = job.path / FOLDER
    before, size = read(job), sum(path.stat().st_size for path in folder.iterdir())
    journal_keeper.keep(job)
    there = segments.in_order(segments.names(folder))
    assert {1, 8, 64} <= {segment.stride for segment in there}
    assert sum(path.stat().st_size for path in folder.iterdir()) < size / 5
    after = read(job)
    assert (after.width_s, after.newest) == (before.width_s, before.newest) and after.width_s % 640 == 0
    for node, places in before.nodes.items():
        sums = [
            {name: sum(use.get(name, 0) for use in found.values()) for name in ("ms", "cpu_ms")}
            for found in (places, after.nodes[node])
        ]
        assert sums[0] == sums[1]
        same = [at for at in places if places[at] == after.nodes[node].get(at)]
        assert len(same) > 0.8 * len(places)
    journal_keeper.keep(job)
    assert segments.in_order(segments.names(folder)) == there


def test_memory_does_not_grow_with_time_or_nodes(job: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_uses, "MOST_NODES", 100)
    found: dict[str, Use] = {f"node-{at}": {"ms": 10_000, "cpu_ms": 1, "cores": 2} for at in range(130)}
    many = fold(Event("w", at + 1, 1e9 + EVERY_S * at, KIND, as_event(found, EVERY_S)) for at in range(1000))
    most = node_uses.PLACES * node_uses.NODES_IN_FULL // 100
    assert (len(many.nodes), many.left_out) == (100, 30)
    assert all(most / 2 <= len(places) <= most for places in many.nodes.values())


def test_what_each_node_has_used_last(job: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_newest(job) == {} and not read(job).nodes
    write(job, 50)
    monkeypatch.setattr(node_uses, "TAIL_BYTES", 500)
    assert read_newest(job)["node-1"] == {"ms": 10_000, "cpu_ms": 490, "cores": 2, "memory": 1049}


def test_what_was_thinned_last_is_not_what_was_used_last(job: JobStore) -> None:
    """The file of joined samples was written after that of the newest ones."""
    write(job, 600)
    before = read_newest(job)
    journal_keeper.join_samples(job.path / FOLDER)
    assert any(one.stride > 1 for one in segments.in_order(segments.names(job.path / FOLDER)))
    assert read_newest(job) == before


def test_a_job_whose_samples_cannot_be_written_goes_on(job: JobStore) -> None:
    (job.path / FOLDER).write_text("in the way")
    said: list[str] = []
    writer = samples_writer(job, said.append)
    assert not writer.write(KIND, as_event({"node-1": {"ms": 1}}, 1.0))
    writer.close()
    (job.path / FOLDER).unlink()
    writer = samples_writer(job, said.append)
    assert writer.write(KIND, as_event({"node-1": {"ms": 1}}, 1.0))
    writer.close()
    assert list(read(job).nodes) == ["node-1"]
