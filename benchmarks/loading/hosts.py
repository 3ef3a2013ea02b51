"""Processes that have imported what an arm of the loading benchmark needs and fork one for every load."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from types import TracebackType

from benchmarks import ROOT
from jupyter_hyperpod.core.errors import HyperpodError

RUN_TIMEOUT_S = 240.0
BLOCK = 65_536
Facts = dict[str, float]


class Host:
    """One such process; it ends with the context, and everything that it started with it."""

    def __init__(self, python: str, script: str) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.loading.loaders.process", script],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._heard = b""
        self.alive = True

    def __enter__(self) -> Host:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def say(self, line: str) -> None:
        """Give it a line; whether it was heard shows in the answer."""
        assert self._process.stdin
        with suppress(OSError, ValueError):
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def expect(self, line: str) -> None:
        """Wait until it says so; raises HyperpodError with what it says instead."""
        if (found := self._hear()) != line:
            raise HyperpodError(_failure(found))

    def facts(self) -> Facts:
        """What it has found; raises HyperpodError."""
        line = self._hear()
        if (error := _failure(line)) != line:
            raise HyperpodError(error)
        found: Facts = json.loads(line)
        return found

    def _hear(self) -> str:
        assert self._process.stdout
        deadline = time.monotonic() + RUN_TIMEOUT_S
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._heard:
                if not ready.select(deadline - time.monotonic()):
                    self._end()
                    raise HyperpodError(f"not done within {RUN_TIMEOUT_S:g} s")
                more = os.read(self._process.stdout.fileno(), BLOCK)
                if not more:
                    self._end()
                    raise HyperpodError(f"the process ended with status {self._process.returncode}")
                self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def _end(self) -> None:
        self.alive = False
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with suppress(OSError):
                    pipe.close()


def _failure(line: str) -> str:
    """The error that a line tells of, else the line itself."""
    with suppress(ValueError):
        record = json.loads(line)
        if isinstance(record, dict) and "error" in record:
            return str(record["error"])
    return line
