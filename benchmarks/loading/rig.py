"""Where loads are measured: servers that have the model, memory that is there, processes that begin when told to."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.arms import scratch
from benchmarks.loading.arms import KEY, Arm, Case
from benchmarks.loading.hosts import Facts, Host
from benchmarks.loading.loaders.process import Task
from benchmarks.loading.weights import write_decoder
from benchmarks.rivals.environments import python_of
from jupyter_hyperpod.bench.laboratory import progress
from jupyter_hyperpod.core.errors import HyperpodError
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage.store import Store
from tests.support import s3_servers
from tests.support.s3_servers import S3Server, ask, talking

RESERVED_MODELS, HUGE, BLOCK = 5, 2 * 2**20, 2**20
STARTERS: dict[str, Callable[[], AbstractContextManager[S3Server]]] = {
    "lean": s3_servers.lean,
    "seaweedfs": s3_servers.seaweedfs,
    "rclone": s3_servers.rclone,
}
Process = subprocess.Popen[bytes]


class Reserve:
    """Memory that is there: touched, and let go for the time of a load.

    Virtual machines give memory that is free back to their host within seconds, and touching it for the first time then
    costs many times what the kernel itself needs. So it is held while nothing is measured.
    """

    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, max(HUGE, size // HUGE * HUGE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without huge pages
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._hold()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Free for others in here."""
        self._memory.madvise(mmap.MADV_DONTNEED)
        try:
            yield
        finally:
            self._hold()

    def _hold(self) -> None:
        self._memory[:: mmap.PAGESIZE] = bytes(len(self._memory) // mmap.PAGESIZE)

    def close(self) -> None:
        """Give it back."""
        self._memory.close()


class Rig:
    """The model and the servers that have it; servers are started when they are first needed."""

    def __init__(self, gigabytes: float, connections: int = 0) -> None:
        self._stack = ExitStack()
        self._gigabytes = gigabytes
        self._connections = connections
        self._servers: dict[str, S3Server] = {}
        self._proxies: dict[str, tuple[S3Server, Process]] = {}
        self._ready: set[tuple[str, str]] = set()
        self._hosts: dict[tuple[str, str, int], Host] = {}

    def __enter__(self) -> Rig:
        with ExitStack() as stack:
            self.directory = stack.enter_context(scratch())
            self.reference = self.directory / KEY
            self.data_bytes = write_decoder(self.reference, self._gigabytes * 1e9)
            os.sync()
            self.reserve = stack.enter_context(closing(Reserve(int(RESERVED_MODELS * self.data_bytes))))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def server(self, name: str) -> S3Server:
        """The running server, with the model in its bucket."""
        if name not in self._servers:
            progress(f"starting {name}")
            server = self._stack.enter_context(STARTERS[name]())
            server.put(KEY, self.reference)
            server.client().head_object(Bucket=server.bucket, Key=KEY)  # some hash it when it is first asked for
            self._servers[name] = server
        return self._servers[name]

    def proxied(self, name: str) -> tuple[S3Server, Process]:
        """The server as seen through a proxy of its own process."""
        if name not in self._proxies:
            server = self.server(name)
            command = ["tests.support.faulty_proxy", f"127.0.0.1:{server.port}"]
            process, told = self._stack.enter_context(talking(command))
            self._proxies[name] = replace(server, endpoint=f"http://127.0.0.1:{told['port']}"), process
        return self._proxies[name]

    def prepare(self, server: str, arm: Arm) -> None:
        """What an arm needs beside the model: its own format, or the model's manifest. Raises HyperpodError."""
        if not arm.suffix or (server, arm.suffix) in self._ready:
            return
        made = self.directory / f"{KEY}{arm.suffix}"
        if not made.exists():
            _call([self.python(arm), *arm.maker, str(self.reference), str(made)])
        if server:
            self.server(server).put(KEY + arm.suffix, made)
        self._ready.add((server, arm.suffix))

    def python(self, arm: Arm) -> str:
        """The interpreter of an arm; raises NotInstalled."""
        return python_of(arm.system) if arm.system else sys.executable

    def together(self, arm: Arm, tasks: Sequence[Task]) -> list[Facts]:
        """Run tasks at the same time, memory being there; raises HyperpodError with the words of one that failed."""
        python = self.python(arm)
        hosts = []
        for number, task in enumerate(tasks):
            key = (python, arm.script, number)
            if key not in self._hosts or not self._hosts[key].alive:
                self._hosts[key] = self._stack.enter_context(Host(python, arm.script))
            hosts.append(self._hosts[key])
            hosts[-1].say(json.dumps(asdict(task)))
        for host in hosts:
            host.expect("ready")
        with self.reserve.released():
            for host in hosts:
                host.say("go")
            for host in hosts:
                host.expect("loaded")
        for host in hosts:
            host.say("verify")
        return [host.facts() for host in hosts]

    def task(self, arm: Arm, server: S3Server | None, settings: Mapping[str, Any]) -> Task:
        """What an arm is told."""
        task = Task(str(self.reference), settings={**arm.settings, **settings})
        if server:
            task = replace(task, bucket=server.bucket, key=KEY, endpoint=server.endpoint)
        return replace(task, connections=self._connections or arm.connections)


def once(rig: Rig, case: Case, arm: Arm, seed: int) -> Facts:
    """One load by every rank of an arm at the same time; times are those of the slowest, CPU seconds are added up.

    ``largest_share``: what a rank of ours has fetched, of what it holds; the largest of them.

    Raises HyperpodError with the last words of what failed, NotInstalled among them.
    """
    rig.prepare(case.server, arm)
    server = rig.server(case.server) if case.server else None
    if case.proxied:
        server, proxy = rig.proxied(case.server)
        ask(proxy, json.dumps({**arm.faults, "seed": seed}))
    environment = {**(server.environment if server else {}), **arm.environment}
    counter = rig.server("lean").process if case.server == "lean" else None
    before = ask(counter)["body_bytes"] if counter else 0
    tasks = [rig.task(arm, server, one) for one in arm.ranks]
    if server is None or server.root is not None:
        _read_through(rig.reference)
    with scratch() as directory:
        if arm.job:
            store = Store(directory / "store").prepare()
            job = store.create_job(JobSpec("load", store.put_cell("pass"), nodes=len(tasks)))
            environment["HYPERPOD_JOB_DIR"] = str(job.path)
        found = rig.together(arm, [replace(task, environment=environment) for task in tasks])
    facts = {name: max(one[name] for one in found) for name in found[0]}
    if "fetched_bytes" in facts:
        facts["largest_share"] = max(one["fetched_bytes"] / one["held_bytes"] for one in found)
    facts["cpu_s"] = sum(one["cpu_s"] for one in found)
    facts["held_bytes"] = sum(one["held_bytes"] for one in found)
    if counter:
        facts["body_bytes"] = ask(counter)["body_bytes"] - before
    return facts


def _read_through(path: Path) -> None:
    """Have a file in the page cache."""
    block = bytearray(BLOCK)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(block):
            pass


def _call(command: Sequence[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        words = done.stderr.strip().splitlines()
        raise HyperpodError(words[-1] if words else f"exit status {done.returncode}")
