"""Write the golden journals, the views that Python folds from them, and TypeScript's table of events.

``python tests/journals/regenerate.py``

Each `NAME.jsonl` is one journal in the order in which a reader met its lines; `NAME.view.json` is its fold.
Journals named `cluster*` are folded from an empty cluster view, all others from an empty view of the job that
their `job.submitted` names. The TypeScript fold is tested against the same files. Lines that do not decode are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from jupyter_hyperpod.core import views, vocabulary
from jupyter_hyperpod.core.errors import ProtocolError
from jupyter_hyperpod.core.events import Event, decode_event, encode

HERE = Path(__file__).parent
FACTS = HERE.parents[1] / "src" / "model" / "facts.ts"
START_S = 1_790_000_000.0


class Script:
    """Lines of a journal, written as a story: ``say(writer, kind, after_s, **data)``."""

    def __init__(self, job_id: str = "tinylm-abcdefgh") -> None:
        self.job_id = job_id
        self.lines: list[bytes] = []
        self._now_s = START_S
        self._seq: dict[str, int] = {}

    @property
    def now_s(self) -> float:
        """When the last line was written."""
        return self._now_s

    def say(self, writer: str, kind: str, after_s: float = 0.0, /, **data: Any) -> bytes:
        self._now_s = round(self._now_s + after_s, 6)
        self._seq[writer] = self._seq.get(writer, 0) + 1
        line = encode(Event(writer, self._seq[writer], self._now_s, kind, data))
        self.lines.append(line)
        return line

    def raw(self, line: bytes) -> None:
        self.lines.append(line)

    def submit(self, nodes: int, elastic: tuple[int, int] | None = None, serve: dict[str, Any] | None = None) -> None:
        spec = {
            "name": self.job_id.rpartition("-")[0],
            "cell_digest": "0" * 64,
            "nodes": nodes,
            "elastic": {"minimum": elastic[0], "maximum": elastic[1]} if elastic else None,
            "backend": "local",
            "priority": 10,
            "spares": 1,
            "origin": {"notebook": "01_first_cell.ipynb", "cell_id": "c0ffee"},
        }
        spec |= {"serve": serve} if serve else {"queue": "research"} if elastic else {}
        self.say("control.1", "job.submitted", id=self.job_id, spec=spec)

    def form(self, generation: int, nodes: Iterable[int], target: int, reason: str, after_s: float = 0.05) -> None:
        members = [
            {"member": f"node-{node}.a", "node": f"node-{node}", "rank": rank, "pid": 4000 + node, "host": "127.0.0.1"}
            for rank, node in enumerate(nodes)
        ]
        spares = [{"member": "node-5.a", "node": "node-5", "rank": None, "pid": 4005, "host": "127.0.0.1"}]
        self.say(
            "coordinator.1",
            "generation.formed",
            after_s,
            generation=generation,
            members=members,
            spares=[] if any(m["node"] == "node-5" for m in members) else spares,
            target=target,
            reason=reason,
        )

    def open(self, steps: int, number: int | None = None) -> None:
        self.say(
            "node-1.w",
            "session.opened",
            0.2,
            total_steps=steps,
            global_batch=16,
            micro_batch=2,
            micro_batches=8,
            parameters=5_242_880,
            state_bytes=62_914_560,
            **({} if number is None else {"number": number}),
        )

    def step(
        self,
        step: int,
        generation: int,
        world: int,
        *,
        redone: int = 0,
        after_s: float = 0.25,
        writer: str = "node-1.w",
        micro_batches: int | None = None,
        session: int | None = None,
    ) -> None:
        changes: dict[str, float] = {} if session is None else {"session": session}
        changes |= {} if micro_batches is None else {"micro_batches": micro_batches, "rate_factor": micro_batches / 8}
        count = micro_batches or 8
        loss = round(5.5 * 0.97**step, 6)
        self.say(
            writer,
            "step.committed",
            after_s,
            step=step,
            generation=generation,
            loss=loss,
            loss_hex=loss.hex(),
            step_time_s=after_s,
            samples=2 * count,
            world_size=world,
            assignment=[
                [f"node-{rank + 1}.a", [i for i in range(count) if i % world == rank]] for rank in range(world)
            ],
            redone=redone,
            **changes,
        )

    def print(self, node: int, text: str, stream: str = "stdout") -> None:
        self.say(
            f"node-{node}.agent",
            "output.written",
            0.001,
            member=f"node-{node}.a",
            node=f"node-{node}",
            rank=node - 1,
            stream=stream,
            text=text,
        )

    def incident(self, number: int, stage: str, text: str, after_s: float = 0.02, **fields: Any) -> None:
        data = {"cause": "process died", "node": "node-2", "rank": 1, "rung": None} | fields
        self.say("coordinator.1", "incident.stage", after_s, incident=number, stage=stage, text=text, **data)

    def state(self, state: str, reason: str, after_s: float = 0.1) -> None:
        self.say("coordinator.1", "job.state", after_s, state=state, reason=reason)


def happy() -> Script:
    s = Script()
    s.submit(2)
    s.state("running", "2 of 2 nodes are there")
    s.form(1, (1, 2), 2, "2 members asked for, 2 are ready")
    s.open(1200)
    for step in range(1, 1201):
        s.step(step, 1, 2)
        if step % 100 == 0:
            s.say("node-1.w", "metric.logged", step=step, values={"learning_rate": 3e-4, f"seen_{step // 600}": step})
            s.print(1, f"step {step}\n")
            s.print(2, f"Schritt {step}: größer als 2 × 2 · \u2028 \U0001f680\n", "stderr")
    for line in range(450):
        s.print(1 + line % 2, f"line {line}\n")
    s.say("node-1.w", "session.closed", step=1200, digest="ab" * 32)
    s.state("succeeded", "every rank finished")
    return s


def kill() -> Script:
    s = Script()
    s.submit(4, (2, 4))
    s.state("running", "4 of 4 nodes are there")
    s.form(1, (1, 2, 3, 4), 4, "4 members asked for, 4 are ready")
    s.open(20)
    for step in range(1, 9):
        s.step(step, 1, 4)
    s.say("supervisor.1", "fault.injected", 0.1, fault="kill", node="node-2", rank=1, member="node-2.a")
    s.say(
        "coordinator.1",
        "member.lost",
        0.03,
        member="node-2.a",
        node="node-2",
        rank=1,
        cause="killed",
        detail="signal 9",
    )
    s.state("recovering", "node-2 was lost", 0.0)
    s.incident(1, "detected", "node-2's agent is gone: its connection closed", 0.0)
    s.incident(1, "diagnosed", "the process died by signal 9", cause="signal 9")
    s.incident(1, "fenced", "generation 1 is closed")
    s.say(
        "coordinator.1",
        "decision.made",
        policy="recovery",
        value=0,
        reason="3 survivors hold every step: finish the same step",
    )
    s.form(2, (1, 3, 4), 4, "3 survivors go on; node-5 is getting their state")
    s.incident(1, "repaired", "3 survivors finished step 9", rung=0)
    s.step(9, 2, 3, redone=2, after_s=0.3)
    s.state("running", "3 of 4 members train", 0.0)
    s.incident(1, "replaced", "node-5 takes rank 3", 0.1, rung=1)
    s.form(3, (1, 3, 4, 5), 4, "node-5 has the state of step 9")
    s.incident(1, "rejoined", "state received from 3 peers")
    s.incident(1, "resumed", "4 of 4 members committed step 10", cause="")
    for step in range(10, 21):
        s.step(step, 3, 4)
    s.say(
        "coordinator.1",
        "command.done",
        command={"writer": "control.1", "seq": 1},
        kind="fault",
        ok=True,
        reason="node-2 was killed",
    )
    s.say("node-1.w", "session.closed", step=20, digest="cd" * 32)
    s.state("succeeded", "every rank finished")
    return s


def partition() -> Script:
    """Rank 0 is cut off and commits once more after it was fenced: that does not count."""
    s = Script("cutoff-cdefghij")
    s.submit(3, (1, 3))
    s.state("running", "3 of 3 nodes are there")
    s.form(1, (1, 2, 3), 3, "3 members asked for, 3 are ready")
    s.open(12)
    for step in range(1, 7):
        s.step(step, 1, 3, writer="worker-node-1.a.11aa")
    s.say("supervisor.1", "fault.injected", 0.1, fault="partition", node="node-1", rank=None, member=None)
    s.say("node-1.agent", "warning.raised", 1.5, text="the coordinator's host is silent: node-1.a stands still")
    lost = {"member": "node-1.a", "node": "node-1", "rank": 0, "cause": "network partition"}
    s.say("coordinator.1", "member.lost", 0.5, **lost, detail="no heartbeat from node-1.a for 2.0 s, limit 2 s")
    s.state("recovering", "rank 0 on node-1: network partition", 0.0)
    cause = {"cause": "network partition", "node": "node-1", "rank": 0}
    s.incident(1, "detected", "rank 0 on node-1: network partition", 0.0, **cause)
    s.incident(1, "diagnosed", "no heartbeat from node-1.a for 2.0 s, limit 2 s", 0.0, **cause)
    s.form(2, (2, 3), 3, "rank 0 on node-1 was lost: 2 of 3 members", 0.01)
    s.incident(1, "fenced", "generation 2 no longer contains node-1.a", 0.0, **cause)
    s.step(9, 1, 3, writer="worker-node-1.a.11aa")
    s.step(7, 2, 2, redone=3, writer="worker-node-2.a.22bb")
    s.incident(1, "resumed", "step 7 committed by 2 members", 0.0, **cause)
    s.state("running", "step 7 committed", 0.0)
    for step in range(8, 13):
        s.step(step, 2, 2, writer="worker-node-2.a.22bb")
    s.say("coordinator.1", "session.closed", step=12, digest="ef" * 32)
    s.state("succeeded", "all 2 members finished")
    return s


def recoveries() -> Script:
    """A kill, a hang and a partition, each with the time since when; then what an older writer, a wrong clock and a
    writer that knows no times tell."""
    s = Script("recovery-jklmnopq")
    s.submit(4, (1, 4))
    s.state("running", "4 of 4 nodes are there")
    s.form(1, (1, 2, 3, 4), 4, "4 members asked for, 4 are ready")
    s.open(40)
    step = 0

    def train(steps: int, generation: int, world: int) -> None:
        nonlocal step
        for _ in range(steps):
            step += 1
            s.step(step, generation, world)

    def lose(number: int, node: int, cause: str, silent_s: float, regroup_s: float, **since: Any) -> None:
        """A loss is noticed after ``silent_s``, and the step in which it happened committed ``regroup_s`` later."""
        nonlocal step
        about = {"cause": cause, "node": f"node-{node}", "rank": node - 1}
        s.incident(number, "detected", f"rank {node - 1} on node-{node}: {cause}", silent_s, **about, **since)
        s.incident(number, "diagnosed", "what was seen", 0.0, **about)
        s.incident(number, "fenced", f"generation {number + 1} no longer contains node-{node}.a", 0.01, **about)
        step += 1
        s.step(step, number + 1, max(1, 4 - number), redone=2, after_s=regroup_s - 0.01)
        s.incident(number, "resumed", f"step {step} committed by {max(1, 4 - number)} members", 0.0, **about)

    train(6, 1, 4)
    s.say("coordinator.1", "fault.injected", 0.1, fault="kill", node="node-4", rank=3, member="node-4.a")
    lose(1, 4, "process killed", 0.004, 0.07, since_s=s.now_s)
    train(6, 2, 3)
    lose(2, 3, "process stopped", 2.352, 0.148, since_s=s.now_s + 0.1)
    train(6, 3, 2)
    lose(3, 2, "network partition", 2.05, 0.03, since_s=s.now_s + 0.05)
    train(3, 4, 1)
    lose(4, 1, "process killed", 0.5, 0.25)
    train(2, 5, 1)
    lose(5, 1, "process killed", 0.5, 0.25, since_s=s.now_s + 99)
    train(2, 6, 1)
    lose(6, 1, "process killed", 0.5, 0.25, since_s="a while ago")
    s.say("coordinator.1", "session.closed", step=step, digest="ad" * 32)
    s.state("succeeded", "all members finished")
    return s


def durable() -> Script:
    s = Script()
    s.submit(2)
    s.state("running", "2 of 2 nodes are there")
    s.form(1, (1, 2), 2, "2 members asked for, 2 are ready")
    s.open(12)
    place = "/srv/runs/x/step-{:012d}-{}"
    loaded = {"path": place.format(4, "0" * 12), "took_s": 0.2}
    s.say("coordinator.1", "checkpoint.refused", path=place.format(6, "f" * 12), reason="there is no manifest.json")
    s.say("coordinator.1", "checkpoint.loaded", 0.1, step=4, **loaded)
    for step in range(5, 13):
        s.step(step, 1, 2)
        if step % 4 == 0:
            about = {"bytes": 63_000_000 + step, "took_s": 0.4, "paused_s": 0.02}
            s.say("node-1.w", "checkpoint.saved", 0.05, step=step, path=place.format(step, "a" * 12), **about)
    s.say("node-1.w", "session.closed", step=12, digest="ba" * 32)
    s.state("succeeded", "all 2 members finished")
    return s


def elastic() -> Script:
    s = Script("elastic-bcdefghi")
    s.submit(2, (1, 4))
    s.state("running", "2 of 2 nodes are there")
    generation = 0
    step = 0
    for nodes, reason in (
        ((1, 2), "2 members asked for, 2 are ready"),
        ((1, 2, 3, 4), "scaled from 2 to 4"),
        ((1, 2, 3), "scaled from 4 to 3: node-4 leaves at the step boundary"),
        ((1,), "a job of priority 100 needs 2 nodes"),
        ((1, 2), "2 nodes came back"),
    ):
        generation += 1
        s.say("coordinator.1", "decision.made", 0.01, policy="scaling", value=len(nodes), reason=reason)
        s.form(generation, nodes, len(nodes), reason)
        if generation == 1:
            s.open(30)
        for _ in range(6):
            step += 1
            s.step(step, generation, len(nodes))
        s.say(
            "coordinator.1",
            "command.done",
            command={"writer": "control.1", "seq": generation},
            kind="scale",
            ok=True,
            reason=reason,
        )
    s.say("node-1.w", "session.closed", step=step, digest="ef" * 32)
    s.state("stopped", "asked to stop: enough")
    s.state("running", "a late writer changes nothing after the end")
    return s


def short() -> Script:
    """A job that wants more nodes than it gets: while it runs, after a loss, when they have come, and again."""
    s = Script("short-bcdefghi")
    s.submit(2, (1, 4))
    s.form(1, (1, 2), 2, "all 2 members are here")
    s.state("running", "all 2 members are here")

    def lacks(reason: str) -> None:
        s.say("supervisor", "decision.made", 0.1, policy="capacity", value=None, reason=reason)

    lacks("none is free; this cluster has 3")
    s.form(2, (1, 2), 4, "target is 4 nodes, as ada asked")
    s.state("recovering", "1 of 2 members is left")
    s.form(3, (1,), 4, "1 of 4 members")
    s.state("running", "1 member goes on")
    s.form(4, (1, 2, 3, 4), 4, "4 of 4 members")
    s.form(5, (1, 2, 3), 3, "target is 3 nodes, as ada asked")
    s.form(6, (1, 2, 3), 4, "target is 4 nodes, as ada asked")
    lacks("none is free, held by other-abcdefgh")
    return s


def deployment() -> Script:
    """A replica starts, another is added under load, the first is killed and its endpoint moves to a new port."""
    s = Script("chat-ghijklmn")
    s.submit(1, (1, 2), {"model": "shared://chat", "minimum": 0})

    def stages(node: int, *names: str, since_s: float = 0.0) -> None:
        for number, stage in enumerate(names, 1):
            took_s = since_s + 0.25 * number
            text = f"the replica on node-{node} {stage}"
            s.say("gateway.1", "replica.stage", 0.25, replica=f"node-{node}.r", node=f"node-{node}", stage=stage,
                  took_s=took_s, text=text)  # fmt: skip

    stages(1, "started")
    s.say("gateway.1", "deployment.opened", url="http://127.0.0.1:8000", model="shared://chat", task="completions")
    stages(1, "loading", "loaded", "ready", "answered", since_s=0.25)
    s.form(1, (1,), 1, "node-1 answers")
    s.state("running", "1 of 1 replicas answer")
    values = {"requests_per_s": 49.5, "p50_s": 0.012, "p99_s": 0.2, "queued": 3}
    s.say("gateway.1", "metric.logged", 2.0, step=1, values=values)
    s.say("gateway.1", "decision.made", policy="serving", value=2, reason="7 requests are outstanding")
    stages(2, "started", "loading", "loaded", "ready", "answered")
    s.form(2, (1, 2), 2, "node-2 answers")
    s.say("gateway.2", "deployment.opened", 1.0, url="http://127.0.0.1:8001", model="shared://chat", task="completions",
          host="login2", loopback="boot-2:4026531840")  # fmt: skip
    s.state("stopped", "stopped by its owner")
    return s


def loading() -> Script:
    """Two members load a model; one is killed meanwhile, another fails, the last one is through and loads a second."""
    s = Script("load-hijklmno")

    def told(node: int, state: str, done: int, elapsed_s: float, first_layer_s: float | None = 0.25) -> None:
        s.say(f"worker-node-{node}.a.1", "model.loading", 0.125, member=f"node-{node}.a", node=f"node-{node}",
              state=state, url="s3://models/llama", bytes_done=done, bytes_total=1000_000_000, elapsed_s=elapsed_s,
              first_layer_s=first_layer_s)  # fmt: skip

    s.submit(3, (1, 3))
    s.form(1, (1, 2, 3), 3, "3 members asked for, 3 are ready")
    s.state("running", "3 of 3 nodes are there")
    told(1, "loading", 100_000_000, 1.0, None)
    told(2, "loading", 300_000_000, 1.0)
    told(3, "loading", 400_000_000, 1.0)
    told(1, "loading", 500_000_000, 2.0)
    s.say("coordinator.1", "member.lost", member="node-2.a", node="node-2", rank=1, cause="killed", detail="SIGKILL")
    told(2, "loading", 900_000_000, 2.5)
    s.form(2, (1,), 3, "1 of 3 members is left")
    told(1, "failed", 600_000_000, 3.0)
    told(1, "loaded", 1000_000_000, 2.25)
    told(4, "loading", 250_000_000, 1.5)
    return s


def cluster_health() -> Script:
    """A node reports, gets an Xid that no reboot mends, and is replaced; another node's probe recovers by itself."""
    s = Script()

    def found(node: str, *findings: tuple[str, str, str, str]) -> None:
        names = ("probe", "outcome", "severity", "fault")
        told = [dict(zip(names, one, strict=True)) | {"text": f"{one[0]} says so", "device": ""} for one in findings]
        s.say(f"health-{node}.1", "node.findings", 0.5, nodes=[node], findings=told)

    def health(node: str, action: str, fault: str, reason: str, status: str) -> None:
        labels = {"sagemaker.amazonaws.com/node-health-status": status}
        devices = {"type": "p5.48xlarge", "kind": "nvidia", "expected": 8, "found": 8, "busy": 3}
        s.say(f"health-{node}.1", "node.health", 0.25, node=node, action=action, fault=fault, reason=reason,
              labels=labels, recovery="Automatic", devices=devices, boot="1")  # fmt: skip

    def stage(name: str, text: str) -> None:
        s.say("health-n1.1", "incident.stage", 0.125, incident="n1-1", stage=name, cause="NvidiaXid74", node="n1",
              rank=None, rung=None, text=text)  # fmt: skip

    found("n1", ("memory", "pass", "monitor", ""), ("efa", "skipped", "monitor", ""))
    health("n1", "watch", "", "no probe has found anything wrong", "Schedulable")
    found("n2", ("mount-fsx", "fail", "drain", "MountHangs"), ("memory", "pass", "monitor", ""))
    health("n2", "drain", "MountHangs", "it gets no new work", "Unschedulable")
    found("n1", ("kernel-log", "fail", "isolate", "NvidiaXid74"))
    stage("detected", "n1: NvidiaXid74")
    s.say(
        "health-n1.1", "decision.made", policy="healing", value={"node": "n1", "action": "replace"}, reason="no reboot"
    )
    health("n1", "replace", "NvidiaXid74", "no reboot mends that", "UnschedulablePendingReplacement")
    stage("fenced", "drained")
    found("n2", ("mount-fsx", "pass", "monitor", ""))
    health("n2", "watch", "", "no probe has found anything wrong", "Schedulable")
    s.say("health-n2.1", "warning.raised", text="reason 'action:reboot' asks for nothing")
    stage("replaced", "another node")
    stage("resumed", "in service")
    s.say("supervisor.1", "node.health", node="n1", action="watch", fault="", reason="it was replaced", labels={},
          recovery="Automatic", devices={}, boot="")  # fmt: skip
    s.say("supervisor.1", "node.state", node="n2", state="idle", reason="", spare=False, slots=1, used=0, jobs=[],
          pid=7, incarnation=1)  # fmt: skip
    s.say("supervisor.1", "cluster.state", state="stopped", reason="stopped by its owner", nodes=[], pid=None)
    return s


