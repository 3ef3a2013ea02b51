"""Write the journals of a cluster and of a job as if one were training: ``python replay.py STORE``.

Nothing trains here. The events are those a real run writes, so that the browser's side can be looked at and tested
alone; what is shown from it is labelled "recorded". Prints the job's id, then goes on writing in real time.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_hyperpod.core.events import Event
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.core.elastic import ElasticRange
from jupyter_hyperpod.storage.journal import RecordWriter, event_writer
from jupyter_hyperpod.storage.resources.node_uses import FOLDER
from jupyter_hyperpod.storage.resources.samples import as_event
from jupyter_hyperpod.storage.store import JobStore, Store

MICRO_BATCHES = 16
SAMPLE_S = 5.0
HEALTH = Path(__file__).parents[2] / "tests" / "journals" / "cluster-health.jsonl"


@dataclass
class Clock:
    """Time of the journal: behind the wall clock while the past is written, then the wall clock itself."""

    behind_s: float

    def pass_(self, seconds: float) -> None:
        if self.behind_s > 0:
            self.behind_s = max(0.0, self.behind_s - seconds)
        else:
            time.sleep(seconds)

    def __call__(self) -> float:
        return time.time() - self.behind_s


@dataclass
class Recording:
    """Writers of one job and of its cluster."""

    store: Store
    job: JobStore
    clock: Clock
    writers: dict[tuple[Path, str], RecordWriter[Event]] = field(default_factory=dict)

    def say(self, writer: str, kind: str, /, **data: Any) -> None:
        self._append(self.job.events, writer, kind, data)

    def cluster(self, kind: str, /, **data: Any) -> None:
        self._append(self.store.cluster_events, "supervisor", kind, data)

    def node(self, name: str, state: str, reason: str, *, incarnation: int = 1, spare: bool = False) -> None:
        busy = state == "busy"
        self.cluster(
            "node.state",
            node=name,
            state=state,
            reason=reason,
            spare=spare,
            slots=1,
            used=int(busy),
            jobs=[self.job.id] if busy else [],
            pid=None if state == "lost" else 4100 + int(name.rpartition("-")[2]) + 100 * incarnation,
            incarnation=incarnation,
        )

    def _append(self, directory: Path, name: str, kind: str, data: dict[str, Any]) -> None:
        key = (directory, name)
        if key not in self.writers:
            self.writers[key] = event_writer(directory, name)
            self.writers[key]._clock = self.clock
        self.writers[key].append(kind, data)


class Training:
    """A run of `total` steps on nodes 1 to 4, with node-5 as the spare."""

    def __init__(self, recording: Recording, total: int, step_time_s: float) -> None:
        self.r = recording
        self.total = total
        self.step_time_s = step_time_s
        self.nodes = [1, 2, 3, 4]
        self.spares = [5]
        self.generation = 0
        self.noise = random.Random(0)

    def form(self, reason: str) -> None:
        self.generation += 1
        self.r.say(
            "coordinator",
            "generation.formed",
            generation=self.generation,
            members=[self._member(node, rank) for rank, node in enumerate(self.nodes)],
            spares=[self._member(node, None) for node in self.spares],
            target=4,
            reason=reason,
        )
        self.r.say("coordinator", "decision.made", policy="membership", value=len(self.nodes), reason=reason)

    def _member(self, node: int, rank: int | None) -> dict[str, Any]:
        return {
            "member": f"node-{node}.1",
            "node": f"node-{node}",
            "rank": rank,
            "pid": 5200 + node,
            "host": "127.0.0.1",
        }

    def start(self) -> None:
        self.r.cluster(
            "cluster.state",
            state="running",
            reason="5 nodes are ready",
            nodes=[f"node-{number}" for number in range(1, 6)],
            pid=4000,
        )
        for node in (1, 2, 3, 4):
            self.r.node(f"node-{node}", "busy", f"runs {self.r.job.id}")
        self.r.node("node-5", "busy", f"stands by for {self.r.job.id}", spare=True)
        self.r.say("coordinator", "job.state", state="running", reason="4 of 4 nodes are ready")
        self.form("4 members asked for, 4 are ready")
        self.r.say(
            "worker",
            "session.opened",
            total_steps=self.total,
            global_batch=64,
            micro_batch=4,
            micro_batches=MICRO_BATCHES,
            parameters=8_421_376,
            state_bytes=101_056_512,
        )
        for rank in range(4):
            self.output(rank, f"tinylm: 8.4 M parameters on {'cpu'}, rank {rank} of 4\n")

    def sample(self, duration_s: float) -> None:
        """What the nodes used in that time; the third is the slowest."""
        share = [0.62, 0.66, 0.9, 0.58]
        ms = round(1000 * duration_s)
        found = {
            f"node-{node}": {
                "ms": ms,
                "cpu_ms": round(ms * 8 * self.noise.uniform(0.3, 0.5)),
                "received": round(ms * self.noise.uniform(9e4, 1.1e5)),
                "sent": round(ms * self.noise.uniform(9e4, 1.1e5)),
                "gpu_ms": round(ms * share[rank] * self.noise.uniform(0.9, 1.05)),
                "steps": max(1, round(duration_s / self.step_time_s)),
                "compute_ms": round(ms * share[rank]),
                "exchange_ms": round(ms * 0.06),
                "waits_ms": round(ms * (0.92 - share[rank])),
                "cores": 8,
                "memory": round(self.noise.uniform(3.1e9, 3.4e9)),
                "limit": 32_000_000_000,
                "gpus": 1,
                "gpu_memory": round(self.noise.uniform(21e9, 22e9)),
                "gpu_limit": 80_000_000_000,
            }
            for rank, node in enumerate(self.nodes)
        }
        self.r._append(self.r.job.path / FOLDER, "coordinator", "nodes.sampled", as_event(found, duration_s))

    def output(self, rank: int, text: str, stream: str = "stdout") -> None:
        node = self.nodes[rank]
        self.r.say(
            f"agent-{node}",
            "output.written",
            member=f"node-{node}.1",
            node=f"node-{node}",
            rank=rank,
            stream=stream,
            text=text,
        )

    def step(self, step: int, redone: int = 0) -> None:
        duration_s = self.step_time_s * self.noise.uniform(0.9, 1.15)
        self.r.clock.pass_(duration_s)
        loss = 1.45 + 4.1 * math.exp(-step / 130) + 0.6 * math.exp(-step / 900) + self.noise.gauss(0, 0.035)
        self.r.say(
            "worker",
            "step.committed",
            step=step,
            generation=self.generation,
            loss=loss,
            loss_hex=loss.hex(),
            step_time_s=duration_s,
            samples=64,
            world_size=len(self.nodes),
            assignment={},
            redone=redone,
        )
        if step % 20 == 0:
            self.output(
                (step // 20) % len(self.nodes), f"step {step:5d}  loss {loss:.4f}  {duration_s * 1000:.0f} ms\n"
            )

    def lose(self, number: int, node: int) -> None:
        """Node `node` is killed; the spare takes its place, the node comes back as the spare."""
        rank = self.nodes.index(node)
        name = f"node-{node}"
        facts = {"incident": number, "cause": "process died (SIGKILL)", "node": name, "rank": rank, "rung": None}

        def stage(stage: str, after_s: float, text: str, **more: Any) -> None:
            self.r.clock.pass_(after_s)
            self.r.say("coordinator", "incident.stage", **(facts | {"stage": stage, "text": text} | more))

        self.r.say("supervisor", "fault.injected", fault="kill", node=name, rank=rank, member=f"{name}.1")
        struck_s = self.r.clock()
        self.r.clock.pass_(0.02)
        self.r.node(name, "lost", "killed by signal 9 (SIGKILL)")
        stage("detected", 0.012, f"the agent of {name} is gone: its connection was closed", since_s=struck_s)
        self.r.say("coordinator", "job.state", state="recovering", reason=f"{name} was lost at rank {rank}")
        stage("diagnosed", 0.031, "3 of 4 members are alive and hold the state of the same step")
        stage("fenced", 0.008, f"generation {self.generation} is closed; {name} can no longer write")
        spare = self.spares.pop()
        self.nodes[rank] = spare
        self.form(f"4 of 4 members; node-{spare} joined")
        stage("repaired", 0.062, "a new group of 4 members is formed", rung=1)
        stage("rejoined", 0.184, f"node-{spare} has 101 MB of state from 3 peers", rung=1)
        stage("resumed", 0.071, "the same step was committed; 4 micro-batches were computed again", rung=1)
        self.r.say("coordinator", "job.state", state="running", reason="4 of 4 members train")
        self.output(rank, f"node-{spare} took rank {rank}\n", "stderr")
        self.r.node(name, "starting", "replaced from a preloaded interpreter", incarnation=2)
        self.r.clock.pass_(0.3)
        self.r.node(name, "busy", f"stands by for {self.r.job.id}", incarnation=2, spare=True)
        self.r.node(f"node-{spare}", "busy", f"runs {self.r.job.id}")
        self.spares = [node]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--past", type=int, default=420, help="steps that have been done when this script begins")
    parser.add_argument("--step-time-s", type=float, default=0.1)
    parser.add_argument("--extra-nodes", type=int, default=0, help="idle nodes beside the five")
    parser.add_argument("--health", action="store_true", help="what agents tell of two nodes of a scheduler")
    parser.add_argument("--samples", action="store_true", help="what nodes use, every 5 s")
    options = parser.parse_args()
    store = Store(options.store).prepare()
    spec = JobSpec("tinylm", store.put_cell("# recorded\n"), nodes=4, elastic=ElasticRange(2, 8))
    job = store.create_job(spec)
    recording = Recording(store, job, Clock(behind_s=options.past * options.step_time_s + 3))
    (job.path / FOLDER).mkdir(exist_ok=True)
    recording.say("control", "job.submitted", id=job.id, spec=spec.to_json())
    training = Training(recording, options.steps, options.step_time_s)
    training.start()
    for line in HEALTH.read_text().splitlines() if options.health else ():
        told = json.loads(line)
        if told["kind"] in ("node.findings", "node.health"):
            recording.cluster(told["kind"], **told["data"])
    for number in range(options.extra_nodes):
        state = ("idle", "busy", "idle", "lost" if number % 97 == 0 else "idle")[number % 4]
        recording.node(f"node-{number + 6}", state, "recorded")
    print(job.id, flush=True)
    losses = {options.past // 3: 2, options.past + 60: 3}
    for step in range(1, options.steps + 1):
        if step in losses:
            training.lose(list(losses).index(step) + 1, losses[step])
        training.step(step, redone=4 if step in losses else 0)
        if options.samples and step % max(1, round(SAMPLE_S / options.step_time_s)) == 0:
            training.sample(SAMPLE_S)
    recording.say("worker", "session.closed", step=options.steps, digest="5e" * 32)
    recording.say("coordinator", "job.state", state="succeeded", reason="every rank finished")
    for node in range(1, 6):
        recording.node(f"node-{node}", "idle", "released", spare=node in training.spares)


if __name__ == "__main__":
    main()
