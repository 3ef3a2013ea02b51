"""The fold of events into views: golden journals, idempotence, monotonicity."""

from __future__ import annotations

import copy
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_hyperpod.core import views
from jupyter_hyperpod.core.events import EVENT_FIELDS, JOB_STATES, TERMINAL_STATES, Event, decode_event, encode
from jupyter_hyperpod.core.incidents import INCIDENTS_KEPT

JOURNALS = Path(__file__).parent / "journals"
GOLDEN = sorted(JOURNALS.glob("*.jsonl"))


def _regenerate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden_journals", JOURNALS / "regenerate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


golden = _regenerate()


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_journal_folds_to_its_view(path: Path) -> None:
    expected = (path.parent / f"{path.stem}.view.json").read_text(encoding="utf-8")
    view = views.fold_all(golden.empty_view(path), golden.events_of(path))
    assert view == json.loads(expected)
    # The order of names is part of the contract with the TypeScript twin.
    assert json.dumps(view, indent=1, ensure_ascii=False) + "\n" == expected


def test_golden_journals_are_what_their_scripts_say() -> None:
    assert {path.stem for path in GOLDEN} == set(golden.SCRIPTS)
    for name, script in golden.SCRIPTS.items():
        assert b"".join(script().lines) == (JOURNALS / f"{name}.jsonl").read_bytes(), name


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_one_by_one_in_batches_twice_and_resumed_are_the_same(path: Path) -> None:
    events = golden.events_of(path)[:300]
    whole = views.fold_all(golden.empty_view(path), events)
    single = golden.empty_view(path)
    for event in events:
        single = views.fold_all(single, (event,))
    assert single == whole
    assert views.fold_all(whole, events) == whole
    half = views.fold_all(golden.empty_view(path), events[: len(events) // 2])
    assert views.fold_all(json.loads(json.dumps(half)), events) == whole


def test_the_given_view_is_left_alone() -> None:
    before = views.new_job_view("a-bcdefghi")
    kept = copy.deepcopy(before)
    views.fold_all(before, golden.events_of(JOURNALS / "kill.jsonl"))
    assert before == kept


NODE = st.sampled_from(["node-1", "node-2", "node-5"])
MEMBER = st.fixed_dictionaries({"member": NODE, "node": NODE, "rank": st.integers(0, 3), "pid": st.integers(1, 9)})
SPEC = st.fixed_dictionaries(
    {"name": st.just("a"), "backend": st.just("local"), "nodes": st.integers(1, 4)},
    optional={
        "elastic": st.none() | st.just({"minimum": 1, "maximum": 4}),
        "spares": st.integers(0, 2),
        "priority": st.integers(-5, 5),
        "origin": st.just({"cell": "x"}),
    },
)
TEXT = st.text(max_size=5)
# fields that are only passed on: drawing text for each of them would make most long journals too large to generate
WORD = st.sampled_from(["", "a", "é\n", "\u2028"])
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "spec": SPEC,
    "state": st.sampled_from(JOB_STATES),
    "generation": st.integers(1, 6),
    "members": st.lists(MEMBER, max_size=4),
    "spares": st.lists(MEMBER, max_size=2),
    "target": st.integers(1, 4),
    "step": st.integers(1, 3000),
    "loss": st.floats(0, 10),
    "step_time_s": st.floats(0, 10),
    "samples": st.integers(0, 64),
    "redone": st.integers(0, 8),
    "world_size": st.integers(1, 4),
    "values": st.dictionaries(TEXT, st.floats(allow_nan=False, allow_infinity=False), max_size=3),
    "incident": st.integers(1, 300),
    "rung": st.none() | st.integers(0, 5),
    "stage": st.sampled_from(["detected", "repaired", "resumed"]),
    "rank": st.integers(0, 3),
    "node": NODE,
    "jobs": st.just([]),
    "nodes": st.lists(NODE, max_size=2),
    "findings": st.lists(
        st.fixed_dictionaries({"probe": st.sampled_from("ab"), "outcome": st.sampled_from(["pass", "fail"])}),
        max_size=2,
    ),
    "action": st.sampled_from(["watch", "drain", "replace"]),
    "labels": st.just({}),
    "devices": st.sampled_from([{}, {"cpus": 2}]),
    "value": st.none() | st.floats(0, 1),
    "text": TEXT,
}


RECORDS = {
    kind: st.fixed_dictionaries({name: FIELDS.get(name, WORD) for name in sorted(EVENT_FIELDS[kind])})
    for kind in sorted(EVENT_FIELDS)
}


@st.composite
def journals(draw: st.DrawFn) -> list[Event]:
    """Several writers, each in its own order, interleaved anyhow, some lines read twice."""
    seq: dict[str, int] = {}
    events: list[Event] = []
    for writer, kind, again in draw(
        st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(sorted(RECORDS)), st.booleans()), max_size=40)
    ):
        seq[writer] = seq.get(writer, 0) + 1
        events.append(Event(writer, seq[writer], draw(st.floats(0, 1e9)), kind, draw(RECORDS[kind])))
        if again:
            events.append(draw(st.sampled_from(events)))
    return events


