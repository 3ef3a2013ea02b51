"""A job that has printed a gigabyte: how long its newest lines, a range of time and a range of steps take to read.

The output is written by the product's agent-side writer, in two parts: the journal's share, and files beside it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from jupyter_hyperpod.bench.laboratory import progress
from jupyter_hyperpod.bench.report import bar, report, row
from jupyter_hyperpod.control import watch
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.journal_keeper import keep
from jupyter_hyperpod.storage.journal_writer import JournalWriter
from jupyter_hyperpod.storage.output.output_choice import OutputChoice
from jupyter_hyperpod.storage.output.output_range import read_output
from jupyter_hyperpod.storage.output.output_relay import OutputRelay, StepLabel
from jupyter_hyperpod.storage.output.step_index import StepRange
from jupyter_hyperpod.storage.store import JobStore, Store

OURS = "jupyter_hyperpod"
GIGABYTE, CAP, RUNS = 1_000_000_000, 4_000_000_000, 7
LINE = 100  # bytes
LINES = 10  # of a step, which arrive together
SOON_S = 0.1


def run(runs: int = RUNS, size: int = GIGABYTE) -> dict[str, Any]:
    """Write output of ``size`` bytes, and read it ``runs`` times in each way."""
    with tempfile.TemporaryDirectory(prefix="hyperpod-printed-") as folder:
        store = Store(Path(folder) / "store").prepare()
        job = store.create_job(JobSpec(name="printed", cell_digest=store.put_cell("print()\n"), nodes=1))
        steps = size // (LINE * LINES)
        wrote_s = write(job, steps)
        middle_s = _time_of(job, steps // 2)
        ways: dict[str, tuple[OutputChoice, int]] = {
            "the last 100 lines": (OutputChoice(tail=100), 100),
            "100 lines from the middle, by step": (OutputChoice(steps=StepRange(1, steps // 2, steps // 2 + 9)), 100),
            "10 ms from the middle, by time": (OutputChoice(since_s=middle_s, until_s=middle_s + 0.01), 1),
            "the last 100 lines of the first half, by time": (OutputChoice(tail=100, until_s=middle_s), 100),
        }
        rows = [row(OURS, f"{size / 1e9:g} GB of output", "writing 1 MB of it", "s", [wrote_s / size * 1e6])]
        for name, (choice, least) in ways.items():
            taken = [_timed(partial(_lines, store, job, choice, least)) for _ in range(runs)]
            waited, computed = zip(*taken, strict=True)
            rows.append(row(OURS, f"{size / 1e9:g} GB of output", name, "s", waited))
            rows.append(row(OURS, f"{size / 1e9:g} GB of output", f"{name}: processor time", "s", computed))
    names = ("last_lines_s", "steps_in_the_middle_s", "time_in_the_middle_s", "lines_before_a_time_s")
    bars = [bar(name, one["median"], SOON_S) for name, one in zip(names, rows[1::2], strict=True)]
    return report("printed", rows, bars)


def write(job: JobStore, steps: int) -> float:
    """Write the output of one rank over so many steps; returns the seconds that it took."""
    journal = JournalWriter(job.events, "agent-node-1")
    relay, label = OutputRelay(job, "node-1", journal, CAP), StepLabel(1, 0)
    text = (f"{'x' * (LINE - 1)}\n") * LINES
    with event_writer(job.events, "control") as control:
        control.append("job.submitted", {"id": job.id, "spec": job.spec().to_json()})
    began_s = time.perf_counter()
    for step in range(1, steps + 1):
        label.step = step
        relay.write("node-1.a.7", 0, "stdout", text, label)
        if step % (steps // 10) == 0:
            progress(f"step {step:,} of {steps:,} is printed")
    relay.close()
    journal.close()
    took_s = time.perf_counter() - began_s
    keep(job)  # as the coordinator has it done while a job runs
    return took_s


def _time_of(job: JobStore, step: int) -> float:
    return next(read_output(job, OutputChoice(steps=StepRange(1, step, step)))).time_s


def _lines(store: Store, job: JobStore, choice: OutputChoice, least: int) -> None:
    """Read as `logs` does."""
    count = sum(1 for _ in watch.printed(store, job.id, choice)[1])
    if count < least or (least > 1 and count != least):
        raise AssertionError(f"{count} lines; expected {least}")


def _timed(action: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of the processor."""
    began_s, cpu_s = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - began_s, time.process_time() - cpu_s