def rules() -> Script:
    """Rules about output: each rank stands somewhere, and one falls."""
    s = Script("rules-ijklmnop")
    s.submit(2)
    s.state("running", "2 of 2 nodes are there")

    def told(rank: int | None, state: str, value: float | None) -> None:
        member = "" if rank is None else f"node-{rank + 1}.a"
        s.say("rules.1", "rule.state", 1.0, rule="loss", state=state, member=member, rank=rank, value=value,
              text=f"loss is {state}")  # fmt: skip

    told(None, "WAITING", None)
    told(0, "HEALTHY", 2.5)
    told(1, "HEALTHY", 2.25)
    told(1, "SLOW", 7.5)
    told(0, "HANGING", None)
    return s


def user_error() -> Script:
    s = Script("broken-cdefghij")
    s.submit(2)
    s.state("running", "2 of 2 nodes are there")
    s.form(1, (1, 2), 2, "2 members asked for, 2 are ready")
    for node in (2, 1):
        s.say(
            f"node-{node}.agent",
            "user.error",
            0.01,
            member=f"node-{node}.a",
            node=f"node-{node}",
            rank=node - 1,
            type="ZeroDivisionError",
            message="division by zero",
            traceback=[
                "Traceback (most recent call last):",
                '  File "Cell In[3]", line 7, in <module>',
                "    loss = step.run(lambda batch: ratio(*batch))",
                '  File "Cell In[3]", line 4, in ratio',
                "    return right / wrong",
                "           ~~~~~~^~~~~~~",
                "ZeroDivisionError: division by zero",
            ],
            line=4,
            communication=False,
        )
    s.state("failed", "the cell raised ZeroDivisionError on rank 1; an error of the code is not retried")
    return s


