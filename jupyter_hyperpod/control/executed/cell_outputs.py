"""What one rank of a job has printed and displayed in each code cell, whichever processes have been that rank.

All members run the same cells, and each piece of output has a place: the cell, the session, the step. A rank has
holders, one after the other: the process that is lost, and the one that follows it.

- A follower that goes on with the session was there before: of what it printed, that counts which is beyond the last
  place of the process before it. At that very place the longer one of both texts counts, where one begins with the
  other; else what the follower printed as this rank, and the cell says that more is not known.
- A follower that has begun the program again replaces cells as far as it has come. Of a cell in which it took up a
  session, the steps before its own first output stay.
- Displays have numbers of their own, and each is taken once.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...core.events import Event
from ...storage.journal_search import read_kinds
from ...storage.output.output_choice import OutputChoice
from ...storage.output.output_range import AGENT, place_of, read_output
from ...storage.output.output_reader import is_notice
from ...storage.store import JobStore

Place = tuple[int, int, int]
NOWHERE: Place = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of output. ``shown``: the display that it is, and not the text. ``begins``: not output, but that a cell
    begins (0: the last one has ended). ``notice``: it says that output was dropped."""

    place: Place
    stream: str
    text: str
    time_s: float
    rank: int | None
    shown: dict[str, Any] | None = None
    begins: int | None = None
    notice: bool = False

    @property
    def cell(self) -> int:
        """The cell that it belongs to."""
        return self.place[0]

    @property
    def step(self) -> tuple[int, int]:
        """The session and the step."""
        return self.place[1:]


@dataclass
class Held:
    """What one process has printed until it was no longer the rank; ``member``: its name."""

    member: str
    pieces: list[Piece]
    again: bool  # it has run the program from the beginning as this rank


@dataclass
class CellOutputs:
    """The output of a rank in order. ``begun``: the time at which each cell began, by number, in order.

    ``unsure``: cells in which output may be missing or out of place, with the reason. ``members``: those that were the
    rank. ``last``: the last cell that each member has begun, those of other ranks, too.
    """

    pieces: list[Piece] = field(default_factory=list)
    begun: dict[int, float] = field(default_factory=dict)
    ended_s: float | None = None
    unsure: dict[int, str] = field(default_factory=dict)
    members: list[str] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)


def read(job: JobStore, rank: int, also: str = "") -> CellOutputs:
    """Read the output of a rank: of its nodes alone, there may be many others. ``also``: a node of which ``last`` is
    to say what its member has begun."""
    formed = read_kinds(job.events, ["generation.formed"], without=(AGENT, "worker-"))
    nodes = {str(one["node"]) for event in formed for one in event.data["members"] if one["rank"] == rank}
    output = (read_output(job, OutputChoice(node=node)) for node in sorted(nodes | ({also} if also else set())))
    last: dict[str, int] = {}

    def noted(output: Iterable[Event]) -> Iterator[Event]:
        for event in output:
            if number := event.data.get("begins"):
                last[str(event.data["member"])] = int(number)
            yield event

    found = merged(held(formed, noted(heapq.merge(*output, key=place_of)), rank), rank)
    found.last = last
    return found


def stints(formed: Iterable[Event], rank: int) -> list[tuple[str, float]]:
    """The members that were the rank, one after the other, and when each was not any more."""
    found: list[tuple[str, float]] = []
    for event in formed:
        member = next((str(one["member"]) for one in event.data["members"] if one["rank"] == rank), None)
        if member is not None and (not found or found[-1][0] != member):
            found[-1:] = [(found[-1][0], event.time_s)] if found else []
            found.append((member, math.inf))
    return found


def held(formed: Iterable[Event], output: Iterable[Event], rank: int) -> list[Held]:
    """What each holder of a rank has printed."""
    holders = stints(formed, rank)
    printed: dict[str, list[Piece]] = {member: [] for member, _ in holders}
    for event in output:
        pieces = printed.get(str(event.data["member"]))
        if pieces is not None:
            pieces.append(_piece(event))
    found = []
    for member, until_s in holders:
        all_pieces = printed[member]
        again = next((p.rank for p in all_pieces if p.cell), None) == rank
        counted = [p for p in all_pieces if p.rank == rank or p.time_s <= until_s]
        found.append(Held(member, list(_without_redone(counted)), again))
    return found


def _piece(event: Event) -> Piece:
    data = event.data
    place = (int(data.get("cell", 0)), int(data.get("session", 0)), int(data.get("step", 0)))
    shown = data.get("shown")
    if shown and shown.get("action") and shown.get("cell"):
        place = (int(shown["cell"]), *place[1:])
    return Piece(
        place,
        str(data["stream"]),
        str(data["text"]),
        event.time_s,
        data["rank"],
        dict(shown) if shown else None,
        data.get("begins"),
        is_notice(event),
    )


