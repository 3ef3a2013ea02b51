"""Throughput and step time have one meaning, wall time from commit to commit: every face shows the same figure.

The panel's are in src/components/__tests__/components.spec.tsx; its fold is proven by the golden journals.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.control import jobs, metrics, report
from jupyter_hyperpod.control.runs import run_record
from jupyter_hyperpod.control.runs.sentence import what_happened
from jupyter_hyperpod.control.sentences import event_sentence
from jupyter_hyperpod.core.events import Event, encode
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.core.views import View, fold_all, new_job_view
from jupyter_hyperpod.notebook.output import job_bundle
from jupyter_hyperpod.storage.store import Store

# a step takes 13 ms; the loop around it sleeps, so 130 ms pass from commit to commit
INSIDE_S, PERIOD_S, SAMPLES = 0.013, 0.13, 32
STEPS = 40


def trained(began_s: float, steps: int = STEPS, period_s: float = PERIOD_S) -> list[Event]:
    """The journal of a job that is amid its loop."""
    session = {"total_steps": 1000, "global_batch": SAMPLES, "micro_batch": 4, "micro_batches": 8}
    told: list[tuple[str, dict[str, Any]]] = [("job.state", {"state": "running", "reason": "all 2 members are here"})]
    told += [("session.opened", {**session, "parameters": 5, "state_bytes": 60})]
    events = [Event("coordinator", seq, began_s, kind, data) for seq, (kind, data) in enumerate(told, 1)]
    for step in range(1, steps + 1):
        data = {"step": step, "generation": 1, "loss": 1.0, "loss_hex": (1.0).hex(), "step_time_s": INSIDE_S}
        data |= {"samples": SAMPLES, "world_size": 2, "redone": 0, "session": 1}
        events.append(Event("worker-a", step, began_s + step * period_s, "step.committed", data))
    return events


@pytest.fixture
def recorded(store: Store) -> tuple[Store, str]:
    """A store in which such a job is."""
    job = store.prepare().create_job(JobSpec("slow", store.put_cell("pass\n"), nodes=2))
    events = trained(float(int(time.time())) - 60)
    for writer in ("coordinator", "worker-a"):
        lines = [encode(event) for event in events if event.writer == writer]
        Path(job.events).mkdir(parents=True, exist_ok=True)
        (job.events / f"{writer}.jsonl").write_bytes(b"".join(lines))
    return store, job.id


def view_of(events: list[Event]) -> View:
    return fold_all(new_job_view("slow"), events)


def test_every_face_counts_the_time_between_two_steps(recorded: tuple[Store, str]) -> None:
    store, job_id = recorded
    view = jobs.job_view(store, job_id)
    assert view["step_time_s"] == pytest.approx(PERIOD_S, rel=1e-3)
    assert "246 samples/s" in report.progress_line(view)
    assert "246 samples/s" in report.describe_lines(view)
    record = run_record.read(store, job_id)
    assert "246 samples/s" in what_happened(record)
    drawn = record.curves[1, run_record.RATE]
    assert drawn.lowest == pytest.approx(246.15, rel=1e-3) and drawn.highest == pytest.approx(246.15, rel=1e-3)
    text = metrics.Metrics(store).render().decode()
    (told,) = re.findall(r"hyperpod_job_step_seconds\{[^}]*\} (\S+)", text)
    assert float(told) == view["step_time_s"]
    assert "246 samples/s" in job_bundle(view, str(store.root), "d", False)["text/html"]


def test_the_time_inside_a_step_is_named_so() -> None:
    assert event_sentence(trained(0.0)[-1]) == "step 40 loss 1 on 2 nodes, 13 ms inside the step"


def test_a_pause_is_counted_in_the_throughput_and_does_not_move_the_step_time() -> None:
    events = trained(0.0, 10)
    events += [
        Event("worker-a", e.seq + 10, e.time_s + 11.3, e.kind, {**e.data, "step": e.data["step"] + 10})
        for e in trained(0.0, 5)[2:]
    ]
    view = view_of(events)
    assert view["step_time_s"] == pytest.approx(PERIOD_S)
    assert view["samples_per_s"] == pytest.approx(14 * SAMPLES / (11.3 + 5 * PERIOD_S - PERIOD_S))


def test_before_the_second_commit_and_after_a_clock_was_set_back_nothing_is_claimed() -> None:
    first = view_of(trained(0.0, 1))
    assert first["step_time_s"] is None and first["samples_per_s"] is None
    back = view_of(trained(100.0, 3, -1.0))
    assert back["samples_per_s"] is None and back["step_time_s"] == 0.0
    assert "samples/s" not in report.progress_line(back)