def disorder() -> Script:
    """Duplicates, an older generation after a newer one, unknown and malformed lines, a warning flood."""
    s = Script("disorder-defghijk")
    s.submit(2)
    first = s.lines[-1]
    s.state("running", "2 of 2 nodes are there")
    s.raw(first)
    s.form(1, (1, 2), 2, "2 members asked for, 2 are ready")
    s.open(10)
    s.step(1, 1, 2)
    duplicate = s.lines[-1]
    s.form(3, (1, 2, 3), 3, "the newest generation")
    s.say(
        "coordinator.0",
        "generation.formed",
        generation=2,
        members=[{"member": "node-9.a", "node": "node-9", "rank": 0, "pid": 1, "host": "127.0.0.1"}],
        spares=[],
        target=9,
        reason="a head that was taken for dead",
    )
    s.raw(duplicate)
    s.step(3, 3, 3, redone=1)
    s.say(
        "node-2.w",
        "step.committed",
        step=2,
        generation=1,
        loss=9.9,
        loss_hex=(9.9).hex(),
        step_time_s=9.9,
        samples=16,
        world_size=2,
        assignment=[],
        redone=8,
    )
    s.raw(b'{"v":1,"writer":"future.1","seq":1,"time_s":1790000100.0,"kind":"dream.dreamt","data":{"of":"sheep"}}\n')
    s.raw(
        b'{"v":1,"writer":"coordinator.1","seq":99,"time_s":1790000100.0,"kind":"job.state","data":{"state":"failed"}}\n'
    )
    s.raw(
        b'{"v":1,"writer":"node-1.w","seq":"7","time_s":1790000100.0,"kind":"metric.logged","data":{"step":1,"values":{}}}\n'
    )
    s.raw(
        b'{"v":1,"writer":"node-1.w","seq":0,"time_s":1790000100.0,"kind":"metric.logged","data":{"step":1,"values":{}}}\n'
    )
    s.raw(b'{"v":1,"writer":"node-1.w","seq":7,"time_s":"now","kind":"metric.logged","data":{"step":1,"values":{}}}\n')
    s.raw(b'{"v":1,"writer":"node-1.w","seq":7,"time_s":1790000100.0,"kind":"metric.logged","data":[1]}\n')
    s.raw(b'{"v":1,"writer":"node-1.w","seq":7,"time_s":17900001\n')
    s.raw(b"\n")
    s.raw(b"null\n")
    s.raw(b"[]\n")
    s.raw(b'"text"\n')
    s.raw(b"\xff\xfe not even text\n")
    for number in range(25):
        s.say("supervisor.1", "warning.raised", 0.01, text=f"warning {number}")
    s.say("node-1.w", "metric.logged", step=3, values={"loss": 1.0, "constructor": 2})
    s.say("node-1.w", "metric.logged", step=3, values={"loss": 2.0})
    s.incident(7, "resumed", "stages may come in any order")
    s.incident(7, "detected", "later than its end", rung=2, cause="hang")
    return s


