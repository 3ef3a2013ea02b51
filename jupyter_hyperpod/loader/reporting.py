"""Reports the progress of a load: to the caller's function, else to the job's journal, else on the screen.

The journal gets an event per second and one at the end. A load of less than half a second is not shown. A notebook with
the extension shows a bar (`show_with`), a terminal or another notebook one line.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TextIO

from ..core.names import public_name
from ..core.units import format_bytes, format_duration
from ..storage.journal_writer import JournalWriter
from ..storage.store import JobStore
from ..system.screen import rewrites_lines
from .read.progress import Callback, LoadProgress

TELL_EVERY_S = 1.0
SHOW_AFTER_S = 0.5
Show = Callable[[str], AbstractContextManager[Callback]]
_shows: list[Show] = []
_writers: dict[tuple[int, Path], JournalWriter] = {}
_writing = threading.Lock()


def show_with(show: Show) -> None:
    """Show loads with ``show(name)``, whose context returns a function for every `LoadProgress`."""
    _shows[:] = [show]


@contextmanager
def telling(
    url: str, progress: Callback | bool | None, environment: Mapping[str, str] = os.environ
) -> Iterator[Callback | None]:
    """Return the function that a load of `url` calls; None reports nothing. False silences the defaults, too."""
    name = public_name(url)
    if callable(progress):
        yield progress
    elif progress is False:
        yield None
    elif "HYPERPOD_JOB_DIR" in environment and "HYPERPOD_NODE" in environment:
        node = environment["HYPERPOD_NODE"]
        member = environment.get("HYPERPOD_MEMBER", f"{node}.{os.getpid()}")
        journal = LoadReporter(JobStore(Path(environment["HYPERPOD_JOB_DIR"])), node, member, name)
        with journal:
            yield journal
    elif _shows:
        with _shows[0](name) as shown:
            yield shown
    elif is_interactive(sys.stderr):
        with ProgressLine(name, sys.stderr) as line:
            yield line
    else:
        yield None


class LoadReporter:
    """Reports to a job's journal, as a member. A journal that cannot be written does not end the load."""

    def __init__(self, job: JobStore, node: str, member: str, name: str) -> None:
        self._job, self._node, self._member, self._name = job, node, member, name
        self._last: LoadProgress | None = None
        self._said_s = 0.0
        self._state = ""

    def __call__(self, now: LoadProgress) -> None:
        """Write an event if enough has changed."""
        self._last = now
        if now.done and self._state != "loaded":
            self._say("loaded", now)
        elif not now.done and now.elapsed_s - self._said_s >= TELL_EVERY_S:
            self._say("loading", now)

    def __enter__(self) -> LoadReporter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._state == "loading" and self._last is not None:
            self._say("failed", self._last)

    def _say(self, state: str, now: LoadProgress) -> None:
        self._state, self._said_s = state, now.elapsed_s
        record = {
            "member": self._member,
            "node": self._node,
            "state": state,
            "url": self._name,
            "bytes_done": now.bytes_done,
            "bytes_total": now.bytes_total,
            "elapsed_s": round(now.elapsed_s, 3),
            "first_layer_s": None if now.first_layer_s is None else round(now.first_layer_s, 3),
        }
        with _writing:
            key = os.getpid(), self._job.events
            if key not in _writers:
                _writers[key] = JournalWriter(self._job.events, f"worker-{self._member}")
            _writers[key].write("model.loading", record)


class ProgressLine:
    """One line that is rewritten during a load and ends with its result."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self._name, self._stream = name, stream
        self._shown = 0

    def __call__(self, now: LoadProgress) -> None:
        if self._shown or (now.elapsed_s >= SHOW_AFTER_S and not now.done):
            text = sentence(self._name, now)
            self._stream.write("\r" + text.ljust(self._shown))
            self._stream.flush()
            self._shown = len(text)

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._stream.write("\n")
            self._stream.flush()


def sentence(name: str, now: LoadProgress) -> str:
    short = name.rstrip("/").rpartition("/")[2] or name
    rate = f"{format_bytes(now.bytes_per_s)}/s"
    layer = "" if now.first_layer_s is None else f", first layer after {format_duration(now.first_layer_s)}"
    if now.done:
        return f"{short}: {format_bytes(now.bytes_total)} in {format_duration(now.elapsed_s)} ({rate}){layer}"
    left = "" if now.remaining_s is None else f", {format_duration(now.remaining_s)} left"
    percent = int(100 * now.bytes_done / now.bytes_total)
    return f"{short}: {percent} % of {format_bytes(now.bytes_total)}, {rate}{left}{layer}"


def is_interactive(stream: TextIO | None) -> bool:
    """Whether a person sees a line rewritten: at a terminal that can, or in a notebook's output."""
    if stream is None:
        return False
    return type(stream).__module__.startswith("ipykernel.") or rewrites_lines(stream)
