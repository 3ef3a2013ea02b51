"""Checks whether a cluster is fit to train, row by row: passed, failed with a remedy, or skipped.

A real job examines the nodes. Then a small training with a killed rank is compared with an undisturbed one.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..backends import load
from ..core.backends import BACKENDS, DEFAULT_BACKEND
from ..core.errors import ClusterError, Conflict, HyperpodError, SpecError
from ..core.events import TERMINAL_STATES
from ..core.mount_spec import MountSpec
from ..core.units import plural
from ..core.views import View
from ..mounts import probe
from ..mounts import table as mounts
from ..policy import preflight
from ..policy.preflight import Row, verdict
from ..storage.store import Store
from . import cluster, jobs
from .option_parser import add_backend_options
from .remote import followed
from .text_tables import Cell, Table

JOB_S = 300.0
STEPS, PAUSE_S, FAULT_AT = 12, 0.05, 4
EXAMINE = "from jupyter_hyperpod.runtime.preflight import examine\nexamine({directories!r})\n"
TRAIN = f"from jupyter_hyperpod.runtime.preflight import train\ntrain({STEPS}, {PAUSE_S})\n"
TONES = {preflight.PASSED: "good", preflight.FAILED: "bad", preflight.SKIPPED: "warn"}
__all__ = ["Row", "Validation", "add_options", "fit", "table", "verdict"]
Say = Callable[[str], None]


class Validation:
    """One validation. Use it in a ``with`` statement, which cleans up, even after an interrupt."""

    def __init__(
        self,
        store: Store,
        backend: str = DEFAULT_BACKEND,
        nodes: int = 2,
        options: Mapping[str, Mapping[str, str]] | None = None,
        say: Say = print,
    ) -> None:
        """``options``: backend -> its options. ``say`` gets the present activity. Raises SpecError for what cannot be
        validated."""
        if backend not in BACKENDS:
            raise SpecError(f"backend {backend!r} cannot be validated; expected one of {', '.join(BACKENDS)}")
        self._store = store
        self._say = say
        self._nodes = nodes
        self._backend, self._options = load(backend), (options or {}).get(backend, {})
        self._fields = {"backend": backend, **(options or {}), "spares": 0, "working_directory": "/"}
        jobs.make_spec({"name": "validate", "nodes": nodes, **self._fields}, "0" * 64)
        self._jobs: list[str] = []
        self._directories: dict[str, Path] = {}
        self._refused: list[Row] = []

    def __enter__(self) -> Validation:
        return self

    def __exit__(self, *_: object) -> None:
        for job_id in self._jobs:
            with suppress(HyperpodError, TimeoutError):
                jobs.stop(self._store, job_id, "the validation has ended")
                jobs.wait(self._store, job_id, timeout_s=30.0)
        for directory in self._directories.values():
            shutil.rmtree(directory, ignore_errors=True)

    def rows(self) -> Iterator[Row]:
        """Yield each row as soon as it is known. Checks that depend on a failed row are skipped."""
        ready = self._nodes_ready()
        yield ready
        names = ["devices", "EFA", "driver", "storage", "all-reduce", "training"]
        if ready.verdict == preflight.FAILED:
            yield from (Row(name, preflight.SKIPPED, "there are not enough nodes") for name in names)
            return
        try:
            probes = self._examine()
        except ClusterError as error:
            remedy = "mend what it waits for, or drain the node, and try again"
            yield Row("probes", preflight.FAILED, str(error), remedy)
            yield from (Row(name, preflight.SKIPPED, "the probes did not come to an end") for name in names)
            return
        yield preflight.devices(probes, preflight.expected_devices(self._options))
        yield preflight.fabric(probes)
        yield preflight.driver(probes)
        yield from self._refused
        for mount in self._directories:
            yield preflight.storage(mount, probes)
        yield preflight.all_reduce(probes)
        yield self._train()

    def _nodes_ready(self) -> Row:
        backend, mend = self._backend, self._backend.advice
        if not backend.capabilities.owns_nodes:
            self._say(f"asking {backend.title} for its nodes")
            followed.check_backend(str(self._fields["backend"]))
            return preflight.nodes_ready(backend.node_states(self._options), self._nodes, mend)
        self._say("waiting for the local nodes")
        cluster.ensure_started(self._store)
        view = cluster.wait_ready(self._store)
        states = {node["node"]: (node["state"], node["reason"]) for node in view["nodes"]}
        return preflight.nodes_ready(states, self._nodes, mend)

    def _examine(self) -> list[dict[str, Any]]:
        """The findings of every node. Raises ClusterError where the job fails or a node hangs."""
        self._say(f"probing {plural(self._nodes, 'node')}")
        on_nodes = {}
        for mount in (mounts.default_mount(self._store), *jobs.mounts_of(self._store)):
            if not mount.read_only and mount.driver != "s3" and self._make_directory(mount):
                on_nodes[mount.name] = os.path.join(mount.node_path, self._directories[mount.name].name)
        job_id = self._submit("validate-nodes", EXAMINE.format(directories=on_nodes), self._nodes)
        try:
            view = jobs.wait(self._store, job_id, timeout_s=JOB_S)
        except TimeoutError as error:
            raise ClusterError(f"{error}; {self._stuck(job_id)}") from error
        found = [line for line in self._told(job_id) if "rank" in line]
        if view["state"] != "succeeded" or len(found) != self._nodes:
            raise ClusterError(f"{job_id} {view['state']} with {len(found)} of {self._nodes} answers: {why(view)}")
        return sorted(found, key=lambda probe: int(probe["rank"]))

    def _make_directory(self, mount: MountSpec) -> bool:
        """Make a directory of this validation in the mount; where that fails, add a row and return False."""
        found = probe.health(self._store, mount)  # a mount that hangs would block this process, too
        state, reason = found.state, found.reason
        directory = Path(mount.notebook_path) / f"preflight-{secrets.token_hex(8)}"
        if state == "ready":
            try:
                directory.mkdir(mode=0o700)
            except OSError as error:
                state, reason = "broken", f"{directory.parent} cannot be written to: {error.strerror}"
        if state != "ready":
            self._refused.append(preflight.unreachable(mount.name, state, reason))
            return False
        self._directories[mount.name] = directory
        return True

    def _told(self, job_id: str) -> list[dict[str, Any]]:
        """The lines that ranks have printed after the mark; lines may arrive in pieces."""
        text: dict[str, str] = {}
        for event in jobs.follow(self._store, job_id).poll():
            if event.kind == "output.written" and event.data["stream"] == "stdout":
                text[event.data["member"]] = text.get(event.data["member"], "") + event.data["text"]
        lines = [line for said in text.values() for line in said.splitlines() if line.startswith(preflight.MARK)]
        return [json.loads(line.removeprefix(preflight.MARK)) for line in lines]

    def _stuck(self, job_id: str) -> str:
        doing = {line["node"]: line["doing"] for line in self._told(job_id) if "doing" in line}
        return "; ".join(f"{node} was {what}" for node, what in sorted(doing.items())) or "no node has begun"

    def _train(self) -> Row:
        """Train undisturbed on one node, then on all nodes with a killed rank; the losses must be equal bit for bit."""
        try:
            self._say("training undisturbed on one node")
            alone = jobs.wait(self._store, self._submit("validate-alone", TRAIN, 1), timeout_s=JOB_S)
            if alone["state"] != "succeeded":
                return preflight.training(alone["state"], why(alone), 0, False, False)
            self._say(f"training on {plural(self._nodes, 'node')}; one is killed")
            disturbed = self._submit("validate-training", TRAIN, self._nodes)  # not elastic: it begins on all of them
            self._disturb(disturbed)
            view = jobs.wait(self._store, disturbed, timeout_s=JOB_S)
        except (TimeoutError, ClusterError) as error:
            return preflight.training("did not end", str(error), 0, False, False)
        faults = sum(event.kind == "fault.injected" for event in jobs.follow(self._store, disturbed).poll())
        same = result_of(alone) == result_of(view) is not None
        return preflight.training(view["state"], why(view), faults, same, self._nodes < 2)

    def _disturb(self, job_id: str) -> None:
        """Kill a rank in the middle of the run, where there are several ranks and the run has not ended."""
        deadline = time.monotonic() + JOB_S
        while (view := jobs.job_view(self._store, job_id))["step"] < FAULT_AT:
            if view["state"] in TERMINAL_STATES or time.monotonic() > deadline or self._nodes < 2:
                return
            time.sleep(0.05)
        with suppress(Conflict):  # it has just ended
            jobs.fault(self._store, job_id, "kill", rank=view["world_size"] - 1)

    def _submit(self, name: str, source: str, nodes: int, **fields: str) -> str:
        self._jobs.append(jobs.submit(self._store, source, {"name": name, "nodes": nodes, **self._fields, **fields}))
        return self._jobs[-1]


def why(view: View) -> str:
    """The reason of a job's end."""
    return (view["error"] or {}).get("message", "") or str(view["reason"])


