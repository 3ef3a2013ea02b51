"""SLURM by its commands: submit, cancel, and one bounded look at the queue for all jobs at once."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from ..core.errors import ClusterError
from ..core.spec import LaunchPlan
from . import sbatch
from .sbatch import Element

POLL_EVERY_S = 1.0
COMMAND_TIMEOUT_S = 30.0
_ASK = ["squeue", "--noheader", "--array", "--me", "--states=all", f"--format={sbatch.QUEUE_FORMAT}"]


class Slurm:
    """The scheduler. Its answers are fetched by a thread, at most one query every ``POLL_EVERY_S``, while wanted."""

    def __init__(self) -> None:
        self._elements: dict[int, list[Element]] = {}
        self._asked_s = 0.0
        self._fresh_s = 0.0
        self._thread: threading.Thread | None = None
        self.problem = ""  # why the queue could not be read the last time

    def submit(self, plan: LaunchPlan, options: Mapping[str, str], part: str, count: int) -> int:
        """Submit ``count`` elements of a part and return the array's number. Raises ClusterError."""
        return sbatch.submitted(_run(sbatch.arguments(plan, options, part, count), sbatch.script(plan, options)))

    def cancel(self, arrays: Sequence[int], task: int | None = None) -> None:
        """End arrays, or one element of them; those that have ended are no error. Raises ClusterError."""
        names = [str(array) if task is None else f"{array}_{task}" for array in arrays]
        if names:
            _run(["scancel", "--quiet", *names])

    def elements(self, array: int, since_s: float) -> list[Element] | None:
        """An array's elements; None where the queue has not been read since then (`time.monotonic`)."""
        return self._elements.get(array, []) if self._fresh_s > since_s else None

    def tick(self) -> None:
        """Ask again, in the background, when it is time."""
        now_s = time.monotonic()
        if now_s - self._asked_s >= POLL_EVERY_S and (self._thread is None or not self._thread.is_alive()):
            self._asked_s = now_s
            self._thread = threading.Thread(target=self._ask, args=(now_s,), name="squeue", daemon=True)
            self._thread.start()

    def _ask(self, now_s: float) -> None:
        try:
            text = _run(_ASK)
        except ClusterError as error:
            self.problem = str(error)
            return
        found: dict[int, list[Element]] = defaultdict(list)
        for element in sbatch.queue(text):
            found[element.array].append(element)
        self._elements, self._fresh_s, self.problem = dict(found), now_s, ""


def _run(command: list[str], text: str = "") -> str:
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, env=_environment(os.environ)
        )
    except FileNotFoundError as error:
        raise ClusterError(
            f"`{command[0]}` was not found: the backend slurm is used where SLURM's commands are"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"`{command[0]}` cannot be run: {error}") from error
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise ClusterError(f"`{command[0]}` refused: {said[:500]}")
    return done.stdout


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Without the variables by which a shell inside a job would have its own options taken over."""
    foreign = ("SLURM_", "SBATCH_", "SQUEUE_", "SCANCEL_", "SALLOC_", "SRUN_")
    kept = {name: value for name, value in environment.items() if not name.startswith(foreign)}
    return kept | {name: environment[name] for name in ("SLURM_CONF",) if name in environment} | {"LC_ALL": "C.UTF-8"}
