"""Follows one job to its end: yields its events, folds its view, and notices when its supervisor is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ..core.errors import ClusterError, Conflict, HyperpodError, NotFound, StoreError
from ..core.events import TERMINAL_STATES, Event
from ..core.views import View, apply, new_job_view
from ..storage.folded import FoldedJournal
from ..storage.host_lease import OtherHost
from ..storage.journal import follow_events
from ..storage.journal_search import read_kinds
from ..storage.output.levels import LevelReader, PieceLevels
from ..storage.output.output_choice import OutputChoice
from ..storage.output.output_range import AGENT, last_output, sources
from ..storage.output.output_reader import JournalGaps, OutputReader, is_notice
from ..storage.sharing import owner_elsewhere
from ..storage.store import JobStore, Store
from . import cluster
from .remote import followed

TICK_S = 0.25
DRAIN_QUIET_S = 0.1
DRAIN_S = 2.0
SILENCE_CHECK_S = 2.0
SILENCE_NOTICE_S = 5.0
BAR_CHARACTERS = 1000  # more than a screen is wide


class SupervisorSilence:
    """How long jobs of a store have been without news and without a supervisor; looked at every `SILENCE_CHECK_S`.

    Those whose heads run elsewhere have one there, and are followed again.
    """

    def __init__(self, store: Store, jobs: Callable[[], Iterable[JobStore]]) -> None:
        """``jobs``: those that have not ended."""
        self._store, self._jobs, self._other_host = store, jobs, OtherHost(store)
        self.heard()

    def heard(self) -> None:
        """There are news, so somebody is there."""
        self._looked_s, self._down_s = time.monotonic(), 0.0
        self._down_since_s: float | None = None

    def down_s(self) -> float:
        """Seconds since the supervisor was first missed; 0 while it answers or there are news."""
        now_s = time.monotonic()
        if now_s - self._looked_s < SILENCE_CHECK_S:
            return self._down_s
        store = self._store
        there = owner_elsewhere(store.root) or followed.keep(store, self._jobs())  # a supervisor answers its owner
        if there or cluster.connectable(store) or self._other_host.serves(now_s):
            self.heard()
        else:
            self._down_since_s = self._down_since_s or now_s
            self._down_s = now_s - self._down_since_s
        self._looked_s = now_s
        return self._down_s


def is_of_submission(event: Event) -> bool:
    """Whether an event was written when the job was submitted."""
    return event.writer.startswith("control")


class RunWarnings:
    """What is warned of while a job runs, each sentence once; what was found before is said when it is submitted."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def of(self, events: Iterable[Event]) -> list[str]:
        """The new sentences."""
        raised = (event for event in events if event.kind == "warning.raised" and not is_of_submission(event))
        found = [text for text in dict.fromkeys(str(event.data["text"]) for event in raised) if text not in self._said]
        self._said.update(found)
        return found


@dataclass
class JobWatch:
    """Follows a job from its first event; ``view`` is always the fold of the events of its journal that were yielded.

    Output outside the journal (`storage.output`) is yielded, too.
    ``lost_after_s``: seconds without news and without a supervisor until `batches` raises ClusterError.
    ``notice`` holds a sentence while the supervisor does not answer, else "".
    """

    store: Store
    job_id: str
    lost_after_s: float = 60.0
    view: View = field(init=False)
    notice: str = ""

    def __post_init__(self) -> None:
        self.view = new_job_view(self.job_id)
        job = self.store.job(self.job_id)
        self._follower = follow_events(job.events)
        self._output, self._gaps = OutputReader(job), JournalGaps(job)
        self._silence = SupervisorSilence(self.store, lambda: [job])

    def batches(self) -> Iterator[list[Event]]:
        """Yield new events at least every `TICK_S` (maybe none), until the job has ended and its output is read.

        Raises ClusterError after `lost_after_s` without news from the job and without a supervisor, StoreError where
        the store has been deleted, NotFound where the job has.
        """
        self._silence.heard()
        with suppress(HyperpodError):  # whether that is possible is judged when nothing comes
            followed.keep(self.store, [self.store.job(self.job_id)])
        while self.view["state"] not in TERMINAL_STATES:
            events = self._take(TICK_S)
            if events:
                self._silence.heard()
                self.notice = ""
            else:
                self._judge_silence()
            yield events
        yield from self._drain(DRAIN_QUIET_S)  # agents may write the last output just after the coordinator's end

    def there(self) -> list[Event]:
        """Return all that is there now, also where it takes several reads; to be called before `batches`."""
        return list(chain.from_iterable(self._drain(0.0)))

    def poll(self) -> list[Event]:
        """Return new events, without waiting."""
        return self._take(0.0)

    def _take(self, timeout_s: float) -> list[Event]:
        beside = self._output.poll()  # read first: then the journal already holds what this output continues
        events: list[Event] = self._follower.wait(0.0 if beside else timeout_s)
        for event in events:
            apply(self.view, event)
        events = self._gaps.told(events)
        return sorted([*events, *beside], key=lambda event: event.time_s) if beside else events

    def _drain(self, quiet_s: float) -> Iterator[list[Event]]:
        """Read until nothing comes for ``quiet_s``; a job that prints without end is left after `DRAIN_S`."""
        deadline_s = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline_s and (events := self._take(quiet_s)):
            yield events

    def _judge_silence(self) -> None:
        if not self.store.jobs.is_dir():
            raise StoreError(f"the store {self.store.root} is gone, and with it {self.job_id}: it was deleted or moved")
        self.store.job(self.job_id)
        down_s = self._silence.down_s()
        if down_s >= self.lost_after_s:
            raise ClusterError(
                f"no news from {self.job_id} and no supervisor for {down_s:.0f} s; its journal is kept. "
                f"`jupyter hyperpod cluster start` brings the cluster back, then attach to {self.job_id} again"
            )
        self.notice = (
            f"the cluster's supervisor has not answered for {down_s:.0f} s" if down_s >= SILENCE_NOTICE_S else ""
        )


