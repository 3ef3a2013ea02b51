"""Strangers at every listening socket of a job that trains: what they cost it, and whether members still get in.

Two members train, a deployment answers, and a process passes on a model. In some phases a process without the secret
calls all of their listening sockets: some strangers are silent, some send garbage, byte by byte, a recorded handshake,
or the announcement of more than anybody may send. In other phases they call sockets behind which nobody is: what that
costs the job is the cost of calling, on this machine. Phases with and without strangers alternate in one run.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.arms import cpu_seconds, rotation
from benchmarks.control import recorded
from benchmarks.control.stranger_crowd import Plan, Target
from jupyter_hyperpod.bench.laboratory import Observer, laboratory, progress, submit
from jupyter_hyperpod.bench.report import bar, report, row
from jupyter_hyperpod.bench.stalls import step_times
from jupyter_hyperpod.control import deploy, jobs
from jupyter_hyperpod.loader.share import peers
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.system.processes import raise_descriptor_limit

OURS = "jupyter_hyperpod"
MEMBERS, ROUNDS, BLOCK, COUNT, WARM_UP = 2, 24, 75, 250, 30
HELD = 1000  # silent strangers at each socket while a member joins
RATIO_LIMIT, MOST_GROWTH, MOST_LINES = 1.05, 16e6, 100
BOUND_S = 60.0
KINDS = QUIET, AGAIN, STRANGERS, ELSEWHERE = "quiet", "quiet again", "strangers", "strangers elsewhere"
CELL = """
import os, time, torch
from torch import nn
import jupyter_hyperpod as hp
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = [(torch.randn(256), torch.randn(8)) for _ in range(512)]
TURN, DIGEST_AT = os.environ["TURN"], int(os.environ["DIGEST_AT"])
def allowed():
    with open(TURN) as file:
        return int(file.read())
def loss_fn(batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])
with hp.Session(model, optimizer, data, global_batch=64, micro_batch=8) as session:
    for step in session.steps(1_000_000):
        while step.index >= allowed():
            time.sleep(0.005)
        step.run(loss_fn)
        if step.number == DIGEST_AT:
            print("digest", session.digest(), flush=True)
"""
HANDLER = """
def load(path):
    with open(path) as file:
        return float(file.read())


def predict(model, inputs):
    return {"y": model * inputs["x"]}
