"""The coordinator's state machine: its table holds together, and what coordinators really do is in it.

Real jobs of all tests are held against it by `conftest.running_cluster`.
"""

from __future__ import annotations

import inspect
import random

import pytest

from jupyter_hyperpod.core.events import Event
from jupyter_hyperpod.core.spec import ElasticRange, JobSpec
from jupyter_hyperpod.core.vocabulary import CHOICES
from jupyter_hyperpod.runtime.coordinator import phase as module
from jupyter_hyperpod.runtime.coordinator.phase import STARTS, TRANSITIONS, Phase, PhaseError, first, step
from tests import phases
from tests.jobs_model import Cell, Plan, World, simulated_time
from tests.runtime.conftest import Submit

SCHEDULES = 150
LONGEST_S = 2000.0


def test_every_phase_is_documented_and_known_to_the_journal() -> None:
    assert tuple(phase.value for phase in Phase) == CHOICES["Phase"]
    source = inspect.getsource(Phase)
    for phase in Phase:
        assert f'{phase.name} = "{phase.value}"\n    """' in source, f"{phase.name} says nothing of itself"


def test_every_phase_can_be_reached_and_only_the_last_is_final() -> None:
    reached, ahead = {Phase.GATHERING}, [Phase.GATHERING]
    reached.add(Phase.ADOPTING)
    ahead.append(Phase.ADOPTING)
    while ahead:
        phase = ahead.pop()
        fresh = {way.after for way in TRANSITIONS if way.before is phase} - reached
        reached |= fresh
        ahead += fresh
    assert reached == set(Phase)
    for phase in Phase:
        leads_on = any(way.before is phase for way in TRANSITIONS)
        assert leads_on == (phase is not Phase.ENDED)
        assert phase is Phase.ENDED or step(phase, Phase.ENDED), "a job can be stopped at any time"


def test_the_table_says_everything_once() -> None:
    pairs = [(way.before, way.after) for way in TRANSITIONS]
    assert len(set(pairs)) == len(pairs)
    for way in TRANSITIONS:
        assert way.trigger and way.sentence and not way.sentence.endswith("."), way
        assert step(way.before, way.after) is way


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (Phase.ENDED, Phase.TRAINING, "from 'ended' it goes to nothing: it is the last"),
        (Phase.TRAINING, Phase.FORMING, "a job cannot go from 'training' to 'forming'; from 'training' it goes to"),
        (Phase.GATHERING, Phase.GATHERING, "from 'gathering' it goes to running script, ended"),
    ],
)
def test_what_is_not_in_the_table_is_refused(before: Phase, after: Phase, words: str) -> None:
    with pytest.raises(PhaseError) as refused:
        step(before, after)
    assert words in str(refused.value)


def test_a_journal_that_goes_another_way_is_found() -> None:
    def event(seq: int, phase: Phase, writer: str = "coordinator.1") -> Event:
        return Event(writer, seq, float(seq), "phase.changed", {"phase": phase.value, "reason": ""})

    good = [event(1, Phase.GATHERING), event(2, Phase.RUNNING_SCRIPT), event(3, Phase.FORMING)]
    assert phases.unlisted(good) == []
    assert phases.unlisted([*good, event(1, Phase.ADOPTING, "coordinator.2")]) == []
    assert phases.unlisted([*good, event(1, Phase.TRAINING, "coordinator.2")]) == [
        "a coordinator began with 'training'"
    ]
    assert "from 'forming' to 'closing'" in phases.unlisted([*good, event(4, Phase.CLOSING)])[0]


def test_where_a_coordinator_begins_follows_from_the_journal() -> None:
    nobody = {"ended": False, "members": False, "session": False, "session_over": False}
    found = [
        first(**nobody),
        first(**nobody | {"members": True, "session": True}),
        first(**nobody | {"session": True}),
        first(**nobody | {"session": True, "session_over": True}),
        first(**nobody | {"ended": True, "members": True}),
    ]
    assert found == [Phase.GATHERING, Phase.ADOPTING, Phase.WAITING, Phase.RUNNING_SCRIPT, Phase.ENDED]
    assert set(found) == set(STARTS)


