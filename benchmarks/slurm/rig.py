"""Jobs of ours on the testbed's SLURM, for benchmarks: their supervisor runs there, faults come from here."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_hyperpod.bench.laboratory import (
    LANGUAGE_MODEL,
    Observer,
    laboratory,
    language_model_env,
    progress,
    remove,
    submit,
)
from jupyter_hyperpod.bench.report import bar
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.runtime.audit import audit
from jupyter_hyperpod.storage.store import Store
from tests.support.slurm import CONTROLLER, Testbed

MODEL = {"width": 32, "heads": 2, "layers": 2, "context": 32, "micro_batch": 2, "global_batch": 24}
ENDLESS = 10_000_000
PAUSE_S = 0.1
STEP_S = 60.0  # an undisturbed step on a machine that does other things, too
SETTLE_S = 120.0
QUERIED = "queries"
QUERIES = ("squeue", "sinfo", "sacct", "scontrol")
_COUNT = '#!/bin/sh\necho "$(date +%s.%N) {name}" >>{log}\nexec {program} "$@"\n'
SUPERVISE = """
import sys
from jupyter_hyperpod.control.cluster import ensure_started
from jupyter_hyperpod.storage.store import Store
ensure_started(Store(sys.argv[1]), nodes=0, spares=0)
"""


@dataclass
class Rig:
    """``up_s``: how long the testbed took to come up, in seconds."""

    bed: Testbed
    store: Store
    up_s: float

    def on(self, host: str, *arguments: str, check: bool = True) -> str:
        """What a command of this project prints on a host of the testbed."""
        command = [sys.executable, "-m", "jupyter_hyperpod", "--store", str(self.store.root), *arguments]
        return self.bed.run(host, *command, check=check).stdout

    def train(
        self, name: str, nodes: int, elastic: str = "", steps: int = ENDLESS, save_every: int = 0, **slurm: str
    ) -> Observer:
        """Submit the language model, which saves its state every so many steps; ``slurm``: options with underscores."""
        options = {key.replace("_", "-"): value for key, value in slurm.items()}
        fields: dict[str, Any] = {"name": name, "nodes": nodes, "spares": 0, "backend": "slurm", "slurm": options}
        env = language_model_env(self.store, **MODEL, steps=steps) | {"LM_PAUSE_S": str(PAUSE_S)}
        env |= saving(name, save_every)
        source = LANGUAGE_MODEL.read_text()
        return submit(self.store, source, fields | {"elastic": elastic or None, "env": env})

    def queries(self) -> list[float]:
        """When the supervisor asked SLURM something, in seconds since the Unix epoch."""
        try:
            return [float(line.split()[0]) for line in (self.store.root / QUERIED).read_text().splitlines()]
        except FileNotFoundError:
            return []


@contextmanager
def slurm_rig(nodes: int = 4, keep: str = "", logins: int = 0) -> Iterator[Rig]:
    """A testbed and a store of its own; both gone afterwards. The supervisor runs on the first of ``logins`` hosts, or
    on the controller where there are none.

    ``keep`` names a directory, not there yet, that gets the store's journals and SLURM's logs: what went wrong can be
    looked up.
    """
    root = tempfile.mkdtemp(prefix="hyperpod-bench-")
    try:
        store, began_s = Store(root).prepare(), time.monotonic()
        with Testbed(nodes, logins=logins) as bed:
            rig, host = Rig(bed, store, time.monotonic() - began_s), [*bed.logins, CONTROLLER][0]
            path = os.pathsep.join((str(_counting(store.root)), os.environ.get("PATH", os.defpath)))
            bed.run(host, sys.executable, "-c", SUPERVISE, root, env={"PATH": path})
            try:
                yield rig
            finally:
                rig.on(host, "cluster", "stop", check=False)
                if keep:
                    shutil.copytree(bed.logs, store.root / "slurm")
    finally:  # after the testbed, whose nodes may be writing there until they are switched off
        try:
            if keep:
                shutil.copytree(root, keep, ignore=shutil.ignore_patterns("*.sock", "checkpoints"))
        finally:
            remove(root)


def _counting(directory: Path) -> Path:
    """A directory of programs in the place of SLURM's queries, each of which writes down that it was called."""
    place = directory / "counted"
    place.mkdir()
    for name in QUERIES:
        if program := shutil.which(name):
            (place / name).write_text(_COUNT.format(name=name, log=directory / QUERIED, program=program))
            (place / name).chmod(0o755)
    return place


def saving(name: str, every: int) -> dict[str, str]:
    """Variables with which the language model saves its state every so many steps; none for 0."""
    return {"LM_CHECKPOINT": f"shared://{name}", "LM_CHECKPOINT_EVERY": str(every)} if every else {}


def compare(*watches: Observer) -> list[dict[str, Any]]:
    """Bars: what ended jobs have in common with as many undisturbed steps on one local node; the worst counts."""
    for watch in watches:
        watch.read()
    steps = max(watch.view["step"] for watch in watches)
    with laboratory(1, spares=0) as store:
        env: Mapping[str, str] = language_model_env(store, **MODEL, steps=steps)
        alone = submit(store, LANGUAGE_MODEL.read_text(), {"name": "alone", "nodes": 1, "spares": 0, "env": env})
        alone.until_through(STEP_S)
    theirs = alone.losses()
    return worst([bar for watch in watches for bar in _compared(watch, theirs)])


def _compared(watch: Observer, theirs: Mapping[int, str]) -> list[dict[str, Any]]:
    steps, ours = watch.view["step"], watch.losses()
    theirs = {step: loss for step, loss in theirs.items() if step <= steps}
    problems = audit(watch.events).problems
    for problem in problems:
        progress(f"NOT EXACTLY ONCE: {problem}")
    return [
        bar("mismatches", sum(ours.get(step) != loss for step, loss in theirs.items()), 0),
        bar("steps_lost", len(set(range(1, steps + 1)) - ours.keys()), 0),
        bar("samples_repeated", len(problems), 0),
        bar("steps_compared", len(theirs), at_least=max(1, steps)),
    ]


def end(watch: Observer) -> None:
    """Stop a job and wait for its end."""
    jobs.stop(watch.store, watch.job_id)
    watch.until_ended()


def until_world(watch: Observer, size: int) -> float:
    """Wait for a step committed by ``size`` members from now on; returns when that was."""
    began_s = time.time()

    def seen() -> list[float]:
        commits = watch.of_kind("step.committed")[-50:]
        return [e.time_s for e in commits if e.time_s >= began_s and e.data["world_size"] == size]

    watch.until(lambda: bool(seen()), SETTLE_S)
    return min(seen())


def worst(bars: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One bar a name: parts compare their own runs, and the worst of them counts."""
    found: dict[str, dict[str, Any]] = {}
    for line in bars:
        known = found.setdefault(line["name"], line)
        if known["ok"] and not line["ok"]:
            found[line["name"]] = line
    return list(found.values())
