"""Many browsers on one Jupyter server: what it sends, what holds its event loop up, how late news are, what it takes.

The Jupyter server with the extension is a process of its own, asked with a token. The store holds jobs that ended and
some that train: their journals are written by the product's writers, at the rate of real jobs, but nobody computes
(`written_jobs.py`). The browsers are real websocket clients in one process (`panels.py`). All share one machine.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from jupyter_hyperpod.bench.laboratory import progress
from jupyter_hyperpod.bench.report import bar, report, row
from jupyter_hyperpod.storage.store import ENVIRONMENT_VARIABLE, Store
from jupyter_hyperpod.system.processes import raise_descriptor_limit

from . import panels, written_jobs
from .scale import _cpu_s, _status

OURS = "jupyter_hyperpod"
CLIENTS, JOBS, TRAINING, SECONDS = 100, 1000, 10, 20.0
SETTLE_S = 30.0  # in which the bounded lists of losses and newest events fill, which the server keeps per job
FOLLOWED = 0  # unfinished jobs of its list that a panel follows by their events
START_S = 120.0
MOST_BYTES_PER_S, LONGEST_S, MOST_MEMORY, MOST_GROWTH = 1e6, 0.020, 400e6, 5e6


def run(
    clients: int = CLIENTS,
    jobs: int = JOBS,
    training: int = TRAINING,
    seconds: float = SECONDS,
    followed: int = FOLLOWED,
    settle: float = SETTLE_S,
) -> dict[str, Any]:
    """Have ``clients`` browse a store of so many ``jobs``, of which ``training`` train, and measure for ``seconds``.

    ``settle``: seconds between the last client's connection and the measurement. ``followed``: how many unfinished jobs
    a panel follows by their events beside the one of its card.
    """
    raise_descriptor_limit()
    with tempfile.TemporaryDirectory(prefix="hyperpod-browsers-") as folder, ExitStack() as stack:
        store = Store(Path(folder) / "store").prepare()
        written_jobs.write_ended(store, jobs - training)
        trained = [written_jobs.submitted(store, f"training-{number}").id for number in range(training)]
        progress(f"{jobs:,} jobs are written")
        command = [sys.executable, "-m", "benchmarks.control.written_jobs", str(store.root), *trained]
        stack.enter_context(_process(command, store))
        url, token, server = stack.enter_context(_server(Path(folder), store))
        command = [sys.executable, "-m", "benchmarks.control.panels", url, str(clients), str(followed), *trained]
        browsers = stack.enter_context(_process(command, store, token=token))
        first = _all_connected(browsers, clients)
        before = _memory(server)
        time.sleep(settle)  # the growth in this time is told apart
        first["growth"] = _memory(server) - before
        found = _measured(server, browsers, seconds)
    return _told(found, first, clients, f"{clients} clients, {jobs:,} jobs, {training} train")


def _measured(server: subprocess.Popen[str], browsers: subprocess.Popen[str], seconds: float) -> dict[str, Any]:
    _ask(server, "reset")
    _ask(browsers, "reset")
    began_s, cpu_s, memory = time.monotonic(), _cpu_s(server.pid), _memory(server)
    time.sleep(seconds)  # what is measured is this time
    after, took_s = _memory(server), time.monotonic() - began_s
    got, held = _ask(browsers, "report"), _ask(server, "report")
    rates = {"bytes_per_s": got["bytes"] / took_s, "cores": (_cpu_s(server.pid) - cpu_s) / took_s}
    for one in held["longest"]:
        progress(
            f"the loop was held for {1000 * one['took_s']:.1f} ms by {one['name']}: it computed for "
            f"{1000 * one['cpu_s']:.1f} ms, the server's other threads for {1000 * one['others_s']:.1f} ms; it waited "
            f"{one['waits']} times, and the system took the core away from it {one['preemptions']} times"
        )
    progress(f"the longest collection of garbage took {1000 * held['longest_collection_s']:.1f} ms of processor time")
    progress(f"bytes by type of message, before compression: {got['by_type']}")
    return got | held | rates | {"took_s": took_s} | {"memory": after, "growth_per_min": (after - memory) * 60 / took_s}


def _told(found: dict[str, Any], first: dict[str, Any], clients: int, case: str) -> dict[str, Any]:
    lines = [
        ("sent to all clients", "bytes/s", found["bytes_per_s"]),
        ("the same before compression", "bytes/s", sum(found["by_type"].values()) / found["took_s"]),
        ("longest that a handler holds the event loop", "s", found["longest_s"]),
        ("the same, 99 % of handlers", "s", found["p99_s"]),
        ("processor time of the handler that took most", "s", found["longest_cpu_s"]),
        ("from an event until a client has it, median", "s", found["delay_p50_s"]),
        ("from an event until a client has it, 99 %", "s", found["delay_p99_s"]),
        ("cores of the server", "cores", found["cores"]),
        ("memory of the server", "bytes", found["memory"]),
        ("growth of that memory per minute", "bytes", found["growth_per_min"]),
        ("growth of that memory before, while lists fill", "bytes", first["growth"]),
        ("sent to a client that connects", "bytes", first["bytes"] / clients),
    ]
    bars = [
        bar("bytes_per_s", found["bytes_per_s"], MOST_BYTES_PER_S),
        bar("longest_handler_ms", 1000 * found["longest_s"], 1000 * LONGEST_S),
        bar("longest_handler_p99_ms", 1000 * found["p99_s"], 1000 * LONGEST_S),
        bar("memory_bytes", found["memory"], MOST_MEMORY),
        bar("memory_growth_bytes_per_min", found["growth_per_min"], MOST_GROWTH),
    ]
    return report("browsers", [row(OURS, case, what, unit, [value]) for what, unit, value in lines], bars)


def _all_connected(browsers: subprocess.Popen[str], clients: int) -> dict[str, Any]:
    """Wait until every client has a list of jobs; returns what they received by then."""
    total, deadline_s = 0, time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        found = _ask(browsers, "report")
        total += found["bytes"]
        if found["connected"] == clients:
            progress(f"{clients} clients are connected")
            return {"bytes": total}
        time.sleep(0.2)
    raise TimeoutError(f"only {found['connected']} of {clients} clients got a list of jobs in {START_S:.0f} s")


def _ask(process: subprocess.Popen[str], line: str) -> dict[str, Any]:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise ConnectionError(f"a process of the benchmark has ended: {process.args!r}")
    found: dict[str, Any] = json.loads(answer)
    return found


def _memory(process: subprocess.Popen[str]) -> int:
    return 1024 * int(_status(process.pid, "VmRSS"))


@contextmanager
def _process(command: list[str], store: Store, log: Any = None, token: str = "") -> Iterator[subprocess.Popen[str]]:
    surroundings = {**os.environ, ENVIRONMENT_VARIABLE: str(store.root), panels.TOKEN: token}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
    process = subprocess.Popen(command, env=surroundings, text=True, **pipes)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def _server(folder: Path, store: Store) -> Iterator[tuple[str, str, subprocess.Popen[str]]]:
    """A Jupyter server on the store: its URL, its token and its process."""
    token = secrets.token_hex(16)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {"ip": "127.0.0.1", "port": port, "port_retries": 0, "open_browser": False, "root_dir": str(folder)}
    content = {"ServerApp": options | {"jpserver_extensions": {"jupyter_hyperpod": True}, "allow_root": True}}
    content |= {"HyperpodExtension": {"store": str(store.root)}, "IdentityProvider": {"token": token}}
    settings = folder / "settings.json"
    settings.touch(0o600)
    settings.write_text(json.dumps(content))
    command = [sys.executable, "-m", "benchmarks.control.watched_server", f"--config={settings}"]
    with open(folder / "server.log", "wb") as log, _process(command, store, log) as server:
        url, deadline_s = f"http://127.0.0.1:{port}/", time.monotonic() + START_S
        request = Request(f"{url}jupyter_hyperpod/api/v1/settings", headers={"Authorization": f"token {token}"})
        while True:
            try:
                urlopen(request, timeout=5).close()
                break
            except (URLError, OSError) as error:
                if server.poll() is not None or time.monotonic() > deadline_s:
                    said = (folder / "server.log").read_text()[-1000:]
                    raise TimeoutError(f"no Jupyter server: {error}; its log ends: {said}") from error
            time.sleep(0.05)
        yield url, token, server
