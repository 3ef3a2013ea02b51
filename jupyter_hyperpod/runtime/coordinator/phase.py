"""The phases of a job and all transitions between them: the coordinator's state machine on a page.

`TRANSITIONS` is the whole table; its triggers are text for readers. A part changes the phase by yielding
`actions.Enter`; `Controller._enter` looks the transition up with `step`, which refuses all others, and journals it.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ...core.errors import HyperpodError


class Phase(Enum):
    """What the members of a job are doing, as their coordinator knows it. The value is written to the journal."""

    GATHERING = "gathering"
    """Workers register. When there are enough, they get ranks and run the cell."""

    RUNNING_SCRIPT = "running script"
    """The ranks run the user's code outside hp.Session: before, between or after sessions, or without one."""

    FORMING = "forming"
    """Every rank has opened the session. For the first time in it, the members connect and report their state."""

    TRAINING = "training"
    """The members have a plan and commit steps. Newcomers join, and members leave, at the end of a step."""

    REFORMING = "reforming"
    """Membership has changed. The members connect again, and continue when all have reported their state."""

    WAITING = "waiting"
    """Too few members are left to train. Those that are there wait for newcomers."""

    ADOPTING = "adopting"
    """This coordinator is new. The members of the one before register again; they train meanwhile."""

    CLOSING = "closing"
    """A member has finished the session. The others finish it too; nobody joins or leaves."""

    ENDED = "ended"
    """The job is over: it succeeded, failed or was stopped."""


class Transition(NamedTuple):
    """One way from ``before`` to ``after``: what triggers it, and what people are told."""

    before: Phase
    after: Phase
    trigger: str
    sentence: str


class PhaseError(HyperpodError):
    """A transition that is not in the table: a defect of the coordinator."""


P = Phase
_ENDS = tuple(
    Transition(phase, P.ENDED, trigger, sentence)
    for phase, trigger, sentence in (
        (P.GATHERING, "stop command, or no worker starts", "the job ends before its cell has begun"),
        (P.RUNNING_SCRIPT, "every cell has ended, one failed, or stop command", "the ranks have ended"),
        (P.FORMING, "stop command, or an error in the cell", "the job ends before its session trains"),
        (P.TRAINING, "stop command, or an error in the cell", "the job ends while it trains"),
        (P.REFORMING, "stop command, or the program is not reproducible", "the job ends while its members recover"),
        (P.WAITING, "stop command, or no member is left", "the job ends without enough members"),
        (P.ADOPTING, "stop command, or an error in the cell", "the job ends under a new coordinator"),
        (P.CLOSING, "members end differently, or stop command", "the job ends while its session closes"),
    )
)
TRANSITIONS = (
    Transition(P.GATHERING, P.RUNNING_SCRIPT, "enough workers registered", "the ranks run the cell"),
    Transition(P.RUNNING_SCRIPT, P.GATHERING, "a rank was lost, or an elastic event", "all ranks begin again"),
    Transition(P.RUNNING_SCRIPT, P.FORMING, "every rank opened the session", "the members of the session connect"),
    Transition(P.RUNNING_SCRIPT, P.WAITING, "the session opened with too few members", "the job waits for members"),
    Transition(P.FORMING, P.TRAINING, "every member reported", "the members train"),
    Transition(P.FORMING, P.REFORMING, "a member was lost, or took too long", "the members connect again"),
    Transition(P.FORMING, P.WAITING, "too few members are left", "the job waits for members"),
    Transition(P.TRAINING, P.REFORMING, "a member was lost, left, entered, or is slow", "the members connect again"),
    Transition(P.TRAINING, P.WAITING, "too few members are left", "the job waits for members"),
    Transition(P.TRAINING, P.CLOSING, "a member finished its session", "the session closes"),
    Transition(P.REFORMING, P.TRAINING, "every member reported", "the members train again"),
    Transition(P.REFORMING, P.REFORMING, "another member was lost, or took too long", "the members connect again"),
    Transition(P.REFORMING, P.WAITING, "too few members are left", "the job waits for members"),
    Transition(P.REFORMING, P.CLOSING, "every member reported, one had finished", "the session closes"),
    Transition(P.WAITING, P.REFORMING, "enough newcomers are ready", "the members connect again"),
    Transition(P.WAITING, P.WAITING, "another member was lost", "the job waits for members"),
    Transition(P.WAITING, P.RUNNING_SCRIPT, "those that are left all finished", "the session is closed"),
    Transition(P.CLOSING, P.RUNNING_SCRIPT, "every member finished its session", "the session is closed"),
    Transition(P.CLOSING, P.REFORMING, "a member was lost", "the members connect again"),
    Transition(P.CLOSING, P.WAITING, "too few members are left", "the job waits for members"),
    Transition(P.ADOPTING, P.REFORMING, "the members returned, and train", "the members connect again"),
    Transition(P.ADOPTING, P.WAITING, "too few members returned", "the job waits for members"),
    Transition(P.ADOPTING, P.RUNNING_SCRIPT, "the members returned, outside a session", "the ranks run the cell"),
    Transition(P.ADOPTING, P.GATHERING, "a rank was lost outside a session", "all ranks begin again"),
    *(
        Transition(phase, P.GATHERING, "the cells ended for an elastic event in a session", "all ranks begin again")
        for phase in (P.FORMING, P.TRAINING, P.REFORMING, P.WAITING, P.CLOSING)
    ),
    *_ENDS,
)
_TABLE = {(transition.before, transition.after): transition for transition in TRANSITIONS}
# where a coordinator begins; the sentence is journaled
STARTS = {
    Phase.GATHERING: "workers register",
    Phase.RUNNING_SCRIPT: "a new coordinator: nobody has to return",
    Phase.WAITING: "a new coordinator: the job waits for members",
    Phase.ADOPTING: "a new coordinator: the members register again",
    Phase.ENDED: "the job had ended",
}
# the members have been called, and have not all said what they hold
CALLED = frozenset({Phase.FORMING, Phase.REFORMING})


def first(*, ended: bool, members: bool, session: bool, session_over: bool) -> Phase:
    """The first phase of a coordinator, according to the journal: were there ``members``, and a ``session``?"""
    if ended:
        return Phase.ENDED
    if members:
        return Phase.ADOPTING
    if not session:
        return Phase.GATHERING
    return Phase.RUNNING_SCRIPT if session_over else Phase.WAITING


def step(before: Phase, after: Phase) -> Transition:
    """The transition from ``before`` to ``after``; PhaseError where the table has none."""
    found = _TABLE.get((before, after))
    if found is None:
        ways = ", ".join(way.after.value for way in TRANSITIONS if way.before is before) or "nothing: it is the last"
        text = f"a job cannot go from {before.value!r} to {after.value!r}; from {before.value!r} it goes to {ways}"
        raise PhaseError(text)
    return found
