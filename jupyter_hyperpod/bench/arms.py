"""The systems of one comparison, all seen the same way: from outside, through the times of their committed steps.

Every process of an arm carries a mark in its environment, so that its CPU time can be added up and nothing of it is
left behind.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import ClusterError
from .laboratory import Observer

MARK = "HYPERPOD_BENCH_ARM"
POLL_S = 0.02
SOURCE = Path(__file__).resolve().parents[2]
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Commit:
    """A member says that ``step`` steps are in its model; ``time_s`` is its clock, seconds since the Unix epoch.

    ``generation`` changes whenever the group of members was formed anew.
    """

    time_s: float
    step: int
    rank: int
    world_size: int
    generation: int


def parse_commits(text: str) -> list[Commit]:
    """Read the lines of `peers.task.committed`; raises ValueError for anything else."""
    found = []
    for line in text.splitlines():
        time_s, step, rank, world_size, generation = line.split(" ")
        found.append(Commit(float(time_s), int(step), int(rank), int(world_size), int(generation)))
    return found


def step_times(commits: Iterable[Commit]) -> dict[int, float]:
    """Step -> when it was first committed."""
    found: dict[int, float] = {}
    for commit in commits:
        found[commit.step] = min(commit.time_s, found.get(commit.step, commit.time_s))
    return found


def rotation(names: Sequence[str], rounds: int) -> list[list[str]]:
    """The order of the arms in every round: each is first as often as any other, and follows each other one as often.

    What an arm leaves behind (memory, caches) would otherwise always meet the same one. A Williams design
    (E. J. Williams, Aust. J. Sci. Res. A 2, 1949), whole after as many rounds as arms, or twice as many for an odd
    number of them.
    """
    count = len(names)
    zigzag = [-(place // 2) if place % 2 == 0 else place // 2 + 1 for place in range(count)]
    orders = [[names[(place + shift) % count] for place in zigzag] for shift in range(count)]
    if count % 2:
        orders += [order[::-1] for order in orders]
    return [orders[number % len(orders)] for number in range(rounds)]


def fair_rounds(arms: int, runs: int) -> int:
    """At least ``runs`` rounds; an even number of them where two arms take turns: each is first equally often."""
    return runs + runs % 2 if arms == 2 else runs


def marked(mark: str) -> dict[int, int]:
    """Living processes that carry the mark: pid -> parent's pid."""
    needle = f"{MARK}={mark}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                fields = (entry / "stat").read_text().rpartition(") ")[2].split()
                if fields[0] != "Z":
                    found[int(entry.name)] = int(fields[1])
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time that these processes have used so far."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def free_port() -> int:
    """A port of the loopback interface that was free just now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Arm(ABC):
    """One system at work. ``turn`` is the file that tells it how many steps it may take so far."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.mark = secrets.token_hex(8)
        self.turn = directory / f"turn-{self.mark}"

    def permit(self, steps: int) -> None:
        """Let it go on until ``steps`` steps are in the model."""
        fresh = self.turn.with_suffix(".new")
        fresh.write_text(str(steps))
        fresh.replace(self.turn)

    @abstractmethod
    def commits(self) -> list[Commit]:
        """Everything committed so far, in the order it was told."""

    def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait for a condition; raises ClusterError after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            self.tend()
            if time.monotonic() > deadline:
                raise ClusterError(f"{self.name} did not get there in {timeout_s:g} s\n{self.last_words()}")
            time.sleep(POLL_S)

    def tend(self) -> None:
        """What its operator does while it runs, called every few milliseconds: nothing, unless a system needs it."""
        return

    def until_step(self, step: int, members: int = 1, timeout_s: float = 120.0) -> None:
        """Wait until ``members`` of it have committed ``step``."""
        self.until(lambda: self._members_at(step) >= members, timeout_s)

    def _members_at(self, step: int) -> int:
        """How many members have committed ``step``; looks only at the newest commits, to cost the machine little."""
        ranks = set()
        for commit in reversed(self.commits()):
            if commit.step >= step:
                ranks.add(commit.rank)
            elif commit.step < step - 1:
                break
        return len(ranks)

    def cpu_s(self) -> float:
        """CPU time of all its living processes, in seconds."""
        return cpu_seconds(marked(self.mark))

    def last_words(self) -> str:
        """What may explain that it does not go on."""
        return ""


class Ours(Arm):
    """A job of ours. Its cluster is started inside `carrying`; ``watch`` observes the job."""

    def __init__(self, directory: Path, name: str = "jupyter_hyperpod") -> None:
        super().__init__(name, directory)
        self.watch: Observer | None = None
        self._read = 0
        self._commits: list[Commit] = []

    @contextmanager
    def carrying(self) -> Iterator[None]:
        """Processes started in here carry the mark."""
        os.environ[MARK] = self.mark
        try:
            yield
        finally:
            del os.environ[MARK]

    def commits(self) -> list[Commit]:
        """Rank 0 speaks for all."""
        assert self.watch is not None
        self.watch.read()
        fresh, self._read = self.watch.events[self._read :], len(self.watch.events)
        self._commits += [
            Commit(event.time_s, event.data["step"], 0, event.data["world_size"], event.data["generation"])
            for event in fresh
            if event.kind == "step.committed"
        ]
        return self._commits

    def last_words(self) -> str:
        """The job's state."""
        view = self.watch.view if self.watch else {}
        return f"the job is {view.get('state')}: {view.get('reason')}"


class Peer(Arm):
    """Another system: processes of `python`, whose members append a line to one file at every committed step."""

    def __init__(self, name: str, directory: Path, python: str, environment: Mapping[str, str]) -> None:
        super().__init__(name, directory)
        self.python = python
        self.observations = directory / f"observations-{self.mark}"
        self.log = directory / f"log-{self.mark}"
        self.observations.touch(0o600)
        self.processes: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **os.environ,
            **environment,
            MARK: self.mark,
            "BENCH_OBSERVATIONS": str(self.observations),
            "LM_TURN": str(self.turn),
            "PYTHONPATH": str(SOURCE),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        self._read = 0
        self._commits: list[Commit] = []

    def spawn(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start ``python arguments…`` with these variables added."""
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                [self.python, *arguments],
                env=self._environment | environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def commits(self) -> list[Commit]:
        """What all members have told so far."""
        with open(self.observations) as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        self._read += len(whole)
        self._commits += parse_commits(whole)
        return self._commits

    def tend(self) -> None:
        """Raise ClusterError where nothing of it is alive."""
        if self.processes and all(process.poll() is not None for process in self.processes):
            raise ClusterError(f"{self.name} has ended\n{self.last_words()}")

    def last_words(self) -> str:
        """The end of what its processes printed."""
        return self.log.read_text(errors="replace")[-3000:]

    def stop(self) -> None:
        """Kill every process of it."""
        deadline = time.monotonic() + 10.0
        while (left := marked(self.mark)) and time.monotonic() < deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S)
        for process in self.processes:
            process.wait(10.0)


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for turns, observations and logs."""
    root = tempfile.mkdtemp(prefix="hyperpod-arms-")
    try:
        yield Path(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
