"""Jobs on a real cluster, watched through their journals and disturbed by real signals.

job          job(source, nodes=3, …) submits a cell to the shared cluster and returns a `Run` to follow and disturb
reference    the same training, undisturbed on one node: what every disturbed run is compared with, bit for bit

A program pauses in its steps so that something can happen meanwhile, and has nothing to pause for afterwards:
``job(…, pause_s=0.02)`` pauses until ``run.full_speed()``.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.bench.laboratory import Observer, wait_for_idle
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.errors import Conflict, HyperpodError
from jupyter_hyperpod.core.events import TERMINAL_STATES
from jupyter_hyperpod.core.views import View
from jupyter_hyperpod.runtime.audit import audit
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.system.processes import start_ticks

STEPS = 24
MICRO_BATCHES = 8
# Small, but with everything that could depend on who computes what: dropout, LayerNorm, clipping, AdamW, a scheduler.
TRAIN = """
import os, time, torch, jupyter_hyperpod as hp
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)
samples = torch.randn(50, 8)
data = [(x, x.sum().sin()) for x in samples]
pause_s = float(os.environ.get("PAUSE_S", "0.004"))

def loss_fn(batch):
    time.sleep(pause_s)
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs).squeeze(-1), targets)

settings = dict(global_batch=16, micro_batch=2, seed=3, max_grad_norm=1.0, scheduler=scheduler)
with hp.Session(model, optimizer, data, **settings) as session:
    for step in session.steps(24):
        loss = step.run(loss_fn)
        session.log(loss=loss)
"""


def spin_once(flag: str) -> str:
    """The source of ``spin()``, which never returns to its first caller in any process; the file `flag` marks it."""
    return (
        f"import os\ndef spin():\n    try: os.close(os.open({flag!r}, os.O_CREAT | os.O_EXCL))\n"
        "    except FileExistsError: return\n    while True: pass\n"
    )


def spinning(flag: str) -> str:
    """`TRAIN` of three members, one of which spins in step 6, once."""
    pause = "    time.sleep(pause_s)"
    at_six = f"{pause}\n    if session.step == 6 and session.world_size == 3: spin()"
    return spin_once(flag) + TRAIN.replace(pause, at_six)


def counting_links(directory: Path) -> str:
    """`TRAIN` in which each rank writes down, after every step, how many of its open connections are encrypted."""
    return f"""{TRAIN.rstrip()}
        kept = [one for one in __import__("gc").get_objects() if isinstance(one, __import__("ssl").SSLSocket)]
        links = sum(one.fileno() >= 0 for one in kept)
        with open(f"{directory}/links-{{os.getpid()}}", "a") as file:
            print(links, file=file)
