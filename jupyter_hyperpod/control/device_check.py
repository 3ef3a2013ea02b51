"""Checks on real devices that members exchange gradients to the same bits, also when one of them is killed or hangs."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..core.errors import ClusterError, Conflict
from ..core.events import TERMINAL_STATES
from ..core.units import plural
from ..core.views import View
from ..policy import preflight
from ..policy.preflight import Row
from ..storage.store import Store
from . import jobs
from .option_parser import chosen_backend_options
from .validate import FAULT_AT, JOB_S, Say, Validation, result_of, why

STEPS, PAUSE_S = 24, 0.01
NOTHING_VERIFIED = 3  # the exit status where there was nothing to verify
NO_DEVICES = (
    "no accelerator was found on any node, so nothing was verified; to check the same path on the CPU, add "
    "--collectives gloo"
)
NEURON = "the accelerators are no CUDA devices, for which this version has no exchange of gradients"
TRAIN = "from jupyter_hyperpod.runtime.preflight import train\ntrain({steps}, {pause_s}, {device!r})\n"
STRUCK = (
    "from jupyter_hyperpod.runtime.device_trials import train_struck\n"
    "train_struck({steps}, {pause_s}, {device!r}, {collective!r}, {nodes})\n"
)
MEASURE = "from jupyter_hyperpod.runtime.device_trials import measure\nmeasure({device!r})\n"
APART = "import os\nos.environ.setdefault('NCCL_HOSTID', os.environ['HYPERPOD_NODE'])\n"
SHARED = "{nodes} members share {devices}: NCCL takes them for members of several hosts, and uses sockets"
FAULTS = {"all members": "", "a killed rank": "kill", "a rank that hangs": "hang"}
COLLECTIVES = {
    "faults while slices are exchanged": "exchange_slices",
    "faults while slices are gathered": "gather_slices",
}


class DeviceValidation(Validation):
    """A validation of the devices' exchange: ``collectives`` is "gloo" for the CPU, else "nccl"."""

    collectives = "nccl"
    _prefix = ""  # of every cell

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
            if self._backend.capabilities.owns_nodes and self._nodes > (found := int(probes[0]["devices"])):
                self._prefix = APART
                yield Row("sharing", preflight.PASSED, SHARED.format(nodes=self._nodes, devices=plural(found, "GPU")))
        yield from self._exchange(device)

    def _exchange(self, device: str) -> Iterator[Row]:
        """Train alone through host memory, then on all nodes under each fault: the bits have to be equal."""
        try:
            self._say("training on one node through host memory")
            alone, _ = self._run(device, 1, "host", "")
        except (ClusterError, TimeoutError) as error:
            yield Row("one node", preflight.FAILED, str(error), "see its output: `jupyter hyperpod logs`")
            return
        expected = result_of(alone, STEPS)
        for nodes in range(1, self._nodes):
            yield self._compared(plural(nodes, "member"), device, nodes, "", expected)
        for name, fault in FAULTS.items():
            yield self._compared(name, device, self._nodes, fault, expected)
        for name, collective in COLLECTIVES.items():
            yield self._struck(name, device, collective, expected)
        yield from self._measured(device)

    def _compared(self, name: str, device: str, nodes: int, fault: str, expected: object) -> Row:
        """Train on ``nodes`` nodes under a fault: loss and state have to be the ``expected`` ones."""
        self._say(f"training on {plural(nodes, 'node')} by {self.collectives}: {name}")
        try:
            view, struck = self._run(device, nodes, self.collectives, fault)
        except (ClusterError, TimeoutError) as error:
            return Row(name, preflight.FAILED, str(error), "see its output: `jupyter hyperpod logs`")
        return judged(name, self.collectives, result_of(view, STEPS) == expected is not None, struck or not fault)

    def _struck(self, name: str, device: str, collective: str, expected: object) -> Row:
        """Train on all nodes; a rank is killed, stopped, hangs and aborts in ``collective``, one after the other."""
        self._say(f"training on {plural(self._nodes, 'node')} by {self.collectives}: {name}")
        given = {"device": device, "collective": collective, "nodes": self._nodes}
        source = STRUCK.format(steps=STEPS, pause_s=PAUSE_S, **given)
        try:
            job_id, view = self._through(source, self._nodes, self.collectives)
        except (ClusterError, TimeoutError) as error:
            return Row(name, preflight.FAILED, str(error), "see its output: `jupyter hyperpod logs`")
        struck = [fault for line in self._told(job_id) for fault in line.get("struck", ())]
        found = judged(name, self.collectives, result_of(view, STEPS) == expected is not None, bool(struck))
        if found.verdict == preflight.PASSED:
            return replace(found, sentence=f"a rank had these: {', '.join(struck)}; {found.sentence}")
        return found

    def _measured(self, device: str) -> Iterator[Row]:
        """Times of forming and giving up a group, and of a step; bits of a stripe that goes from device to device."""
        name = "times"
        if self._nodes < 2:
            yield Row(name, preflight.SKIPPED, "one member exchanges nothing: add --nodes 2")
            return
        self._say("measuring")
        try:
            job_id, _ = self._through(MEASURE.format(device=device), self._nodes, "auto")
        except (ClusterError, TimeoutError) as error:
            yield Row(name, preflight.FAILED, str(error), "see its output: `jupyter hyperpod logs`")
            return
        yield from measured(self._told(job_id))

    def _run(self, device: str, nodes: int, collectives: str, fault: str) -> tuple[View, bool]:
        """Train; return the job's view, and whether a rank was struck. Raises ClusterError where the job fails."""
        source = TRAIN.format(steps=STEPS, pause_s=PAUSE_S, device=device)
        struck: list[bool] = []
        _, view = self._through(
            source, nodes, collectives, lambda job: struck.append(nodes > 1 and self._strike(job, fault))
        )
        return view, struck[0]

    def _through(
        self, source: str, nodes: int, collectives: str, meanwhile: Callable[[str], None] = lambda job_id: None
    ) -> tuple[str, View]:
        """Run a job to its end; return its id and view. Raises ClusterError where it fails."""
        job_id = self._submit("validate-devices", self._prefix + source, nodes, collectives=collectives)
        meanwhile(job_id)
        view = jobs.wait(self._store, job_id, timeout_s=JOB_S)
        if view["state"] != "succeeded":
            raise ClusterError(f"{job_id} {view['state']}: {why(view)}")
        return job_id, view

    def _strike(self, job_id: str, fault: str) -> bool:
        if not fault:
            return False
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


