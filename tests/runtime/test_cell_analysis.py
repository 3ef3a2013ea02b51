"""Which names of a cell go from one turn of its loop to the next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.runtime.program.analysis import source
from jupyter_hyperpod.runtime.program.analysis.cell_analysis import Carrying, carrying

HEAD = "for step in session.steps(10):"


def carried(before: str, body: str, after: str = "") -> set[str]:
    """The names that a loop with this body carries, without the step and the session."""
    source = "\n".join([before, HEAD, *(f"    {line}" for line in body.splitlines()), after])
    found = carrying(source, source.splitlines().index(HEAD) + 1)
    return set(found.module) - {"step", "session"}


@pytest.mark.parametrize(
    ("before", "body", "after", "names"),
    [
        ("", "loss = step.run(f)", "", set()),
        ("", "loss = step.run(f)", "print(loss)", {"loss"}),
        ("best = 9", "loss = step.run(f)\nbest = min(best, loss)", "", {"best"}),
        ("best = 9", "loss = step.run(f)\nif loss < best:\n    best = loss", "", {"best"}),
        ("", "if step.number > 3:\n    rate = 1\nelse:\n    rate = 2\nprint(rate)", "", set()),
        ("rate = 0", "if step.number > 3:\n    rate = 1\nprint(rate)", "", {"rate"}),
        ("beta = 1", "step.run(lambda batch: f(batch) * beta)\nbeta *= 0.9", "", {"beta"}),
        ("def f(batch):\n    return batch * beta\nbeta = 1", "step.run(f)\nbeta = beta_of(step)", "", {"beta"}),
        ("seen = []", "seen.append(step.run(f))", "", {"seen"}),
        ("seen = {}", "seen[step.number] = step.run(f)", "", {"seen"}),
        ("def note(values, value):\n    values.append(value)\nseen = []", "note(seen, step.run(f))", "", {"seen"}),
        ("n = 0\ndef count():\n    global n\n    n += 1", "step.run(f)\ncount()", "", {"n"}),
        ("data = [1, 2]", "step.run(lambda batch: f(data[0]))", "", set()),
        ("ema = Ema()", "step.run(f)\nema.update(model)", "", {"ema"}),
        ("with_try = 0", "try:\n    with_try += 1\nfinally:\n    pass", "", {"with_try"}),
    ],
)
def test_what_a_loop_carries(before: str, body: str, after: str, names: set[str]) -> None:
    assert carried(before, body, after) == names


def test_the_outermost_loop_counts() -> None:
    source = "for epoch in range(3):\n    total = 0\n    for step in session.steps(2):\n        total += step.run(f)\n"
    assert "total" in carrying(source, 3).module  # it is read before it is bound within the inner loop
    assert "epoch" not in carrying(source, 3).module


def test_a_function_has_names_of_its_own() -> None:
    source = f"def train(session):\n    level = 1\n    {HEAD}\n        level = g(level)\n        log.append(level)\n"
    found = carrying(source, 3)
    assert {"level"} <= set(found.local) and "log" in found.module and "log" not in found.local


def test_attributes_that_methods_change_and_constructors_do_not() -> None:
    source = (
        "class Mean:\n    def __init__(self):\n        self.start = 1\n"
        f"    def add(self, x):\n        self.total += x\nmean = Mean()\n{HEAD}\n    mean.add(1)\n"
    )
    assert carrying(source, 7).attributes == {"total"}


@pytest.mark.parametrize(
    ("head", "names"),
    [
        ("for i, step in enumerate(session.steps(3)):", {"i"}),
        ("for batch, step in zip(loader, session.steps(3)):", {"batch"}),
        ("for step in tqdm(session.steps(3)):", set()),
    ],
)
def test_what_depends_on_the_turns_of_one_process(head: str, names: set[str]) -> None:
    assert set(carrying(f"{head}\n    print(i, batch)\n", 1).positions) == names


def test_clocks_may_differ_between_members() -> None:
    source = f"begun = time.time()\ntotal = 0\n{HEAD}\n    total += time.perf_counter() - begun\n    mean = total / 2\n"
    assert carrying(source, 3).clocks == {"begun", "total", "mean"}


@given(st.text(max_size=200), st.integers(0, 10))
def test_any_text_is_read_or_left_alone(source: str, line: int) -> None:
    assert isinstance(carrying(source, line), Carrying)


def test_a_small_number_is_no_reading_of_a_clock_where_the_machine_has_just_been_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a number in an object of a library is given to newcomers; times are not."""
    monkeypatch.setattr(source, "_BEGAN_S", {lambda: 90.0: 40.0})
    assert [source._is_moment(("float", number)) for number in (0.9, 40.5, 89.0, 91.0)] == [False, True, True, False]
