"""The causes of instance failures, and how each shows. The default mix has the counts of a published run.

Interruptions of the 54 days in which Llama 3 405B was trained on 16,384 GPUs ("The Llama 3 Herd of Models", 2024, table
5): 419 unplanned ones. The percentages printed there disagree with the counts; the counts are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.errors import SpecError
from ..core.health import Finding, failed
from ..core.spec import HANG_TIMEOUT_S
from ..policy import membership, verdict

KILLED, HUNG, PARTITION, CORRUPT, PREEMPTED, PROGRAM = "killed", "hung", "partition", "corrupt", "preempted", "program"
KINDS = {
    KILLED: "the process or the node is gone, and its neighbours notice at once",
    HUNG: "it is there and does nothing",
    PARTITION: "its network reaches nobody",
    CORRUPT: "it computes wrong numbers",
    PREEMPTED: "it is given back, and said so before",
    PROGRAM: "the program itself ends, everywhere",
}
NOTICED_S = 0.05  # an agent reports its worker's end, a neighbour a broken connection
FLOOR_S = HANG_TIMEOUT_S
PROBED_S = 0.01


@dataclass(frozen=True, slots=True)
class Cause:
    """``count`` is its share of all failures; ``severity`` is what a probe would report, see `core.health`."""

    name: str
    count: float
    kind: str = KILLED
    severity: str = "isolate"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SpecError(f"{self.name}: kind {self.kind!r}; expected one of {', '.join(KINDS)}")
        if not self.count >= 0:
            raise SpecError(f"{self.name}: count {self.count}; expected one that is not negative")
        self.finding()

    def finding(self) -> Finding:
        """The finding of a probe on a node that failed for this cause."""
        return failed("planner", self.severity, self.name.replace(" ", "-"), KINDS[self.kind])


LLAMA3 = (
    Cause("GPU", 148, severity="reboot"),
    Cause("HBM3 memory", 72),
    Cause("software bug", 54, PROGRAM, "monitor"),
    Cause("network switch or cable", 35, PARTITION, "drain"),
    Cause("host maintenance", 32, PREEMPTED, "drain"),
    Cause("GPU SRAM", 19, severity="reset"),
    Cause("GPU system processor", 17, severity="reboot"),
    Cause("NIC", 7, PARTITION),
    Cause("NCCL watchdog", 7, HUNG, "monitor"),
    Cause("silent data corruption", 6, CORRUPT),
    Cause("thermal", 6, severity="drain"),
    Cause("SSD", 3),
    Cause("power supply", 3),
    Cause("chassis", 2),
    Cause("IO board", 2),
    Cause("dependency", 2, PROGRAM, "monitor"),
    Cause("CPU", 2),
    Cause("system memory", 2),
)
LLAMA3_GPUS, LLAMA3_HOURS, LLAMA3_INTERRUPTIONS = 16_384, 54 * 24.0, 419


def total(mix: Sequence[Cause]) -> float:
    """All counts together. Raises SpecError where nothing ever fails."""
    whole = sum(cause.count for cause in mix)
    if not whole > 0:
        raise SpecError("the failure mix is empty; expected at least one cause with a count")
    return whole


def detection_s(kind: str, step_s: float) -> float:
    """How long after the fault `policy.membership` names the member, when its signs of life grow ever older."""
    if kind == CORRUPT:
        return step_s / 2  # checked in every step
    if kind not in (HUNG, PARTITION):
        return 0.0 if kind == PREEMPTED else NOTICED_S
    timeout_s = membership.hang_timeout_s(step_s, FLOOR_S)

    def noticed(age_s: float) -> bool:
        hung = kind == HUNG
        other = membership.MemberHeartbeat("other", 0.0, age_s, "exchange")
        lease_s = membership.lease_s(membership.BEAT_S, 0.0)
        unconfirmed_s = None if hung else age_s
        beat_age_s = 0.0 if hung else age_s
        victim = membership.MemberHeartbeat("victim", beat_age_s, age_s, "compute", 0.0, unconfirmed_s, lease_s)
        return membership.lost([victim, other], timeout_s).value is not None

    low_s, high_s = 0.0, PROBED_S
    while not noticed(high_s):
        low_s, high_s = high_s, 2 * high_s
        if high_s > 1e7:
            raise SpecError(f"a member that is {kind} is never noticed")
    while high_s - low_s > PROBED_S:
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if noticed(middle_s) else (middle_s, high_s)
    return high_s


def convicted(members: int) -> int:
    """How many of ``members`` `policy.verdict` fences where the state of one differs from the others."""
    states = ["right"] * (members - 1) + ["wrong"]
    stated = [verdict.Statement(f"m{rank}", f"rank {rank}", 1, state=state) for rank, state in enumerate(states)]
    return len(verdict.judge(stated).value)
