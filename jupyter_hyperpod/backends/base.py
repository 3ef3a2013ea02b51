"""The interface of all backends, through which `control` and the supervisor use them. It is about processes only, not
about training.

`Backend` is what a client asks. It keeps no state: each call may come from any process and any thread, and may wait for
the backend's commands, which have a limit of their own.

`Runner` is a backend at work for one supervisor: a `Scheduler` is asked for nodes, the `Host` owns this machine's.
The supervisor calls them on its one thread, so no method waits for anything: a slow one returns a Future, or shows its
result in a later `observe`.

`types` has the types of this interface. A further backend is a folder beside these, with a class that offers
`Backend`, and a line in `core.backends`. The cases that every backend has to pass are in `tests/backends/`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from ..core.health import HealthBoard
from ..core.spec import LaunchPlan
from .types import (
    Capabilities,
    Element,
    HeadState,
    HostNode,
    KeptPlace,
    LaunchRequest,
    NodeInfo,
    ReportedNode,
    Surroundings,
)


class Remedies(Protocol):
    """Acts on a scheduler's nodes. Called by clients and by health agents; every method waits for the scheduler
    and raises ClusterError where it refuses."""

    shares_store: bool  # whether what runs on a node has the store of the caller

    def installed(self) -> bool:
        """Whether this machine has the commands that act."""

    def carry_out(self, node: str, action: str, why: str) -> str:
        """Ask for "drain", "reboot" or "replace", and return what was asked; a drained node shows ``why``."""

    def resume(self, node: str) -> None:
        """Return a node to service, if this software has drained it."""

    def put_back(self, node: str) -> None:
        """Return a node to service, no matter why it is out of service."""

    def serves(self, node: str) -> bool:
        """Whether the node gets new work."""

    def node_info(self, node: str) -> NodeInfo | None:
        """What the scheduler shows of the node; None where it does not know the node."""

    def run_on(self, node: str, words: Sequence[str], name: str, directory: Path, limit_s: float) -> str:
        """Run ``python -m WORDS`` on a node, wait for its end, and return the last line that it printed.

        ``directory``: for what else it says, where nodes share it. Raises TimeoutError after ``limit_s``; then, and
        where the caller is interrupted, the program is ended.
        """

    def show_check(self, node: str, state: str) -> str:
        """Show at the node how far a deep check is, where its scheduler can show that; "" takes it away.

        Returns what was shown before.
        """

    def recovery(self) -> str:
        """NodeRecovery of the scheduler's own agents; "" where that of the store counts."""


class RemoteHead(Protocol):
    """The head of one job where it runs on none of the submitter's machines: in a pod, with a store of its own.

    Every method waits for the backend, and raises ClusterError where that does not answer or refuses.
    """

    @property
    def store(self) -> str:
        """The directory, where the head runs, of the head's own store."""

    @property
    def own_options(self) -> Mapping[str, str]:
        """The options of the job as its head has to know them."""

    @property
    def advice(self) -> str:
        """What keeps this store though the head is lost, as a sentence; "" where that is another's matter."""

    def refused(self, error: Exception) -> bool:
        """Whether it is of no use to try again."""

    def start(self, python: str) -> None:
        """Have it started, and started again where it is lost; ``python``: of the place where it runs."""

    def state(self) -> HeadState:
        """How far it is."""

    def run(self, arguments: Sequence[str], data: bytes, limit_s: float) -> bytes:
        """Run its program with other arguments beside it, and return what that prints. ``data``: standard input."""

    def follow(self, arguments: Sequence[str], data: bytes, silent_s: float) -> Iterator[bytes]:
        """The same for a program that prints as long as it lives, but never nothing for ``silent_s``."""

    def remove(self) -> None:
        """Remove it, and every process of its job."""

    def close(self) -> None:
        """Close connections."""