def repeated() -> Script:
    """Three ranks say the same at once, which counts once; two minutes later one of them says it again."""
    s = Script("say-bcdefghi")
    s.submit(3)
    for node in ("node-1", "node-2", "node-3"):
        s.say(f"{node}.w", "warning.raised", 0.01, text="train.py has changed since the job began")
    s.say("node-2.w", "warning.raised", 0.01, text="another sentence")
    s.say("node-1.w", "warning.raised", 120.0, text="train.py has changed since the job began")
    return s


def cluster() -> Script:
    s = Script()

    def node(number: int, state: str, incarnation: int = 1, jobs: tuple[str, ...] = (), after_s: float = 0.01) -> None:
        s.say(
            "supervisor.1",
            "node.state",
            after_s,
            node=f"node-{number}",
            state=state,
            reason={"lost": "killed by signal 9"}.get(state, ""),
            spare=number == 5,
            slots=1,
            used=len(jobs),
            jobs=list(jobs),
            pid=5000 + number + 100 * incarnation,
            incarnation=incarnation,
        )

    s.say("supervisor.0", "cluster.state", state="running", reason="", nodes=["node-1"], pid=99)
    s.say(
        "supervisor.0",
        "node.state",
        node="old",
        state="idle",
        reason="",
        spare=False,
        slots=1,
        used=0,
        jobs=[],
        pid=98,
        incarnation=1,
    )
    s.say(
        "supervisor.1",
        "cluster.state",
        9.0,
        state="starting",
        reason="4 nodes and 1 spare",
        nodes=[f"node-{number}" for number in range(1, 6)],
        pid=4999,
    )
    for number in range(1, 6):
        node(number, "starting")
    for number in range(1, 6):
        node(number, "idle", after_s=0.1)
    s.say(
        "supervisor.1",
        "cluster.state",
        state="running",
        reason="5 of 5 nodes are up",
        nodes=[f"node-{number}" for number in range(1, 6)],
        pid=4999,
    )
    for number in range(1, 6):
        node(number, "busy", jobs=("tinylm-abcdefgh",))
    node(2, "lost", after_s=3.0)
    node(2, "starting", 2)
    node(2, "idle", 2, after_s=0.2)
    node(1, "busy", jobs=("tinylm-abcdefgh", "other-bcdefghi"), after_s=1.0)
    return s


