"""Takes over the members of the previous coordinator. Members that do not register again in time are lost."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.units import plural
from ...policy import membership
from ..protocol import orders
from .actions import Actions, BeginGeneration, Decide, Enter, Send, WriteEvent
from .generations import Generations
from .job_state import JobState
from .phase import Phase
from .scripts import Scripts
from .session_lifecycle import SessionLifecycle

ADOPTION_S = 3.0


@dataclass(eq=False)
class Adoption:
    """Continues the job where the previous coordinator stopped."""

    _state: JobState
    _generations: Generations
    _scripts: Scripts
    _lifecycle: SessionLifecycle

    def tick(self, now: float) -> Actions:
        """Members of the coordinator before that do not return in time are lost."""
        state = self._state
        if state.phase is not Phase.ADOPTING or now - state.born_s <= ADOPTION_S:
            return
        missing, state.expected = state.expected, {}
        reason = f"{plural(len(missing), 'member')} did not return: {', '.join(sorted(missing))}"
        for name, record in missing.items():
            cause, detail = membership.NODE_LOST, "it did not return to the new coordinator"
            lost = {"member": name, "node": record["node"], "rank": record["rank"], "cause": cause, "detail": detail}
            yield WriteEvent("member.lost", lost)
            if not state.session_over:
                since_s = state.incidents.unheard_since_s(state.born_s)
                state.incidents.begin(name, record["node"], record["rank"], cause, detail, since_s)
        if state.session is None:
            yield Enter(Phase.RUNNING_SCRIPT)
            yield from self._scripts.trouble(0, "lost", reason)
        else:
            yield from self.all_here(reason)

    def all_here(self, reason: str) -> Actions:
        """Every member of the generation has registered with this coordinator."""
        state = self._state
        yield Decide("membership", state.generation, reason)
        if state.trains:
            yield BeginGeneration(reason)
            return
        if state.phase is Phase.ADOPTING:
            yield Enter(Phase.RUNNING_SCRIPT)
        state.incidents.adopted()
        members = state.roster.generation()
        for member in members:
            if state.session_over and member.session is not None and member.session.index <= state.session_index:
                member.session = None
                yield Send(member, orders.CloseSession(state.generation))
        yield from self._generations.run_cells([m for m in members if not m.running])
        yield from self._scripts.taken_over()
        yield from self._lifecycle.open_session()
        yield from self._lifecycle.end_if_all_done()
