"""Displays of a job: who gives them, and which ones a reader shows when rank 0 becomes another process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from jupyter_hyperpod.notebook.showing import ShownDisplays
from jupyter_hyperpod.runtime.protocol import facts
from jupyter_hyperpod.runtime.worker import displays


class Member:
    """A process that displays, at a step and as a rank that the test chooses."""

    def __init__(self, rank: int) -> None:
        self.rank, self.step = rank, 0
        self.sent: list[facts.OutputShown] = []
        self.displays = displays.Displays(self.sent.append, lambda: (1, self.step), lambda: self.rank == 0)

    def show(self, text: str) -> None:
        self.displays.give("display", {"text/plain": text}, {}, "")


@pytest.fixture(autouse=True)
def no_marks(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """The marks go to the standard output."""
    yield
    capfd.readouterr()


def shown(*members: tuple[str, Member]) -> list[str]:
    """What a reader shows of what these members sent, one after the other."""
    reader = ShownDisplays()
    sent = [(name, one.shown) for name, member in members for one in member.sent]
    return [found["data"]["text/plain"] for name, found in sent if reader.is_new(name, found)]


def test_who_takes_over_gives_what_the_lost_one_had_not() -> None:
    first, second = Member(0), Member(1)
    for member in (first, second):
        member.show("a")
        member.step = 1
        member.show("b")
    second.show("c")  # the first is lost before it
    second.rank = 0
    second.displays.take_over()
    second.show("d")
    assert shown(("first", first), ("second", second)) == ["a", "b", "c", "d"]


def test_who_lags_behind_repeats_nothing() -> None:
    first, second = Member(0), Member(1)
    for member in (first, second):
        member.show("a")
    first.step = 1
    first.show("b")
    second.rank, second.step = 0, 1
    second.displays.take_over()
    second.show("b")
    second.show("c")
    assert shown(("first", first), ("second", second)) == ["a", "b", "c"]


def test_a_cell_that_goes_back_shows_its_steps_again() -> None:
    only = Member(0)
    for step in (1, 2, 1, 2):
        only.step = step
        only.show(str(step))
    assert shown(("only", only)) == ["1", "2", "1", "2"]


def test_values_are_shown_by_their_methods(capfd: pytest.CaptureFixture[str]) -> None:
    class Rich:
        def _repr_html_(self) -> tuple[str, dict[str, Any]]:
            return "<i>x</i>", {"isolated": True}

        def _repr_png_(self) -> bytes:
            return b"PNG"

        def _repr_svg_(self) -> str:
            raise ValueError("no ink")

        def _repr_json_(self) -> Any:
            return {"value": float("nan")}

    data, metadata = displays.bundles.bundle_of(Rich())
    assert data.pop("text/plain").startswith("<")
    assert data == {"text/html": "<i>x</i>", "image/png": "UE5H"}
    assert metadata == {"text/html": {"isolated": True}}
    said = capfd.readouterr().err
    assert "Rich._repr_svg_ raised ValueError: no ink" in said and "application/json" in said
    assert os.linesep in said
