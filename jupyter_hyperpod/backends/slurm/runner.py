"""Submits, watches, signals and cancels elements of SLURM's job arrays for a supervisor."""

from __future__ import annotations

import signal
import socket
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from ...core.errors import ClusterError
from ...core.spec import LaunchPlan
from ..futures import converted, settled
from ..types import Element, LaunchRequest
from . import script
from .commands import Slurm


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node as `sinfo` shows it."""

    name: str
    state: str
    drained: str


class SlurmRunner:
    """See `backends.base.Scheduler`. One thread runs SLURM's commands, see `commands`."""

    def __init__(self, slurm: Slurm | None = None) -> None:
        self._slurm = slurm or Slurm()
        self._nodes: dict[str, SlurmNode] = {}
        self._nodes_s: float | None = None  # when those were asked for

    # -- what is known -----------------------------------------------------------------------------------------

    @property
    def problem(self) -> str:
        """Why the queue could not be read the last time."""
        return self._slurm.problem

    @property
    def fresh_s(self) -> float:
        """When the queue that is known was asked for."""
        return self._slurm.fresh_s

    @property
    def nodes(self) -> Mapping[str, SlurmNode]:
        """The nodes of all partitions, as they were read last."""
        if self._nodes_s != self.nodes_s:  # thousands of nodes, asked for once per element
            states, draining = self._slurm.node_states(), self._slurm.draining
            self._nodes = {name: SlurmNode(name, state, draining.get(name, "")) for name, (state, _) in states.items()}
            self._nodes_s = self.nodes_s
        return self._nodes

    @property
    def nodes_s(self) -> float:
        """When the nodes that are known were asked for."""
        return self._slurm.draining_s

    def tick(self, now_s: float) -> None:
        """Go on reading the queue for a while."""
        self._slurm.tick()

    def observe(self, job_id: str, since_s: float = -1.0) -> list[Element] | None:
        """What the queue shows of the job."""
        return self._slurm.elements(job_id, since_s)

    def ends(self, elements: Sequence[Element]) -> Future[list[Element]]:
        """Reports, from accounting, of elements that the queue has forgotten."""
        arrays = {element.batch for element in elements}
        told: Future[list[Element]] = converted(
            self._slurm.history(arrays), lambda found: [script.ended(element, found) for element in elements]
        )
        return told

    def names(self, batch: int, count: int) -> list[str]:
        """What SLURM's commands call the elements of an array."""
        return [f"{batch}_{task}" for task in range(count)]

    def element(self, name: str, state: str, node: str, reason: str, job: str, part: str) -> Element | None:
        """An element as it was journaled."""
        return script.named(name, state, node, reason, job, part)

    def held(self, element: Element, requeued: bool) -> str:
        """Why SLURM will not start an element, or not soon."""
        return script.why_held(element, requeued)

    def serving(self, options: Mapping[str, str], part: str) -> set[str]:
        """Nodes of the part's partitions that get work."""
        return self._slurm.serving(script.partition(options, part))

    def shares_nodes(self, options: Mapping[str, str]) -> bool:
        """Who counts cores shares nodes."""
        return "cpus-per-task" in options

    def log(self, name: str) -> str:
        """The log that the script's option --output names."""
        return f"slurm-{name.replace('_', '-')}"

    # -- what is asked for -------------------------------------------------------------------------------------

    def launch(self, plan: LaunchPlan, request: LaunchRequest) -> Future[int]:
        """Submit an array; its number, or ClusterError."""
        options = script.excluding(request.options, request.avoid)
        return self._slurm.submit(plan, options, request.part, request.count)

    def cancel(self, job_id: str, names: Collection[str]) -> Future[None]:
        """End elements, or take them out of the queue."""
        return converted(self._slurm.cancel(names), _nothing) if names else settled(None)

    def release(self, job_id: str) -> Future[None]:
        """End every element of a job."""
        return converted(self._slurm.cancel_job(job_id), _nothing)

    def release_command(self, job_id: str) -> str:
        """What a person runs to give a job's nodes back."""
        return f"scancel --name={job_id}"

    def signal(self, job_id: str, name: str, number: int) -> Future[None]:
        """Send a signal to an element's processes."""
        word = signal.Signals(number).name.removeprefix("SIG")
        return converted(self._slurm.signal(name, word), _nothing)

    def for_head(self, plan: LaunchPlan, options: Mapping[str, str]) -> LaunchPlan:
        """The plan of a coordinator that nodes reach over the network. Raises ClusterError for want of an address."""
        address = options.get(script.BIND) or socket.gethostbyname(socket.gethostname())
        if address.startswith("127."):
            raise ClusterError(
                f"{socket.gethostname()} means {address} here, which compute nodes cannot reach; "
                f"say where they can: --slurm {script.BIND}=ADDRESS"
            )
        return replace(plan, env={**plan.env, "HYPERPOD_BIND": address})

    def close(self, timeout_s: float = 3.0) -> None:
        """Carry out pending requests for a limited time, and end the thread."""
        self._slurm.close(timeout_s)


def _nothing(said: str) -> None:
    """SLURM's commands say nothing that matters where they succeed."""