def cluster_idle() -> Script:
    """Nobody uses a cluster, a job comes, and when nobody uses it again, it ends by itself."""
    s = Script()

    def state(word: str, reason: str, **more: Any) -> None:
        s.say("supervisor.1", "cluster.state", 1.0, state=word, reason=reason, nodes=["node-1"], pid=99, **more)

    def idle(since_s: float | None, ends_s: float | None, reason: str) -> None:
        s.say("supervisor.1", "cluster.idle", 1.0, since_s=since_s, ends_s=ends_s, reason=reason)

    state("starting", "the supervisor starts", queues={"research": 1}, idle=False)
    state("running", "the supervisor answers", queues={"research": 1}, idle=False)
    idle(START_S + 1.5, START_S + 601.5, "it ends by itself after 10 min without a job, a schedule or a request")
    idle(None, None, "tinylm-abcdefgh has not ended")
    idle(START_S + 90.0, START_S + 690.0, "it ends by itself after 10 min without a job, a schedule or a request")
    state("stopped", "it ended by itself after 10 min without a job", queues={"research": 1}, idle=True)
    return s


def labelled() -> Script:
    """A job gets tags, a note and a place in the archive, after its end, too; some are taken away again."""
    s = Script("labelled-abcdefg")
    s.submit(2)
    s.state("running", "2 of 2 nodes are there")
    s.say("control.2", "job.labelled", 1.0, add=["baseline", "lr-1e-3"], remove=[], by="ada", note="the first one")
    s.state("succeeded", "all 2 members finished")
    s.say("control.3", "job.labelled", 1.0, add=["best", "baseline"], remove=["lr-1e-3", "unknown"], by="Grace (grace)")
    s.say(
        "control.4",
        "job.labelled",
        1.0,
        add=[f"tag-{number}" for number in range(19)],
        remove=[],
        by="ada",
        archived=True,
    )
    s.say("control.5", "job.labelled", 1.0, add=[], remove=["tag-3"], by="ada", note="")
    return s


