"""A recovery has one figure, from the fault to the next commit: every face shows the same for the same journal."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.control import jobs, metrics, report, sentences
from jupyter_hyperpod.control.runs.report_page import report_page
from jupyter_hyperpod.control.runs.run_record import read
from jupyter_hyperpod.core import incidents
from jupyter_hyperpod.core.events import Event, decode_event, encode
from jupyter_hyperpod.core.incidents import fold_stages, unnoticed_since_s
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.notebook.output import job_bundle
from jupyter_hyperpod.planner.calibrate import measure
from jupyter_hyperpod.storage.store import Store

JOURNAL = Path(__file__).parent / "journals" / "recoveries.jsonl"
# of a kill, a hang, a partition, a journal without times, a wrong clock, a writer without times;
# the panel's are in src/components/__tests__/components.spec.tsx
FIGURES = ["74 ms", "2.4 s", "2.0 s", "250 ms after detection", "250 ms", "250 ms after detection"]
DETECTION = ["4 ms", "2.3 s", "2.0 s", None, "0 ms", None]


@pytest.fixture
def events() -> list[Event]:
    """The journal as if it had ended just now, since Prometheus is not told of jobs of long ago."""
    events = [decode_event(line) for line in JOURNAL.read_bytes().splitlines()]
    later_s = int(time.time() - events[-1].time_s)

    def moved(event: Event) -> Event:
        since_s = event.data.get("since_s")
        data = (
            event.data if since_s is None or isinstance(since_s, str) else {**event.data, "since_s": since_s + later_s}
        )
        return replace(event, time_s=event.time_s + later_s, data=data)

    return [moved(event) for event in events]


@pytest.fixture
def recorded(store: Store, events: list[Event]) -> tuple[Store, str]:
    """A store in which a job has left the journal."""
    job = store.prepare().create_job(JobSpec("recovery", store.put_cell("pass\n"), nodes=4))
    job.events.mkdir(parents=True, exist_ok=True)
    for event in events:
        with (job.events / f"{event.writer}.jsonl").open("ab") as file:
            file.write(encode(event))
    return store, job.id


def test_an_incident_is_told_in_words(recorded: tuple[Store, str]) -> None:
    """The panel's words are in src/components/__tests__/components.spec.tsx."""
    store, job_id = recorded
    journal = store.job(job_id).events / "drill.1.jsonl"
    about = {"incident": "drain", "node": "node-2", "rank": 1, "text": "a fan is loud"}
    with journal.open("ab") as file:
        for seq, (stage, rung) in enumerate([("detected", None), ("resumed", 9)], 1):
            data = about | {"cause": "ByHand", "rung": rung, "stage": stage}
            file.write(encode(Event("drill.1", seq, time.time(), "incident.stage", data)))
    view = jobs.job_view(store, job_id)
    assert view["incidents"][-1]["rung"] == 9
    for text in (report.incidents_table(view).render(), report_page(read(store, job_id), "1.2.3")):
        assert "drained by hand" in text and "ByHand" not in text
    assert "in another way" in report.incidents_table(view).render()
    assert [incidents.way(rung) for rung in (None, 0, 5, 6, -1)] == [
        "-", "by the other members", "from the beginning", "in another way", "in another way"
    ]  # fmt: skip


def test_people_read_the_same_figure_everywhere(recorded: tuple[Store, str]) -> None:
    store, job_id = recorded
    view = jobs.job_view(store, job_id)
    assert [report.incident_duration(incident) for incident in view["incidents"]] == FIGURES
    described = report.describe_lines(view)
    rows = [line for line in described.splitlines() if "detected" in line and "resumed" in line]
    html = job_bundle(view, str(store.root), "d", False)["text/html"]
    for row, figure, noticed in zip(rows, FIGURES, DETECTION, strict=True):
        assert f" {figure} " in row
        assert ("detected (time not known)" if noticed is None else f"detected +{noticed},") in row
        assert f">{figure}<" in html


def test_prometheus_and_the_planner_have_the_same_figure(recorded: tuple[Store, str], events: list[Event]) -> None:
    store, job_id = recorded
    incidents = jobs.job_view(store, job_id)["incidents"]
    assert incidents == fold_stages(events)
    killed, stopped, cut, _, newest, _ = (incident["recovery_s"] for incident in incidents)
    text = metrics.Metrics(store).render().decode()
    found = re.findall(r'hyperpod_job_recovery_seconds\{cause="([^"]*)",job="[^"]*",name="[^"]*"\} (\S+)', text)
    shown = {"process killed": newest, "process stopped": stopped, "network partition": cut}
    assert {cause: float(seconds) for cause, seconds in found} == shown
    assert "detection included" in text and "hyperpod_job_detection_seconds{" in text
    measured = measure(job_id, events)
    killed_s = (killed + newest) / 2
    assert measured.recoveries == pytest.approx({"hung": stopped, "killed": killed_s, "partition": cut})
    assert f"hung {FIGURES[1]}" in measured.sentence and f"partition {FIGURES[2]}" in measured.sentence
    assert measured.record()["recoveries_s"] == measured.recoveries


def test_a_line_of_the_journal_says_how_late_it_is(events: list[Event]) -> None:
    said = [sentences.event_sentence(e) for e in events if e.kind == "incident.stage" and e.data["stage"] == "detected"]
    for sentence, noticed in zip(said, DETECTION, strict=True):
        assert (f", {noticed} after the fault" in sentence) == (noticed is not None)


def test_marks_are_at_the_fault(events: list[Event]) -> None:
    """The curve is marked where the fault was, before the step that it held up; not where it was noticed."""
    faults = [event for event in events if event.kind == "fault.injected"]
    incidents = fold_stages(events)
    assert incidents[0]["started_s"] == pytest.approx(faults[0].time_s, abs=1e-6)
    for incident in incidents:
        if incident["detection_s"]:
            commits = [e.time_s for e in events if e.kind == "step.committed"]
            assert not [at_s for at_s in commits if incident["started_s"] < at_s < incident["stages"][0]["time_s"]]
            assert incident["started_s"] == incident["stages"][0]["time_s"] - incident["detection_s"]


@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e9),
            st.sampled_from(["detected", "fenced", "resumed"]),
            st.none() | st.floats() | st.integers() | st.booleans() | st.text(max_size=2),
        ),
        min_size=1,
    )
)
def test_whatever_a_writer_tells_no_time_is_negative_and_nothing_unknown_is_zero(
    told: list[tuple[float, str, object]],
) -> None:
    data = {"incident": 1, "cause": "", "node": "", "rank": 0, "rung": None, "text": ""}
    events = [
        Event("w", seq, time_s, "incident.stage", data | {"stage": stage, "since_s": since_s})
        for seq, (time_s, stage, since_s) in enumerate(told, 1)
    ]
    (incident,) = fold_stages(events)
    known = [one for event in events if (one := unnoticed_since_s(event)) is not None]
    assert (incident["detection_s"] is None) == (not known)
    assert incident["started_s"] == (known[0] if known else events[0].time_s)
    took = [stage["took_s"] for stage in incident["stages"]]
    assert all(seconds is not None and seconds >= 0 for seconds in took[1:])
    assert (took[0] is None) == (unnoticed_since_s(events[0]) is None)
    assert (incident["recovery_s"] is None) == (incident["resumed_s"] is None)
    assert incident["recovery_s"] is None or incident["recovery_s"] >= 0
