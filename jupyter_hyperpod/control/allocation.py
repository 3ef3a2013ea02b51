"""The nodes of jobs that SLURM runs: how many more to ask for, which to give back. The supervisor calls `step`."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ..backends.sbatch import BASE, BIND, ELASTIC, RUNNING, WAITING, Element
from ..backends.slurm import Slurm
from ..core.errors import ClusterError
from ..core.spec import JobSpec, LaunchPlan
from ..storage.store import write_private
from .entry import Entry

RECORD = "slurm.json"
SUBMIT_PAUSE_S = 5.0
_LIVED_S = 0.0  # squeue does not tell how long a failed element lived: it counts as failed at once


@dataclass
class Allocation:
    """What one job has asked SLURM for: (part, array number), oldest first."""

    arrays: list[tuple[str, int]] = field(default_factory=list)
    asked_s: float = 0.0  # what the queue said before is out of date
    failed: set[tuple[int, int]] = field(default_factory=set)
    again_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """Elements to submit, by part, and elements to give back."""

    submit: dict[str, int]
    cancel: tuple[Element, ...]
    reason: str


def wanted(spec: JobSpec, target: int) -> dict[str, int]:
    """Elements by part for a job that shall have ``target`` nodes, spares included."""
    base = min(spec.start_minimum, target)
    return {BASE: base, ELASTIC: target + spec.spares - base}


def plan_step(elements: dict[str, list[Element]], wish: dict[str, int]) -> Step:
    """What is missing is submitted. Of what is too much only elements that still wait are given back: a running one is
    let go by its coordinator, at the end of a step."""
    submit, cancel = dict[str, int](), list[Element]()
    for part, count in wish.items():
        active = [element for element in elements.get(part, ()) if element.active]
        waiting = [element for element in active if element.state in WAITING]
        if len(active) < count:
            submit[part] = count - len(active)
        cancel += waiting[: max(0, len(active) - count)]
    words = [f"{count} {part}" for part, count in submit.items()]
    reason = f"asks SLURM for {' and '.join(words)} node(s): {sum(wish.values())} wanted" if words else ""
    return Step(submit, tuple(cancel), reason)


class Allocations:
    """All jobs of one supervisor whose nodes come from SLURM."""

    def __init__(self) -> None:
        self._slurm = Slurm()
        self._jobs: dict[str, Allocation] = {}
        self.avoided: tuple[str, ...] = ()  # nodes that were repaired too often lately

    def step(self, entry: Entry, plan: LaunchPlan, now_s: float) -> None:
        """Bring a running job closer to the nodes it wants. Raises ClusterError where SLURM refuses."""
        self._slurm.tick()
        job = self._of(entry)
        elements = self._elements(job)
        if elements is None:
            if self._slurm.problem:
                entry.say(self._slurm.problem)
            return
        self._count_failures(entry, job, elements)
        if entry.ended or now_s < job.again_s:
            return
        action = plan_step(elements, wanted(entry.spec, entry.target))
        self._tell(entry, elements)
        if action.submit:
            job.again_s = now_s + SUBMIT_PAUSE_S  # also where sbatch refuses
            self._submit(entry, job, plan, action)
        for element in action.cancel:
            self._slurm.cancel([element.array], element.task)
            job.asked_s = time.monotonic()

    def release(self, entry: Entry) -> None:
        """The job has ended: give everything back, once. Raises ClusterError where SLURM refuses."""
        job = self._of(entry)
        self._slurm.cancel([array for _, array in job.arrays])
        job.arrays.clear()
        del self._jobs[entry.job.id]
        (entry.job.path / RECORD).unlink(missing_ok=True)

    def nodes(self, job_id: str) -> set[str]:
        """Where SLURM runs elements of a job now, as far as the queue was read."""
        arrays = self._jobs[job_id].arrays if job_id in self._jobs else ()
        found = (self._slurm.elements(array, 0.0) or () for _, array in arrays)
        return {element.node for elements in found for element in elements if element.state in RUNNING}

    def _of(self, entry: Entry) -> Allocation:
        if entry.job.id not in self._jobs:
            self._jobs[entry.job.id] = Allocation(list(_recorded(entry)))
        return self._jobs[entry.job.id]

    def _elements(self, job: Allocation) -> dict[str, list[Element]] | None:
        found: dict[str, list[Element]] = {BASE: [], ELASTIC: []}
        for part, array in job.arrays:
            elements = self._slurm.elements(array, job.asked_s)
            if elements is None:
                return None
            found[part] += elements
        return found

    def _submit(self, entry: Entry, job: Allocation, plan: LaunchPlan, action: Step) -> None:
        os.makedirs(plan.log_directory, mode=0o700, exist_ok=True)
        for part, count in action.submit.items():
            job.arrays.append((part, self._slurm.submit(plan, self._options(entry), part, count)))
            write_private(entry.job.path / RECORD, json.dumps(job.arrays).encode())
        job.asked_s = time.monotonic()
        entry.decided({"arrays": [array for _, array in job.arrays], **action.submit}, action.reason)

    def _options(self, entry: Entry) -> dict[str, str]:
        """The person's options; repeat offenders are excluded beside whomever they exclude themselves."""
        options = dict(entry.spec.slurm)
        excluded = [name for name in (options.get("exclude", ""), *self.avoided) if name]
        return options | ({"exclude": ",".join(excluded)} if excluded else {})

    def _count_failures(self, entry: Entry, job: Allocation, elements: dict[str, list[Element]]) -> None:
        for element in (*elements[BASE], *elements[ELASTIC]):
            name = (element.array, element.task)
            if element.state in ("FAILED", "TIMEOUT", "OUT_OF_MEMORY", "BOOT_FAIL") and name not in job.failed:
                job.failed.add(name)
                entry.agents = entry.agents.after(_LIVED_S, 1)
                if reason := entry.agents.too_many(entry.spec.max_restarts):
                    said = entry.log_tail(f"slurm-{element.array}-{element.task}")
                    what = f"{element.array}_{element.task} on {element.node} is {element.state}"
                    entry.end("failed", f"SLURM's {what}: {reason}; {said}", time.monotonic())
                    return

    def _tell(self, entry: Entry, elements: dict[str, list[Element]]) -> None:
        waiting = [e for e in (*elements[BASE], *elements[ELASTIC]) if e.state in WAITING]
        running = [e for e in (*elements[BASE], *elements[ELASTIC]) if e.state in RUNNING]
        if entry.state == "pending" and waiting and not running:
            entry.say(f"SLURM has not started its {len(waiting)} node(s) yet: {waiting[0].reason}")


def for_head(plan: LaunchPlan, spec: JobSpec) -> LaunchPlan:
    """The plan of a coordinator that nodes reach over the network. Raises ClusterError where it cannot be known how."""
    address = spec.slurm.get(BIND) or socket.gethostbyname(socket.gethostname())
    if address.startswith("127."):
        raise ClusterError(
            f"{socket.gethostname()} means {address} here, which compute nodes cannot reach; "
            f"say where they can: --slurm {BIND}=ADDRESS"
        )
    return replace(plan, env={**plan.env, "HYPERPOD_BIND": address})


def _recorded(entry: Entry) -> Iterable[tuple[str, int]]:
    try:
        record: list[Any] = json.loads((entry.job.path / RECORD).read_text())
        return [(str(part), int(array)) for part, array in record]
    except (OSError, ValueError, TypeError):
        return []