def growing() -> Script:
    s = Script()
    s.submit(2, (2, 4))
    s.form(1, (1, 2), 2, "2 members asked for, 2 are ready")
    s.open(6)
    for step in (1, 2):
        s.step(step, 1, 2, micro_batches=8)
    s.form(2, (1, 2, 3, 4), 4, "4 of 4 members; node-3, node-4 joined")
    s.say("coordinator.1", "decision.made", policy="batch", value={"1": 16, "3": 32}, reason="4 members begin step 3")
    for step in (3, 4):
        s.step(step, 2, 4, micro_batches=16)
    return s


def sessions() -> Script:
    """Two folds: each session counts its steps from 1; a late commit of the first one comes after the second began."""
    s = Script("folds-cdefghij")
    s.submit(2)
    s.form(1, (1, 2), 2, "2 members asked for, 2 are ready")
    s.open(4, number=1)
    for step in range(1, 5):
        s.step(step, 1, 2, session=1)
    s.say("coordinator.1", "session.closed", step=4, digest="ab" * 32)
    s.open(6, number=2)
    for step in range(1, 4):
        s.step(step, 1, 2, session=2)
        s.step(step + 2, 1, 2, session=1, writer="node-2.w")
    return s


def reopened() -> Script:
    """A cell that was started again goes through its first session again, while the steps are the second one's."""
    s = Script("folds-cdefghij")
    s.submit(2)
    s.form(1, (1, 2), 2, "2 members asked for, 2 are ready")
    s.open(4, number=1)
    s.step(1, 1, 2, session=1)
    s.open(6, number=2)
    s.step(1, 1, 2, session=2)
    s.form(2, (1, 2), 2, "the cell was started again")
    s.open(4, number=1)
    s.step(2, 2, 2, session=1)
    return s


