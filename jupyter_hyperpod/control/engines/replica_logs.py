"""What the replicas of a deployment, their handlers and engines have printed: files in the store.

There is one per node, or one per element where a scheduler gives the nodes. An element that the scheduler starts again
may come to another node and writes on in its file, so the lines of such a file belong to no node for certain.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...core.errors import HyperpodError, NotFound, SpecError
from ...core.units import format_bytes
from ...storage.journal_search import Search
from ...storage.output.levels import LevelReader
from ...storage.output.output_choice import OutputChoice
from ...storage.store import JobStore

KEPT_BYTES = 1 << 20
_HEAD = "head"  # the gateway's own log, shown where it is named


class ReplicaLine(NamedTuple):
    """A line, the name of its log, and the node, "" where it may be one of several."""

    log: str
    node: str
    text: str

    @property
    def place(self) -> str:
        return self.node or self.log


class _Log:
    """One file, as far as it was read."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.stem
        self.at: int | None = None
        self.behind = False
        self.problem = ""
        self.said: list[str] = []  # the nodes of which a note was made
        self.open = ""
        self.levels = LevelReader()
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")


class ReplicaLogs:
    """Reads the chosen lines of these logs, of each from its last `KEPT_BYTES`; ``notes`` says what is left out.

    They have neither times nor ranks: Raises SpecError for a choice of those, NotFound for a node without a log.
    """

    def __init__(self, job: JobStore, choice: OutputChoice) -> None:
        known = OutputChoice(pattern=choice.pattern, tail=choice.tail, node=choice.node, levels=choice.levels)
        if choice != known:
            raise SpecError(
                "what replicas print has no ranks, times and steps; choose of it with --node, --level, --grep and "
                "--tail"
            )
        self.folder = Path(job.path) / "logs"
        self._choice = choice
        self._logs: dict[Path, _Log] = {}
        self._allocated = Search(job.events, ("allocation.changed",))
        self._nodes: dict[str, list[str]] = {}  # by the name of the log, where it is not a node's
        self._elements: dict[str, str] = {}
        self.notes: list[str] = []
        self._look()
        if choice.node is not None and not any(map(self._is_wanted, self._logs.values())):
            names = list(dict.fromkeys(name for log in self._logs.values() for name in self._nodes_of(log)))
            there = f"there are those of {', '.join(names)}" if names else "there is none yet"
            raise NotFound(f"{job.id} has no log of {choice.node} in {self.folder}; {there}")

    @property
    def behind(self) -> bool:
        """Whether the last poll has left something that was there."""
        return any(log.behind for log in self._logs.values())

    def _look(self) -> None:
        """Find new files, and the nodes of elements as the supervisor has journaled them."""
        for path in sorted(self.folder.glob("*.log"), key=lambda path: (len(path.name), path.name)):
            self._logs.setdefault(path, _Log(path))
        for event in self._allocated.poll() or ():
            element, node = str(event.data["element"]), str(event.data["node"])
            for log in (element, f"slurm-{element.replace('_', '-')}"):
                self._elements[log] = element
                if node and node not in self._nodes.setdefault(log, []):
                    self._nodes[log].append(node)

    def _nodes_of(self, log: _Log) -> list[str]:
        return self._nodes.get(log.name) or [log.name]

    def _is_wanted(self, log: _Log) -> bool:
        wanted = self._choice.node
        if wanted is None:
            return log.name != _HEAD
        nodes = self._nodes.get(log.name, [])
        shared = [f"{node}.{log.name.removeprefix('slurm-')}" for node in nodes]  # a member's node that others share
        return wanted in (log.name, self._elements.get(log.name), *nodes, *shared)

    def poll(self, *, ends: bool = False) -> list[ReplicaLine]:
        """New lines, file by file, of each at most `KEPT_BYTES`; at first the last lines where only so many are wanted.

        ``ends``: also what has no newline at the end yet.
        """
        self._look()
        logs = sorted(self._logs.values(), key=lambda log: (len(log.path.name), log.path.name))
        return [line for log in logs if self._is_wanted(log) for line in self._new(log, ends)]

    def _new(self, log: _Log, ends: bool) -> Iterator[ReplicaLine]:
        first = log.at is None
        try:
            with log.path.open("rb") as file:
                size = file.seek(0, 2)
                at = max(0, size - KEPT_BYTES) if log.at is None else min(log.at, size)
                file.seek(at)
                content = file.read(KEPT_BYTES)
        except OSError as error:
            log.behind, before, log.problem = False, log.problem, str(error.strerror)
            if before != log.problem:
                self.notes.append(f"{log.path} cannot be read: {error.strerror}")
            return iter(())
        log.problem, log.at = "", at + len(content)
        log.behind = log.at < size
        ends = ends and not log.behind
        nodes = self._nodes_of(log)
        if first and at:
            content = content.partition(b"\n")[2]
            place = ", ".join(nodes)
            self.notes.append(f"the last {format_bytes(KEPT_BYTES)} of {place} are shown; all of it is in {log.path}")
        if len(nodes) > 1 and nodes != log.said:
            self.notes.append(f"{log.name} is of several nodes, one after the other: {', '.join(nodes)}")
            log.said = list(nodes)
        *lines, log.open = (log.open + log.decoder.decode(content, ends)).split("\n")
        if ends and log.open:
            lines, log.open = [*lines, log.open], ""
        shown = (line.rstrip("\r").rpartition("\r")[2] for line in lines)
        chosen = (line for line in shown if self._has_level(log, line) and self._choice.has(line))
        node = nodes[0] if len(nodes) == 1 else ""
        return (ReplicaLine(log.name, node, line) for line in (self._choice.last(chosen) if first else chosen))

    def _has_level(self, log: _Log, line: str) -> bool:
        return self._choice.levels is None or log.levels.read(line) in self._choice.levels


def has_them(job: JobStore) -> bool:
    """Whether the job is a deployment, whose output is in these logs."""
    try:
        return job.spec().serve is not None
    except HyperpodError:  # what it has printed can be shown all the same
        return False


def shown(line: ReplicaLine, several: bool) -> tuple[str, str]:
    """The line with its stream, and with its node where there are several."""
    return "stdout", f"[{line.place}] {line.text}" if several else line.text


def nothing(job: JobStore, filters: str) -> str:
    """A sentence for a deployment of whose output nothing is shown."""
    place = f"the files of {job.path}/logs"
    if filters:
        return f"no line that the replicas of {job.id} have printed matches {filters}; all of it is in {place}"
    return f"what the replicas of {job.id} print is in {place}; there is nothing so far"
