"""The types of the backends' interface: elements of jobs and their phases, requests, reports, capabilities."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from ..core.health import HealthRecord
from ..core.spec import Handle
from ..system.processes import Identity

HEAD = "head"  # where the heads of jobs run: on the supervisor's machine, beside its own nodes
# parts of a job: what it cannot begin without, and what may be taken from it again
BASE, ELASTIC = "base", "elastic"
SHARED_NETWORK = (
    "the nodes of this cluster share the machine's network, so none can be cut off; start one where each has its own: "
    "`jupyter hyperpod cluster stop`, then, as root, `jupyter hyperpod cluster start --isolate-network`"
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What can be done with a backend's nodes.

    ``owns_nodes``: the supervisor knows each node and says where a process runs; otherwise a scheduler is asked for a
    number of nodes and chooses them. ``cuts_network``: a node can be cut off the network. ``serves``: replicas of a
    deployment can run there.
    """

    owns_nodes: bool = False
    cuts_network: bool = False
    serves: bool = False


@dataclass(frozen=True, slots=True)
class KeptPlace:
    """What a job has left on a node and is kept for the next one; ``until_s``: in seconds since the epoch."""

    name: str
    node: str
    until_s: float


class ElementPhase(Enum):
    """How far an element is; each backend maps its own states to these. Not a job's phase (`coordinator.phase`)."""

    QUEUED = "it only lacks a node, or time"
    WAITING = "it does not run now, and will: it is about to start, or held, or suspended"
    RUNNING = "it runs"
    ENDED = "it has ended, and nothing is known to be wrong"
    FAILED = "it has ended by an error of its own"


@dataclass(frozen=True, slots=True)
class Element:
    """One process of a job on one node, or the wish for one.

    ``name``: what the backend calls it. ``state`` and ``reason``: the backend's own words. ``node``: empty while it
    waits. ``part``: `BASE` or `ELASTIC`. ``batch``: the number that `launch` returned. ``aliases``: other
    names of a node with several elements. ``status``: the exit status, negative for a signal, None where nobody
    knows.
    """

    name: str
    state: str
    phase: ElementPhase
    node: str = ""
    reason: str = ""
    job: str = ""
    part: str = BASE
    batch: int = 0
    aliases: tuple[str, ...] = ()
    status: int | None = None

    @property
    def waits(self) -> bool:
        """It does not run yet, or not now."""
        return self.phase in (ElementPhase.QUEUED, ElementPhase.WAITING)

    @property
    def active(self) -> bool:
        """It runs, or it will."""
        return self.waits or self.phase is ElementPhase.RUNNING

    @property
    def names(self) -> tuple[str, ...]:
        """What the job may call its node."""
        return self.node, *self.aliases


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What to launch: one process on each of ``nodes`` where the backend owns its nodes, else ``count`` processes.

    ``options``: the job's options for this backend. ``avoid``: nodes that are not to be chosen.
    """

    nodes: Sequence[str] = ()
    count: int = 1
    part: str = BASE
    options: Mapping[str, str] = field(default_factory=dict)
    avoid: Sequence[str] = ()


class HeadPhase(Enum):
    """How far the head of a job is that runs elsewhere."""

    ABSENT = "there is none"
    WAITING = "it is to start, or is being replaced"
    RUNNING = "it runs"
    ENDED = "it has done its work and gone"
    FAILED = "it has failed so often that it is not started again"


@dataclass(frozen=True, slots=True)
class HeadState:
    """The head of a job that runs elsewhere; ``reason`` in the backend's words. ``failed``: how often it has failed."""

    phase: HeadPhase
    reason: str = ""
    failed: int = 0


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node as its scheduler shows it; counts are those configured and those allocated."""

    name: str
    states: frozenset[str]
    reason: str
    cpus: int
    cpus_allocated: int
    load: float | None
    gres: str
    gres_allocated: str
    out: bool  # it gets no new work
    health: HealthRecord | None = None  # what an agent shows at the node


@dataclass
class ReportedNode:
    """What every backend reports of a node: ``drained`` is why it gets no new work, "" where it does.

    ``health``: what an agent shows at the node, None where the scheduler keeps nothing of the kind.
    """

    name: str
    state: str
    drained: str = ""
    health: HealthRecord | None = None


@dataclass
class HostNode(ReportedNode):
    """A node of this machine; ``state`` is one of `core.events.NODE_STATES`.

    ``born_s``: when each job's process began there, on the monotonic clock.
    """

    spare: bool = False
    reason: str = ""
    incarnation: int = 0
    process: Identity | None = None
    jobs: dict[str, Handle] = field(default_factory=dict)
    born_s: dict[str, float] = field(default_factory=dict)
    cut: bool = False

    @property
    def pid(self) -> int | None:
        """The node's own process."""
        return self.process.pid if self.process else None


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node came up or was lost; ``reason`` is a sentence for people."""

    node: str
    up: bool
    reason: str


@dataclass(frozen=True, slots=True)
class ExitReport:
    """A job's process ended on `node`; a negative ``status`` is the signal, None where nobody could collect it."""

    job_id: str
    node: str
    status: int | None
    lived_s: float


Report = NodeReport | ExitReport


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a supervisor gives a backend that begins to work for it.

    ``directory``: for sockets and logs. ``selector``: callbacks registered there are called on the supervisor's thread.
    ``report`` is called at once with each `Report`, by a backend that gets such news at once. ``preload``: modules that
    jobs need, ``heads`` those of them that the jobs' heads need. ``isolated``: each node has a network of its own.
    ``successor``: how the supervisor is started again. ``store``: the path of the supervisor's store.
    """

    directory: Path
    selector: selectors.BaseSelector
    report: Callable[[Report], None]
    environment: Mapping[str, str]
    preload: tuple[str, ...] = ()
    isolated: bool = False
    successor: Mapping[str, object] = field(default_factory=dict)
    store: str = ""
    heads: tuple[str, ...] = ()