"""


def encrypted_links(directory: Path) -> list[int]:
    """What the ranks of `counting_links` have written down."""
    return [int(line) for path in directory.glob("links-*") for line in path.read_text().split()]


PAUSE = re.compile(r"""time\.sleep\((pause_s|float\(os\.environ\.get\("PAUSE_S", "?0"?\)\))\)""")


def pausing(source: str, flag: Path) -> str:
    """The same program, which pauses only until the file `flag` is there."""
    found, pauses = PAUSE.subn(rf"time.sleep(0 if os.path.exists({str(flag)!r}) else \1)", source)
    assert pauses == 1, "it has another pause than the one that everybody writes"
    return found


class Run(Observer):
    """One job under observation, and the means to disturb it."""

    flag: Path | None = None  # where its program is `pausing`

    def full_speed(self) -> None:
        """Let its program go on without pauses: all that had to happen meanwhile has happened."""
        assert self.flag is not None, "it was submitted without pause_s"
        self.flag.touch()

    def until_event(self, kind: str, count: int = 1, timeout_s: float = 60.0, **wanted: Any) -> None:
        """Wait for `count` events of one kind whose data hold what is wanted. Fails where the job ends without."""

        def seen() -> bool:
            found = [e for e in self.of_kind(kind) if all(e.data[key] == value for key, value in wanted.items())]
            return len(found) >= count

        self._until_seen(seen, timeout_s)

    def until_world(self, size: int, timeout_s: float = 60.0, or_ended: bool = False) -> None:
        """Wait for a step committed by `size` members. Fails where the job ends without, unless ``or_ended``."""
        began = len(self.of_kind("step.committed"))

        def seen() -> bool:
            return (
                or_ended
                and self.ended
                or any(e.data["world_size"] == size for e in self.of_kind("step.committed")[began:])
            )

        self._until_seen(seen, timeout_s)

    def until_made_good(self, losses: int, size: int, timeout_s: float = 60.0) -> None:
        """Wait until `losses` members were lost, and `size` others have committed a step. See `until_event`."""

        def made_good() -> bool:
            lost = {event.data["member"] for event in self.of_kind("member.lost")}
            whole = {
                event.data["generation"]
                for event in self.of_kind("generation.formed")
                if len(event.data["members"]) == size
                and lost.isdisjoint(member["member"] for member in event.data["members"])
            }
            committed = (event.data["generation"] in whole for event in self.of_kind("step.committed"))
            return len(lost) >= losses and any(committed)

        self._until_seen(made_good, timeout_s)

    def _until_seen(self, seen: Callable[[], bool], timeout_s: float) -> None:
        self.until(lambda: seen() or self.ended, timeout_s)
        assert seen(), f"the job ended before it was seen: {self.story()}"

    @property
    def ended(self) -> bool:
        return self.view["state"] in TERMINAL_STATES

    def kill(self, rank: int) -> None:
        self._fault("kill", rank=rank)

    def hang(self, rank: int) -> None:
        self._fault("hang", rank=rank)

    def kill_node(self, rank: int) -> None:
        self._fault("kill", node=self.node_of(rank))

    def stop_node(self, rank: int) -> None:
        self._fault("hang", node=self.node_of(rank))

    def preempt(self, rank: int) -> None:
        self._fault("preempt", rank=rank)

    def scale(self, target: int) -> None:
        with suppress(Conflict):  # it has ended
            jobs.scale(self.store, self.job_id, target)

    def stop(self) -> None:
        jobs.stop(self.store, self.job_id)

    def node_of(self, rank: int) -> str:
        return next(m["node"] for m in self.view["members"] if m["rank"] == rank)

    def worker_pid(self, rank: int) -> int:
        member = next(m["member"] for m in self.view["members"] if m["rank"] == rank)
        return int(member.rpartition(".")[2])

    def coordinator_pid(self) -> int:
        endpoint = self.store.job(self.job_id).path / "coordinator.json"
        return int(json.loads(endpoint.read_text())["pid"])

    def kill_coordinator(self) -> None:
        os.kill(self.coordinator_pid(), signal.SIGKILL)

    def _fault(self, kind: str, **aim: Any) -> None:
        with suppress(Conflict):  # it has ended
            jobs.fault(self.store, self.job_id, kind, **aim)

    def finish(self, state: str = "succeeded", timeout_s: float = 120.0) -> View:
        """Wait for the end and insist on how it went."""
        view = self.until_ended(timeout_s)
        assert view["state"] == state, f"{view['state']}: {view['reason']}\n{self.story()}"
        return view

    def text(self, stream: str = "stdout") -> dict[int | None, str]:
        """What each rank printed."""
        found: dict[int | None, str] = {}
        for event in self.of_kind("output.written"):
            if event.data["stream"] == stream:
                found[event.data["rank"]] = found.get(event.data["rank"], "") + event.data["text"]
        return found

    def same_as(self, other: Run) -> None:
        """Every loss and the final state are the same bits, and every micro-batch counted exactly once."""
        assert self.losses() == other.losses(), self.story()
        assert self.view["digest"] == other.view["digest"] is not None, self.story()
        report = audit(self.events)
        assert report.sound, (report.problems, self.story())
        assert report.steps == STEPS

    def story(self) -> str:
        """What happened, a line an event: shown when a test fails."""
        quiet = {"step.committed", "metric.logged", "job.submitted"}
        lines = [
            f"{e.time_s % 1000:8.3f} {e.writer:28} {e.kind} {json.dumps(dict(e.data))[:300]}"
            for e in self.events
            if e.kind not in quiet
        ]
        return "\n".join(lines[-120:])


Submit = Callable[..., Run]


def alive(pid: int) -> bool:
    """True while a process runs; a zombie does not."""
    return start_ticks(pid) is not None


def start(store: Store, source: str, nodes: int = 3, pause_s: float | None = None, **fields: Any) -> Run:
    """Submit a cell; elastic between 1 and `nodes` where nothing else is asked for.

    With ``pause_s`` it pauses until ``full_speed()``.
    """
    options: dict[str, Any] = {"name": "test", "nodes": nodes, "elastic": f"1:{nodes}"}
    options["working_directory"] = str(store.root)
    flag = None
    if pause_s is not None:
        flag = store.root / f"full-speed-{secrets.token_hex(4)}"
        source, options["env"] = pausing(source, flag), {"PAUSE_S": str(pause_s)}
    run = Run(store, jobs.submit(store, source, options | fields))
    run.flag = flag
    return run


@pytest.fixture
def job(shared_cluster: Store) -> Iterator[Submit]:
    """Submit cells to the shared cluster."""
    yield from submitting(shared_cluster)


def submitting(store: Store, mend: Callable[[Store], object] = lambda store: None) -> Iterator[Submit]:
    """Submit cells; what still runs afterwards is stopped, and every node is idle again, after ``mend(store)``."""
    runs: list[Run] = []

    def submit(source: str = TRAIN, nodes: int = 3, **fields: Any) -> Run:
        runs.append(start(store, source, nodes, **fields))
        return runs[-1]

    wait_for_idle(store)
    yield submit
    for run in runs:
        with suppress(HyperpodError):
            jobs.stop(store, run.job_id)
        run.until_ended(60)
    mend(store)
    wait_for_idle(store)


@pytest.fixture(scope="session")
def reference(shared_cluster: Store) -> Run:
    """`TRAIN` on one node, undisturbed."""
    wait_for_idle(shared_cluster)
    run = start(shared_cluster, TRAIN, nodes=1, spares=0, env={"PAUSE_S": "0"})
    run.finish()
    assert len(run.losses()) == STEPS
    wait_for_idle(shared_cluster)
    return run


@pytest.fixture(scope="session")
def undisturbed(shared_cluster: Store) -> Callable[[str], Run]:
    """A cell on one node that nothing disturbs; each cell runs once, however many tests compare with it."""
    known: dict[str, Run] = {}

    def run_of(source: str) -> Run:
        if source not in known:
            run = start(shared_cluster, source, nodes=1)
            run.finish()
            known[source] = run
        return known[source]

    return run_of


@pytest.fixture
def patience() -> Callable[[Callable[[], object], float], None]:
    """Wait for a condition with a bound, without a job."""

    def wait(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout_s:g} s"
            time.sleep(0.005)

    return wait