class ApartPods(Protocol):
    """The pods of one job's nodes where each has a store of its own; its head brings them the job.

    Every method waits for the backend, and raises ClusterError where that does not answer or refuses.
    """

    def running(self) -> Mapping[str, str]:
        """The pods whose program runs, each by a name that no other pod ever has, and its node."""

    def wait(self, limit_s: float) -> None:
        """Wait until there may be others, or for this time."""

    def run(self, pod: str, command: Sequence[str], data: bytes, limit_s: float) -> bytes:
        """Run a command in one of them and return what that prints. ``data``: standard input."""

    def close(self) -> None:
        """Close connections."""


class Backend(Protocol):
    """What a client asks of a backend; see the head of this module."""

    title: str  # what people call it, as the beginning of a sentence's subject: "SLURM"
    capabilities: Capabilities
    advice: str  # what a person does where nodes are missing
    list_command: str  # lists the nodes

    def missing(self, isolated: bool = False) -> str:
        """What this machine lacks for jobs to be submitted, as a sentence; "" where nothing does.

        ``isolated``: where each node is to have a network of its own.
        """

    def programs(self) -> Sequence[str]:
        """The scheduler's own programs that this machine has; none for a backend that runs none."""

    def refusal(self, options: Mapping[str, str], store: str, nodes: int = 1) -> str:
        """Why a job with these options, the store in this directory and so many nodes to begin with can never run.

        "" where it can, or where only others stand in its way.
        """

    def answer(self, limit_s: float) -> str:
        """Ask it for a sign of life; what it says, as the rest of a sentence after its title. Raises ClusterError."""

    def node_states(self, options: Mapping[str, str]) -> Mapping[str, tuple[str, str]]:
        """Node -> (state, why) of all nodes that a job with these options may get. Raises ClusterError."""

    def contexts(self) -> Sequence[str]:
        """The clusters among which a job's option ``context`` chooses, the usual one first; [""] where there is one."""

    def kept(self, options: Mapping[str, str], store: str) -> Sequence[KeptPlace]:
        """What is kept for the next job with these options of the store in this directory. Raises ClusterError."""

    def let_go(self, options: Mapping[str, str], store: str) -> Sequence[str]:
        """End all of that which no job has taken meanwhile; the names. Raises ClusterError."""

    def remedies(self) -> Remedies | None:
        """What acts on the backend's nodes; None where the supervisor does."""

    def health_board(self, node: str) -> HealthBoard | None:
        """Where the health agent of a node shows what it has found; None where it writes that into the store."""

    def remote_head(self, options: Mapping[str, str], job_id: str) -> RemoteHead | None:
        """What runs the head of a job with these options elsewhere; None where it runs beside its supervisor here."""

    def apart_pods(self, options: Mapping[str, str], job_id: str) -> ApartPods | None:
        """The pods of a job whose head is this process's; None where nodes have the head's own store."""

    def place(self, options: Mapping[str, str]) -> str:
        """Where a job with these options runs: jobs of one place share a runner. "" where there is only one."""

    def open(self, surroundings: Surroundings, options: Mapping[str, str] | None = None) -> Runner:
        """Begin to work for a supervisor, at the place of jobs with these options."""


class Runner(Protocol):
    """A backend at work for one supervisor; see the head of this module.

    A job grows by one more `launch`, and shrinks by `cancel` of some of its elements.
    """

    @property
    def problem(self) -> str:
        """Why the backend could not be asked the last time; "" where it could."""

    @property
    def fresh_s(self) -> float:
        """When the answer that `observe` gives was requested, on the monotonic clock."""

    @property
    def nodes(self) -> Mapping[str, ReportedNode]:
        """The nodes, by name, as far as they are known."""

    @property
    def nodes_s(self) -> float:
        """When the contents of `nodes` were requested, on the monotonic clock."""

    def tick(self, now_s: float) -> None:
        """Do what nothing else triggers: due queries, nodes that hang. Called often while there is a job."""

    def launch(self, plan: LaunchPlan, request: LaunchRequest) -> Future[int]:
        """Start processes of a job; the batch's number, or ClusterError where none was started."""

    def observe(self, job_id: str, since_s: float = -1.0) -> list[Element] | None:
        """The job's elements; None if the newest answer was requested before ``since_s`` (monotonic clock)."""

    def ends(self, elements: Sequence[Element]) -> Future[list[Element]]:
        """The results of ended elements that `observe` no longer reports."""

    def cancel(self, job_id: str, names: Collection[str]) -> Future[None]:
        """End some of a job's elements, or never start them; those that have ended are no error."""

    def release(self, job_id: str) -> Future[None]:
        """End all of a job's elements, also those that nobody has recorded, and forget the job."""

    def signal(self, job_id: str, name: str, number: int) -> Future[None]:
        """Send a signal to an element's processes."""

    def log(self, name: str) -> str:
        """The name, without its ending, of the file in the plan's log directory to which an element writes."""

    def close(self, timeout_s: float = 3.0) -> None:
        """Carry out pending requests for a limited time, and leave nothing behind. The only method that waits."""


