"""Compares a disturbed and an undisturbed run of the same code by their journals.

`runtime.audit` checks one journal by itself; this module compares two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from ..control import jobs
from ..control.text_tables import Table
from ..core.errors import NotFound
from ..core.events import Event
from ..core.incidents import fold_stages
from ..core.units import format_bytes, format_duration
from ..runtime.audit import Audit, audit
from ..storage.store import Store


@dataclass(frozen=True)
class Run:
    """One job's journal, read to its end."""

    job_id: str
    events: tuple[Event, ...]

    @classmethod
    def read(cls, store: Store, job_id: str) -> Run:
        """Read a job's whole journal."""
        return cls(job_id, tuple(jobs.follow(store, job_id).poll()))

    def of_kind(self, kind: str) -> list[Event]:
        """Events of one kind, in order of time."""
        return [event for event in self.events if event.kind == kind]

    @cached_property
    def commits(self) -> dict[int, Event]:
        """The first record of every committed step."""
        found: dict[int, Event] = {}
        for event in self.of_kind("step.committed"):
            found.setdefault(event.data["step"], event)
        return dict(sorted(found.items()))

    @property
    def state(self) -> str:
        """The last state in the journal."""
        states = self.of_kind("job.state")
        return str(states[-1].data["state"]) if states else "pending"

    @property
    def session(self) -> dict[str, Any]:
        """The session's description; raises NotFound where none was opened."""
        opened = self.of_kind("session.opened")
        if not opened:
            raise NotFound(f"{self.job_id} opened no session; its journal proves nothing")
        return dict(opened[0].data)

    @cached_property
    def audit(self) -> Audit:
        """The audit of the journal."""
        return audit(self.events)

    @property
    def losses(self) -> list[tuple[int, float]]:
        """``(step, loss)`` of every committed step."""
        return [(step, float.fromhex(event.data["loss_hex"])) for step, event in self.commits.items()]

    @property
    def exact_losses(self) -> dict[int, str]:
        """The loss of every step, as exact hexadecimal; the audit tells whether another was journaled too."""
        return {step: event.data["loss_hex"] for step, event in self.commits.items()}

    @property
    def steps_lost(self) -> int:
        """Planned steps that were never committed."""
        return int(self.session["total_steps"]) - self.audit.steps

    @property
    def samples_wrong(self) -> int:
        """Samples that committed steps used twice or not at all: they follow from (seed, step, micro-batch)."""
        return int(self.audit.miscounted * self.session["micro_batch"])