"""


def run(runs: int = ROUNDS, steps: int = BLOCK, count: int = COUNT, held: int = HELD) -> dict[str, Any]:
    """Measure ``runs`` rounds of four phases of so many ``steps``; in two of them ``count`` strangers call.

    ``held``: how many silent strangers hold each listening socket while a member joins.
    """
    raise_descriptor_limit()
    last = WARM_UP + len(KINDS) * runs * steps
    with ExitStack() as stack:
        store = stack.enter_context(laboratory(MEMBERS + 2, spares=0))
        calm = _calm(store, last)
        scene = stack.enter_context(_scene(store, last))
        before = scene.memory()
        lines = scene.lines()
        phases = _phases(scene, runs, steps, count)
        growth = {name: size - before[name] for name, size in scene.memory().items()}
        lines = scene.lines() - lines
        same = scene.digest() == calm
        joined_s, joined_beside_s = _joins(scene, held)
    case = f"{MEMBERS} members, {len(scene.targets)} listening sockets, {phases.called:,} strangers"
    lines_per_thousand = lines * 1000 / phases.called
    return report("strangers", *_rows(case, phases, growth, lines_per_thousand, same, joined_s, joined_beside_s))


@dataclass
class _Scene:
    """Everything that strangers call."""

    store: Store
    turn: Path
    watch: Observer
    deployment: str
    targets: list[Target]
    chunks: tuple[str, int]
    secret: bytes
    processes: dict[str, int] = field(default_factory=dict)  # what is called -> process id
    elsewhere: list[Target] = field(default_factory=list)  # as many sockets, behind which nobody is

    def permit(self, steps: int) -> None:
        _write(self.turn, str(steps))

    def memory(self) -> dict[str, int]:
        """Resident bytes of every process that is called."""
        pages = {n: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for n, pid in self.processes.items()}
        return {name: count * os.sysconf("SC_PAGE_SIZE") for name, count in pages.items()}

    def cpu_s(self) -> dict[str, float]:
        """Processor time that each of them has used so far."""
        return {name: cpu_seconds([pid]) for name, pid in self.processes.items()}

    def lines(self) -> int:
        """Warnings in journals, and lines in the logs, of both jobs and of the cluster."""
        found = 0
        for job_id in (self.watch.job_id, self.deployment):
            found += sum(event.kind == "warning.raised" for event in jobs.follow(self.store, job_id).poll())
        for log in self.store.root.rglob("*.log"):
            found += log.read_bytes().count(b"\n")
        return found

    def digest(self) -> str:
        return _digest(self.watch)

    def answers(self) -> float:
        """Seconds until the gateway has answered a client."""
        address = urlsplit(jobs.job_view(self.store, self.deployment)["deployment"]["url"])
        token = deploy.token_file(self.store, self.deployment).read_text()
        began_s = time.perf_counter()
        connection = HTTPConnection(address.hostname or "", address.port or 0, timeout=BOUND_S)
        connection.request("POST", "/predict", b'{"inputs": {"x": 2.0}}', {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"the gateway answered with {answer.status}")
        return time.perf_counter() - began_s

    def passes_on(self) -> float:
        """Seconds until another rank has got a chunk of the model."""
        began_s = time.perf_counter()
        client = peers.Client(self.chunks, self.secret, recorded.SUBJECT)
        found = client.get(0, memoryview(bytearray(recorded.chunk_bytes())))
        client.close()
        if found != "got":
            raise RuntimeError(f"the chunk is {found}")
        return time.perf_counter() - began_s


@contextmanager
def _scene(store: Store, last: int) -> Iterator[_Scene]:
    with ExitStack() as stack:
        turn = store.shared / "turn"
        watch = _train(store, turn, last)
        stack.callback(_stop, store, watch.job_id)
        secret = store.job(watch.job_id).secret()
        model, handler = store.shared / "model.txt", store.shared / "handler.py"
        model.write_text("2.5")
        handler.write_text(HANDLER)
        deployment = deploy.serve(store, str(model), handler=str(handler), name="answers")
        stack.callback(_stop, store, deployment)
        deploy.wait_ready(store, deployment, BOUND_S)
        _write(turn, str(WARM_UP))
        watch.until_step(WARM_UP, BOUND_S)
        chunks, server = stack.enter_context(_chunk_server(secret))
        coordinator, gateway = _endpoint(store, watch.job_id), _endpoint(store, deployment)
        workers = {
            f"member of rank {one['rank']}": int(one["member"].rpartition(".")[2]) for one in watch.view["members"]
        }
        processes = {"coordinator": coordinator[1], "gateway": gateway[1], "fan-out": server, **workers}
        doors = [("127.0.0.1", port) for pid in workers.values() for port in listens(pid)]
        targets = [
            Target(*coordinator[0], recorded.control(coordinator[0], secret)),
            Target(*gateway[0], recorded.gateway()),
            Target(*chunks, recorded.fan_out(chunks, secret)),
            *(Target(*address, recorded.between_members(secret)) for address in doors),
        ]
        ports = stack.enter_context(_bare_listener(len(targets)))
        elsewhere = [Target("127.0.0.1", port, target.said) for port, target in zip(ports, targets, strict=True)]
        yield _Scene(store, turn, watch, deployment, targets, chunks, secret, processes, elsewhere)


@dataclass
class _Phases:
    """The median step of every phase, and the processor time of every process, in seconds."""

    steps: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    cpu_s: dict[str, dict[str, float]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    called: int = 0

    def spent(self, kind: str, before: dict[str, float], after: dict[str, float]) -> None:
        """Add what processes have used in a phase."""
        so_far = self.cpu_s[kind]
        self.cpu_s[kind] = {name: so_far.get(name, 0.0) + after[name] - before[name] for name in after}

    def for_thousand(self) -> dict[str, float]:
        """Processor time of each process for 1,000 strangers, in seconds; what it needs anyway is not counted."""
        calm = {name: (self.cpu_s[QUIET][name] + self.cpu_s[AGAIN][name]) / 2 for name in self.cpu_s[QUIET]}
        return {name: 1000 * (used - calm[name]) / self.called for name, used in self.cpu_s[STRANGERS].items()}


def _phases(scene: _Scene, rounds: int, steps: int, count: int) -> _Phases:
    """Measure phases; some are with strangers."""
    phases = _Phases()
    found = phases.steps
    done, usual_s = WARM_UP, 0.02
    for number, order in enumerate(rotation(list(found), rounds)):
        for name in order:
            with ExitStack() as stack:
                targets = {STRANGERS: scene.targets, ELSEWHERE: scene.elsewhere}.get(name)
                if targets:
                    crowd = stack.enter_context(_crowd())
                    crowd.call(Plan(targets, count, 0.9 * usual_s * steps))
                cpu_s = scene.cpu_s()
                scene.permit(done + steps)
                scene.watch.until_step(done + steps, BOUND_S)
                phases.spent(name, cpu_s, scene.cpu_s())
                if targets:
                    called = crowd.told()["called"]
                    phases.called += called if name == STRANGERS else 0
            times = step_times(scene.watch.commits())
            gaps = [times[step + 1] - times[step] for step in range(done + 2, done + steps)]
            found[name].append(statistics.median(gaps))
            usual_s, done = statistics.mean(gaps), done + steps
        told = ", ".join(f"{name} {1000 * found[name][-1]:.2f} ms" for name in found)
        progress(f"round {number + 1} of {rounds}: a step takes {told}")
    return phases


def _joins(scene: _Scene, count: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds until a member, a client and a rank that loads get in, without strangers and beside silent ones."""
    silent = [Target(target.host, target.port, {}) for target in scene.targets]
    scene.permit(1_000_000)
    without = _get_in(scene)
    jobs.scale(scene.store, scene.watch.job_id, MEMBERS)
    scene.watch.until(lambda: scene.watch.view["world_size"] == MEMBERS, BOUND_S)
    with _crowd() as crowd:
        crowd.call(Plan(silent, count * len(silent), 0.0))
        crowd.told()
        return without, _get_in(scene)


