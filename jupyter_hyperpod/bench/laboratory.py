"""A private cluster for one benchmark, and an observer that reads its journals from outside."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..control import cluster, jobs
from ..core.errors import ClusterError
from ..core.events import TERMINAL_STATES, Event
from ..core.views import View, apply, new_job_view
from ..storage.journal import JournalFollower
from ..storage.store import Store
from .stalls import Commit

LANGUAGE_MODEL = Path(__file__).with_name("language_model.py")


@contextmanager
def laboratory(nodes: int, spares: int, isolated: bool = False) -> Iterator[Store]:
    """A store and a warm cluster of its own, both gone afterwards; ``isolated`` nodes can be cut off."""
    root = tempfile.mkdtemp(prefix="hyperpod-bench-")
    store = Store(root).prepare()
    try:
        cluster.ensure_started(store, nodes=nodes, spares=spares, isolated=isolated)
        wait_for_idle(store)
        yield store
    finally:
        cluster.stop(store)
        remove(root)


def remove(root: str, timeout_s: float = 10.0) -> None:
    """Remove a directory into which ending processes may still write. Raises OSError where they go on."""
    deadline = time.monotonic() + timeout_s
    while os.path.lexists(root):
        shutil.rmtree(root, ignore_errors=time.monotonic() < deadline)
        time.sleep(0.01)


def wait_for_idle(store: Store, timeout_s: float = 60.0) -> None:
    """Wait until every node of the cluster is idle, so that runs do not disturb each other."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        nodes = cluster.status(store)["nodes"]
        if nodes and all(node["state"] == "idle" for node in nodes):
            return
        time.sleep(0.02)
    raise ClusterError(f"the cluster's nodes were not idle within {timeout_s:g} s")


def processor_s(store: Store) -> float:
    """Processor time of all processes of a store's cluster so far, with that of their processes that have ended."""
    used = 0
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if os.fsencode(store.root) in (place / "cmdline").read_bytes() and int(place.name) != os.getpid():
                times = (place / "stat").read_text().rpartition(")")[2].split()[11:15]
                used += sum(map(int, times))
    return used / os.sysconf("SC_CLK_TCK")


def corpus(store: Store) -> Path:
    """Real text that every machine has: the source of Python's own standard library, as one file."""
    path = store.shared / "stdlib.bin"
    if not path.exists():
        sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        path.write_bytes(b"\n".join(source.read_bytes() for source in sources))
    return path


def language_model_env(store: Store, **settings: int) -> dict[str, str]:
    """Environment of `language_model.py`; keywords are its settings in lower case."""
    chosen = {f"LM_{name.upper()}": str(value) for name, value in settings.items()}
    return {"LM_CORPUS": str(corpus(store)), **chosen}


@dataclass
class Observer:
    """Follows one job and keeps its events and view."""

    store: Store
    job_id: str
    view: View = field(init=False)
    events: list[Event] = field(default_factory=list)
    _commits: list[Commit] = field(init=False, default_factory=list)
    _follower: JournalFollower[Event] = field(init=False)

    def __post_init__(self) -> None:
        self.view = new_job_view(self.job_id)
        self._follower = jobs.follow(self.store, self.job_id)

    def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Read events until `condition()`; raises ClusterError with the job's state after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._keep(self._follower.wait(0.05))
            if condition():
                return
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{self.job_id} did not get there in {timeout_s:g} s: it is {self.view['state']} at step "
                    f"{self.view['step']} ({self.view['reason']})"
                )

    def until_step(self, step: int, timeout_s: float = 60.0) -> None:
        """Wait for a committed step; raises ClusterError where the job ended before it."""
        self.until(lambda: self.view["step"] >= step or self.view["state"] in TERMINAL_STATES, timeout_s)
        if self.view["step"] < step:
            raise ClusterError(f"{self.job_id} {self.view['state']} before step {step}: {self.view['reason']}")

    def until_ended(self, timeout_s: float = 120.0) -> View:
        """Wait for a terminal state, then read what other writers said before it."""
        self.until(lambda: self.view["state"] in TERMINAL_STATES, timeout_s)
        self.read()
        return self.view

    def until_through(self, idle_s: float = 120.0) -> View:
        """Wait for a terminal state, however long that takes, while a step is committed at least every ``idle_s``."""
        while self.view["state"] not in TERMINAL_STATES:
            step = self.view["step"]
            self.until(lambda step=step: self.view["state"] in TERMINAL_STATES or self.view["step"] > step, idle_s)  # type: ignore[misc]
        return self.until_ended(idle_s)

    def read(self) -> None:
        """Read what is there by now."""
        self._keep(self._follower.poll())

    def _keep(self, events: Iterable[Event]) -> None:
        for event in events:
            self.events.append(event)
            apply(self.view, event)
            if event.kind == "step.committed":
                data = event.data
                self._commits.append(Commit(event.time_s, data["step"], 0, data["world_size"], data["generation"]))

    def commits(self) -> list[Commit]:
        """Every step committed so far; rank 0 speaks for all members."""
        self.read()
        return self._commits

    def of_kind(self, kind: str) -> list[Event]:
        """Events of one kind, in the order they were read."""
        return [event for event in self.events if event.kind == kind]

    def spare_is_ready(self) -> bool:
        """A worker waits at its session, warm, for a place; one that had a place, and left, does not."""
        self.read()
        taken = {event.data["member"] for event in self.of_kind("member.lost")}
        taken |= {member["member"] for event in self.of_kind("generation.formed") for member in event.data["members"]}
        return any(event.data["member"] not in taken for event in self.of_kind("member.ready"))

    def losses(self) -> dict[int, str]:
        """Loss of every committed step, as exact hexadecimal."""
        return {event.data["step"]: event.data["loss_hex"] for event in self.of_kind("step.committed")}


def submit(store: Store, source: str, fields: Mapping[str, Any]) -> Observer:
    """Submit a cell and observe it."""
    return Observer(store, jobs.submit(store, source, {"working_directory": os.fspath(store.root), **fields}))


def progress(text: str) -> None:
    """One line on standard error, so that standard output stays JSON."""
    print(text, file=sys.stderr, flush=True)