def measured(told: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """The rows about what the ranks have measured; the slowest rank counts."""
    form_s, abort_s = (max(line[key] for line in told) for key in ("form_s", "abort_s"))
    yield Row(
        "forming and giving up", preflight.PASSED, f"{1000 * form_s:.1f} ms to form, {1000 * abort_s:.1f} ms to give up"
    )
    step_s, ddp_s, exchange_s = (max(line[key] for line in told) for key in ("step_s", "ddp_s", "exchange_s"))
    yield Row(
        "step against DDP",
        preflight.PASSED,
        f"{step_s / ddp_s:.2f} ({1000 * step_s:.1f} ms, DDP {1000 * ddp_s:.1f} ms); the exchange takes "
        f"{1000 * exchange_s:.1f} ms and does not overlap with backward",
    )
    (fetched,) = (line for line in told if "fetched" in line)
    name = "state from device to device"
    if fetched["fetched"]:
        yield Row(name, preflight.PASSED, f"the same bits, {fetched['fetch_mb_s']:.0f} MB/s from one donor")
    else:
        yield Row(name, preflight.FAILED, "a stripe arrived with other bits", "do not use these devices")
    yield Row("verified on", preflight.PASSED, f"{told[0]['verified_on']}, {time.strftime('%Y-%m-%d', time.gmtime())}")


def nothing_verified(rows: Sequence[Row]) -> bool:
    """Whether there was no device to verify."""
    return any(row.name == "devices" and row.verdict == preflight.SKIPPED for row in rows)


def run(options: argparse.Namespace, store: Store, say: Say, tell: Callable[[Row], None]) -> list[Row]:
    """Validate by the options; ``say`` gets the present activity, ``tell`` each row. Cleans up after Ctrl-C."""
    found = []
    kind = DeviceValidation if options.devices else Validation
    with kind(store, options.backend, options.nodes, chosen_backend_options(options), say) as validation:
        if isinstance(validation, DeviceValidation):
            validation.collectives = options.collectives
        for row in validation.rows():
            found.append(row)
            tell(row)
        say("cleaning up")
    return found
