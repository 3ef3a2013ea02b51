"""Cells with one planted impurity each, and harmless ones, run as a job would and once more as a member that joins."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_hyperpod.runtime.worker.rehearse import Rehearsed, rehearse

FOLDER = Path(__file__).parent
PLANTED = sorted(path for path in (FOLDER / "impurities").glob("*.py") if path.stem != "beside")
HARMLESS = sorted((FOLDER / "harmless").glob("*.py"))


def test_there_are_enough() -> None:
    assert len(PLANTED) >= 40 and len(HARMLESS) >= 20


@pytest.mark.parametrize("path", PLANTED, ids=lambda path: path.stem)
def test_a_planted_impurity_is_named_with_its_line_or_carried(path: Path) -> None:
    found = rehearse(path)
    if found.expected == "refused":
        assert found.named, found
    else:
        assert found == Rehearsed("carried", False, "", 0, "", True), found


@pytest.mark.parametrize("path", HARMLESS, ids=lambda path: path.stem)
def test_nothing_harmless_is_refused(path: Path) -> None:
    assert rehearse(path) == Rehearsed("harmless", False, "", 0, "", True)


def test_a_refusal_names_the_line_that_lets_it_into_the_training() -> None:
    path = FOLDER / "impurities" / "attribute_of_a_scheduler.py"
    lines = path.read_text().splitlines()
    reads = next(place for place, line in enumerate(lines, start=1) if "schedule.gamma =" in line)
    assert f"changes seen, which line {reads} reads, so the run depends on" in rehearse(path).sentence
