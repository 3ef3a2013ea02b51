"""The life of an incident, journaled stage by stage: from the first symptom to training at full strength again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.incidents import cause_text
from ...core.units import plural
from ...policy.membership import NODE_LOST

# how training came back: finish the step, a spare, a new process, another or a restarted node, a checkpoint, the seed
RUNG_SALVAGE, RUNG_SPARE, RUNG_PROCESS, RUNG_NODE, RUNG_DURABLE, RUNG_REQUEUED = range(6)
STRAGGLER = "straggler"
HEAD = "head"  # where coordinators run; what happened to one is first told by the supervisor
CORRUPTION = "silent data corruption"
PROGRAM = "program not reproducible"
Journal = Callable[[str, dict[str, object]], object]


@dataclass
class Incident:
    """One fault, from its detection on."""

    name: str
    member: str
    node: str
    rank: int | None
    cause: str
    stages: list[str] = field(default_factory=list)
    started_s: float = 0.0  # seconds since the Unix epoch, on the clock of the process that journaled it
    climbed: bool = False  # its rung says how the state came back; a later replacement does not change that


class Incidents:
    """Open and past incidents of one job; `journal(kind, data)` writes the events.

    ``since_s``: when the fault was, on this process's monotonic clock: its injection, or the last sign of life.
    """

    def __init__(self, journal: Journal, past: Sequence[Mapping[str, Any]] = ()) -> None:
        """``past``: the incidents in the job's view; those that are still open continue."""
        self._journal = journal
        names = (record["incident"] for record in past)
        self.count = max((int(name[1:]) for name in names if name.startswith("i")), default=0)
        self.open: list[Incident] = []
        self.rung: int | None = None  # where all members were lost: how the next generation came to its state
        for record in past:
            stages = [stage["stage"] for stage in record["stages"]]
            if "resumed" not in stages and record["cause"] != STRAGGLER:
                place = f"rank {record['rank']} on {record['node']}"
                name, node, rank, cause = (record[key] for key in ("incident", "node", "rank", "cause"))
                self.open.append(Incident(name, place, node, rank, cause, stages, record["started_s"]))
        self._replacing: dict[str, Incident] = {}
        self._judged: set[tuple[int, str]] = set()

    def begin(self, member: str, node: str, rank: int | None, cause: str, detail: str, since_s: float) -> Incident:
        """A member of the generation was lost: its place is to be taken."""
        self.open.append(self.note(member, node, rank, cause, detail, since_s))
        return self.open[-1]

    def note(
        self, member: str, node: str, rank: int | None, cause: str, detail: str, since_s: float | None, seen: str = ""
    ) -> Incident:
        """Something happened at a member's node by which nobody is lost: `stage` tells what becomes of it.

        ``since_s`` is None where nobody knows since when. ``seen``: what was noticed, where that is not the cause.
        """
        self.count += 1
        incident = Incident(f"i{self.count}", member, node, rank, cause)
        known: dict[str, Any] = {}
        if since_s is not None:
            known["since_s"] = round(time.time() - (time.monotonic() - since_s), 6)
        self.stage(incident, "detected", seen or f"rank {rank} on {node}: {cause_text(cause)}", **known)
        self.stage(incident, "diagnosed", detail)
        return incident

    def unheard_since_s(self, born_s: float) -> float:
        """Since when the members have had no coordinator that hears them; this one was ``born_s``."""
        lost_s = [incident.started_s for incident in self.open if incident.node == HEAD]
        return min(born_s, _monotonic(min(lost_s))) if lost_s else born_s

    @property
    def vacancies(self) -> int:
        """Places that nobody has taken yet."""
        return sum(not {"repaired", "replaced"} & set(incident.stages) for incident in self.open)

    def judged(
        self, step: int, cause: str, action: str, node: str, rank: int | None, text: str, since_s: float
    ) -> None:
        """The guard found fault with a step: that is over as soon as it is known, or the job stops."""
        if (step, cause) in self._judged:
            return
        self._judged.add((step, cause))
        incident = self.note("", node, rank, cause, text, since_s, f"step {step}: {cause}")
        if action == "skip":
            self.stage(incident, "repaired", f"the update of step {step} is not applied")
            self.stage(incident, "resumed", f"training goes on with step {step + 1}")

    def departed(self, incident: Incident) -> None:
        """The member has left: its place is to be taken."""
        self.open.append(incident)

    def succeeded(self) -> None:
        """This coordinator takes the place of one that was lost."""
        for incident in self.open:
            if incident.node == HEAD and "repaired" not in incident.stages:
                self.stage(incident, "repaired", "another coordinator goes on from the journal", RUNG_PROCESS)

    def fenced(self, generation: int, rung: int | None) -> None:
        """A generation without the lost members has been decided."""
        for incident in self.open:
            if "fenced" not in incident.stages:
                text = f"generation {generation} no longer contains {incident.member}; what it sends is refused"
                self.stage(incident, "fenced", text, rung)

    def resumed(self, step: int, world_size: int) -> None:
        """The first step after the fault was committed."""
        self._resumed(f"step {step} committed by {plural(world_size, 'member')}")

    def adopted(self) -> None:
        """The members that have registered again train nothing: there is no step to wait for."""
        self._resumed("all members registered again")

    def _resumed(self, text: str) -> None:
        for incident in list(self.open):
            if "fenced" in incident.stages and "resumed" not in incident.stages:
                incident.climbed = self.rung is not None
                self.stage(incident, "resumed", text, self.rung)
        self.rung = None

    def restarted(self, text: str) -> None:
        """The ranks run again, without a session that could commit a step."""
        for incident in list(self.open):
            if "resumed" not in incident.stages:
                self.stage(incident, "resumed", text)

    def replaced(self, newcomer: str, node: str, rung: int = RUNG_SPARE) -> None:
        """A newcomer takes the oldest place that is still empty; ``rung``: where it does so on another node."""
        incident = next((i for i in self.open if not {"repaired", "replaced"} & set(i.stages)), None)
        if incident is None:
            return
        if node == incident.node and incident.cause == NODE_LOST:
            self.stage(incident, "replaced", f"{node} was started anew", RUNG_NODE)
        elif node == incident.node:
            self.stage(incident, "repaired", f"{node} runs a new worker in its place", RUNG_PROCESS)
        else:
            self.stage(incident, "replaced", f"{node} takes the place of {incident.node}", rung)
        self._replacing[newcomer] = incident

    def rejoined(self, newcomer: str, text: str) -> None:
        """A newcomer has the state: the incident is over."""
        incident = self._replacing.pop(newcomer, None)
        if incident is not None:
            self.stage(incident, "rejoined", text)

    def stage(self, incident: Incident, stage: str, text: str, rung: int | None = None, **known: float) -> None:
        """Journal a further stage of an incident; ``known``: more of the event."""
        incident.stages.append(stage)
        rung = None if incident.climbed and stage != "resumed" else rung
        over = "resumed" in incident.stages and ("rejoined" in incident.stages or incident.node == HEAD)
        if over and incident in self.open:
            self.open.remove(incident)
        self._journal(
            "incident.stage",
            {
                "incident": incident.name,
                "stage": stage,
                "cause": incident.cause,
                "node": incident.node,
                "rank": incident.rank,
                "rung": rung,
                "text": text,
                **known,
            },
        )


def _monotonic(time_s: float) -> float:
    """A moment of the past, in seconds since the Unix epoch, on the monotonic clock."""
    return time.monotonic() - max(0.0, time.time() - time_s)
