"""Which output belongs to which cell of an executed notebook, whichever processes have been the rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.control.executed.cell_outputs import CellOutputs, held, merged
from jupyter_hyperpod.core.events import Event

Said = tuple[tuple[int, int, int], str, str]  # the place, the stream and the text
MOVED_S = 1000.0


def formed(*members: str, at_s: float = 0.0) -> Event:
    ranks = [{"member": member, "node": "n", "rank": rank} for rank, member in enumerate(members)]
    data = {"generation": 1, "members": ranks, "spares": [], "target": 1, "reason": ""}
    return Event("coordinator", 1, at_s, "generation.formed", data)


def printed(member: str, rank: int | None, said: Sequence[Said], *, begins: bool = True) -> list[Event]:
    """What a member prints, a piece each second, with its cells' beginnings."""
    found: list[Event] = []

    def add(place: tuple[int, int, int], stream: str, text: str, **more: Any) -> None:
        cell, session, step = place
        label = {"session": session, "step": step} if session else {}
        data = {"member": member, "node": "n", "rank": rank, "stream": stream, "text": text, "cell": cell}
        found.append(Event(member, len(found) + 1, float(len(found)), "output.written", data | label | more))

    last, step = 0, (0, 0)
    for place, stream, text in said:
        if begins and place[0] != last:
            last = place[0]
            add((last, *step), "stdout", "", begins=last)
        add(place, stream, text)
        step = place[1:]
    return found


def texts(found: CellOutputs) -> dict[tuple[int, str], str]:
    """What each cell has, by stream."""
    whole: dict[tuple[int, str], str] = {}
    for piece in found.pieces:
        key = (piece.cell, piece.stream)
        whole[key] = whole.get(key, "") + piece.text
    return {key: text for key, text in whole.items() if text}


def of_program(said: Sequence[Said]) -> dict[tuple[int, str], str]:
    whole: dict[tuple[int, str], str] = {}
    for place, stream, text in said:
        whole[place[0], stream] = whole.get((place[0], stream), "") + text
    return whole


@st.composite
def programs(draw: st.DrawFn) -> list[Said]:
    """Cells that print, one of them in steps."""
    said: list[Said] = []
    training = draw(st.integers(1, 3))
    for cell in range(1, 4):
        label = (1, 5) if cell > training else (0, 0)
        steps = [label, *([(1, step) for step in range(1, 6)] if cell == training else [])]
        for step in steps:
            for number in range(draw(st.integers(0, 2))):
                stream = draw(st.sampled_from(["stdout", "stderr"]))
                said.append(((cell, *step), stream, f"{cell} {step} {number}\n"))
    return said


@given(programs(), st.data())
def test_who_follows_a_lost_rank_0_repeats_nothing_and_leaves_nothing_out(
    said: list[Said], data: st.DataObject
) -> None:
    kept = data.draw(st.integers(0, len(said)))
    first = printed("a", 0, said[:kept])
    if first and data.draw(st.booleans()):  # the last line came in half
        half = first[-1]
        first[-1] = Event(
            *(half.writer, half.seq, half.time_s, half.kind), {**half.data, "text": half.data["text"][:3]}
        )
    second = printed("b", 1, said)
    taken_over = data.draw(st.integers(0, len(second)))
    for at in range(taken_over, len(second)):
        event = second[at]
        second[at] = Event(event.writer, event.seq, MOVED_S + at, event.kind, {**event.data, "rank": 0})
    others = printed("c", 2, said)
    events = data.draw(interleaved(first, second, others))
    found = merged(held([formed("a", "b", "c"), formed("b", "c", at_s=MOVED_S)], events, 0), 0)
    assert texts(found) == of_program(said) and not found.unsure


@st.composite
def interleaved(draw: st.DrawFn, *several: list[Event]) -> list[Event]:
    """All events, those of each list in their order."""
    left, found = [list(one) for one in several if one], list[Event]()
    while left:
        at = draw(st.integers(0, len(left) - 1))
        found.append(left[at].pop(0))
        left = [one for one in left if one]
    return found


@given(programs(), st.data())
def test_a_rank_that_never_moved_has_what_it_printed_in_order(said: list[Said], data: st.DataObject) -> None:
    events = data.draw(interleaved(printed("a", 0, said), printed("b", 1, [(*one[:2], "other\n") for one in said])))
    found = merged(held([formed("a", "b")], events, 0), 0)
    assert texts(found) == of_program(said) and not found.unsure
    assert list(found.begun) == list(dict.fromkeys(place[0] for place, _, _ in said))


TRAINING: list[Said] = [
    ((1, 0, 0), "stdout", "imports\n"),
    *(((2, 1, step), "stdout", f"step {step}\n") for step in range(1, 7)),
    ((3, 1, 6), "stdout", "the end\n"),
]


def test_a_newcomer_that_executes_earlier_cells_adds_what_follows() -> None:
    first = printed("a", 0, TRAINING[:4])
    late = printed("b", None, TRAINING[:1])
    joined = printed("b", 0, TRAINING[4:], begins=False)
    events = [*first, *late, *joined, *printed("b", 0, [], begins=True)]
    found = merged(held([formed("a"), formed("b", at_s=MOVED_S)], events, 0), 0)
    assert texts(found) == of_program(TRAINING)


def test_a_program_that_goes_on_from_a_checkpoint_keeps_the_steps_before_it() -> None:
    again = printed("b", 0, [TRAINING[0], *TRAINING[3:]])
    found = merged(held([formed("a"), formed("b", at_s=MOVED_S)], [*printed("a", 0, TRAINING[:5]), *again], 0), 0)
    assert texts(found) == of_program(TRAINING)


def test_a_program_that_begins_again_replaces_what_it_printed_and_what_it_has_not_reached() -> None:
    before: list[Said] = [((cell, 0, 0), "stdout", f"cell {cell}, first\n") for cell in (1, 2, 3)]
    again: list[Said] = [((cell, 0, 0), "stdout", f"cell {cell}, again\n") for cell in (1, 2)]
    found = merged(
        held([formed("a"), formed("b", at_s=MOVED_S)], [*printed("a", 0, before), *printed("b", 0, again)], 0), 0
    )
    assert texts(found) == of_program(again) and list(found.begun) == [1, 2]


def test_a_follower_that_printed_something_else_is_told_of() -> None:
    first = printed("a", 0, [*TRAINING[:2], ((2, 1, 2), "stdout", "took 0.12 s\n")])
    second = printed("b", 1, [TRAINING[0], TRAINING[1], ((2, 1, 2), "stdout", "took 0.34 s\n")])
    rest = printed("b", 0, TRAINING[3:], begins=False)
    found = merged(held([formed("a", "b"), formed("b", at_s=MOVED_S)], [*first, *second, *rest], 0), 0)
    assert "took 0.12 s\n" in texts(found)[2, "stdout"] and "0.34" not in texts(found)[2, "stdout"]
    assert "rank 0 moved from a to b" in found.unsure[2]


def test_steps_that_were_computed_again_count_once() -> None:
    redone = [*TRAINING[:5], *TRAINING[3:]]
    found = merged(held([formed("a")], printed("a", 0, redone), 0), 0)
    assert texts(found) == of_program(TRAINING)
