"""What each node of a job was, and when: member, spare or lost. Bounded. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...core.events import Event

MEMBER, SPARE, LOST = "member", "spare", "lost"
SPANS_KEPT = 60  # per node, the newest
NODES_KEPT = 4096
DRAWN = 32


@dataclass
class Span:
    """A node had this role from a time to a time, in seconds since the Unix epoch; None: until now."""

    role: str
    from_s: float
    to_s: float | None = None


@dataclass
class NodeLanes:
    """``lanes``: node -> its spans, oldest first. ``left_out``: nodes that came when there was no place any more."""

    lanes: dict[str, list[Span]] = field(default_factory=dict)
    left_out: int = 0
    losses: dict[str, int] = field(default_factory=dict)
    _present: dict[str, str] = field(default_factory=dict)  # node -> role

    def add(self, event: Event) -> None:
        """Take up an event, in the order of time."""
        if event.kind == "generation.formed":
            roles = {str(spare.get("node", "")): SPARE for spare in event.data["spares"]}
            roles |= {str(member.get("node", "")): MEMBER for member in event.data["members"]}
            for node in [node for node, role in self._present.items() if role != LOST and node not in roles]:
                self._become(node, "", event.time_s)
            for node, role in roles.items():
                self._become(node, role, event.time_s)
        elif event.kind == "member.lost":
            node = str(event.data["node"])
            self.losses[node] = self.losses.get(node, 0) + 1
            self._become(node, LOST, event.time_s)

    def _become(self, node: str, role: str, time_s: float) -> None:
        if self._present.get(node, "") == role:
            return
        spans = self.lanes.get(node)
        if spans is None:
            if len(self.lanes) >= NODES_KEPT:
                self.left_out += node not in self._present
                self._present[node] = role
                return
            spans = self.lanes[node] = []
        if spans and spans[-1].to_s is None:
            spans[-1].to_s = time_s
        if role:
            spans.append(Span(role, time_s))
            del spans[:-SPANS_KEPT]
            self._present[node] = role
        else:
            self._present.pop(node, None)

    def end(self, time_s: float) -> None:
        """Close what is open: the job has ended, or this is the present."""
        for spans in self.lanes.values():
            if spans and spans[-1].to_s is None:
                spans[-1].to_s = max(time_s, spans[-1].from_s)

    def drawn(self, concerned: Iterable[str] = ()) -> list[str]:
        """The nodes that are drawn: all of a few, else first those that were lost or had an incident; by name."""
        first = {*concerned, *self.losses}
        nodes = sorted(self.lanes, key=lambda node: (node not in first, _natural(node)))
        return sorted(nodes[:DRAWN], key=_natural)


def _natural(name: str) -> tuple[str, int, str]:
    """Sorts node-10 behind node-9."""
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return stem, int(digits[:18] or 0), name
