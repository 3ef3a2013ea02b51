"""Checks on real devices that members exchange gradients to the same bits, also when one of them is killed or hangs."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from ..core.errors import ClusterError, Conflict
from ..core.events import TERMINAL_STATES
from ..core.units import plural
from ..core.views import View
from ..policy import preflight
from ..policy.preflight import Row
from ..storage.store import Store
from . import jobs
from .validate import FAULT_AT, JOB_S, PAUSE_S, STEPS, Say, Validation, result_of, why

NOTHING_VERIFIED = 3  # the exit status where there was nothing to verify
NO_DEVICES = (
    "no accelerator was found on any node, so nothing was verified; to check the same path on the CPU, add "
    "--collectives gloo"
)
NEURON = "the accelerators are no CUDA devices, for which this version has no exchange of gradients"
TRAIN = "from jupyter_hyperpod.runtime.preflight import train\ntrain({steps}, {pause_s}, {device!r})\n"
FAULTS = {"all members": "", "a killed rank": "kill", "a rank that hangs": "hang"}


class DeviceValidation(Validation):
    """A validation of the devices' exchange: ``collectives`` is "gloo" for the CPU, else "nccl"."""

    collectives = "nccl"

    def rows(self) -> Iterator[Row]:
        """Yield each row as soon as it is known."""
        ready = self._nodes_ready()
        yield ready
        if ready.verdict == preflight.FAILED:
            return
        device = "cpu"
        if self.collectives != "gloo":
            device = "cuda"
            try:
                probes = self._examine()
            except ClusterError as error:
                yield Row("probes", preflight.FAILED, str(error), "mend what it waits for and try again")
                return
            if not any(probe["devices"] for probe in probes):
                yield Row("devices", preflight.SKIPPED, NO_DEVICES)
                return
            if not any(probe.get("backend") == "nccl" for probe in probes):
                yield Row("devices", preflight.FAILED, NEURON, "install a torch with CUDA on the nodes")
                return
            yield preflight.devices(probes, preflight.expected_devices(self._options))
        yield from self._exchange(device)

    def _exchange(self, device: str) -> Iterator[Row]:
        """Train alone through host memory, then on all nodes under each fault: the bits have to be equal."""
        try:
            self._say("training on one node through host memory")
            alone, _ = self._run(device, 1, "host", "")
        except (ClusterError, TimeoutError) as error:
            yield Row("one node", preflight.FAILED, str(error), "see its output: `jupyter hyperpod logs`")
            return
        for name, fault in FAULTS.items():
            self._say(f"training on {plural(self._nodes, 'node')} by {self.collectives}: {name}")
            try:
                view, struck = self._run(device, self._nodes, self.collectives, fault)
            except (ClusterError, TimeoutError) as error:
                yield Row(name, preflight.FAILED, str(error), "see its output: `jupyter hyperpod logs`")
                continue
            yield judged(name, self.collectives, result_of(view) == result_of(alone) is not None, struck or not fault)

    def _run(self, device: str, nodes: int, collectives: str, fault: str) -> tuple[View, bool]:
        """Train; return the job's view, and whether a rank was struck. Raises ClusterError where the job fails."""
        source = TRAIN.format(steps=STEPS, pause_s=PAUSE_S, device=device)
        job_id = self._submit("validate-devices", source, nodes, collectives=collectives)
        struck = bool(fault) and nodes > 1 and self._strike(job_id, fault)
        view = jobs.wait(self._store, job_id, timeout_s=JOB_S)
        if view["state"] != "succeeded":
            raise ClusterError(f"{job_id} {view['state']}: {why(view)}")
        return view, struck

    def _strike(self, job_id: str, fault: str) -> bool:
        deadline = time.monotonic() + JOB_S
        while (view := jobs.job_view(self._store, job_id))["step"] < FAULT_AT:
            if view["state"] in TERMINAL_STATES or time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        with suppress(Conflict):  # it has just ended
            jobs.fault(self._store, job_id, fault, rank=view["world_size"] - 1)
            return True
        return False


def judged(name: str, collectives: str, same: bool, struck: bool) -> Row:
    """The row of one training on all nodes."""
    if not same:
        told = f"by {collectives} it ended with other bits than through host memory on one node"
        remedy = "look for devices of another kind, and for operators that are not exact"
        return Row(name, preflight.FAILED, told, remedy)
    if not struck:
        return Row(name, preflight.SKIPPED, "it trained to its end before a rank could be struck")
    return Row(name, preflight.PASSED, f"by {collectives}: loss by loss the bits of one node through host memory")


def nothing_verified(rows: Sequence[Row]) -> bool:
    """Whether there was no device to verify."""
    return any(row.name == "devices" and row.verdict == preflight.SKIPPED for row in rows)


def run(options: argparse.Namespace, store: Store, say: Say, tell: Callable[[Row], None]) -> list[Row]:
    """Validate by the options; ``say`` gets the present activity, ``tell`` each row. Cleans up after Ctrl-C."""
    found = []
    kind = DeviceValidation if options.devices else Validation
    with kind(store, options.backend, options.nodes, dict(options.slurm), say) as validation:
        if isinstance(validation, DeviceValidation):
            validation.collectives = options.collectives
        for row in validation.rows():
            found.append(row)
            tell(row)
        say("cleaning up")
    return found