def _without_redone(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Without what a process has printed in steps that it computed again: the last time counts."""
    keep = [True] * len(pieces)
    open_: dict[str, list[int]] = {}
    for at, piece in enumerate(pieces):
        if piece.shown or piece.notice or piece.begins is not None:
            continue
        before = open_.setdefault(piece.stream, [])
        if before and pieces[before[-1]].cell == piece.cell and pieces[before[-1]].step > piece.step:
            while before and pieces[before[-1]].place >= piece.place:
                keep[before.pop()] = False
        before.append(at)
    return (piece for piece, kept in zip(pieces, keep, strict=True) if kept)


def merged(holders: Sequence[Held], rank: int) -> CellOutputs:
    """The output of a rank, from what its holders have printed."""
    found = CellOutputs(members=[one.member for one in holders])
    had, displayed, before = NOWHERE, [0, 0, 0], ""
    for number, one in enumerate(holders):
        new = [piece for piece in (_as_of(piece, rank) for piece in one.pieces) if piece is not None]
        if not new:
            continue
        if number == 0 or not before or one.again:
            found.pieces = _again(found.pieces, new) if before else new
            had, displayed = max(piece.place for piece in new), [0, 0, 0]
        else:
            new = list(_beyond(found, new, had, displayed, rank, f"rank {rank} moved from {before} to {one.member}"))
            found.pieces += new
            had = max([had, *(piece.place for piece in new)])
        displayed = max([displayed, *(_number(piece) for piece in new if piece.shown)])
        before = one.member
    _note_begins(found)
    return found


def _as_of(piece: Piece, rank: int) -> Piece | None:
    """The piece as this rank's: only rank 0 gives displays; of others there is the text."""
    if not piece.shown:
        return piece
    if rank == 0:
        return piece if piece.shown.get("action") else None
    return replace(piece, shown=None) if piece.text else None


def _number(piece: Piece) -> list[int]:
    return list(map(int, (piece.shown or {}).get("place", (0, 0, 0))))


def _again(old: Sequence[Piece], new: Sequence[Piece]) -> list[Piece]:
    """What counts when the program has begun again and come as far as ``new`` goes."""
    found: list[Piece] = []
    reached = max(piece.cell for piece in new)
    for cell in sorted({piece.cell for piece in (*old, *new) if piece.cell <= reached}):
        fresh = [piece for piece in new if piece.cell == cell]
        base = fresh[0].step if fresh else (0, 0)
        at = next((at for at, piece in enumerate(fresh) if piece.step > base), len(fresh))
        until = fresh[at].step if at < len(fresh) else (math.inf, math.inf)
        kept = [piece for piece in old if piece.cell == cell and base < piece.step < until and piece.begins is None]
        found += [*fresh[:at], *kept, *fresh[at:]]
    return found


def _beyond(
    found: CellOutputs, new: Sequence[Piece], had: Place, displayed: list[int], rank: int, moved: str
) -> Iterator[Piece]:
    """What a process adds that goes on with the session in which it was already."""
    streams = ("stdout", "stderr")
    old_text = {stream: _text(found.pieces, had, stream) for stream in streams}
    new_text = {stream: _text(new, had, stream) for stream in streams}
    skip = {stream: _known(old_text[stream], new_text[stream]) for stream in streams}
    for stream in streams:
        if skip[stream] is None and new_text[stream]:
            found.unsure[had[0]] = f"{moved} where both had printed other text: some of it may be missing here"
    for piece in new:
        if piece.shown:
            if _number(piece) > displayed:
                yield piece
        elif piece.place > had or piece.notice:
            yield piece
        elif piece.place == had and piece.begins is None:
            left = skip[piece.stream]
            if left is None:
                if piece.rank == rank:
                    yield piece
            elif len(piece.text) <= left:
                skip[piece.stream] = left - len(piece.text)
            else:
                skip[piece.stream] = 0
                yield replace(piece, text=piece.text[left:])


def _text(pieces: Iterable[Piece], place: Place, stream: str) -> str:
    return "".join(p.text for p in pieces if p.place == place and p.stream == stream and not p.shown and not p.notice)


def _known(old: str, new: str) -> int | None:
    """How many characters of the new text are known from the old; None where neither begins with the other."""
    if new.startswith(old):
        return len(old)
    return len(new) if old.startswith(new) else None


def _note_begins(found: CellOutputs) -> None:
    """Take out when cells began. What was printed before the first is the first one's."""
    first = next((piece.begins for piece in found.pieces if piece.begins), 0)
    output = []
    for piece in found.pieces:
        if piece.begins:
            found.begun.setdefault(piece.begins, piece.time_s)
        elif piece.begins == 0:
            found.ended_s = piece.time_s
        else:
            output.append(piece if piece.cell else replace(piece, place=(first, *piece.step)))
    for piece in output:
        if piece.cell not in found.begun:  # its beginning was dropped
            found.begun[piece.cell] = piece.time_s
            found.unsure.setdefault(piece.cell, "the output does not say when this cell began: some was dropped")
    found.begun = dict(sorted(found.begun.items(), key=lambda one: one[1]))
    found.pieces = output
