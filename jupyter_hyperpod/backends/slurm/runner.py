"""Submits, reads, signals and cancels elements of SLURM's job arrays for a supervisor, by SLURM's commands."""

from __future__ import annotations

import getpass
import signal
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future

from ...core.errors import ClusterError
from ...core.spec import LaunchPlan
from ..futures import settled
from ..polled import TRIES, PolledRunner
from ..types import Element, LaunchRequest, ReportedNode
from . import commands, script


class SlurmRunner(PolledRunner):
    """See `backends.base.Scheduler`."""

    name = "slurm"

    def __init__(self) -> None:
        super().__init__()
        self._sinfo = ""  # what it printed about the nodes
        self._accounting = True

    # -- what is known -----------------------------------------------------------------------------------------

    def names(self, batch: int, count: int) -> list[str]:
        """What SLURM's commands call the elements of an array."""
        return [f"{batch}_{task}" for task in range(count)]

    def element(self, name: str, state: str, node: str, reason: str, job: str, part: str) -> Element | None:
        return script.named(name, state, node, reason, job, part)

    def held(self, element: Element, requeued: bool) -> str:
        return script.why_held(element, requeued)

    def serving(self, options: Mapping[str, str], part: str) -> set[str]:
        return script.serving(self._sinfo, script.partition(options, part))

    def shares_nodes(self, options: Mapping[str, str]) -> bool:
        """A job that counts cores shares nodes."""
        return "cpus-per-task" in options

    def log(self, name: str) -> str:
        """The log that the script's option --output names."""
        return f"slurm-{name.replace('_', '-')}"

    # -- what is asked for -------------------------------------------------------------------------------------

    def launch(self, plan: LaunchPlan, request: LaunchRequest) -> Future[int]:
        options = script.excluding(request.options, request.avoid)
        command = script.arguments(plan, options, request.part, request.count)
        return self._order(lambda: script.submitted(commands.run(command, script.script(plan, options))))

    def cancel(self, job_id: str, names: Collection[str]) -> Future[None]:
        """End elements, or take them out of the queue."""
        return self._scancel(*names, tries=TRIES) if names else settled(None)

    def withdraw(self, job_id: str, names: Collection[str]) -> Future[None]:
        return self._scancel("--state=PENDING", *names, tries=TRIES) if names else settled(None)

    def lacks_node(self, element: Element) -> bool:
        return element.reason.partition(",")[0] in script.FOR_NODES

    def release(self, job_id: str) -> Future[None]:
        return self._scancel(f"--user={getpass.getuser()}", f"--name={job_id}", tries=TRIES)

    def release_command(self, job_id: str) -> str:
        return f"scancel --name={job_id}"

    def signal(self, job_id: str, name: str, number: int) -> Future[None]:
        """Send a signal to an element's processes; SIGKILL comes at once, without any grace."""
        # a controller that went on from its saved state may not know the step, which the node's slurmd does; but what
        # ends or stops an element as a whole also changes its state
        target = name if number == signal.SIGUSR1 else f"{name}.{script.STEP}"
        return self._scancel(f"--signal={signal.Signals(number).name.removeprefix('SIG')}", target)

    def _scancel(self, *words: str, tries: int = 1) -> Future[None]:
        def act() -> None:
            commands.run(["scancel", "--quiet", *words])

        return self._order(act, tries)

    # -- what the thread asks ------------------------------------------------------------------------------------

    def _read_elements(self) -> dict[str, list[Element]]:
        found: dict[str, list[Element]] = defaultdict(list)
        for element in script.queue(commands.run(commands.QUEUE)):
            found[element.job].append(element)
        return dict(found)

    def _read_nodes(self) -> dict[str, ReportedNode]:
        """Those of all partitions."""
        self._sinfo = commands.run(commands.NODES)
        states, draining = script.node_states(self._sinfo), script.draining(self._sinfo)
        return {name: ReportedNode(name, state, draining.get(name, "")) for name, (state, _) in states.items()}

    def _read_ends(self, elements: Sequence[Element]) -> dict[str, Element]:
        """What accounting knows of elements that the queue has forgotten; nothing where there is no accounting."""
        found: script.History = {}
        if self._accounting:
            arrays = sorted({str(element.batch) for element in elements})
            try:
                found = script.history(commands.run([*commands.HISTORY, f"--jobs={','.join(arrays)}"]))
            except ClusterError as error:
                self._accounting = script.NO_ACCOUNTING not in str(error)
        return {element.name: script.ended(element, found) for element in elements}

    def _is_away(self, error: ClusterError) -> bool:
        return script.away(str(error))
