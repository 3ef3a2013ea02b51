"""How the systems we are compared with are started, whom a fault hits, and what their operator does afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ROOT
from benchmarks.arms import MARK, POLL_S, Arm, marked, parse_commits
from benchmarks.rivals.environments import python_of
from jupyter_hyperpod.bench.stalls import Commit
from jupyter_hyperpod.core.errors import ClusterError
from tests.support import free_port

SCRIPTS = "benchmarks.rivals"
SIGNALS = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP}


class Rival(Arm):
    """Another system: processes of ``python``, whose members append a line to one file at every committed step.

    ``lives_on`` is false where it cannot be disturbed a second time; ``every`` is the number of steps between two
    checkpoints, 1 where it needs none.
    """

    lives_on = True
    every = 1

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
            "PYTHONPATH": str(ROOT),
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

    @abstractmethod
    def begin(self) -> None:
        """Start all of it."""

    @abstractmethod
    def victim(self) -> int:
        """The process that a fault hits: one member, not the first."""

    def strike(self, fault: str) -> None:
        """Kill or stop the victim."""
        os.kill(self.victim(), SIGNALS[fault])

    def noticed(self) -> None:
        """Called when the survivors go on, for an operator who has something to do then."""


class PlainDdp(Rival):
    """DistributedDataParallel over gloo, which recovers from nothing: the yardstick of an undisturbed step."""

    def __init__(self, directory: Path, environment: Mapping[str, str], nodes: int, script: str = "ddp") -> None:
        super().__init__("DDP", directory, sys.executable, environment)
        self.nodes, self.script = nodes, script

    def begin(self) -> None:
        """One process a member."""
        meeting = {"WORLD_SIZE": str(self.nodes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        for rank in range(self.nodes):
            self.spawn("-m", f"{SCRIPTS}.{self.script}", RANK=str(rank), **meeting)

    def victim(self) -> int:
        """The last member."""
        return self.processes[-1].pid


class Torchrun(Rival):
    """One elastic agent with one worker a member; after a loss it restarts them all from the last checkpoint."""

    def __init__(self, directory: Path, environment: Mapping[str, str], nodes: int, every: int) -> None:
        super().__init__(f"torchrun, checkpoint every {every} steps", directory, sys.executable, environment)
        self.nodes, self.every = nodes, every

    def begin(self) -> None:
        """Without its default of sharing the store, which never recovers in this version (pytorch #135712)."""
        options = [f"--nproc-per-node={self.nodes}", "--max-restarts=1000", "--monitor-interval=0.1"]
        meeting = ["--nnodes=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
        self.spawn(
            "-m", "torch.distributed.run", *options, *meeting, "-m", f"{SCRIPTS}.torchrun_ddp",
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
            BENCH_CHECKPOINT=str(self.directory / f"checkpoint-{self.mark}"),
            BENCH_EVERY=str(self.every),
        )  # fmt: skip

    def victim(self) -> int:
        """The agent's second worker."""
        agent = self.processes[0].pid
        return sorted(pid for pid, parent in marked(self.mark).items() if parent == agent)[1]


@dataclass(frozen=True, slots=True)
class Patience:
    """torchft's timeouts: of the lighthouse in milliseconds, of the process group in seconds."""

    label: str
    lighthouse: tuple[str, ...]
    group_s: float


DEFAULTS = Patience("defaults", (), 5.0)
TUNED = Patience(
    "tuned", ("--heartbeat_timeout_ms", "1000", "--quorum_tick_ms", "20", "--join_timeout_ms", "1000"), 1.0
)


class Torchft(Rival):
    """One lighthouse, one replica a member; whoever ends is replaced at once by a fresh process."""

    def __init__(
        self, directory: Path, environment: Mapping[str, str], nodes: int, system: str, patience: Patience
    ) -> None:
        requirement = {"torchft": "torchft 0.2.0", "torchft-nightly": "torchft nightly"}[system]
        super().__init__(f"{requirement}, {patience.label}", directory, python_of(system), environment)
        self.nodes, self.patience = nodes, patience
        self.replicas: list[subprocess.Popen[bytes]] = []
        self._struck = 0
        self._port = free_port()

    def begin(self) -> None:
        """The lighthouse first."""
        lighthouse = str(Path(self.python).with_name("torchft_lighthouse"))
        self.spawn(lighthouse, "--min_replicas", "2", "--bind", f"127.0.0.1:{self._port}", *self.patience.lighthouse)
        self.replicas = [self._replica(number) for number in range(self.nodes)]

    def tend(self) -> None:
        """Replace replicas that have ended."""
        super().tend()
        for number, process in enumerate(self.replicas):
            if process.poll() is not None:
                self.replicas[number] = self._replica(number)

    def victim(self) -> int:
        """A replica in the middle."""
        self._struck = 1 + self._struck % (self.nodes - 1)
        return self.replicas[self._struck].pid

    def noticed(self) -> None:
        """A stopped replica is out of the quorum by now: kill it, so that it can be replaced."""
        with suppress(ProcessLookupError):
            self.replicas[self._struck].kill()

    def _replica(self, number: int) -> subprocess.Popen[bytes]:
        return self.spawn(
            "-m", f"{SCRIPTS}.torchft_ddp",
            REPLICA_ID=str(number), REPLICAS=str(self.nodes),
            TORCHFT_LIGHTHOUSE=f"http://127.0.0.1:{self._port}", BENCH_PG_TIMEOUT_S=str(self.patience.group_s),
        )  # fmt: skip


class Nvrx(Rival):
    """In-process restart with one rank in reserve, and nobody to replace a rank that is lost."""

    lives_on = False

    def __init__(self, directory: Path, environment: Mapping[str, str], nodes: int, every: int) -> None:
        super().__init__("nvidia-resiliency-ext 0.4.1, tuned", directory, python_of("nvrx"), environment)
        self.nodes, self.every = nodes, every

    def begin(self) -> None:
        """One process a member and one in reserve."""
        meeting = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "BENCH_STORE_PORT": str(free_port()),
            "BENCH_CHECKPOINT": str(self.directory / f"checkpoint-{self.mark}"),
            "BENCH_EVERY": str(self.every),
            "BENCH_ACTIVE": str(self.nodes),
            "WORLD_SIZE": str(self.nodes + 1),
        }
        for rank in range(self.nodes + 1):
            self.spawn("-m", f"{SCRIPTS}.nvrx_inprocess", RANK=str(rank), **meeting)

    def victim(self) -> int:
        """A rank in the middle: the first holds the store."""
        return self.processes[2].pid


Maker = Callable[[Path, Mapping[str, str], int], Rival]


def makers(peers: str, every: int) -> dict[str, Maker]:
    """Name -> how to make the rivals that ``peers`` asks for: none, torchrun, torchft, nvrx or all."""
    found: dict[str, Maker] = {}
    if peers in ("torchrun", "all"):
        found["torchrun"] = lambda directory, environment, nodes: Torchrun(directory, environment, nodes, every)
    if peers in ("torchft", "all"):
        for system in ("torchft", "torchft-nightly"):
            for patience in (DEFAULTS, TUNED):
                found[f"{system}, {patience.label}"] = _torchft(system, patience)
    if peers in ("nvrx", "all"):
        found["nvrx"] = lambda directory, environment, nodes: Nvrx(directory, environment, nodes, every)
    return found


def _torchft(system: str, patience: Patience) -> Maker:
    return lambda directory, environment, nodes: Torchft(directory, environment, nodes, system, patience)