def result_of(view: View, steps: int = STEPS) -> tuple[Any, ...] | None:
    """The last loss and the state, where the run ended."""
    return (view["step"], view["loss"], view["digest"]) if view["step"] == steps and view["digest"] else None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `validate`."""
    told = "what to validate (default: local)"
    parser.add_argument("--backend", choices=BACKENDS, default=DEFAULT_BACKEND, help=told)
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="nodes to take part (default: 2)")
    add_backend_options(parser)
    parser.add_argument(
        "--devices",
        action="store_true",
        help="check instead that accelerators exchange gradients to the same bits, under faults too; without any, say "
        "so and exit with 3",
    )
    parser.add_argument(
        "--collectives",
        choices=("gloo", "nccl"),
        default="nccl",
        help="with --devices: nccl, or gloo to check the same path on the CPU (default: nccl)",
    )
    parser.add_argument("--strict", action="store_true", help="a check that had to be skipped counts as a failure")


def fit(rows: Sequence[Row], strict: bool) -> bool:
    """Whether the cluster is fit for use."""
    bad = {preflight.FAILED, preflight.SKIPPED} if strict else {preflight.FAILED}
    return not any(row.verdict in bad for row in rows)


def table(rows: Sequence[Row]) -> Table:
    """The rows for people, with the remedy below a failure."""
    lines = []
    for row in rows:
        lines.append([Cell(row.name), Cell(row.verdict, TONES[row.verdict]), Cell(row.sentence)])
        if row.remedy:
            lines.append([Cell(""), Cell(""), Cell(f"→ {row.remedy}", "quiet")])
    return Table(("CHECK", "VERDICT", "FOUND"), lines)