def require_rank(view: View, events: Iterable[Event], rank: int | None, *, later: bool = False) -> None:
    """Raise NotFound where a job, by all its ``events``, has no such rank.

    ``later``: ranks that the job may still get count, too. A job that has not begun has every rank.
    """
    members = [len(event.data["members"]) for event in events if event.kind == "generation.formed"]
    ended = view["state"] in TERMINAL_STATES
    size = max([*members, view["maximum"] if later and not ended else 0])
    if rank is None or 0 <= rank < size or not (members or ended) or view["deployment"]:
        return
    if size < 2:
        ranks = "its only rank is 0" if size else "it has had none"
    elif size < 4:
        ranks = f"its ranks are {', '.join(map(str, range(size - 1)))} and {size - 1}"
    else:
        ranks = f"its ranks are 0 to {size - 1}"
    raise NotFound(f"{view['id']} has no rank {rank}; {ranks}")


def printed(store: Store, job_id: str, choice: OutputChoice) -> tuple[View, Iterator[tuple[str, str]]]:
    """A job's view, and what its ranks have printed so far, as lines with their streams. Reads the chosen part only.

    Raises NotFound for a rank or a node that the job has not had.
    """
    view = checked(store, job_id, choice)
    return view, last_output(
        store.job(job_id), choice, lambda events: OutputLines(view, choice).feed_all(events, ends=True)
    )


def printed_pieces(store: Store, job_id: str, choice: OutputChoice) -> Iterator[Event]:
    """The same as events, which name the time, the rank and the step."""
    checked(store, job_id, choice)
    return last_output(store.job(job_id), choice, lambda events: OutputPieces(choice).of(events))


def checked(store: Store, job_id: str, choice: OutputChoice) -> View:
    """The view of a job that has had the rank and the node of the choice. Raises NotFound."""
    job = store.job(job_id)
    view = FoldedJournal(job).catch_up()
    if choice.rank is not None:
        require_rank(view, read_kinds(job.events, ["generation.formed"], without=(AGENT, "worker-")), choice.rank)
    if choice.node is not None and not sources(job, OutputChoice(node=choice.node)):
        nodes = sorted({source.node for source in sources(job, OutputChoice())})
        raise NotFound(f"{job_id} has printed nothing on {choice.node}; it has had {', '.join(nodes) or 'no node yet'}")
    return view


def wait_for_step(store: Store, job_id: str, step: int) -> View:
    """Wait until the job has committed `step`; raises Conflict where it ends before."""
    watch = JobWatch(store, job_id)
    for _ in watch.batches():
        if watch.view["step"] >= step:
            return watch.view
    raise Conflict(f"{job_id} {watch.view['state']} at step {watch.view['step']}, before step {step}")


class OutputPieces:
    """Of the events of a job, in their order, the pieces of output that are chosen, and notices of dropped ones."""

    def __init__(self, choice: OutputChoice) -> None:
        self._choice = choice
        self._levels = None if choice.levels is None else PieceLevels(choice.levels)

    def of(self, events: Iterable[Event]) -> Iterator[Event]:
        """The chosen ones of these, with those of their lines that have the levels."""
        output = (event for event in events if is_notice(event) or self._choice.takes(event))
        for event in output if self._levels is None else self._levels.of(output):
            if is_notice(event) or self._choice.has(event.data["text"]):
                yield event


