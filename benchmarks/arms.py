"""The systems of one comparison, all seen the same way: from outside, through the times of their committed steps.

Every process of an arm carries a mark in its environment, so that its CPU time can be added up and nothing of it is
left behind.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from jupyter_hyperpod.bench.laboratory import Observer
from jupyter_hyperpod.bench.stalls import Commit
from jupyter_hyperpod.core.errors import ClusterError

MARK = "HYPERPOD_BENCH_ARM"
POLL_S = 0.02
_TICKS = os.sysconf("SC_CLK_TCK")


def parse_commits(text: str) -> list[Commit]:
    """Read the lines of `rivals.task.committed`; raises ValueError for anything else."""
    found = []
    for line in text.splitlines():
        time_s, step, rank, world_size, generation = line.split(" ")
        found.append(Commit(float(time_s), int(step), int(rank), int(world_size), int(generation)))
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
        return self.watch.commits()

    def last_words(self) -> str:
        """The job's state."""
        view = self.watch.view if self.watch else {}
        return f"the job is {view.get('state')}: {view.get('reason')}"


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for turns, observations and logs."""
    root = tempfile.mkdtemp(prefix="hyperpod-arms-")
    try:
        yield Path(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
