"""Years of steps: segments, snapshots and thinned samples give the same view as the whole journal, in little space."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_hyperpod.core.events import Event, decode_event, encode
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.core.views import View, fold_all, new_job_view
from jupyter_hyperpod.runtime.audit import audit
from jupyter_hyperpod.storage import journal_keeper, segments
from jupyter_hyperpod.storage.folded import SNAPSHOT, FoldedJournal
from jupyter_hyperpod.storage.journal import event_writer, follow_events, read_events, replay_events
from jupyter_hyperpod.storage.journal_search import Search
from jupyter_hyperpod.storage.store import JobStore, Store
from jupyter_hyperpod.storage.thinning import thinned

SEGMENT_BYTES = 20_000


@pytest.fixture
def job(tmp_path: Path) -> JobStore:
    store = Store(tmp_path / "store").prepare()
    return store.create_job(JobSpec(name="long", cell_digest="0" * 64, nodes=2))


def commit(step: int, generation: int = 1, **more: Any) -> dict[str, Any]:
    known = {"step": step, "generation": generation, "loss": 1.0 / step, "loss_hex": (1.0 / step).hex()}
    return known | {"step_time_s": 0.01, "samples": 32, "world_size": 2, "redone": 0, "session": 1} | more


def train(job: JobStore, steps: int, keep_every: int = 0) -> None:
    """Write the journal of a job that loses rank 0 in the middle; ``keep_every`` steps it is kept."""
    half = steps // 2
    with (
        event_writer(job.events, "coordinator", SEGMENT_BYTES) as coordinator,
        event_writer(job.events, "worker-a", SEGMENT_BYTES) as one,
        event_writer(job.events, "worker-b", SEGMENT_BYTES) as two,
    ):
        opened = {"total_steps": steps, "global_batch": 32, "micro_batch": 8, "micro_batches": 4}
        coordinator.append("session.opened", opened | {"parameters": 10, "state_bytes": 80})
        for step in range(1, steps + 1):
            writer = one if step <= half else two
            if step == half + 1:
                lost = {"member": "a", "node": "node-1", "rank": 0, "cause": "process killed", "detail": ""}
                coordinator.append("member.lost", lost)
            first = {"assignment": [["m1", [0, 1]], ["m2", [2, 3]]]} if step in (1, half + 1) else {}
            writer.append("step.committed", commit(step, 1 + (step > half), **first))
            if step % 3 == 0:
                writer.append("metric.logged", {"step": step, "values": {"lr": step / steps}})
            if step % 501 == 0:
                coordinator.append("warning.raised", {"text": f"step {step}"})
            if keep_every and step % keep_every == 0:
                journal_keeper.keep(job)


def without_seen(view: View) -> View:
    return {name: value for name, value in view.items() if name != "seen"}


def test_a_kept_journal_is_small_and_folds_to_the_same_view(job: JobStore, tmp_path: Path) -> None:
    train(job, 30_000)
    whole = read_events(job.events)
    expected = fold_all(new_job_view(job.id), whole)
    before = size(job.events)
    journal_keeper.keep(job)
    assert size(job.events) < before / 3
    kept = read_events(job.events)
    assert [event for event in kept if event.kind not in ("step.committed", "metric.logged")] == [
        event for event in whole if event.kind not in ("step.committed", "metric.logged")
    ], "facts are never removed"
    assert fold_all(new_job_view(job.id), kept) == expected, "the thinned journal alone"
    assert FoldedJournal(job).catch_up() == expected, "from the snapshot"
    assert FoldedJournal(job).poll() == [], "nothing is read twice"
    (job.path / SNAPSHOT).unlink()
    assert FoldedJournal(job).catch_up() == expected
    found = audit(kept)
    assert found.sound, found.problems
    assert (found.steps, found.micro_batches) == (30_000, 120_000)
    assert audit(whole).steps == found.steps


def test_a_journal_that_is_kept_all_the_time_stays_small(job: JobStore) -> None:
    train(job, 60_000, keep_every=2_000)
    view = FoldedJournal(job).catch_up()
    assert (view["step"], view["samples"]) == (60_000, 60_000 * 32)
    strides = [segment.stride for segment in segments.in_order(segments.names(job.events))]
    assert set(strides) == {1, 8}
    assert strides.count(1) < 100
    assert fold_all(new_job_view(job.id), read_events(job.events))["history"] == view["history"]


def size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def test_a_follower_misses_nothing_and_sees_nothing_twice(job: JobStore) -> None:
    follower = follow_events(job.events)
    search = Search(job.events, ("warning.raised", "member.lost"))
    seen: list[Event] = []
    found: list[Event] = []
    half = 8_000
    with event_writer(job.events, "worker-a", SEGMENT_BYTES) as writer:
        for step in range(1, 2 * half):
            writer.append("step.committed", commit(step))
            if step % 100 == 0:
                writer.append("warning.raised", {"text": f"step {step}"})
            if step % 400 == 0:
                seen += follower.poll()
                found += search.poll() or []
            if step % 2000 == 0:
                journal_keeper.keep(job)
    seen += follower.poll()
    found += search.poll() or []
    assert [e.data["step"] for e in seen if e.kind == "step.committed"] == list(range(1, 2 * half))
    assert [e.data["text"] for e in found] == [f"step {step}" for step in range(100, 2 * half, 100)]


def test_a_reader_with_a_cursor_opens_only_what_it_lacks(job: JobStore) -> None:
    train(job, 4_000)
    seen = FoldedJournal(job).catch_up()["seen"]
    there = segments.in_order(segments.names(job.events))
    left = segments.unread(there, seen)
    assert len(there) > 20
    assert {segment.writer for segment in left} == set(seen), "the newest of each writer, which may grow"
    assert len(left) == len(seen)
    assert list(replay_events(job.events, seen)) == []


def test_what_a_killed_keeper_left_is_cleaned(job: JobStore, tmp_path: Path) -> None:
    train(job, 30_000)
    copy = tmp_path / "copy"
    shutil.copytree(job.events, copy)
    expected = fold_all(new_job_view(job.id), read_events(job.events))
    journal_keeper.keep(job)
    after = sorted(segments.names(job.events))
    for path in copy.iterdir():
        if not (job.events / path.name).exists():
            shutil.copy(path, job.events)  # as if it had been killed before it removed them
    assert fold_all(new_job_view(job.id), read_events(job.events)) == expected
    journal_keeper.keep(job)
    assert sorted(segments.names(job.events)) == after


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"fold":1,"view":{}}', b'{"fold":0,"view":{"id":"x"}}', b"\xff\xfe"]
)
def test_a_snapshot_that_does_not_fit_is_left_alone(job: JobStore, content: bytes) -> None:
    train(job, 100)
    expected = fold_all(new_job_view(job.id), read_events(job.events))
    (job.path / SNAPSHOT).write_bytes(content)
    assert FoldedJournal(job).catch_up() == expected


def test_the_process_keeps_and_ends(job: JobStore) -> None:
    train(job, 20_000)
    command = [sys.executable, "-m", "jupyter_hyperpod.storage.journal_keeper", "--job", str(job.path)]
    subprocess.run(command, check=True, timeout=60)
    assert json.loads((job.path / SNAPSHOT).read_bytes())["view"]["step"] == 20_000
    assert (job.path / SNAPSHOT).stat().st_mode & 0o777 == 0o600
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in job.events.iterdir())


@st.composite
def journals(draw: st.DrawFn) -> list[Event]:
    """One writer's events: runs of steps, with what interrupts them."""
    events: list[Event] = []
    step, generation, world = 0, 1, 2

    def add(kind: str, data: dict[str, Any]) -> None:
        events.append(Event("worker-a.1", len(events) + 1, float(len(events)), kind, data))

    for _ in range(draw(st.integers(1, 12))):
        what = draw(
            st.sampled_from(["steps", "steps", "steps", "fact", "redone", "skipped", "world", "metric", "repeat"])
        )
        if what == "steps":
            for _ in range(draw(st.integers(1, 700))):
                step += 1
                add("step.committed", commit(step, generation, world_size=world))
        elif what == "fact":
            add("warning.raised", {"text": "step.committed"})
        elif what in ("redone", "skipped"):
            step += 1
            more = {"redone": 2} if what == "redone" else {"skipped": "nan"}
            add("step.committed", commit(step, generation, world_size=world, **more))
        elif what == "world":
            generation, world = generation + 1, draw(st.integers(1, 4))
        elif what == "metric":
            add("metric.logged", {"step": step, "values": {draw(st.sampled_from("ab")): step}})
        elif step:
            generation += 1
            add("step.committed", commit(step, generation, world_size=world))
    return events


@settings(max_examples=60, deadline=None)
@given(journals(), st.sampled_from([2, 8, 64]))
def test_thinning_keeps_facts_sums_and_order(events: list[Event], stride: int) -> None:
    lines = list(thinned([encode(event) for event in events], stride))
    kept = [decode_event(line) for line in lines]
    seqs = [event.seq for event in kept]
    assert seqs == sorted(set(seqs))
    before, after = (fold_all(new_job_view("j"), some) for some in (events, kept))
    paced = ("commits", "step_time_s", "samples_per_s")  # by the newest commits, which the keeper leaves alone
    same = [name for name in before if name not in ("history", "history_stride", "updated_s", "seen", *paced)]
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    again = [decode_event(line) for line in thinned(lines, stride)]
    assert [event.data for event in again] == [event.data for event in kept], "thinning once is enough"
