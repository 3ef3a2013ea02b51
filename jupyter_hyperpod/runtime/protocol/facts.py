"""Facts: what agents and workers tell the coordinator. Those of a worker pass through its agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...policy.growth import BatchTerms
from ...policy.membership import LEASE_S
from ...policy.recovery import MemberState
from .codec import Message, Process, message
from .orders import CallElasticEvent, RunCell

COORDINATOR, AGENT, WORKER, FOLLOWER = Process


# ---- of a worker ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointPlace:
    """The path of a session's checkpoints, as the user wrote it, and how often one is written, as a phrase."""

    path: str
    every: str


@dataclass(frozen=True, slots=True)
class CellError:
    """The exception of a cell. ``line``: of the cell. ``communication``: peers could not be reached.

    ``cell``: the number of the cell, where the cells of a notebook were joined.
    """

    type: str
    message: str
    traceback: tuple[str, ...]
    line: int | None
    communication: bool
    cell: int | None = None


@message("hello", WORKER, AGENT)
class WorkerReady(Message):
    """The worker waits for its cell and can be reached by others; ``ports``: of all ranks of its replica."""

    pid: int
    host: str
    port: int
    ports: tuple[int, ...] = ()


@message("session", WORKER, (AGENT, COORDINATOR))
class SessionOpened(Message):
    """The cell has opened a session, its ``index``-th."""

    total_steps: int
    global_batch: int
    micro_batch: int
    micro_batches: int
    parameters: int
    state_bytes: int
    checkpoint: CheckpointPlace | None
    index: int = 0
    growth: BatchTerms | None = None  # where the global batch may change


@message("shown", WORKER, AGENT)
class OutputShown(Message):
    """The cell displays something; a mark with this ``number`` in its standard output says where.

    ``text``: what it is as text. ``shown``: the field of that name of an ``output.written`` event.
    """

    number: int
    text: str
    shown: dict[str, Any]


@message("report", (WORKER, FOLLOWER), (COORDINATOR, WORKER))
class StateReported(Message):
    """The training state that a member holds. A follower sends it to its leader, which reports for the replica."""

    generation: int
    state: MemberState


@message("rendezvous", (WORKER, COORDINATOR), (COORDINATOR, WORKER))
class RendezvousStore(Message):
    """Rank 0 serves the generation's store at ``port``; the coordinator tells the others."""

    generation: int
    port: int


@message("suspect", (WORKER, FOLLOWER), COORDINATOR)
class PeerSuspected(Message):
    """The connection to ``rank`` is broken."""

    generation: int
    rank: int


@message("accuse", (WORKER, FOLLOWER), COORDINATOR)
class CorruptionFound(Message):
    """Checksums of members differ. The coordinator forms a generation, in whose reports it finds the wrong one."""

    generation: int
    text: str


@message("synced", WORKER, COORDINATOR)
class StateReceived(Message):
    """A newcomer has got the state; ``text``: from whom, and how long that took."""

    generation: int
    text: str


@message("committed", WORKER, COORDINATOR)
class StepCommitted(Message):
    """Rank 0 has applied a step; ``loss``: as `float.hex` writes it."""

    step: int
    generation: int
    step_time_s: float
    loss: str = ""


@message("anomaly", WORKER, COORDINATOR)
class AnomalyFound(Message):
    """The guard judged a step; ``owner``: the member that computed the micro-batch, where that is known."""

    step: int
    cause: str
    action: str
    owner: str | None
    text: str


@message("struck", WORKER, COORDINATOR)
class FaultStruck(Message):
    """A fault that the cell asked for strikes now."""


@message("left", WORKER, COORDINATOR)
class MemberLeft(Message):
    """The member has finished its last step."""

    generation: int
    step: int


@message("offered", (WORKER, FOLLOWER), (COORDINATOR, WORKER))
class StateOffered(Message):
    """A stripe of the state after ``step`` (-1: none) lies in shared memory; ``token`` and ``skeleton`` by shard."""

    generation: int
    step: int
    token: tuple[str, ...]
    skeleton: tuple[str, ...]


@message("approached", WORKER, COORDINATOR)
class SnapshotLoaded(Message):
    """A newcomer holds the state after ``step``; None: it could not read it."""

    step: int | None


@message("back", WORKER, COORDINATOR)
class ReadyToGoBack(Message):
    """The cell goes back to a checkpoint; the worker waits for the others."""

    generation: int


@message("restore", WORKER, COORDINATOR)
class RestoreAsked(Message):
    """The worker has given its state up and waits for a generation that loads a checkpoint."""

    generation: int


@message("unreadable", WORKER, COORDINATOR)
class CheckpointUnreadable(Message):
    """The checkpoint that the plan names cannot be read here."""

    generation: int
    step: int


