"""What the replicas of a deployment, their handlers and engines have printed: files in the store, one per node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...core.errors import HyperpodError, NotFound, SpecError
from ...core.units import format_bytes
from ...storage.output.output_choice import OutputChoice
from ...storage.store import JobStore

KEPT_BYTES = 1 << 20
_HEAD = "head"  # the gateway's own log, shown where it is named

NodeLine = tuple[str, str]  # the node and the line


class ReplicaLogs:
    """Reads the chosen lines of these logs, of each from its last `KEPT_BYTES`; ``notes`` says what is left out.

    They have neither times nor ranks: Raises SpecError for a choice of those, NotFound for a node without a log.
    """

    def __init__(self, job: JobStore, choice: OutputChoice) -> None:
        if choice != OutputChoice(pattern=choice.pattern, tail=choice.tail, node=choice.node):
            raise SpecError(
                "what replicas print has no ranks, times and steps; choose of it with --node, --grep and --tail"
            )
        self.folder = Path(job.path) / "logs"
        self._choice = choice
        self._read: dict[Path, int] = {}
        self._open: dict[str, str] = {}
        self.notes: list[str] = []
        nodes = [path.stem for path in self._files(every=True)]
        if choice.node is not None and choice.node not in nodes:
            there = f"there are those of {', '.join(nodes)}" if nodes else "there is none yet"
            raise NotFound(f"{job.id} has no log of {choice.node} in {self.folder}; {there}")

    def _files(self, every: bool = False) -> list[Path]:
        found = sorted(self.folder.glob("*.log"), key=lambda path: (len(path.name), path.name))
        wanted = self._choice.node
        return [path for path in found if every or path.stem == wanted or (wanted is None and path.stem != _HEAD)]

    def poll(self, *, ends: bool = False) -> list[NodeLine]:
        """New lines, node by node; at first the last of each node where only so many are wanted.

        ``ends``: also what has no newline at the end yet.
        """
        return [line for path in self._files() for line in self._new(path, ends)]

    def _new(self, path: Path, ends: bool) -> Iterator[NodeLine]:
        first, node = path not in self._read, path.stem
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                at = max(0, size - KEPT_BYTES) if first else min(self._read[path], size)
                file.seek(at)
                content = file.read(KEPT_BYTES)
        except OSError as error:
            self.notes.append(f"{path} cannot be read: {error.strerror}")
            return iter(())
        self._read[path] = at + len(content)
        if first and at:
            content = content.partition(b"\n")[2]
            self.notes.append(f"the last {format_bytes(KEPT_BYTES)} of {node} are shown; all of it is in {path}")
        text = self._open.pop(node, "") + content.decode(errors="replace")
        *lines, left = text.split("\n")
        if ends and left:
            lines, left = [*lines, left], ""
        self._open[node] = left
        chosen = (line for line in (line.rstrip("\r").rpartition("\r")[2] for line in lines) if self._choice.has(line))
        return ((node, line) for line in (self._choice.last(chosen) if first else chosen))


def has_them(job: JobStore) -> bool:
    """Whether the job is a deployment, whose output is in these logs."""
    try:
        return job.spec().serve is not None
    except HyperpodError:  # what it has printed can be shown all the same
        return False


def shown(line: NodeLine, several: bool) -> tuple[str, str]:
    """The line with its stream, and with its node where there are several."""
    node, text = line
    return "stdout", f"[{node}] {text}" if several else text


def nothing(job: JobStore, filters: str) -> str:
    """A sentence for a deployment of whose output nothing is shown."""
    place = f"{job.path}/logs/NODE.log"
    if filters:
        return f"no line that the replicas of {job.id} have printed matches {filters}; all of it is in {place}"
    return f"what the replicas of {job.id} print is in {place}; there is nothing so far"
