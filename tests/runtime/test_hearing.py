"""A coordinator hears anything that members could say: it acts on it or refuses it, and always goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_hyperpod.core.elastic import ElasticRange
from jupyter_hyperpod.core.errors import ProtocolError
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.policy.recovery import MemberState
from jupyter_hyperpod.runtime.coordinator.phase import Phase
from jupyter_hyperpod.runtime.protocol.codec import MESSAGES, Process, encode
from tests.jobs_model import TICK_S, Cell, Job, Plan, World, simulated_time

TO_COORDINATOR = [cls for cls in MESSAGES.values() if Process.COORDINATOR in cls.receivers]
fields = {"generation": st.integers(0, 2), "state": st.builds(MemberState, st.none() | st.integers(0, 9))}
said = st.sampled_from(TO_COORDINATOR).flatmap(
    lambda cls: st.builds(cls, **{name: fields[name] for name in cls.__slots__ if name in fields})
)
numbers = st.integers(-300, 300) | st.integers() | st.floats()
anything = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.sampled_from(["type", "member", "generation", "step", "status"]) | st.text(), anything)

phases = st.sampled_from([Phase.GATHERING, Phase.RUNNING_SCRIPT, Phase.FORMING, Phase.TRAINING])


@st.composite
def spoilt(draw: st.DrawFn) -> dict[str, Any]:
    """A message with one field, or one of its parts, replaced or left out."""
    found = json.loads(json.dumps(encode(draw(said))))
    place, name = found, draw(st.sampled_from(sorted(found)))
    while isinstance(place[name], dict) and place[name] and draw(st.booleans()):
        place = place[name]
        name = draw(st.sampled_from(sorted(place)))
    if draw(st.booleans()):
        del place[name]
    else:
        place[name] = draw(anything)
    return dict(found)


@contextmanager
def job_at(phase: Phase) -> Iterator[Job]:
    """A job whose coordinator has come to ``phase``."""
    spec = JobSpec("a", "0" * 64, 3, ElasticRange(1, 3), max_restarts=99, script_restarts=99)
    with simulated_time() as clock:
        world = World(clock, 3, 1, [Plan(0.0, spec, Cell(1, 50, 0.5, 0.2, 0.2))], 1)
        while not world.jobs or world.jobs[0].controller is None or world.jobs[0].controller.state.phase is not phase:
            world.tick()
        yield world.jobs[0]


@given(
    phases,
    st.lists(objects | spoilt() | said.map(encode), max_size=8),
    st.data(),
)
@settings(max_examples=300, deadline=None)
def test_whatever_is_said_is_heard_or_refused(phase: Phase, heard: list[dict[str, Any]], data: st.DataObject) -> None:
    with job_at(phase) as job:
        assert job.controller is not None
        for found in heard:
            agent = data.draw(st.sampled_from(list(job.agents.values())))
            found = json.loads(json.dumps({"member": agent.member} | found))
            try:
                job.controller.hear(agent.line, found)  # type: ignore[arg-type]
            except ProtocolError as refused:
                assert str(refused).startswith("message '") and len(str(refused)) < 300
            job.world.clock.now_s += TICK_S
            job.controller.tick(job.world.clock.now_s)


def test_a_coordinator_knows_the_handlers_of_all_its_parts() -> None:
    with job_at(Phase.GATHERING) as job:
        assert job.controller is not None
        assert set(job.controller._handlers) == set(TO_COORDINATOR)