@dataclass(frozen=True)
class RunComparison:
    """A disturbed run beside an undisturbed one of the same code and seed."""

    disturbed: Run
    undisturbed: Run

    @classmethod
    def read(cls, disturbed_id: str, undisturbed_id: str, store: Store | None = None) -> RunComparison:
        """Read both journals from `store`, the default one where None."""
        store = store or Store()
        return cls(Run.read(store, disturbed_id), Run.read(store, undisturbed_id))

    @cached_property
    def kill(self) -> Event | None:
        """The first fault that was injected."""
        return next(iter(self.disturbed.of_kind("fault.injected")), None)

    @cached_property
    def _before(self) -> list[Event]:
        """Steps committed before the kill; none where nothing was killed."""
        return [e for e in self.disturbed.commits.values() if self.kill and e.time_s < self.kill.time_s]

    def _next_commit_s(self, world_size: int) -> float | None:
        """Kill to the first commit by this many members or more, in a generation formed after the kill."""
        kill = self.kill
        if kill is None:
            return None
        formed = [e.data["generation"] for e in self.disturbed.of_kind("generation.formed") if e.time_s <= kill.time_s]
        generation = max(formed, default=0)
        commits = (e for e in self.disturbed.commits.values() if e.time_s > kill.time_s)
        anew = (e for e in commits if e.data["generation"] > generation and e.data["world_size"] >= world_size)
        return next((event.time_s - kill.time_s for event in anew), None)

    @property
    def step_s(self) -> float | None:
        """Median of one undisturbed step before the kill, in seconds."""
        times = [event.data["step_time_s"] for event in self._before]
        return median(times[1:]) if len(times) > 1 else None

    @property
    def recovery_s(self) -> float | None:
        """Kill to the next commit, detection included, in seconds: what the job's first incident shows everywhere."""
        first = next(iter(fold_stages(self.disturbed.events)), None)
        if first is None or first["detection_s"] is None or first["recovery_s"] is None:
            return None
        return float(first["recovery_s"])

    @property
    def stall_s(self) -> float | None:
        """Kill to the survivors' next commit, minus one undisturbed step, in seconds."""
        next_s = self._next_commit_s(1)
        return None if next_s is None or self.step_s is None else next_s - self.step_s

    @property
    def full_strength_s(self) -> float | None:
        """Kill to the first step committed by as many members as before, in seconds."""
        return self._next_commit_s(self._before[-1].data["world_size"]) if self._before else None

    @property
    def killed_step(self) -> int | None:
        """The step that was being computed when the node was killed."""
        return None if self.kill is None else 1 + len(self._before)

    @property
    def same_losses(self) -> bool:
        """Every loss of both runs is the same, to the last bit, and neither journal contradicts itself."""
        ours, theirs = self.disturbed.exact_losses, self.undisturbed.exact_losses
        return bool(ours) and ours == theirs and self.disturbed.audit.sound and self.undisturbed.audit.sound

    @property
    def same_state(self) -> bool:
        """Parameters and optimizer state are the same at the end, to the last bit."""
        return self.disturbed.audit.digest != "" and self.disturbed.audit.digest == self.undisturbed.audit.digest

    @property
    def undisturbed_is_calm(self) -> bool:
        """The run to compare with met no fault and kept all its members."""
        return not self.undisturbed.of_kind("fault.injected") and not self.undisturbed.of_kind("member.lost")

    def checks(self) -> list[tuple[str, str, bool]]:
        """Return ``(what, figure, holds)`` of everything the demonstration promises."""
        lost, wrong = self.disturbed.steps_lost, self.disturbed.samples_wrong
        node = self.kill.data["node"] if self.kill else None
        state = format_bytes(self.disturbed.session["state_bytes"])
        ended = [self.disturbed.state, self.undisturbed.state]
        return [
            ("both runs ended", " and ".join(ended), ended == ["succeeded", "succeeded"]),
            ("node killed", f"{node} at step {self.killed_step}" if self.killed_step else "none", node is not None),
            _true("undisturbed run met no fault", self.undisturbed_is_calm),
            _measured("one undisturbed step", self.step_s),
            _measured("recovery: kill to next commit", self.recovery_s),
            _measured("the same beyond one undisturbed step", self.stall_s),
            _measured(f"full strength again, {state} of state", self.full_strength_s),
            ("steps lost", str(lost), lost == 0),
            ("samples repeated or skipped", str(wrong), wrong == 0),
            _true("loss curves bit-identical", self.same_losses),
            _true("final weights and optimizer bit-identical", self.same_state),
        ]

    def table(self) -> Table:
        """Return `checks` as a table."""
        rows = [(what, (figure, "good" if holds else "bad")) for what, figure, holds in self.checks()]
        return Table(("WHAT THE JOURNALS SAY", ">FIGURE"), rows)

    @property
    def holds(self) -> bool:
        """Whether all checks hold."""
        return all(holds for _, _, holds in self.checks())


def _measured(what: str, seconds: float | None) -> tuple[str, str, bool]:
    if seconds is None:
        return what, "not measured", False
    return what, f"-{format_duration(-seconds)}" if seconds < 0 else format_duration(seconds), True


def _true(what: str, holds: bool) -> tuple[str, str, bool]:
    return what, "yes" if holds else "no", holds
