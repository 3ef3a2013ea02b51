"""Streams a job into a cell: status above, the ranks' output below, and errors that look like the cell's own."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any

from ..control import report, text_tables
from ..control.watch import JobWatch, OutputLines, RunWarnings
from ..core.errors import HyperpodError, SpecError
from ..core.events import Event
from ..core.views import View
from ..storage.store import Store
from ..system import place
from ..system.screen import StatusLine
from .output import JobDisplay
from .showing import ShownDisplays

UPDATE_S = 2.0


class JobFailed(HyperpodError):
    """The job failed; shown with the traceback of the user's own code only."""

    def __init__(self, message: str, traceback: list[str]) -> None:
        super().__init__(message)
        self._traceback = traceback

    def advise(self, line: str) -> None:
        """Add a line below the traceback: what to do."""
        self._traceback.append(line)

    def _render_traceback_(self) -> list[str]:
        return self._traceback


def quiet(error: Exception, lines: list[str] | None = None) -> Exception:
    """Return `error`, set up so that IPython shows `lines`, or its message, without our stack."""
    if not isinstance(error, JobFailed):
        shown = lines or [f"\x1b[31m{type(error).__name__}\x1b[39m: {error}"]
        error._render_traceback_ = lambda: [line.rstrip("\n") for line in shown]  # type: ignore[attr-defined]
    return error.with_traceback(None)


def without_folder(error: FileNotFoundError) -> Exception:
    """The same error, or in a sentence what to do where the folder of this process was deleted."""
    return quiet(SpecError(place.GONE)) if place.is_gone() else error


class Status:
    """Shows progress: in the display of a notebook, in the last line of a terminal, nowhere in a pipe."""

    def __init__(self, display: JobDisplay | None) -> None:
        self._display = display
        self._bottom = StatusLine(sys.stderr)
        self._next_s = 0.0
        self._state: tuple[Any, ...] = ()

    def update(self, view: View) -> None:
        """Show `view` where its state changed or `UPDATE_S` have passed."""
        state = (view["state"], len(view["incidents"]), view["world_size"])
        if self._display is not None and (state != self._state or time.monotonic() >= self._next_s):
            self._display.show(view)
            self._state, self._next_s = state, time.monotonic() + UPDATE_S
        elif self._display is None:
            self._bottom.show(report.progress_line(view))

    def show_again(self) -> None:
        """The output was cleared, and what it showed of the job with it."""
        if self._display is not None:
            self._display.forget()
        self._next_s = 0.0

    def finish(self, view: View) -> None:
        """Show `view` one last time and remove the status line."""
        self.clear()
        if self._display is not None:
            self._display.show(view)

    def clear(self) -> None:
        """Make room for a line of output."""
        self._bottom.clear()


class Screen:
    """What is below the job's display: lines of its output, its bars of progress, and displays where ``rich``."""

    def __init__(self, status: Status, rich: bool) -> None:
        self._status = status
        self._rich = rich
        self._displays = ShownDisplays()
        self._bar = ""  # the stream that an unfinished line is in
        self._width = 0  # of that line

    def show(self, event: Event, lines: OutputLines, view: View) -> None:
        """Show what an event adds."""
        shown = event.data.get("shown") if event.kind == "output.written" else None
        if shown is None or not self._rich:
            self.print(lines.feed(event))
            self._draw_bar(lines.bar(event))
        elif self._displays.is_new(str(event.data["member"]), shown):
            self.print(lines.cut(event))
            if self._displays.show(shown):
                self._status.show_again()
                self._status.update(view)

    def print(self, lines: Iterable[tuple[str, str]]) -> None:
        """Print whole lines."""
        for name, line in lines:
            self._status.clear()
            begin, self._width = ("\r", max(self._width - len(line), 0)) if name == self._bar else ("", 0)
            print(f"{begin}{line}{' ' * self._width}", file=_file(name), flush=True)
            self._bar, self._width = ("", 0) if name == self._bar else (self._bar, self._width)

    def _draw_bar(self, bar: tuple[str, str] | None) -> None:
        """Draw an unfinished line over the one before."""
        if bar is not None and self._rich:
            self._bar, line = bar
            print(f"\r{line}{' ' * (self._width - len(line))}", end="", file=_file(self._bar), flush=True)
            self._width = len(line)


def _file(name: str) -> Any:
    return sys.stderr if name == "stderr" else sys.stdout


def stream(store: Store, job_id: str, display: JobDisplay | None, lost_after_s: float) -> View:
    """Show a job until it ends and return its view. KeyboardInterrupt passes through, after the display is updated.

    Raises JobFailed where the job failed, ClusterError after `lost_after_s` without news.
    """
    watch = JobWatch(store, job_id, lost_after_s)
    status = Status(display)
    lines: OutputLines | None = None
    screen = Screen(status, rich=display is not None)
    noticed, warnings = "", RunWarnings()
    try:
        for events in watch.batches():
            lines = lines or OutputLines(watch.view)
            status.update(watch.view)
            for event in events:
                screen.show(event, lines, watch.view)
            screen.print(("stderr", f"warning: {text}") for text in warnings.of(events))
            status.update(watch.view)
            if watch.notice and not noticed:
                print(f"{watch.notice}; `%hyperpod cluster start` brings it back", file=sys.stderr, flush=True)
            noticed = watch.notice
        screen.print(lines.finish() if lines else ())
    finally:
        status.finish(watch.view)
    if watch.view["state"] == "failed":
        raise failure(watch.view)
    if display is None or watch.view["state"] == "stopped":
        print(report.progress_line(watch.view), flush=True)
    return watch.view


def failure(view: View) -> JobFailed:
    """Return the exception that shows why a job failed."""
    error = view["error"]
    if error is None:
        reason = f"{view['id']} failed: {view['reason'] or 'no reason was given'}"
        return JobFailed(reason, [f"\x1b[31mJobFailed\x1b[39m: {text_tables.clean(reason)}"])
    rank = "" if error["rank"] is None else f"rank {error['rank']} on "
    where = f"{rank}{error['node']} of {view['id']}"
    head = f"\x1b[31m{text_tables.clean(str(error['type']))}\x1b[39m on {text_tables.clean(where)}"
    traceback = report.traceback_lines(error)
    return JobFailed(f"{error['type']}: {error['message']} ({where})", [head, "\n".join(traceback)])