class Scheduler(Runner, Protocol):
    """A runner without nodes of its own: it asks a scheduler for them. `supervisor.allocation` records the requests."""

    def names(self, batch: int, count: int) -> list[str]:
        """The names of a batch's elements."""

    def element(self, name: str, state: str, node: str, reason: str, job: str, part: str) -> Element | None:
        """The element with these journaled values; None if ``name`` cannot be one of this scheduler's."""

    def withdraw(self, job_id: str, names: Collection[str]) -> Future[None]:
        """Take elements that wait out of the queue; those that have been started meanwhile go on."""

    def lacks_node(self, element: Element) -> bool:
        """Whether an element that is queued would be started if there were a node for it, as far as is known."""

    def held(self, element: Element, requeued: bool) -> str:
        """Why an element that waits will not be started, or not soon; "" where it may."""

    def serving(self, options: Mapping[str, str], part: str) -> set[str]:
        """Nodes that get work of a job with these options; none where that is not known yet."""

    def shares_nodes(self, options: Mapping[str, str]) -> bool:
        """Whether several elements of a job with these options may run on one node."""

    def for_head(self, plan: LaunchPlan, options: Mapping[str, str]) -> LaunchPlan:
        """The plan of a job's head, with the address at which nodes reach it. Raises ClusterError for want of one."""

    def release_command(self, job_id: str) -> str:
        """What a person runs to give a job's nodes back."""

    def expects(self, job_id: str, since_s: float) -> bool:
        """Whether nodes of a job are about to run at once, so that its head may begin at the same time: as far as is
        known, and unless what was requested after ``since_s`` (monotonic clock) shows them."""

    def news(self, job_id: str) -> Sequence[str]:
        """What was done for a job since the last call that its owner should know, as sentences."""

    def keep_nothing(self) -> None:
        """The cluster ends: what is kept for later jobs of this store is given back, too."""


class Host(Runner, Protocol):
    """The runner that owns this machine's nodes and runs the heads of all jobs. It reports ends at once.

    To `signal`, a job's head is the element `HEAD`.
    """

    isolated: bool

    @property
    def nodes(self) -> Mapping[str, HostNode]: ...
    @property
    def head(self) -> HostNode:
        """Where the heads of jobs run."""

    @property
    def warm_key(self) -> str:
        """The digest of the source that is preloaded."""

    @property
    def renewable(self) -> bool:
        """Whether nothing runs, so that everything can be restarted."""

    def open(self, shape: Mapping[str, bool]) -> None:
        """Adopt what still runs from an earlier supervisor, and start the rest; ``shape`` is name -> spare."""

    def extend(self, shape: Mapping[str, bool]) -> None:
        """Give a host that was opened without nodes some."""

    def renew(self) -> None:
        """Restart everything, because the installed source has changed."""

    def launch_head(self, plan: LaunchPlan) -> bool:
        """Begin to start a job's head; False if that is impossible at present."""

    def signal_node(self, node: str, number: int) -> bool:
        """Send a signal to everything on a node; False where it is not up."""

    def cut(self, node: str) -> None:
        """Cut a node off the network. Raises ClusterError where that cannot be."""

    def heal(self, node: str) -> None:
        """Undo `cut`. Raises ClusterError."""
