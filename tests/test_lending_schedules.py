"""Random schedules of jobs that share a cluster, in simulated time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_hyperpod.core.elastic import ElasticRange
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.supervisor.reconcile import Begin, Wait
from tests.jobs_model import Cell, Job, Plan, World, simulated_time

# phases that nobody may interrupt last at most 3 s each, a step 2 s, a worker begins within a second
PATIENCE_S = 20.0
LONGEST_S = 2000.0

cells = st.builds(
    Cell,
    sessions=st.sampled_from([0, 1, 1, 1, 2]),
    steps=st.integers(5, 40),
    step_s=st.sampled_from([0.1, 0.5, 2.0]),
    before_s=st.sampled_from([0.05, 1.0, 3.0]),
    after_s=st.sampled_from([0.05, 3.0]),
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    minimum = draw(st.integers(1, 3))
    most = draw(st.integers(minimum, 5))
    nodes = draw(st.integers(minimum, most))
    spec = JobSpec(
        draw(st.sampled_from(["a", "b", "c"])), "0" * 64, nodes, ElasticRange(minimum, most),
        priority=draw(st.sampled_from([0, 0, 5, 10])), spares=draw(st.integers(0, 1)), max_restarts=10**6,
        script_restarts=10**6,
    )  # fmt: skip
    cell = draw(cells)
    # whoever is left alone in a second session and is killed has nowhere to go on from
    kills = draw(st.lists(st.floats(1, 30), max_size=2)) if cell.sessions == 1 else []
    return Plan(draw(st.floats(0, 15)), spec, cell, tuple(kills))


class Patience:
    """No job waits for long for what jobs of lower priority hold and could do without; nothing is promised twice."""

    def __init__(self) -> None:
        self.since_s: dict[str, float] = {}

    def __call__(self, world: World) -> None:
        now_s, found = world.clock.now_s, set()
        waiting = [job for job in world.unfinished if not job.started]
        running = [job for job in world.unfinished if job.started]
        promised = sum(min(len(job.agents), job.commanded) for job in running)
        for action in world.actions:
            if isinstance(action, Wait) and action.reason.startswith("waits until"):
                promised += next(job.spec.start_minimum for job in waiting if job.id == action.job_id)
        # a job that begins is told its size next, one that has just ended a process half a second later
        begins = any(isinstance(action, Begin) for action in world.actions)
        settled = not begins and not any(job.facts().resting for job in running)
        assert promised <= world.capacity or not settled, "\n".join([*world.story, f"{promised} nodes are promised"])
        for job in waiting:
            if self.could_start(world, job, running, waiting):
                found.add(job.id)
                waited_s = now_s - self.since_s.setdefault(job.id, now_s)
                assert waited_s < PATIENCE_S, "\n".join([*world.story, f"{job.id} starves: {job.reason}"])
        self.since_s = {name: since_s for name, since_s in self.since_s.items() if name in found}

    @staticmethod
    def could_start(world: World, job: Job, running: list[Job], waiting: list[Job]) -> bool:
        """What the others cannot do without leaves enough."""
        needed = 0
        for other in running:
            senior = other.spec.priority >= job.spec.priority
            needed += other.target if senior else min(other.spec.start_minimum, other.target)
        ahead = [w for w in waiting if (-w.spec.priority, w.order, w.id) < (-job.spec.priority, job.order, job.id)]
        needed += sum(other.spec.start_minimum for other in ahead)
        return needed + job.spec.start_minimum <= world.capacity


@pytest.mark.timeout(600)  # a busy machine
@settings(max_examples=200, report_multiple_bugs=False)
@given(st.integers(3, 6), st.integers(0, 1), st.lists(plans(), min_size=2, max_size=5), st.integers(0, 2**32))
def test_no_job_waits_for_what_a_lower_one_could_lend(nodes: int, spares: int, jobs: list[Plan], seed: int) -> None:
    with simulated_time() as clock:
        world = World(clock, nodes, spares, jobs, seed)
        world.run(LONGEST_S, Patience())
        for job in world.jobs:
            assert job.state == "succeeded" or job.spec.start_minimum > nodes, "\n".join(
                [*world.story, f"{job.id} {job.state} {job.reason}"]
            )


@pytest.mark.parametrize("tenths", range(14, 25))
def test_a_second_job_comes_while_a_lender_rests(tenths: int) -> None:
    with simulated_time() as clock:
        cell = Cell(sessions=1, steps=20, step_s=0.5, before_s=0.05, after_s=0.05)
        lender = JobSpec("lender", "0" * 64, 3, ElasticRange(1, 3), max_restarts=10**6)
        urgent = JobSpec("urgent", "0" * 64, 1, ElasticRange(1, 1), priority=5, max_restarts=10**6)
        plans = [Plan(0, lender, cell), Plan(1, urgent, cell), Plan(1 + tenths / 10, urgent, cell)]
        world = World(clock, 3, 0, plans, 7)
        world.run(LONGEST_S, Patience())
        assert {job.state for job in world.jobs} == {"succeeded"}