def gathering() -> Script:
    """What a job lacks before it begins is its reason, and nothing of it is left when it begins with fewer."""
    s = Script("gathering-cdefghij")
    s.submit(4, (2, 4))
    s.state("pending", "SLURM has not started 4 nodes yet: Resources")
    for reason in (
        "SLURM has not started 3 nodes yet: Resources",
        "leaves 1 node to other-bcdefghi, which can begin then",
    ):
        s.say("supervisor.1", "decision.made", 1.0, policy="capacity", value=None, reason=reason)
    return s


def gathered() -> Script:
    """The same, which has begun."""
    s = gathering()
    s.form(1, (1, 2), 4, "2 of 4 members are here, and 2 are enough")
    s.state("running", "2 of 4 members are here, and 2 are enough")
    return s


SCRIPTS: dict[str, Callable[[], Script]] = {
    "happy": happy,
    "kill": kill,
    "partition": partition,
    "recoveries": recoveries,
    "durable": durable,
    "elastic": elastic,
    "gathering": gathering,
    "gathered": gathered,
    "short": short,
    "growing": growing,
    "labelled": labelled,
    "sessions": sessions,
    "reopened": reopened,
    "deployment": deployment,
    "loading": loading,
    "user-error": user_error,
    "disorder": disorder,
    "cluster": cluster,
    "cluster-health": cluster_health,
    "cluster-idle": cluster_idle,
    "rules": rules,
    "repeated": repeated,
}


def events_of(path: Path) -> list[Event]:
    """The events of a golden journal in its order; lines that do not decode are left out."""
    events = []
    for line in path.read_bytes().splitlines():
        try:
            events.append(decode_event(line))
        except ProtocolError:
            continue
    return events


def empty_view(path: Path) -> views.View:
    """The view from which the fold of a golden journal starts."""
    if path.name.startswith("cluster"):
        return views.new_cluster_view()
    submitted = next(event for event in events_of(path) if event.kind == "job.submitted")
    return views.new_job_view(submitted.data["id"])


def main() -> None:
    FACTS.write_text(vocabulary.typescript(), encoding="utf-8")
    for name, script in SCRIPTS.items():
        path = HERE / f"{name}.jsonl"
        path.write_bytes(b"".join(script().lines))
        view = views.fold_all(empty_view(path), events_of(path))
        text = json.dumps(view, indent=1, ensure_ascii=False, allow_nan=False)
        (HERE / f"{name}.view.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
