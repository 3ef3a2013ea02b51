"""The life of a cell and its sessions: opened by all members, closed by all, and how a job ends by itself."""

from __future__ import annotations

from ...core.units import first_line
from ..connection import Message
from ..protocol import orders
from .actions import Actions, BeginSession, End, Enter, Send, WriteEvent
from .job_state import JobState
from .phase import CALLED, Phase
from .roster import Member
from .scripts import Scripts

SESSION_FIELDS = (
    "total_steps", "global_batch", "micro_batch", "micro_batches", "parameters", "state_bytes",
    "checkpoint",
)  # fmt: skip
REASON = 200  # characters of an error's message in the reason why a job has ended


class SessionLifecycle:
    """Follows the members through the sessions of their cell."""

    def __init__(self, state: JobState, scripts: Scripts) -> None:
        self._state = state
        self._scripts = scripts

    def finished(self, member: Member, message: Message) -> Actions:
        """A member has come to the end of its session; when all have, at the same state, it is closed."""
        if message["generation"] != self._state.generation or not self._state.trains:
            return  # it is called into another one, and says so again when that has formed
        member.finished = message
        self._state.finishing = True
        if self._state.phase is Phase.TRAINING:
            yield Enter(Phase.CLOSING)
        members = self._state.roster.generation()
        if self._state.phase in CALLED or self._state.phase is Phase.ADOPTING or not all(m.finished for m in members):
            return
        ends = {(m.finished["step"], m.finished["digest"]) for m in members if m.finished}
        if len(ends) > 1:
            text = "; ".join(
                f"rank {m.rank}: step {m.finished['step']}, {m.finished['digest'][:12]}" for m in members if m.finished
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

    def error(self, member: Member, error: Message) -> Actions:
        """A member's cell raised."""
        rank = member.rank
        if rank is None:
            return  # a spare that cannot run the cell does not end a job that trains
        where = f" at line {error['line']}" if error.get("line") else ""
        said = first_line(error["message"], REASON)
        text = f"{error['type']} on rank {rank}{where}" + (f": {said}" if said else "")
        if self._state.session is None and len(self._state.roster.generation()) > 1:
            yield from self._scripts.failed(member, text, bool(error.get("communication")))
        else:
            yield End("failed", text)

    def anomaly(self, message: Message) -> None:
        """The guard of a session found fault with a step."""
        owner = self._state.roster.members.get(message["owner"])
        rank, node = (owner.rank, owner.node) if owner is not None else (None, "")
        since_s = max(self._state.sound_s, owner.signs.struck_s) if owner is not None else self._state.sound_s
        finding = (message["step"], message["cause"], message["action"])
        self._state.incidents.judged(*finding, node, rank, message["text"], since_s)

    def done(self, member: Member, message: Message) -> Actions:
        """A member's cell has ended."""
        member.done, member.saw_event = True, bool(message.get("elastic"))
        yield from self.open_session()

    def open_session(self) -> Actions:
        """Begin the next session of the cell when every member has come to it."""
        members = self._state.roster.generation()
        next_index = 1 if self._state.session is None else self._state.session_index + 1
        here = [m.session for m in members if m.session is not None and m.session["index"] >= next_index]
        if not here or self._state.phase is not Phase.RUNNING_SCRIPT:
            return
        if len(here) < len(members):
            done = [m.rank for m in members if m.done]
            if len(here) + len(done) == len(members):
                text = f"rank {done[0]} ended its cell while others wait in hp.Session: open it on every rank"
                yield End("failed", text)
            return
        opened = [{key: message[key] for key in SESSION_FIELDS} for message in here]
        for rank, other in enumerate(opened):
            if differing := [key for key in SESSION_FIELDS if other[key] != opened[0][key]]:
                text = ", ".join(f"{key} {other[key]} instead of {opened[0][key]}" for key in differing)
                yield End("failed", f"rank {rank} opened another session than rank 0: {text}")
                return
        yield WriteEvent("session.opened", opened[0])
        self._state.session, self._state.session_over, self._state.finishing = opened[0], False, False
        self._state.session_index = next_index
        yield BeginSession()

    def end_if_all_done(self) -> Actions:
        """The job ends well when every member's cell has ended and its worker is gone."""
        members = self._state.roster.generation()
        if self._state.phase is Phase.ADOPTING:
            return  # those that are still to come may be at work
        if (yield from self._scripts.ended(members)):
            return
        if members and all(m.done and m.exited is not None for m in members):
            yield End(
                "succeeded", f"all {len(members)} members finished" if len(members) > 1 else "its one member finished"
            )

    def lost_without_session(self, member: Member, cause: str, detail: str) -> Actions:
        """A member is gone while nothing is trained: before any session, or after one."""
        if self._state.session is None:
            yield from self._scripts.lost(member, cause, detail)
            return
        if member.rank == 0:
            hint = "rank 0 was lost after its session had closed"
        else:
            yield WriteEvent("warning.raised", {"text": f"{detail}, after the session had closed"})
            yield from self.open_session()
            yield from self.end_if_all_done()
            return
        yield End("failed", f"rank {member.rank} on {member.node}: {cause} ({detail}); {hint}")
