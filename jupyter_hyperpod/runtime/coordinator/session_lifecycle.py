"""The life of a cell and its sessions: opened by all members, closed by all, and how a job ends by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from ...core.units import first_line
from ..protocol import facts, orders
from ..protocol.dispatch import handles
from .actions import Actions, BeginSession, End, Enter, ReleaseMember, Send, WriteEvent
from .job_state import JobState
from .phase import CALLED, Phase
from .roster import Member
from .scripts import Scripts

REASON = 200  # characters of an error's message in the reason why a job has ended

REFUSALS = ("SpecError", "TrainingError")  # whose sentences say what to write instead
REFUSAL = 900  # most characters of theirs


class SessionLifecycle:
    """Follows the members through the sessions of their cell."""

    def __init__(self, state: JobState, scripts: Scripts) -> None:
        self._state = state
        self._scripts = scripts
        self._waited_for: Member | None = None  # by the others, when this was asked last

    @handles(facts.SessionFinished)
    def finished(self, member: Member, finished: facts.SessionFinished) -> Actions:
        """A member has come to the end of its session; when all have, at the same state, it is closed."""
        if not self._state.trains:
            return
        member.finished = finished
        self._state.finishing = True
        if self._state.phase is Phase.TRAINING:
            yield Enter(Phase.CLOSING)
        members = self._state.roster.generation()
        if (
            self._state.phase in CALLED
            or self._state.phase is Phase.ADOPTING
            or self._is_any(members, lambda m: m.finished is None)
        ):
            return
        ends = {(m.finished.step, m.finished.digest) for m in members if m.finished}
        if len(ends) > 1:
            text = "; ".join(
                f"rank {m.rank}: step {m.finished.step}, {m.finished.digest[:12]}" for m in members if m.finished
            )
            yield End("failed", f"members ended with different steps or state ({text})")
            return
        step, digest = ends.pop()
        yield WriteEvent("session.closed", {"step": step, "digest": digest}, durable=True)
        self._state.session_over = True
        for member in members:
            member.session = None
            yield Send(member, orders.CloseSession(self._state.generation))
        yield Enter(Phase.RUNNING_SCRIPT)

    @handles(facts.CellFailed)
    def failed(self, member: Member, failed: facts.CellFailed) -> Actions:
        """A member's cell raised."""
        rank, error = member.rank, failed.error
        if rank is None:
            return  # a spare that cannot run the cell does not end a job that trains
        text = failure(error, rank)
        if self._state.session is None and len(self._state.roster.generation()) > 1:
            yield from self._scripts.failed(member, text, error.communication)
        else:
            yield End("failed", text)

    @handles(facts.AnomalyFound)
    def anomaly(self, member: Member, found: facts.AnomalyFound) -> None:
        """The guard of a session found fault with a step."""
        owner = self._state.roster.members.get(found.owner or "")
        rank, node = (owner.rank, owner.node) if owner is not None else (None, "")
        since_s = max(self._state.sound_s, owner.signs.struck_s) if owner is not None else self._state.sound_s
        self._state.incidents.judged(found.step, found.cause, found.action, node, rank, found.text, since_s)

    @handles(facts.CellDone)
    def done(self, member: Member, done: facts.CellDone) -> Actions:
        """A member's cell has ended."""
        member.done, member.saw_event = True, done.elastic
        yield from self.open_session()

    def open_session(self) -> Actions:
        """Begin the next session of the cell when every member has come to it."""
        members = self._state.roster.generation()
        next_index = 1 if self._state.session is None else self._state.session_index + 1
        if self._state.phase is not Phase.RUNNING_SCRIPT or self._is_any(
            members, lambda m: _is_under_way(m, next_index)
        ):
            return
        here = [m.session for m in members if m.session is not None and m.session.index >= next_index]
        if not here:
            return
        if len(here) < len(members):
            done = [m.rank for m in members if m.done]
            text = f"rank {done[0]} ended its cell while others wait in hp.Session: open it on every rank"
            yield End("failed", text)
            return
        opened = [asdict(session) for session in here]
        for one in opened:
            del one["index"]  # it is that of the cell, not of the job
        for rank, other in enumerate(opened):
            if differing := [key for key, value in opened[0].items() if other[key] != value]:
                text = ", ".join(f"{key} {other[key]} instead of {opened[0][key]}" for key in differing)
                yield End("failed", f"rank {rank} opened another session than rank 0: {text}")
                return
        yield WriteEvent("session.opened", opened[0] | {"number": next_index})
        self._state.session, self._state.session_over, self._state.finishing = here[0], False, False
        self._state.session_index = next_index
        self._state.session_step, self._state.batches = 0, ()
        for waiting in [m for m in self._state.roster.newcomers() if m.running]:  # at a session that is over
            yield ReleaseMember(waiting, begins_again=True)
        yield BeginSession()

    def _is_any(self, members: Sequence[Member], late: Callable[[Member], bool]) -> bool:
        """Whether any is ``late``: as often as there are members this is asked, so who was late before is first."""
        known = self._waited_for
        if known is not None and late(known) and known.rank is not None and self._state.roster.holds(known):
            return True
        self._waited_for = next((member for member in reversed(members) if late(member)), None)
        return self._waited_for is not None

    def end_if_all_done(self) -> Actions:
        """The job ends well when every member's cell has ended and its worker is gone."""
        members = self._state.roster.generation()
        if self._state.phase is Phase.ADOPTING:
            return  # those that are still to come may be at work
        if (yield from self._scripts.ended(members)):
            return
        if members and all(m.done and m.exited is not None for m in members):
            text = f"all {len(members)} members finished" if len(members) > 1 else "its one member finished"
            yield End("succeeded", text)

    def lost_without_session(self, member: Member, cause: str, detail: str) -> Actions:
        """A member is gone while nothing is trained: before any session, or after one."""
        if self._state.session is None:
            yield from self._scripts.lost(member, cause, detail)
        elif member.rank == 0:
            text = f"rank 0 on {member.node}: {cause} ({detail}); rank 0 was lost after its session had closed"
            yield End("failed", text)
        else:
            yield WriteEvent("warning.raised", {"text": f"{detail}, after the session had closed"})
            yield from self.open_session()
            yield from self.end_if_all_done()


def _is_under_way(member: Member, index: int) -> bool:
    """Whether a member has neither come to the session of this ``index`` nor ended its cell."""
    return not member.done and (member.session is None or member.session.index < index)


def failure(error: facts.CellError, rank: int) -> str:
    """How a cell failed on a rank, in one line. A refusal is whole; where it names a line, that is the only one."""
    said = first_line(error.message, REFUSAL if error.type in REFUSALS else REASON)
    cell = f" of code cell {error.cell}" if error.cell else ""
    where = f" at line {error.line}{cell}" if error.line and not said.startswith("line ") else ""
    return f"{error.type} on rank {rank}{where}" + (f": {said}" if said else "")