class UnfinishedLine:
    """The pieces of a line that has no newline yet, joined once: a line may have many. ``rewritten``: it is a bar."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.pieces: list[str] = []
        self.rewritten = False

    def add(self, piece: str) -> None:
        """Append a piece. What it rewrites with a carriage return is forgotten."""
        if not piece:
            return
        returned = bool(self.pieces) and self.pieces[-1].endswith("\r")
        self.rewritten = self.rewritten or "\r" in piece
        written = piece.rstrip("\r")
        if (at := written.rfind("\r")) >= 0:
            self.pieces = [piece[at:]]
        elif returned and written:
            self.pieces = [piece]
        elif written or not returned:
            self.pieces.append(piece)

    def whole(self) -> str:
        """All that is on the screen, or was before something else began there."""
        return _overwritten("".join(self.pieces))

    def begin(self, most: int) -> str:
        """At most so many characters of it: a bar is drawn again with each piece."""
        head: list[str] = []
        size = 0
        for piece in self.pieces:
            head.append(piece[: most + 1 - size])
            size += len(head[-1])
            if size > most:
                break
        return _overwritten("".join(head))[:most]


class OutputLines:
    """Turns `output.written` events into whole lines with a ``[rank 2]`` prefix where there are several ranks."""

    def __init__(self, view: View, choice: OutputChoice | None = None) -> None:
        """Of the output that ``choice`` takes; all of it where None."""
        self._prefixed = max(view["maximum"], view["world_size"], view["nodes_wanted"]) > 1
        self._stood_by = self._prefixed or view["spares_wanted"] > 0  # a spare runs the code up to its session
        self._choice = choice or OutputChoice()
        self._open: dict[tuple[str, str], UnfinishedLine] = {}
        self._levels: dict[tuple[str, str], LevelReader] = {}

    def shows(self, event: Event) -> bool:
        """Whether the event is output that is wanted."""
        return self._choice.takes(event)

    def feed(self, event: Event) -> Iterator[tuple[str, str]]:
        """Yield ``(stream, line)`` for every line that `event` completes; lines end without a newline."""
        data = event.data
        if is_notice(event):
            yield "stderr", str(data["text"]).rstrip("\n")
            return
        if not self.shows(event):
            return
        key = (str(data["member"]), str(data["stream"]))
        first, *lines = str(data["text"]).split("\n")
        line = self._open.get(key) or UnfinishedLine(self._prefix(data))
        line.add(first)
        if lines:
            self._open.pop(key, None)
            yield from self._chosen(key, line.prefix, [line.whole(), *lines[:-1]])
            line = UnfinishedLine(line.prefix)
            line.add(lines[-1])
        if line.pieces:
            self._open[key] = line

    def feed_all(self, events: Iterable[Event], *, ends: bool) -> Iterator[tuple[str, str]]:
        """Yield the lines of these events; where it ``ends`` with them, also those without a newline at the end."""
        for event in events:
            yield from self.feed(event)
        if ends:
            yield from self.finish()

    def bar(self, event: Event) -> tuple[str, str] | None:
        """The ``(stream, line)`` that rank 0 has left unfinished and rewrites, such as a progress bar."""
        if not self.shows(event) or event.data["rank"] != 0:
            return None
        stream = str(event.data["stream"])
        line = self._open.get((str(event.data["member"]), stream))
        return (stream, line.prefix + line.begin(BAR_CHARACTERS)) if line and line.rewritten else None

    def cut(self, event: Event) -> Iterator[tuple[str, str]]:
        """Yield the unfinished lines of the event's member: something else follows them."""
        for key in [key for key in self._open if key[0] == str(event.data["member"])]:
            line = self._open.pop(key)
            yield from self._chosen(key, line.prefix, [line.whole()])

    def finish(self) -> Iterator[tuple[str, str]]:
        """Yield the lines that have no newline at the end."""
        for key, line in self._open.items():
            yield from self._chosen(key, line.prefix, [line.whole()])
        self._open.clear()

    def _chosen(self, key: tuple[str, str], prefix: str, lines: Iterable[str]) -> Iterator[tuple[str, str]]:
        levels = self._choice.levels
        reader = None if levels is None else self._levels.setdefault(key, LevelReader())
        for line in map(_overwritten, lines):
            if (levels is None or reader is None or reader.read(line) in levels) and self._choice.has(line):
                yield key[1], prefix + line

    def _prefix(self, data: Any) -> str:
        if data["rank"] is not None:
            return f"[rank {data['rank']}] " if self._prefixed else ""
        return f"[{data['node']}] " if self._stood_by else ""


def _overwritten(line: str) -> str:
    """Of a line rewritten with carriage returns (a progress bar), return what was last on the screen."""
    return line.rstrip("\r").rpartition("\r")[2]
