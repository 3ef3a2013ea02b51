"""Jobs without a cluster: the journals of those that ended, and of those that train, by the product's own writers.

As a process of its own (``python -m benchmarks.control.written_jobs STORE JOB …``) it goes on with jobs that train, in
real time, until its standard input is closed. Nothing is computed: the losses are those of a formula.
"""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path
from typing import Any

from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage.journal import RecordWriter, event_writer
from jupyter_hyperpod.storage.journal_writer import JournalWriter
from jupyter_hyperpod.storage.output.output_relay import OutputRelay, StepLabel
from jupyter_hyperpod.storage.segments import SEGMENT_BYTES
from jupyter_hyperpod.storage.store import JobStore, Store

MEMBERS = 4
STEPS_PER_S = 20
METRIC_STEPS, OUTPUT_STEPS = 10, 20  # each member logs metrics and writes a line once in so many steps
ENDED_STEPS = 100
TOTAL_STEPS = 1_000_000
LINES_PER_STEP, PRINTED_CAP = 100, 1_000_000_000  # lines that a job prints per step; bytes of output that are kept
MEMBERS_LIST = [
    {"member": f"node-{rank}.a", "node": f"node-{rank}", "rank": rank, "pid": 1000 + rank} for rank in range(MEMBERS)
]
Writer = RecordWriter[Any]


class WrittenJob:
    """A job and its journals: one of the coordinator, one per member."""

    def __init__(self, job: JobStore) -> None:
        self.job = job
        self.step = 0
        self._head = event_writer(job.events, "coordinator")
        names = [f"worker-{member['member']}" for member in MEMBERS_LIST]
        self._members = [event_writer(job.events, name, SEGMENT_BYTES) for name in names]

    def begin(self) -> None:
        """The job runs; its first generation has formed."""
        self._head.append("job.state", {"state": "running", "reason": "its nodes are there"})
        formed = {"generation": 1, "members": MEMBERS_LIST, "spares": [], "target": MEMBERS, "reason": "all are there"}
        self._head.append("generation.formed", formed)
        opened = {"total_steps": TOTAL_STEPS, "global_batch": 64, "micro_batch": 4, "micro_batches": 16}
        self._head.append("session.opened", opened | {"parameters": 1_000_000, "state_bytes": 12_000_000, "number": 1})

    def commit(self, step: int) -> None:
        """One step, with what its members say of it."""
        self.step = step
        loss = 2.0 + math.exp(-step / 500) + math.sin(step) / 10
        record = {"step": step, "session": 1, "generation": 1, "loss": loss, "loss_hex": loss.hex()}
        record |= {"step_time_s": 1 / STEPS_PER_S, "samples": 64, "world_size": MEMBERS, "redone": 0}
        self._members[0].append("step.committed", record)
        for member, writer in zip(MEMBERS_LIST, self._members, strict=True):
            if step % METRIC_STEPS == 0:
                values = {f"accuracy/{member['rank']}": 1 - loss / 10, f"rate/{member['rank']}": 64 * STEPS_PER_S}
                writer.append("metric.logged", {"step": step, "values": values})
            if step % OUTPUT_STEPS == 0:
                said = {"stream": "stdout", "text": f"step {step}: loss {loss:.6f}\n"}
                writer.append("output.written", {key: member[key] for key in ("member", "node", "rank")} | said)

    def end(self) -> None:
        """The job has succeeded."""
        self._head.append("session.closed", {"step": self.step, "digest": "0" * 64})
        self._head.append("job.state", {"state": "succeeded", "reason": "all steps are done"})
        self.close()

    def close(self) -> None:
        for writer in (self._head, *self._members):
            writer.close()


def submitted(store: Store, name: str) -> JobStore:
    """A job in the store, as control creates it, without waking a cluster."""
    job = store.create_job(JobSpec(name, store.put_cell("train()\n"), MEMBERS))
    with event_writer(job.events, "control") as journal:
        journal.append("job.submitted", {"id": job.id, "spec": job.spec().to_json()})
    return job


def write_ended(store: Store, count: int) -> None:
    """``count`` jobs that ended after `ENDED_STEPS`."""
    for number in range(count):
        written = WrittenJob(submitted(store, f"ended-{number}"))
        written.begin()
        for step in range(1, ENDED_STEPS + 1):
            written.commit(step)
        written.end()


def write_printed(store: Store, lines: int) -> str:
    """An ended job one of whose members has printed so many ``lines``; returns its id."""
    job = submitted(store, "printed")
    written, member = WrittenJob(job), MEMBERS_LIST[0]
    written.begin()
    relay = OutputRelay(job, str(member["node"]), JournalWriter(job.events, "agent"), PRINTED_CAP)
    for first in range(0, lines, LINES_PER_STEP):
        written.commit(written.step + 1)
        rows = range(first, min(first + LINES_PER_STEP, lines))
        text = "".join(f"line {number:,}: the loss is {2 + math.sin(number):.6f}\n" for number in rows)
        relay.write(str(member["member"]), 0, "stdout", text, StepLabel(1, written.step))
    relay.close()
    written.end()
    return job.id


def train(store: Store, job_ids: list[str]) -> None:
    """Go on with jobs at `STEPS_PER_S`, one after another within a step, until standard input is closed."""
    written = [WrittenJob(store.job(job_id)) for job_id in job_ids]
    for job in written:
        job.begin()
    os.set_blocking(sys.stdin.fileno(), False)
    began_s, turns = time.monotonic(), 0
    while sys.stdin.buffer.read(1) is None:
        written[turns % len(written)].commit(turns // len(written) + 1)
        turns += 1
        due_s = began_s + turns / (STEPS_PER_S * len(written))
        time.sleep(max(0.0, due_s - time.monotonic()))
    for job in written:
        job.close()


if __name__ == "__main__":
    train(Store(Path(sys.argv[1])), sys.argv[2:])
