"""Where the nodes' time went: node-seconds in committed steps, and what took the rest, by cause. Pure.

The time between two commits belongs to the step that the second one commits, as far as an undisturbed step takes. What
it took longer belongs to the incident in it, else to the members that joined or left in it, else to the checkpoint that
was saved in it, else to what the program does between its steps. Spares are counted apart: they have no part in steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...core.events import Event
from ...core.incidents import cause_text

START, BETWEEN, END = "start, until the first step", "between the steps", "after the last step"
RESIZED, SAVED, AGAIN = "joining and leaving", "checkpoints", "steps computed again"
OTHERS = "other causes"
WITHOUT_LOSS = frozenset({"straggler"})  # incidents in which training goes on
CAUSES_KEPT = 24
COMMITS = "step.committed"


@dataclass
class LostTime:
    """``useful``: node-seconds in committed steps. ``lost``: cause -> node-seconds. ``spare``: node-seconds of spares.

    ``thinned``: some steps are known only together with others, so what was lost between them counts as useful.
    """

    useful: float = 0.0
    spare: float = 0.0
    lost: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    thinned: bool = False
    _since_s: float | None = None  # of what is not accounted for yet
    _marked_s: float = 0.0
    _held: float = 0.0  # node-seconds of members since then
    _members: int = 0
    _spares: int = 0
    _usual_s: float | None = None  # of the last undisturbed step
    _open: dict[Any, str] = field(default_factory=dict)  # incident -> cause
    _disturbed: str = ""
    _resized: bool = False
    _paused_s: float = 0.0
    _again: bool = False

    @property
    def total(self) -> float:
        """Node-seconds that the job's members had."""
        return self.useful + sum(self.lost.values())

    @property
    def goodput(self) -> float | None:
        """The part of them in committed steps; None before the first step."""
        return self.useful / self.total if self.steps and self.total else None

    def add(self, event: Event, *, counts: bool = True) -> None:
        """Take up an event, in the order of time; ``counts``: a commit is the first one of its step."""
        data = event.data
        if event.kind == "generation.formed":
            self._mark(event.time_s)
            self._resized = self._resized or self._members > 0
            self._members, self._spares = len(data["members"]), len(data["spares"])
        elif event.kind == "incident.stage":
            self._incident(data)
        elif event.kind == "checkpoint.saved":
            self._paused_s += data["paused_s"]
        elif event.kind == COMMITS and counts:
            self._commit(event)
        elif event.kind == COMMITS:
            self._again = True

    def _incident(self, data: Any) -> None:
        cause = cause_text(str(data["cause"])) or self._open.get(data["incident"], "") or "incident"
        if cause in WITHOUT_LOSS:
            return
        if data["stage"] == "resumed":
            self._open.pop(data["incident"], None)
        else:
            self._open[data["incident"]] = cause
            self._disturbed = self._disturbed or cause

    def _mark(self, time_s: float) -> None:
        if self._since_s is None:
            self._since_s = self._marked_s = time_s
        passed_s = max(0.0, time_s - self._marked_s)
        self._held += passed_s * self._members
        self.spare += passed_s * self._spares
        self._marked_s = max(self._marked_s, time_s)

    def _commit(self, event: Event) -> None:
        data = event.data
        self._mark(event.time_s)
        passed_s = self._marked_s - (self._since_s or 0.0)
        count, took_s = data.get("steps", 1), float(data["step_time_s"])
        self.thinned = self.thinned or count > 1
        disturbed = self._disturbed or next(iter(self._open.values()), "")
        usual_s = took_s if self._usual_s is None or not (disturbed or self._resized) else min(took_s, self._usual_s)
        known = count == 1 or bool(disturbed) or self._resized
        useful_s = min(passed_s, count * usual_s if known else passed_s - self._paused_s)
        first = not self.steps
        self.steps += count
        rest = "" if first else disturbed or (RESIZED if self._resized else "")
        self._account(max(0.0, useful_s), passed_s, rest or (AGAIN if self._again else ""), START if first else BETWEEN)
        if not (disturbed or self._resized or first):
            self._usual_s = took_s
        self._disturbed, self._resized, self._again, self._paused_s = "", False, False, 0.0

    def _account(self, useful_s: float, passed_s: float, cause: str, otherwise: str) -> None:
        """Divide the node-seconds since the last commit as their seconds are divided."""
        if passed_s > 0:
            nodes = self._held / passed_s
            self.useful += nodes * useful_s
            rest_s = passed_s - useful_s
            saved_s = 0.0 if cause else min(rest_s, self._paused_s)
            self._lose(SAVED, nodes * saved_s)
            self._lose(cause or otherwise, nodes * (rest_s - saved_s))
        self._held, self._since_s = 0.0, self._marked_s

    def _lose(self, cause: str, node_seconds: float) -> None:
        if node_seconds > 0:
            cause = cause if cause in self.lost or len(self.lost) < CAUSES_KEPT else OTHERS
            self.lost[cause] = self.lost.get(cause, 0.0) + node_seconds

    def end(self, time_s: float, *, over: bool) -> None:
        """Account for the time since the last commit, unless a step is under way."""
        if self._since_s is None:
            return
        cause = self._disturbed or next(iter(self._open.values()), "")
        if over or cause:
            self._mark(time_s)
            self._account(0.0, self._marked_s - self._since_s, cause, END if self.steps else START)