def schedule(seed: int) -> tuple[int, int, list[Plan]]:
    """Nodes, spares, and jobs that lose workers and coordinators."""
    draw = random.Random(seed)
    nodes, plans = draw.randint(3, 6), []
    for name in "abc"[: draw.randint(1, 3)]:
        minimum = draw.randint(1, 3)
        most = draw.randint(minimum, 5)
        wanted = draw.randint(minimum, min(most, nodes))
        spec = JobSpec(
            name, "0" * 64, wanted, ElasticRange(minimum, most), priority=draw.choice([0, 5]),
            spares=draw.randint(0, 1), max_restarts=10**6, script_restarts=10**6,
        )  # fmt: skip
        steps, step_s = draw.randint(5, 40), draw.choice([0.1, 0.5])
        cell = Cell(draw.choice([0, 1, 1, 2]), steps, step_s, draw.choice([0.05, 1.0]), draw.choice([0.05, 3.0]))
        kills = tuple(draw.uniform(1, 30) for _ in range(draw.randint(0, 3))) if cell.sessions < 2 else ()
        heads = tuple(draw.uniform(1, 30) for _ in range(draw.randint(0, 2)))
        plans.append(Plan(draw.uniform(0, 10), spec, cell, kills, heads))
    return nodes, draw.randint(0, 1), plans


@pytest.mark.timeout(300)  # a busy machine
def test_simulated_jobs_take_only_listed_transitions_and_most_of_them() -> None:
    taken: set[tuple[Phase | None, Phase]] = set()
    for seed in range(SCHEDULES):
        nodes, spares, plans = schedule(seed)
        with simulated_time() as clock:
            world = World(clock, nodes, spares, plans, seed)
            world.run(LONGEST_S, lambda world: None)
            for job in world.jobs:
                assert phases.unlisted(job.journal.events) == [], world.told(f"seed {seed}: {job.id}")
                taken.update(phases.ways(job.journal.events))
    listed = {(way.before, way.after) for way in TRANSITIONS if way.after not in (way.before, Phase.ENDED)}
    never = {f"{before.name} -> {after.name}" for before, after in listed - taken}
    assert never <= SELDOM, "the schedules came to less than before"
    assert {after for _, after in taken} == set(Phase)
    assert module.CALLED == {Phase.FORMING, Phase.REFORMING}


def test_a_real_job_journals_its_phases_and_its_view_has_the_newest(job: Submit) -> None:
    run = job(env={"PAUSE_S": "0.02"})
    run.until_step(3)
    run.kill(1)
    run.until_event("incident.stage", stage="resumed")
    run.kill_coordinator()
    run.until_event("phase.changed", phase="adopting")
    view = run.finish()
    events = run.of_kind("phase.changed")
    told = [event.data["phase"] for event in events]
    assert told[:6] == ["gathering", "running script", "forming", "training", "reforming", "training"]
    assert told[told.index("adopting") :][:3] == ["adopting", "reforming", "training"]
    assert told[-3:] == ["closing", "running script", "ended"] and view["phase"] == "ended"
    assert phases.unlisted(events) == [] and len({event.writer for event in events}) == 2


# ways that these schedules do not take: `test_phase_walks` walks each
SELDOM = {
    f"{phase} -> {after}"
    for phase, after in (
        ("CLOSING", "REFORMING"),
        ("CLOSING", "WAITING"),
        ("FORMING", "GATHERING"),
        ("FORMING", "REFORMING"),
        ("FORMING", "WAITING"),
        ("REFORMING", "CLOSING"),
        ("REFORMING", "GATHERING"),
        ("REFORMING", "WAITING"),
        ("RUNNING_SCRIPT", "WAITING"),
        ("TRAINING", "GATHERING"),
        ("CLOSING", "GATHERING"),
        ("WAITING", "GATHERING"),
    )
}
