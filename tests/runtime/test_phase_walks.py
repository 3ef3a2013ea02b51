"""Each seldom transition of a job's phases, walked by a real controller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from jupyter_hyperpod.core.elastic import ElasticRange
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.policy import recovery
from jupyter_hyperpod.policy.decision import Decision
from jupyter_hyperpod.runtime.coordinator.joining import Joining
from jupyter_hyperpod.runtime.coordinator.phase import Phase
from jupyter_hyperpod.runtime.protocol import facts
from tests import phases
from tests.jobs_model import Agent, Cell, Job, Plan, World, simulated_time

STEPS = 20
LONGEST_S = 200.0


@contextmanager
def playing(nodes: int, minimum: int, sessions: int = 1, spares: int = 0) -> Iterator[Job]:
    """A job of so many nodes whose ranks come to each session after two seconds."""
    spec = JobSpec("a", "0" * 64, nodes, ElasticRange(minimum, nodes), max_restarts=9, script_restarts=9)
    with simulated_time() as clock:
        world = World(clock, nodes, spares, [Plan(0.0, spec, Cell(sessions, STEPS, 0.5, 2.0, 0.2))], 1)
        world.tick()
        (job,) = world.jobs
        yield job
        assert phases.unlisted(job.journal.events) == []


def until(job: Job, *wanted: Phase) -> None:
    """Play until the job comes to these phases, one after the other."""
    for phase in wanted:
        began_s = job.world.clock.now_s
        while job.controller is None or job.controller.state.phase is not phase:
            assert job.world.clock.now_s - began_s < LONGEST_S, job.world.told(f"the job does not come to {phase}")
            job.world.tick()


def ranks(job: Job) -> list[Agent]:
    return sorted((a for a in job.agents.values() if a.rank is not None and not a.over), key=lambda a: a.rank or 0)


def finish(member: Agent) -> None:
    """A member comes to the end of its session before the others."""
    assert member.step is not None
    member.trains = False
    member.tell(facts.SessionFinished(member.generation, STEPS, "same"))


def way(job: Job) -> list[str]:
    return [after.name for _, after in phases.ways(job.journal.events)]


def test_a_member_is_lost_before_its_session_trains() -> None:
    with playing(3, 1) as job:
        until(job, Phase.FORMING)
        ranks(job)[1].kill()
        until(job, Phase.TRAINING)
        assert way(job)[-3:] == ["FORMING", "REFORMING", "TRAINING"]
    with playing(2, 2) as job:
        until(job, Phase.FORMING)
        ranks(job)[1].kill()
        assert way(job)[-2:] == ["FORMING", "WAITING"]
        until(job, Phase.TRAINING)


def test_too_few_are_left_when_another_member_is_lost_at_once() -> None:
    with playing(3, 2) as job:
        until(job, Phase.TRAINING)
        ranks(job)[2].kill()
        ranks(job)[1].kill()
        assert way(job)[-3:] == ["TRAINING", "REFORMING", "WAITING"]
        until(job, Phase.TRAINING)


@pytest.mark.parametrize("told", [True, False], ids=["the coordinator knows", "its message is on the way"])
def test_a_newcomer_that_holds_a_snapshot_alone_begins_again(monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    monkeypatch.setattr(recovery, "at_once", lambda *_: Decision(False, "after a snapshot"))
    if not told:
        monkeypatch.setattr(Joining, "approached", lambda *_: iter(()))
    with playing(2, 1) as job:
        until(job, Phase.TRAINING)
        ranks(job)[1].kill()
        began_s = job.world.clock.now_s
        while not (holders := [agent for agent in job.agents.values() if agent.partial]):
            job.world.tick()
            assert job.world.clock.now_s - began_s < LONGEST_S
        (holder,) = holders
        assert holder.step and holder.step > 0
        old = holder.member
        ranks(job)[0].kill()
        until(job, Phase.TRAINING)
        assert job.controller is not None and job.controller.state.planned_step == 0
        assert holder.member != old
        decided = [event.data["reason"] for event in job.journal.events if event.kind == "decision.made"]
        assert recovery.LEFT_ALONE in decided


def test_a_member_is_lost_while_its_session_closes() -> None:
    with playing(3, 1) as job:
        until(job, Phase.TRAINING)
        finish(ranks(job)[0])
        ranks(job)[1].kill()
        until(job, Phase.CLOSING)
        assert way(job)[-4:] == ["TRAINING", "CLOSING", "REFORMING", "CLOSING"]
    with playing(2, 2) as job:
        until(job, Phase.TRAINING)
        finish(ranks(job)[0])
        ranks(job)[1].kill()
        assert way(job)[-3:] == ["TRAINING", "CLOSING", "WAITING"]


def test_too_few_come_to_a_second_session() -> None:
    with playing(3, 3, sessions=2) as job:
        until(job, Phase.TRAINING, Phase.RUNNING_SCRIPT)
        ranks(job)[1].kill()
        until(job, Phase.WAITING)
        assert way(job)[-2:] == ["RUNNING_SCRIPT", "WAITING"]


@pytest.mark.parametrize(
    "phase", [Phase.TRAINING, Phase.CLOSING, Phase.WAITING, Phase.FORMING, Phase.REFORMING, Phase.RUNNING_SCRIPT]
)
def test_cells_end_for_an_elastic_event_after_their_session_was_opened(phase: Phase) -> None:
    minimum = 3 if phase is Phase.WAITING else 1
    with playing(3, minimum) as job:
        until(job, Phase.RUNNING_SCRIPT)
        for agent in ranks(job):
            agent.calls = 1
        ranks(job)[2].tell(facts.NodePreempted(30.0))
        until(job, Phase.FORMING)
        assert any("every rank is told in call" in event.data.get("reason", "") for event in job.journal.events)
        if phase is Phase.FORMING:
            for agent in ranks(job):
                agent.generation = 0  # what it reports comes too late
        else:
            until(job, Phase.TRAINING)
        if phase is Phase.CLOSING:
            finish(ranks(job)[0])
        if phase is Phase.RUNNING_SCRIPT:
            until(job, Phase.RUNNING_SCRIPT)
        if phase in (Phase.WAITING, Phase.REFORMING):
            ranks(job)[2].kill()
        assert job.controller is not None and job.controller.state.phase is phase
        for agent in ranks(job):
            agent.end(True)
        until(job, Phase.GATHERING)
        assert way(job)[-2:] == [phase.name, "GATHERING"]
        until(job, Phase.TRAINING)
        job.lose_head()
        until(job, Phase.ADOPTING, Phase.ENDED)
        assert job.state == "succeeded", job.reason


def test_newcomers_that_came_in_the_middle_of_a_step_begin_again_and_join_at_the_end_of_a_turn() -> None:
    """Here of a loop with two runs per step."""
    with playing(3, 1, spares=1) as job:
        until(job, Phase.TRAINING)
        ranks(job)[1].kill()
        until(job, Phase.REFORMING, Phase.TRAINING)
        assert job.controller is not None
        began_s = job.world.clock.now_s
        while len(ranks(job)) < 3:
            job.world.tick()
            assert job.world.clock.now_s - began_s < LONGEST_S
        until(job, Phase.TRAINING)
        first, newcomer = ranks(job)[0], ranks(job)[2]
        old, generation = newcomer.member, first.generation
        first.tell(facts.NewcomersEarly(generation, (newcomer.rank or 0,), 2, "begin again"))
        first.tell(facts.NewcomersEarly(generation, (newcomer.rank or 0,), 2, "said by all members"))
        assert len(job.controller.state.roster.generation()) == 2
        until(job, Phase.REFORMING, Phase.TRAINING, Phase.REFORMING)
        while len(ranks(job)) < 3 or job.controller.state.phase is not Phase.TRAINING:
            job.world.tick()
            assert job.world.clock.now_s - began_s < LONGEST_S
        assert old not in [agent.member for agent in ranks(job)]
        assert job.controller.state.planned_step % 2 == 0
        decided = [event.data["reason"] for event in job.journal.events if event.kind == "decision.made"]
        assert decided.count("begin again") == 1 and "said by all members" not in decided


def test_newcomers_stay_where_too_few_would_be_left() -> None:
    with playing(2, 2) as job:
        until(job, Phase.TRAINING)
        ranks(job)[1].kill()
        until(job, Phase.WAITING, Phase.TRAINING)
        first, newcomer = ranks(job)
        first.tell(facts.NewcomersEarly(first.generation, (newcomer.rank or 0,), 1, "begin again"))
        assert [agent.member for agent in ranks(job)] == [first.member, newcomer.member]
        until(job, Phase.REFORMING, Phase.TRAINING)
