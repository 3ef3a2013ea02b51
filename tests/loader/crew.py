"""Ranks of a job as real processes, forked from one that has imported torch: each loads a model, then keeps it.

`Crew` is the test's side. A rank writes ``begun`` files when its first bytes are there and a record when it is done.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash

from jupyter_hyperpod.core.errors import HyperpodError
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.loader.model import load_model
from jupyter_hyperpod.loader.read.progress import LoadProgress
from jupyter_hyperpod.storage.store import JobStore, Store


class Zygote:
    """The process that ranks are forked from."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.loader.crew"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, order: dict[str, Any]) -> int:
        """Have an order carried out; its answer."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


class Crew:
    """A job's directory and the ranks that were started in it."""

    def __init__(self, zygote: Zygote, directory: Path, nodes: int = 4, replica: int = 1) -> None:
        self._zygote, self._directory = zygote, directory
        store = Store(directory / "store").prepare()
        self.job: JobStore = store.create_job(JobSpec("load", store.put_cell("pass"), nodes=nodes, replica=replica))

    def start(self, name: str, url: str, env: Mapping[str, str], **arguments: Any) -> int:
        """Start a rank; returns its process id."""
        known = {"HYPERPOD_JOB_DIR": str(self.job.path), **env}
        order = {"directory": str(self._directory), "name": name, "url": url, "env": known, "arguments": arguments}
        return self._zygote.say(order)

    def end(self) -> None:
        """End every rank."""
        self._zygote.say({})

    def begun(self, name: str) -> bool:
        """Whether the first chunk of a rank's load is there."""
        return (self._directory / f"{name}.begun").exists()

    def record(self, name: str) -> dict[str, Any] | None:
        """What a rank says after its load: ``tensors`` (name -> checksum), ``fetched``, ``seconds`` or ``error``."""
        try:
            found: dict[str, Any] = json.loads((self._directory / f"{name}.json").read_text())
        except FileNotFoundError:
            return None
        return found


def digests(state: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Name -> checksum of a tensor's bytes."""
    return {
        name: xxhash.xxh3_128_hexdigest(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        for name, tensor in state.items()
    }


def rank(directory: Path, name: str, url: str, arguments: dict[str, Any]) -> None:
    """The life of a rank: load, report, keep what was loaded until it is killed."""
    last: list[LoadProgress] = []

    def progress(now: LoadProgress) -> None:
        last[:] = [now]
        if now.bytes_fetched:
            (directory / f"{name}.begun").touch()

    record: dict[str, Any]
    scribble = arguments.pop("scribble", False)
    if "tp" in arguments:
        arguments["tp"] = tuple(arguments["tp"])
    try:
        loaded = load_model(url, progress=progress, **arguments)
        record = {"tensors": digests(loaded), "fetched": last[0].bytes_fetched, "seconds": last[0].elapsed_s}
        if scribble:
            for tensor in loaded.values():
                tensor.zero_()
    except HyperpodError as error:
        record = {"error": str(error)}
    unfinished = directory / f".{name}.json"
    unfinished.write_text(json.dumps(record))
    unfinished.rename(directory / f"{name}.json")
    threading.Event().wait()


def main() -> None:
    """Fork a rank for every order that names one; an empty order ends all of them."""
    pids = []
    for line in sys.stdin:
        if order := json.loads(line):
            pid = os.fork()
            if not pid:
                os.environ.update(order["env"])
                rank(Path(order["directory"]), order["name"], order["url"], order["arguments"])
            pids.append(pid)
            print(pid, flush=True)
            continue
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        print(len(pids), flush=True)
        pids.clear()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