def _get_in(scene: _Scene) -> dict[str, float]:
    found = {"client": scene.answers(), "rank": scene.passes_on()}
    began_s = time.monotonic()
    jobs.scale(scene.store, scene.watch.job_id, MEMBERS + 1)
    scene.watch.until(lambda: scene.watch.view["world_size"] == MEMBERS + 1, BOUND_S)
    return found | {"member": time.monotonic() - began_s}


def _rows(
    case: str, phases: _Phases, growth: dict[str, int], lines: float, same: bool,
    alone_s: dict[str, float], beside_s: dict[str, float],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:  # fmt: skip
    steps, cpu_s = phases.steps, phases.for_thousand()
    quiet = [statistics.mean(pair) for pair in zip(steps[QUIET], steps[AGAIN], strict=True)]
    ratios = [one / other for one, other in zip(steps[STRANGERS], quiet, strict=True)]
    beyond = [one / other for one, other in zip(steps[STRANGERS], steps[ELSEWHERE], strict=True)]
    noise = [one / other for one, other in zip(steps[AGAIN], steps[QUIET], strict=True)]
    rows = [
        row(OURS, case, "step without strangers", "s", quiet),
        row(OURS, case, "step with strangers", "s", steps[STRANGERS]),
        row(OURS, case, "step with strangers against without", "ratio", ratios),
        row(OURS, case, "step with strangers against strangers at sockets of nobody", "ratio", beyond),
        row(OURS, case, "step without strangers against without", "ratio", noise),
        row(OURS, case, "journal and log lines per 1,000 strangers", "lines", [lines]),
        *(row(OURS, case, f"processor time per 1,000 strangers: {n}", "s", [t]) for n, t in cpu_s.items()),
        *(row(OURS, case, f"memory that was gained: {name}", "bytes", [size]) for name, size in growth.items()),
    ]
    for who, what in (("member", "joins"), ("client", "is answered"), ("rank", "gets a chunk")):
        rows.append(row(OURS, "no strangers", f"a {who} {what}", "s", [alone_s[who]]))
        rows.append(row(OURS, "silent strangers held at each socket", f"a {who} {what}", "s", [beside_s[who]]))
    bars = [
        bar("step_ratio", statistics.median(beyond), RATIO_LIMIT),
        bar("memory_growth_bytes", max(growth.values()), MOST_GROWTH),
        bar("lines_per_1000_strangers", lines, MOST_LINES),
        bar("different_states", 0 if same else 1, 0),
    ]
    return rows, bars


def _calm(store: Store, last: int) -> str:
    """The digest of the same job without strangers."""
    watch = _train(store, store.shared / "calm", last)
    _write(store.shared / "calm", str(last))
    digest = _digest(watch)
    _stop(store, watch.job_id)
    progress(f"without strangers, step {last:,} is {digest[:12]}")
    return digest


def _train(store: Store, turn: Path, last: int) -> Observer:
    _write(turn, "0")
    fields = {"name": "strangers", "nodes": MEMBERS, "elastic": f"{MEMBERS}:{MEMBERS + 1}", "spares": 0}
    return submit(store, CELL, fields | {"env": {"TURN": str(turn), "DIGEST_AT": str(last)}})


def _digest(watch: Observer) -> str:
    def told() -> str:
        watch.read()
        words = [line["text"].split() for line in watch.view["output"] if line["text"].startswith("digest ")]
        return str(words[0][1]) if words else ""

    watch.until(lambda: bool(told()), 10 * BOUND_S)
    return told()


def _stop(store: Store, job_id: str) -> None:
    jobs.stop(store, job_id)
    jobs.wait(store, job_id, timeout_s=BOUND_S)


def _write(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def _endpoint(store: Store, job_id: str) -> tuple[tuple[str, int], int]:
    """Where a job's head listens, and its process id."""
    told = json.loads((store.job(job_id).path / "coordinator.json").read_text())
    return (told["host"], told["port"]), told["pid"]


def listens(pid: int) -> list[int]:
    """The ports at which a process listens on loopback, as the kernel tells."""
    own = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            own.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    lines = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return [int(line[1].partition(":")[2], 16) for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own]


@contextmanager
def _bare_listener(count: int) -> Iterator[list[int]]:
    with _child("bare_listener", f"{count}\n".encode()) as listener:
        assert listener.stdout
        yield json.loads(listener.stdout.readline())


@contextmanager
def _chunk_server(secret: bytes) -> Iterator[tuple[tuple[str, int], int]]:
    with _child("chunk_server", secret.hex().encode() + b"\n") as server:
        assert server.stdout
        yield ("127.0.0.1", int(server.stdout.readline())), server.pid


class _Crowd:
    """A process of strangers."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def call(self, plan: Plan) -> None:
        """Let them call; returns at once."""
        assert self._process.stdin
        self._process.stdin.write(plan.encode())
        self._process.stdin.flush()

    def told(self) -> dict[str, int]:
        """What they say next: that they are ready, then how many have called."""
        assert self._process.stdout
        told: dict[str, int] = json.loads(self._process.stdout.readline())
        return told


@contextmanager
def _crowd() -> Iterator[_Crowd]:
    """Strangers that are ready to call; all hang up at the end."""
    with _child("stranger_crowd", b"") as process:
        crowd = _Crowd(process)
        crowd.told()
        yield crowd


@contextmanager
def _child(module: str, first_line: bytes) -> Iterator[subprocess.Popen[bytes]]:
    """A process of ``benchmarks.control``, which ends when its input does."""
    command = [sys.executable, "-m", f"benchmarks.control.{module}"]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root) as child:
        try:
            assert child.stdin
            child.stdin.write(first_line)
            child.stdin.flush()
            yield child
        finally:
            child.kill()
