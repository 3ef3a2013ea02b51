"""Samples what the processes of a job use on one node: CPU time, memory, network, devices. Linux only.

The agent and all that it has started count, so nodes that share a machine are told apart. Their network is that of the
machine, unless it is their own: nodes of the local backend have one only in a cluster with isolated networks.
"""

from __future__ import annotations

import math
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass

from ...core.backends import DEFAULT_BACKEND
from ...core.spec import JobSpec
from ...system import nvml, usage, variables
from ...system.addresses import SOCKETS_ONLY_VARIABLE
from ...system.processes import stat_text
from ..protocol.facts import NodeSampled

Times = tuple[int, float, float, float]
EVERY_S, FIRST_S = 10.0, 1.0
NODE_S = 0.09  # a journal gets about 85 bytes of each node at a time, and a kilobyte per second of all
PART = 1000  # a sample takes at most this part of a core's time
_DEVICE = re.compile(r"nvidia(\d+)")


def interval_s(nodes: int) -> float:
    """Between two samples of a node, the longer the more there are."""
    return max(EVERY_S, math.ceil(nodes * NODE_S))


@dataclass(frozen=True, slots=True)
class _Counters:
    """What only grows, read at one moment (monotonic); ``cpu`` in clock ticks; ``times``: as of `WorkerProgress`."""

    now_s: float
    cpu: int
    network: tuple[int, int] | None
    times: Times


class NodeSampler:
    """Samples an agent's node. The first samples follow one another more quickly: many jobs are short."""

    def __init__(self, spec: JobSpec) -> None:
        self.nodes = spec.nodes
        self._counts_network = spec.backend != DEFAULT_BACKEND or SOCKETS_ONLY_VARIABLE in os.environ
        self._pause_s = FIRST_S
        self._next_s = 0.0
        self._before: _Counters | None = None
        self._page, self._ticks = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
        self._works = os.path.exists("/proc/self/statm") and not variables.samples_switched_off()  # of Linux
        self._devices: nvml.Devices | None = None

    def due(self, now_s: float, times: Times) -> NodeSampled | None:
        """A sample, where it is time; None before, and where this system does not tell or nobody wants to know.

        ``times``: of the worker.
        """
        if not self._works or now_s < self._next_s:
            return None
        began_s = time.thread_time()
        sampled = self._sample(now_s, times)
        took_s = time.thread_time() - began_s
        every_s = interval_s(self.nodes)
        self._pause_s = min(every_s, 2 * self._pause_s) if sampled else FIRST_S
        self._next_s = now_s + max(_until(self._pause_s), PART * took_s)
        return sampled

    def _sample(self, now_s: float, times: Times) -> NodeSampled | None:
        processes = usage.tree(os.getpid())
        stats = (usage.cpu_ticks(stat_text(pid)) for pid in processes)
        network = usage.network_bytes(usage.text("/proc/net/dev")) if self._counts_network else None
        after = _Counters(now_s, sum(filter(None, stats)), network, times)
        before, self._before = self._before, after
        if before is None:
            self._devices = nvml.devices(_names())
            return None
        ms = max(1, round(1000 * (after.now_s - before.now_s)))
        cores, limit = self._allowed()
        received = sent = None
        if before.network and after.network:
            received, sent = (max(0, now - then) for then, now in zip(before.network, after.network, strict=True))
        busy = self._devices.use() if self._devices else None
        return NodeSampled(
            ms,
            max(self._pause_s, FIRST_S),
            max(0, round(1000 * (after.cpu - before.cpu) / self._ticks)),  # fewer where a process has left its parent
            cores,
            self._memory(processes[1:]),
            limit,
            received,
            sent,
            busy.count if busy else None,
            round(busy.percent * ms / 100) if busy else None,
            busy.memory if busy else None,
            busy.limit if busy else None,
            *_spent(before.times, times),
        )

    def _memory(self, processes: list[int]) -> int:
        """Bytes of the workers and what they have started: what is shared counts once, and the agent's is theirs."""
        found = [pages for pid in processes if (pages := usage.resident_pages(usage.text(f"/proc/{pid}/statm")))]
        own, shared = sum(own for own, _ in found), max((shared for _, shared in found), default=0)
        return (own + shared) * self._page

    def _allowed(self) -> tuple[float, int | None]:
        """Cores and bytes that this node may use."""
        quota, limit = usage.limits()
        cores, total = usage.cores_allowed(), usage.total_memory(usage.text("/proc/meminfo"))
        known = [one for one in (limit, total) if one]
        return round(min(cores, quota or cores), 2), min(known, default=None)


def _spent(before: Times, after: Times) -> tuple[int | None, ...]:
    """Steps, and milliseconds in the parts of them, between two moments; None where none has ended."""
    if after[0] < before[0]:  # of another worker
        before = (0, 0.0, 0.0, 0.0)
    steps = after[0] - before[0]
    if not steps:
        return (None,) * 4
    return steps, *(max(0, round(1000 * (now - then))) for then, now in zip(before[1:], after[1:], strict=True))


def _until(pause_s: float) -> float:
    """To the next multiple of a pause on the clock: the samples of all nodes come together, and share an event."""
    return pause_s - time.time() % pause_s


def _names() -> list[str]:
    """The NVIDIA devices that this process may use, as CUDA_VISIBLE_DEVICES or the system names them."""
    if (chosen := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in map(str.strip, chosen.split(",")) if name and not name.startswith("-")]
    with suppress(OSError):
        return sorted(found[1] for name in os.listdir("/dev") if (found := _DEVICE.fullmatch(name)))
    return []
