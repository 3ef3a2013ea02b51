"""The life of a cell and its sessions: opened by all members, closed by all, and how a job ends by itself."""

from __future__ import annotations

from ...core.units import first_line
from ..connection import Channel, Message
from .job_state import Ensemble
from .phase import CALLED, Phase
from .roster import Member

SESSION_FIELDS = (
    "total_steps", "global_batch", "micro_batch", "micro_batches", "parameters", "state_bytes",
    "checkpoint",
)  # fmt: skip
REASON = 200  # characters of an error's message in the reason why a job has ended


class Proceedings(Ensemble):
    """An ensemble that follows its members through the sessions of their cell."""

    def _on_finished(self, channel: Channel, message: Message) -> None:
        if message["generation"] != self.generation:
            return  # it is called into another one, and says so again when that has formed
        member = self.roster.members[message["member"]]
        member.finished = message
        self.finishing = True
        if self.phase is Phase.TRAINING:
            self.enter(Phase.CLOSING)
        members = self.roster.generation()
        if self.phase in CALLED or self.phase is Phase.ADOPTING or not all(m.finished for m in members):
            return
        ends = {(m.finished["step"], m.finished["digest"]) for m in members if m.finished}
        if len(ends) > 1:
            text = "; ".join(
                f"rank {m.rank}: step {m.finished['step']}, {m.finished['digest'][:12]}" for m in members if m.finished
            )
            self.end("failed", f"members ended with different steps or state ({text})")
            return
        step, digest = ends.pop()
        self.reporter.write("session.closed", {"step": step, "digest": digest}, durable=True)
        self.session_over = True
        for member in members:
            member.session = None
            member.channel.send({"type": "close", "generation": self.generation})
        self.enter(Phase.RUNNING_SCRIPT)

    def _on_error(self, channel: Channel, message: Message) -> None:
        error = message["error"]
        rank = self.roster.members[message["member"]].rank
        if rank is None:
            return  # a spare that cannot run the cell does not end a job that trains
        where = f" at line {error['line']}" if error.get("line") else ""
        said = first_line(error["message"], REASON)
        text = f"{error['type']} on rank {rank}{where}" + (f": {said}" if said else "")
        if self.session is None and len(self.roster.generation()) > 1:
            self.scripts.failed(self.roster.members[message["member"]], text, bool(error.get("communication")))
        else:
            self.end("failed", text)

    def _on_anomaly(self, channel: Channel, message: Message) -> None:
        owner = self.roster.members.get(message["owner"])
        rank, node = (owner.rank, owner.node) if owner is not None else (None, "")
        since_s = max(self.sound_s, owner.signs.struck_s) if owner is not None else self.sound_s
        finding = (message["step"], message["cause"], message["action"])
        self.incidents.judged(*finding, node, rank, message["text"], since_s)

    def _on_done(self, channel: Channel, message: Message) -> None:
        member = self.roster.members[message["member"]]
        member.done, member.saw_event = True, bool(message.get("elastic"))
        self._open_session()

    def _open_session(self) -> None:
        """Begin the next session of the cell when every member has come to it."""
        members = self.roster.generation()
        next_index = 1 if self.session is None else self.session_index + 1
        here = [m.session for m in members if m.session is not None and m.session["index"] >= next_index]
        if not here or self.phase is not Phase.RUNNING_SCRIPT:
            return
        if len(here) < len(members):
            done = [m.rank for m in members if m.done]
            if len(here) + len(done) == len(members):
                text = f"rank {done[0]} ended its cell while others wait in hp.Session: open it on every rank"
                self.end("failed", text)
            return
        opened = [{key: message[key] for key in SESSION_FIELDS} for message in here]
        for rank, other in enumerate(opened):
            if differing := [key for key in SESSION_FIELDS if other[key] != opened[0][key]]:
                text = ", ".join(f"{key} {other[key]} instead of {opened[0][key]}" for key in differing)
                self.end("failed", f"rank {rank} opened another session than rank 0: {text}")
                return
        self.reporter.write("session.opened", opened[0])
        self.session, self.session_over, self.finishing = opened[0], False, False
        self.session_index = next_index
        self.begin_session(members)

    def begin_session(self, members: list[Member]) -> None:
        """Call the members into the session that they have all opened."""
        self.call(members)

    def end_if_all_done(self) -> None:
        """The job ends well when every member's cell has ended and its worker is gone."""
        members = self.roster.generation()
        if self.phase is Phase.ADOPTING:
            return  # those that are still to come may be at work
        if self.scripts.ended(members):
            return
        if members and all(m.done and m.exited is not None for m in members):
            self.end(
                "succeeded", f"all {len(members)} members finished" if len(members) > 1 else "its one member finished"
            )

    def lost_without_session(self, member: Member, cause: str, detail: str) -> None:
        """A member is gone while nothing is trained: before any session, or after one."""
        if self.session is None:
            self.scripts.lost(member, cause, detail)
            return
        if member.rank == 0:
            hint = "rank 0 was lost after its session had closed"
        else:
            self.reporter.write("warning.raised", {"text": f"{detail}, after the session had closed"})
            self._open_session()
            self.end_if_all_done()
            return
        self.end("failed", f"rank {member.rank} on {member.node}: {cause} ({detail}); {hint}")