@message("early", WORKER, COORDINATOR)
class NewcomersEarly(Message):
    """Newcomers, by their ``ranks``, came in the middle of a turn of the loop, which has changed something there.

    They have to come between two turns of ``runs`` updates each; ``text``: why. The worker waits for a generation.
    """

    generation: int
    ranks: tuple[int, ...]
    runs: int
    text: str


@message("saved", WORKER, COORDINATOR)
class CheckpointSaved(Message):
    """A checkpoint was written in ``took_s``; training waited ``paused_s``."""

    step: int
    took_s: float
    paused_s: float


@message("loaded", WORKER, COORDINATOR)
class CheckpointLoaded(Message):
    """A checkpoint was loaded; ``text``: how much, and how long that took; ``asked``: the cell has gone back to it."""

    step: int
    path: str
    took_s: float
    text: str
    asked: bool = False


@message("refused", WORKER, COORDINATOR)
class CheckpointRefused(Message):
    """A checkpoint is not used, for ``reason``."""

    path: str
    reason: str


@message("finished", WORKER, (AGENT, COORDINATOR))
class SessionFinished(Message):
    """The member has finished its session."""

    generation: int
    step: int
    digest: str


@message("done", WORKER, (AGENT, COORDINATOR))
class CellDone(Message):
    """The cell has ended well; ``elastic``: after an elastic event."""

    elastic: bool


@message("error", (WORKER, FOLLOWER), (AGENT, COORDINATOR))
class CellFailed(Message):
    """The cell raised, at ``at_s`` on the node's monotonic clock."""

    at_s: float
    error: CellError


# ---- of an agent ---------------------------------------------------------------------------------------------


@message("leaving", AGENT, COORDINATOR)
class NodePreempted(Message):
    """The node will be taken away after ``grace_s``."""

    grace_s: float


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What a new coordinator must know of an older worker. ``exited``: its exit status, ``ago_s`` seconds ago."""

    run: RunCell | None = None
    session: SessionOpened | None = None
    finished: SessionFinished | None = None
    done: CellDone | None = None
    error: CellFailed | None = None
    leaving: NodePreempted | None = None
    elastic: CallElasticEvent | None = None
    exited: int | None = None
    ago_s: float | None = None


@message("register", AGENT, COORDINATOR)
class Register(Message):
    """Sent when a worker is ready, and again to a new coordinator.

    ``rank``: None unless the worker has one already. ``unpacks``: the agent reads compressed messages;
    ``patches``: and patches of them.
    """

    node: str
    pid: int
    host: str
    port: int
    rank: int | None
    spare: bool
    status: WorkerStatus
    ports: tuple[int, ...] = ()
    unpacks: bool = False
    patches: bool = False


@message("beat", AGENT, COORDINATOR)
class Beat(Message):
    """The worker's progress, ten times per second.

    ``counter`` moves with every micro-batch and phase. ``calls``: of elastic_event_detected(). ``held_s``: when
    this was sent, or None unless the agent has stopped the worker. ``pace``: a step, and its seconds per micro-batch.
    ``lease_s``: how long the member goes on if no later one is confirmed.
    """

    counter: int
    step: int
    phase: str
    calls: int
    stopped: bool
    held_s: float | None
    pace: tuple[int, float]
    lease_s: float = LEASE_S


@message("sampled", AGENT, COORDINATOR)
class NodeSampled(Message):
    """What the processes of a job on its node have used in the last ``ms`` milliseconds.

    ``cpu_ms``: CPU time, on at most ``cores`` at once. ``memory``: bytes now, of at most ``limit``. ``received``,
    ``sent``: bytes of the node's network. ``gpu_ms``: time in which its devices computed, all together. ``steps`` of
    its member ended in that time, and took ``compute_ms`` for micro-batches, ``exchange_ms`` for gradients, and
    ``waits_ms`` for the slowest of the others.
    """

    ms: int
    every_s: float
    cpu_ms: int
    cores: float
    memory: int
    limit: int | None = None
    received: int | None = None
    sent: int | None = None
    gpus: int | None = None
    gpu_ms: int | None = None
    gpu_memory: int | None = None
    gpu_limit: int | None = None
    steps: int | None = None
    compute_ms: int | None = None
    exchange_ms: int | None = None
    waits_ms: int | None = None


@message("exited", AGENT, COORDINATOR)
class WorkerExited(Message):
    """The worker ended ``ago_s`` ago; ``code``: its exit status, negative for a signal."""

    code: int
    ago_s: float


@message("elastic", AGENT, COORDINATOR)
class ElasticAnswer(Message):
    """The answer to `CallElasticEvent`; ``ok``: in time, because the worker had not made call ``at`` yet."""

    at: int
    ok: bool
    calls: int