@settings(max_examples=150, deadline=None)
@given(journals(), st.data())
def test_any_journal_folds_idempotently_and_monotonically(events: list[Event], data: st.DataObject) -> None:
    view = views.new_job_view("a-bcdefghi") | {"nodes": [], "pid": None, "health": {}, "queues": {}, "idle": None}
    for event in events:
        before = copy.deepcopy(view)
        views.apply(view, event)
        once = copy.deepcopy(view)
        views.apply(view, event)
        assert view == once
        if event.kind.startswith(("job.", "generation.", "step.")):
            assert view["generation"] >= before["generation"]
            assert view["step"] >= before["step"]
            assert view["samples"] >= before["samples"]
        if before["state"] in TERMINAL_STATES and event.kind == "job.state":  # only a cluster's state begins anew
            assert (view["state"], view["ended_s"]) == (before["state"], before["ended_s"])
        assert (view["updated_s"] or 0) >= (before["updated_s"] or 0)
        assert all(view["seen"][writer] >= seq for writer, seq in before["seen"].items())
        assert len(view["history"]) <= views.HISTORY_POINTS
        assert len(view["incidents"]) <= INCIDENTS_KEPT
    start = views.new_job_view("a-bcdefghi") | {"nodes": [], "pid": None, "health": {}, "queues": {}, "idle": None}
    assert views.fold_all(start, events) == view
    cut = data.draw(st.integers(0, len(events)))
    resumed = json.loads(json.dumps(views.fold_all(start, events[:cut])))
    assert views.fold_all(resumed, events) == view


@given(journals())
def test_events_survive_the_journal(events: list[Event]) -> None:
    for event in events:
        assert decode_event(encode(event)) == event


def test_bounded_however_long_the_run() -> None:
    view = views.new_job_view("a-bcdefghi")
    for step in range(1, 20_001):
        data = {"step": step, "loss": 1.0, "step_time_s": 0.1, "samples": 8, "redone": 0, "world_size": 2}
        views.apply(view, Event("w", step, float(step), "step.committed", data))
    assert len(view["history"]) <= views.HISTORY_POINTS
    assert [view["history"][0][0], view["history"][-1][0]] == [1, 20_000 - 20_000 % view["history_stride"]]
    assert view["samples"] == 160_000


def test_generations_of_many_nodes_name_a_bounded_number_of_them() -> None:
    view = views.new_job_view("wide-abcdefgh")
    members = [{"member": f"node-{rank}.a", "node": f"node-{rank}", "rank": rank} for rank in range(1500)]
    for number in range(1, 6):
        formed = {"generation": number, "members": members, "spares": [], "target": 1500, "reason": "a loss"}
        views.apply(view, Event("coordinator", number, float(number), "generation.formed", formed))
    assert [generation["generation"] for generation in view["generations"]] == [4, 5]
    formed |= {"generation": 6, "members": members * 3}
    views.apply(view, Event("coordinator", 6, 6.0, "generation.formed", formed))
    assert [generation["generation"] for generation in view["generations"]] == [6], "the newest is kept whole"


def test_long_pieces_of_output_are_few_and_short_ones_many() -> None:
    view = views.new_job_view("loud-abcdefgh")

    def write(text: str) -> list[int]:
        number = view["seen"].get("agent", 0) + 1
        said = {"member": "node-0.a", "node": "node-0", "rank": 0, "stream": "stdout", "text": text}
        views.apply(view, Event("agent", number, float(number), "output.written", said))
        return [len(piece["text"]) for piece in view["output"]]

    for _ in range(9):
        found = write("\N{SNOWMAN}" * 65_536)
    assert found == [65_536] * 4
    assert write("\N{GRINNING FACE}" * 655) == [65_536] * 4 + [655]
    assert write("\N{GRINNING FACE}" * 656) == [65_536] * 3 + [655, 656]
    assert write("a" * 300_000) == [300_000], "the newest is kept whole"
    for _ in range(500):
        found = write("a" * 600)
    assert found == [600] * 400
