"""Pages of a job's output: by rank, node, time, step, level and text, from a place on. A page is cheap."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core.errors import SpecError
from ..core.events import Event
from ..storage.output import output_choice
from ..storage.output.levels import parse as parse_levels
from ..storage.output.output_choice import OutputChoice
from ..storage.output.output_range import Place, chunks_before, pass_output, place_of
from ..storage.output.output_reader import is_notice
from ..storage.store import JobStore, Store

PIECES, MOST_PIECES = 500, 1000
PAGE_BYTES = 256 * 1024
PAGE_S = 0.5  # of reading, for one page
FIELDS = ("node", "rank", "stream", "text", "session", "step")


@dataclass(frozen=True, slots=True)
class OutputQuery:
    """The arguments of a request; texts are as they came. Raises SpecError where they cannot be understood."""

    rank: str = ""
    node: str = ""
    since: str = ""
    until: str = ""
    steps: str = ""
    text: str = ""
    level: str = ""
    after: str = ""
    before: str = ""
    tail: str = ""
    limit: str = ""

    def choice(self, job: JobStore) -> OutputChoice:
        """What is asked for."""
        if self.tail and self.after:
            raise SpecError("tail is the end of the output: it cannot be combined with after; say before which place")
        if self.before and not self.tail:
            raise SpecError("before needs tail: how many pieces of what comes before that place")
        steps = output_choice.chosen_steps(job.events, *output_choice.step_range(self.steps)) if self.steps else None
        since_s, until_s = output_choice.time_range(self.since, self.until)
        return OutputChoice(
            rank=_number("rank", self.rank, 0, 10**6) if self.rank else None,
            node=self.node or None,
            since_s=since_s,
            until_s=until_s,
            steps=steps,
            levels=parse_levels(self.level) if self.level else None,
            tail=_number("tail", self.tail, 1, MOST_PIECES) if self.tail else None,
        )

    def place(self, text: str, name: str) -> Place | None:
        """The place in an argument of this name; None where there is none."""
        if not text:
            return None
        try:
            time_s, writer, number = text.split(" ")
            if math.isfinite(place := float(time_s)):
                return place, writer, int(number)
        except ValueError:
            pass
        raise SpecError(f"{name} is {text[:80]!r}; expected the `{name}` of another page")

    def most(self) -> int:
        """The most pieces of a page."""
        return _number("limit", self.limit, 1, MOST_PIECES) if self.limit else PIECES


def _number(name: str, text: str, low: int, high: int) -> int:
    if not text.isdecimal() or len(text) > 20 or not low <= int(text) <= high:
        raise SpecError(f"{name} is {text[:80]!r}; expected a number from {low} to {high}")
    return int(text)


def page(store: Store, job_id: str, query: OutputQuery, clock: Callable[[], float] = time.monotonic) -> dict[str, Any]:
    """One page. Raises NotFound and SpecError."""
    job = store.job(job_id)
    choice, after = query.choice(job), query.place(query.after, "after")
    if choice.tail is not None:
        return _page_before(job, choice, query.place(query.before, "before"), query.text, clock)
    pieces: list[dict[str, Any]] = []
    read, until_s = after, math.inf
    size, more = 0, False
    for event, is_chosen in pass_output(job, choice, after):
        now_s = clock()
        if len(pieces) >= query.most() or size >= PAGE_BYTES or now_s > until_s:
            more = True
            break
        until_s = min(until_s, now_s + PAGE_S)  # from the first on: a page gets on, however many files were opened
        read = place_of(event)
        if is_chosen and (found := _piece(event, query.text)):
            pieces.append(found)
            size += len(found["text"])
    return _page(pieces, read, None, more)


def _page_before(
    job: JobStore, choice: OutputChoice, before: Place | None, text: str, clock: Callable[[], float]
) -> dict[str, Any]:
    """The last pieces before a place, as many as a page holds and as are found in its time."""
    until_s, asked = clock() + PAGE_S, choice.tail or 0
    pieces: list[dict[str, Any]] = []
    first, last, size, full = before, None, 0, False
    for events, reached in chunks_before(job, choice, before):
        for event in reversed(events):
            if full := len(pieces) >= asked or size >= PAGE_BYTES:
                break
            first, last = place_of(event), last or place_of(event)
            if found := _piece(event, text):
                pieces.append(found)
                size += len(found["text"])
        if full:
            break
        first = reached
        if reached is None or clock() > until_s:
            break
    return _page(pieces[::-1], last, first, first is not None and len(pieces) < asked)


def _page(pieces: list[dict[str, Any]], after: Place | None, before: Place | None, more: bool) -> dict[str, Any]:
    return {"pieces": pieces, "after": _told(after), "before": _told(before), "more": more}


def _told(place: Place | None) -> str:
    return "" if place is None else f"{place[0]!r} {place[1]} {place[2]}"


def _piece(event: Event, wanted: str) -> dict[str, Any] | None:
    """A piece as it is sent: of its lines those that have the text; None where none has."""
    text = str(event.data["text"])
    if wanted and not is_notice(event):
        text = "".join(line for line in text.splitlines(keepends=True) if wanted in line)
    if not text:
        return None
    chosen = {name: event.data[name] for name in FIELDS if name in event.data}
    return (
        {"time_s": event.time_s}
        | chosen
        | {
            "text": text,
            "notice": is_notice(event),
            "place": _told(place_of(event)),
        }
    )
