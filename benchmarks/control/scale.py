"""A job of many members: how long a generation takes to form again after a loss, and what the coordinator needs.

The coordinator and its protocol are the product's. The members are light ones in a few processes of this machine
(`light_members.py`): they train nothing, and share the machine's cores with the coordinator. A member's connection is
closed; the time runs from there until every other member has the plan of the next generation. Then nothing happens but
heartbeats, and the processor time of the coordinator is read.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_hyperpod.bench.laboratory import progress
from jupyter_hyperpod.bench.report import bar, not_run, report, row
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage.store import ENVIRONMENT_VARIABLE, JobStore, Store
from jupyter_hyperpod.system.json_lines import JsonLineChannel
from jupyter_hyperpod.system.processes import raise_descriptor_limit

OURS = "jupyter_hyperpod, light members"
COORDINATOR = "jupyter_hyperpod.runtime.coordinator.main"
SIZES = "64,250,1000"
RUNS = 5
PROCESSES = 2
QUIET_S = 5.0
FORM_S = 60.0
FIRST_S = 0.02  # per member, for its first connection
LIMITS_S = {1000: 0.5, 10_000: 3.0}  # for a generation to form again
MOST_CORES = 1.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def run(runs: int = RUNS, members: str = SIZES, processes: int = PROCESSES, quiet_s: float = QUIET_S) -> dict[str, Any]:
    """Lose ``runs`` members of jobs of so many ``members``, in ``processes`` beside the coordinator.

    ``quiet_s``: how long the coordinator is watched while nothing happens.
    """
    raise_descriptor_limit()
    rows: list[dict[str, Any]] = []
    bars: list[dict[str, Any]] = []
    for size in map(int, str(members).split(",")):
        case = f"{size:,} members"
        try:
            found = _measured(size, runs, processes, quiet_s)
        except (TimeoutError, OSError) as error:
            rows.append(not_run(OURS, case, str(error)))
            continue
        rows += [
            row(OURS, case, "a member is lost, until all others have the next plan", "s", found["reform_s"]),
            row(OURS, case, "processor time of the coordinator for it", "s", found["reform_cpu_s"]),
            row(OURS, case, "cores of the coordinator while members only beat", "cores", [found["cores"]]),
            row(OURS, case, "memory of the coordinator", "bytes", [found["memory"]]),
            row(OURS, case, "the first generation: from the first connection to all plans", "s", [found["first_s"]]),
        ]
        if size in LIMITS_S:
            bars.append(bar(f"reform_{size}_s", rows[-5]["median"], LIMITS_S[size]))
            bars.append(bar(f"coordinator_cores_{size}", found["cores"], MOST_CORES))
    return report("scale", rows, bars)


def _measured(size: int, runs: int, processes: int, quiet_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="hyperpod-scale-") as folder, _running(Path(folder), size) as (job, head):
        began_s = time.monotonic()
        with _Crowd(job, size, processes) as crowd:
            first_s = crowd.planned(1, size, size * FIRST_S) - began_s
            progress(f"{size:,} members: the first generation has formed after {first_s:.2f} s")
            reform_s, reform_cpu_s = [], []
            for lost in range(1, runs + 1):
                cpu_s, lost_s = _cpu_s(head), time.monotonic()
                crowd.lose(size - lost)
                reform_s.append(crowd.planned(1 + crowd.generation, size - lost) - lost_s)
                reform_cpu_s.append(_cpu_s(head) - cpu_s)
                progress(f"{size:,} members: formed again after {reform_s[-1]:.3f} s")
            cpu_s, quiet_from_s = _cpu_s(head), time.monotonic()
            time.sleep(quiet_s)  # what is measured is the time in which nothing happens
            cores = (_cpu_s(head) - cpu_s) / (time.monotonic() - quiet_from_s)
            memory = 1024 * int(_status(head, "VmRSS"))
    found = {"first_s": first_s, "reform_s": reform_s, "reform_cpu_s": reform_cpu_s}
    return found | {"cores": cores, "memory": memory}


@contextmanager
def _running(folder: Path, size: int) -> Iterator[tuple[JobStore, int]]:
    """A job of this size, and the process id of its coordinator."""
    store = Store(folder).prepare()
    digest = store.put_cell("")
    job = store.create_job(JobSpec("scale", digest, size))
    surroundings = {**os.environ, ENVIRONMENT_VARIABLE: str(folder), "HYPERPOD_JOB_DIR": str(job.path)}
    surroundings |= {"HYPERPOD_NODE": "head", "HYPERPOD_CELL": str(store.cells / digest)}
    with open(folder / "coordinator.log", "wb") as log:
        head = subprocess.Popen([sys.executable, "-m", COORDINATOR], env=surroundings, stderr=log, stdout=log)
    try:
        deadline_s = time.monotonic() + FORM_S
        while not (job.path / "coordinator.json").exists():
            if time.monotonic() > deadline_s or head.poll() is not None:
                raise TimeoutError(f"no coordinator: {(folder / 'coordinator.log').read_text()[-500:]}")
            time.sleep(0.01)
        yield job, head.pid
    finally:
        head.kill()
        head.wait()


class _Crowd:
    """Processes with light members."""

    def __init__(self, job: JobStore, size: int, processes: int) -> None:
        bounds = [size * part // processes for part in range(processes + 1)]
        self._firsts = bounds[:-1]
        self.generation = 0  # the last one whose plan all had
        self._planned: dict[int, list[tuple[int, float]]] = {}
        self._channels: list[JsonLineChannel] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for first, last in zip(bounds, bounds[1:], strict=False):
            own, other = socket.socketpair()
            numbers = {"first": first, "count": last - first, "micro-batches": size, "socket": other.fileno()}
            arguments = [word for name, number in numbers.items() for word in (f"--{name}", str(number))]
            command = [sys.executable, "-m", "benchmarks.control.light_members", "--job", str(job.path), *arguments]
            with other:
                self._processes.append(subprocess.Popen(command, pass_fds=[other.fileno()]))
            self._channels.append(JsonLineChannel(own))

    def __enter__(self) -> _Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        for channel, process in zip(self._channels, self._processes, strict=True):
            channel.close()
            process.kill()
            process.wait()

    def lose(self, index: int) -> None:
        """Close the connection of a member."""
        owner = max(place for place, first in enumerate(self._firsts) if first <= index)
        self._channels[owner].send({"lose": [index]})

    def planned(self, generation: int, members: int, more_s: float = 0.0) -> float:
        """When all members had the plan of this generation, or of a later one, on the monotonic clock.

        On a machine that is too busy a generation is formed anew before all have its plan. Raises TimeoutError after
        `FORM_S` and ``more_s``.
        """
        limit_s = FORM_S + more_s
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s:
            for channel in self._channels:
                for told in channel.receive():
                    self._planned.setdefault(told["planned"], []).append((told["members"], told["at_s"]))
                if channel.closed:
                    raise TimeoutError("a process with light members has ended")
            for number, there in self._planned.items():
                if number >= generation and sum(count for count, _ in there) == members:
                    self.generation = number
                    return max(at_s for _, at_s in there)
            select.select(self._channels, [], [], 1.0)
        raise TimeoutError(f"generation {generation} of {members:,} members did not form within {limit_s:.0f} s")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _status(pid: int, name: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{name}:"))
