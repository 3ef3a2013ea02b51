"""A job of millions of steps: how long readers take, and what its journal takes on the disk.

The journal is written by the product's writers, and kept as the coordinator has it kept, while a real job runs. Then a
person describes and stops it, a browser opens it, and its coordinator is killed.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from jupyter_hyperpod.bench.laboratory import laboratory, progress
from jupyter_hyperpod.bench.report import bar, report, row
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.errors import Conflict
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.journal_keeper import WORTH_BYTES, keep
from jupyter_hyperpod.storage.segments import SEGMENT_BYTES
from jupyter_hyperpod.storage.store import ENVIRONMENT_VARIABLE, JobStore, Store

OURS = "jupyter_hyperpod"
STEPS, MEMBERS, RUNS = 10_000_000, 4, 5
STEP_S = 0.25
SOON_S, COORDINATOR_S = 0.3, 1.0
MOST_BYTES, MOST_BYTES_PER_STEP, MOST_MEMORY = 300e6, 30.0, 150e6
CELL = "import time\nprint('standing', flush=True)\ntime.sleep(3600)\n"
PEAK = "import resource; print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
DESCRIBE = f"""
import sys
from jupyter_hyperpod.cli import main
sys.argv[0] = "jupyter-hyperpod"
try:
    main(["describe", sys.argv[1], "--json"])
finally:
    {PEAK}
"""
BROWSER = f"""
import logging, sys, time
from jupyter_hyperpod.server.tailer import Tailer
from jupyter_hyperpod.storage.store import Store
began_s = time.perf_counter()
tailer = Tailer(Store(), poll_interval_s=0.05, idle_interval_s=1.0, recent_bytes=1 << 24, jobs_listed=200,
                on_change=lambda *_: None, log=logging.getLogger())
message, = tailer.watch(sys.argv[1], None, lambda: None).take()
print("took", time.perf_counter() - began_s, len(message))
{PEAK}
"""


def run(runs: int = RUNS, steps: int = STEPS) -> dict[str, Any]:
    """Write a job's journal of ``steps``, and read it ``runs`` times in each way."""
    with laboratory(1, spares=0) as store:
        job = store.job(jobs.submit(store, CELL, nodes=1, name="long"))
        jobs.wait(store, job.id, {"running"}, 60.0)
        wrote_s, kept_s = write(job, steps)
        on_disk = sum(path.stat().st_size for path in [*job.events.iterdir(), job.path / "view.json"])
        files = sum(1 for _ in job.events.iterdir())
        progress(f"{steps:,} steps: {on_disk / 1e6:.1f} MB in {files} files")
        described, memory = zip(*(_described(job) for _ in range(runs)), strict=True)
        opened, shown = zip(*(_opened(job) for _ in range(runs)), strict=True)
        restarted = [_restarted(store, job) for _ in range(runs)]
        stopped = _timed(lambda: _run(job, "-m", "jupyter_hyperpod", "stop"))
        jobs.wait(store, job.id, timeout_s=60.0)
    case = f"{steps:,} steps, {MEMBERS} members"
    rows = [
        row(OURS, case, "jupyter hyperpod describe", "s", described),
        row(OURS, case, "jupyter hyperpod stop", "s", [stopped]),
        row(OURS, case, "a browser opens the job: until the server has its view", "s", opened),
        row(OURS, case, "coordinator killed, until the next one has read the journal", "s", restarted),
        row(OURS, case, "largest memory of a reader", "bytes", [*memory, *shown]),
        row(OURS, case, "journal and snapshot on the disk", "bytes", [on_disk]),
        row(OURS, case, "keeping the journal, per 1000 steps", "s", [1000 * kept_s / steps]),
        row(OURS, case, "writing the journal, per 1000 steps", "s", [1000 * wrote_s / steps]),
    ]
    bars = [
        bar("describe_10m_steps_s", rows[0]["median"], SOON_S),
        bar("stop_10m_steps_s", stopped, SOON_S),
        bar("open_10m_steps_s", rows[2]["median"], SOON_S),
        bar("restart_10m_steps_s", rows[3]["median"], COORDINATOR_S),
        bar("reader_memory_bytes", rows[4]["max"], MOST_MEMORY),
        bar("journal_bytes", on_disk, MOST_BYTES),
        bar("bytes_per_step", on_disk / steps, MOST_BYTES_PER_STEP),
    ]
    return report("journals", rows, bars)


