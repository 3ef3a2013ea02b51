"""Orders: what the coordinator tells agents and workers to do. A leader passes some of them on to its followers."""

from __future__ import annotations

from dataclasses import dataclass

from ...policy.recovery import RecoveryPlan
from .codec import Message, Process, message

COORDINATOR, AGENT, WORKER, FOLLOWER = Process


# ---- to an agent ---------------------------------------------------------------------------------------------


@message("release", COORDINATOR, AGENT)
class Release(Message):
    """The agent ends its worker and itself."""


@message("restart", COORDINATOR, AGENT)
class Restart(Message):
    """The agent ends its worker and forks a new one, which becomes a newcomer."""


@message("probe", COORDINATOR, AGENT)
class ProbeHost(Message):
    """The agent does nothing: the coordinator only wants its host to confirm (TCP) that this arrived."""


@message("signal", COORDINATOR, AGENT)
class SendSignal(Message):
    """The worker gets a signal."""

    member: str
    number: int


@message("resume", COORDINATOR, AGENT)
class ResumeWorker(Message):
    """The agent resumes a worker that it stopped without a lease.

    ``sent_s`` and ``lease_s``: of the `Beat` that this answers.
    """

    member: str
    sent_s: float
    lease_s: float


@message("elastic_call", COORDINATOR, AGENT)
class CallElasticEvent(Message):
    """Call number ``at`` of elastic_event_detected() and all later ones return True, once that is ``final``.

    ``at`` 0: there is no event.
    """

    member: str
    at: int
    final: bool


@message("throttle", (COORDINATOR, WORKER), AGENT)
class ThrottleWorker(Message):
    """The worker gets 1/``factor`` of its CPU time for ``duration_s``; ``member`` None: it asks for that itself."""

    factor: float
    duration_s: float
    member: str | None = None


@message("preempt", (COORDINATOR, WORKER), AGENT)
class PreemptNode(Message):
    """The agent behaves as if its node were preempted; ``member`` None: the worker asks for that itself."""

    member: str | None = None


# ---- to a worker ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Peer:
    """The address of a member; ``ports``: one per rank of a replica, by shard."""

    member: str
    host: str
    port: int
    ports: tuple[int, ...] = ()


@message("run", (COORDINATOR, WORKER), (AGENT, WORKER, FOLLOWER))
class RunCell(Message):
    """The worker runs the cell. ``rank`` None: as a newcomer. ``replica_port``: of the store of its replica."""

    rank: int | None
    world_size: int
    master_host: str
    master_port: int
    restarts: int
    replica_port: int | None = None


@message("form", (COORDINATOR, WORKER), (AGENT, WORKER, FOLLOWER))
class FormGeneration(Message):
    """The worker connects to the members of a new generation and reports its state."""

    generation: int
    rank: int
    members: tuple[Peer, ...]


@message("go", (COORDINATOR, WORKER), (WORKER, FOLLOWER))
class FollowPlan(Message):
    """Every member has reported: the generation goes on as planned."""

    generation: int
    plan: RecoveryPlan


@message("hold", (COORDINATOR, WORKER), (WORKER, FOLLOWER))
class MeetAfter(Message):
    """Newcomers join when ``step`` is committed: the worker waits there for the next generation."""

    generation: int
    step: int


@message("leave", (COORDINATOR, WORKER), (WORKER, FOLLOWER))
class LeaveAfter(Message):
    """The worker leaves when step ``after`` is committed."""

    generation: int
    after: int


@message("offer", (COORDINATOR, WORKER), (WORKER, FOLLOWER))
class OfferState(Message):
    """The worker copies stripe ``part`` of ``parts`` of its state into shared memory, for newcomers."""

    generation: int
    part: int
    parts: int


@message("snapshot", (COORDINATOR, WORKER), (WORKER, FOLLOWER))
class TakeSnapshot(Message):
    """A newcomer loads the state after ``step``; ``skeleton`` by shard, ``tokens`` by stripe and shard."""

    step: int
    skeleton: tuple[str, ...]
    tokens: tuple[tuple[str, ...], ...]


@message("go_back", (COORDINATOR, WORKER), (WORKER, FOLLOWER))
class GoBack(Message):
    """All members go back to a checkpoint: each discards its state."""

    generation: int


@message("close", (COORDINATOR, WORKER), (WORKER, FOLLOWER))
class CloseSession(Message):
    """All members have come to the end of the session."""

    generation: int


@message("interval", COORDINATOR, WORKER)
class CheckpointInterval(Message):
    """A checkpoint is due every ``every_s``; the newest one is ``age_s`` old."""

    every_s: float
    age_s: float


@message("fault", COORDINATOR, WORKER)
class InjectFault(Message):
    """The worker suffers ``fault`` before its next micro-batch."""

    member: str
    fault: str
