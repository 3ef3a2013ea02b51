"""What a pod with a store of its own runs: it waits for its job, runs the program of its node, and brings to the head's
store what that writes.

    python -m jupyter_hyperpod.storage.apart.pod_start --log FILE --process FILE --folder DIR -- PROGRAM ARGUMENT…

The head brings the job into $HYPERPOD_JOB_DIR (`arrival`). FILE of ``--process`` says whom signals are for.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from ...core.errors import ProtocolError, StoreError
from ...system.diagnostics import note, open_log
from ...system.processes import die_with_parent
from ..store import ENDPOINT_FILE, JobStore
from .hand_in import HandIn

JOB_VARIABLE = "HYPERPOD_JOB_DIR"
ARRIVES_S, LOOK_S = 1800.0, 0.02
BRING_S, SOON_S = 0.1, 0.03  # between two looks at what is new; before the coordinator's address is known
LAST_S, LEAVES_S = 600.0, 3.0  # for what the program has written last; of that, where the pod is told to end
KEPT_S = 60.0  # between two looks for segments that the head has


class PodStart:
    """One node's program and what it writes; `run` is the whole life of the pod."""

    def __init__(self, job: Path, log: Path, process: Path, folder: Path, words: Sequence[str]) -> None:
        self._job, self._log, self._process, self._folder, self._words = job, log, process, folder, list(words)
        self._child: subprocess.Popen[bytes] | None = None
        self._said = ""
        self._until_s = math.inf  # for what is left when the program has ended

    def run(self) -> int:
        """The exit status of the program; 1 where no job has come."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._on_signal)
        until_s = time.monotonic() + ARRIVES_S
        while not self._job.is_dir():
            if time.monotonic() > until_s:
                note(f"{self._job.name} has not been brought within {ARRIVES_S / 60:.0f} minutes by its head")
                return 1
            time.sleep(LOOK_S)
        self._begin()
        assert self._child is not None
        hand_in, kept_s = HandIn(JobStore(self._job)), time.monotonic()
        while self._child.poll() is None:
            self._ask(hand_in.bring)
            if time.monotonic() - kept_s > KEPT_S:
                self._ask(hand_in.forget_old)
                kept_s = time.monotonic()
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(BRING_S if (self._job / ENDPOINT_FILE).exists() else SOON_S)
        self._until_s = min(self._until_s, time.monotonic() + LAST_S)
        while not self._ask(partial(hand_in.bring, ended=True)) and time.monotonic() < self._until_s:
            time.sleep(BRING_S)
        hand_in.close()
        code = self._child.returncode
        return 128 - code if code < 0 else code

    def _begin(self) -> None:
        log, me = open_log(self._log.parent, self._log.stem), os.getpid()
        try:
            folder = self._folder if self._folder.is_dir() else None
            die = partial(die_with_parent, me)
            self._child = subprocess.Popen(self._words, stdout=log, stderr=log, cwd=folder, preexec_fn=die)
        finally:
            os.close(log)
        with suppress(OSError):
            self._process.write_text(f"{self._child.pid}\n")

    def _ask(self, ask: Callable[[], object]) -> bool:
        """Whether the head has answered."""
        try:
            ask()
        except (OSError, StoreError, ProtocolError) as error:
            problem = f"what this pod writes waits for the head of the job: {error}"
            if problem != self._said:
                self._said = problem
                note(problem)
            return False
        self._said = ""
        return True

    def _on_signal(self, number: int, _: object) -> None:
        if self._child is None:
            raise SystemExit(128 + number)
        if self._child.returncode is not None:
            self._until_s = min(self._until_s, time.monotonic() + LEAVES_S)
        with suppress(ProcessLookupError):
            self._child.send_signal(number)


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m jupyter_hyperpod.storage.apart.pod_start")
    for name in ("--log", "--process", "--folder"):
        parser.add_argument(name, required=True, type=Path)
    parser.add_argument("program", nargs="+")
    options = parser.parse_args(arguments)
    return PodStart(Path(os.environ[JOB_VARIABLE]), options.log, options.process, options.folder, options.program).run()


if __name__ == "__main__":
    sys.exit(main())