def write(job: JobStore, steps: int) -> tuple[float, float]:
    """Write a history of ``steps``; returns the seconds of writing, and those of keeping."""
    kept_s, began_s, kept_bytes, written = 0.0, time.perf_counter(), 0, 0
    clock_s = time.time() - steps * STEP_S
    every = max(1, steps // 20)
    micro_batches = list(range(64))
    shares = [[f"node-{rank}.a", micro_batches[rank::MEMBERS]] for rank in range(MEMBERS)]
    with event_writer(job.events, "worker-node-0.a", SEGMENT_BYTES) as writer:
        for step in range(1, steps + 1):
            loss = 2.0 + math.exp(-step / steps) + math.sin(step) / 10
            record = {"step": step, "session": 1, "generation": 1, "loss": loss, "loss_hex": loss.hex()}
            record |= {"step_time_s": STEP_S, "samples": 256, "world_size": MEMBERS, "redone": 0}
            writer._clock = lambda at_s=clock_s + step * STEP_S: at_s  # type: ignore[misc]
            before = writer.size
            writer.append("step.committed", record if step > 1 else record | {"assignment": shares})
            written += writer.size - before if writer.size > before else writer.size
            if written - kept_bytes >= WORTH_BYTES:
                kept_bytes = written
                kept_s += _timed(lambda: _keep(job))
            if step % every == 0:
                progress(f"step {step:,} of {steps:,} is journaled")
    kept_s += _timed(lambda: _keep(job))
    return time.perf_counter() - began_s - kept_s, kept_s


def _keep(job: JobStore) -> None:
    with suppress(Conflict):  # the job's own coordinator has it kept at this moment
        keep(job)


def _timed(action: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    action()
    return time.perf_counter() - began_s


def _run(job: JobStore, *arguments: str, ok: bool = True) -> str:
    """The output of a Python process that uses the job's store."""
    surroundings = {**os.environ, ENVIRONMENT_VARIABLE: str(job.path.parents[1])}
    command = [sys.executable, *arguments, job.id]
    return subprocess.run(command, check=ok, env=surroundings, stdout=subprocess.PIPE, text=True).stdout


def _described(job: JobStore) -> tuple[float, float]:
    """Seconds of `describe` as a person waits for it, and the bytes of memory that it takes."""
    took_s = _timed(lambda: _run(job, "-m", "jupyter_hyperpod", "describe"))
    return took_s, _peak(_run(job, "-c", DESCRIBE, ok=False))


def _opened(job: JobStore) -> tuple[float, float]:
    answer = _run(job, "-c", BROWSER)
    (took,) = (line.split() for line in answer.splitlines() if line.startswith("took"))
    return float(took[1]), _peak(answer)


def _peak(answer: str) -> float:
    return next(float(line.split()[1]) for line in answer.splitlines() if line.startswith("peak"))


def _restarted(store: Store, job: JobStore) -> float:
    """Kill the coordinator; seconds until the next one accepts connections."""
    endpoint = Path(job.path / "coordinator.json")
    before = json.loads(endpoint.read_text())["pid"]
    began_s = time.perf_counter()
    jobs.fault(store, job.id, "kill", target="coordinator")
    deadline_s = began_s + 120.0
    while time.perf_counter() < deadline_s:
        try:
            if json.loads(endpoint.read_text())["pid"] != before:
                return time.perf_counter() - began_s
        except (OSError, ValueError, KeyError):
            pass
        time.sleep(0.002)
    raise TimeoutError(f"{job.id} has no new coordinator after 120 s")
