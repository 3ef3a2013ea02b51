"""Collections of garbage in a server: short, and nothing stays for ever."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from jupyter_hyperpod.server import garbage
from jupyter_hyperpod.server.garbage import ShortCollections

MANY, FEW = 200_000, 30_000


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def short() -> Iterator[ShortCollections]:
    collections = ShortCollections()
    collections.begin()
    yield collections
    collections.end()


@pytest.mark.usefixtures("short")
def test_no_collection_visits_more_than_a_few_objects() -> None:
    most, alive = 0, []
    for number in range(MANY):
        alive.append([number])
        if number % 1000 == 0:
            most = max(most, len(gc.get_objects()))
    assert len(alive) == MANY and gc.get_freeze_count() > MANY // 2
    assert most < FEW


@pytest.mark.usefixtures("short")
def test_what_is_set_aside_is_freed_with_its_last_reference() -> None:
    one: set[int] = set()
    kept = type("Kept", (), {})()
    gone = weakref.ref(kept)
    gc.collect()
    assert not any(other is one for other in gc.get_objects())
    del kept
    assert gone() is None


@pytest.mark.parametrize(("quiet", "due"), [(True, "QUIET_S"), (False, "BUSY_S")])
def test_a_cycle_of_what_was_set_aside_is_found_by_a_thorough_collection(
    short: ShortCollections, monkeypatch: pytest.MonkeyPatch, quiet: bool, due: str
) -> None:
    kept = Cycle()
    gone = weakref.ref(kept)
    gc.collect()
    del kept
    gc.collect()
    short.thorough(quiet)  # it is not due
    assert gone() is not None
    monkeypatch.setattr(garbage, due, 0.0)
    short.thorough(quiet)
    assert gone() is None


def test_the_end_leaves_the_process_as_it_was() -> None:
    before = gc.get_threshold(), len(gc.callbacks)
    collections = ShortCollections()
    collections.begin()
    collections.begin()
    assert (gc.get_threshold(), len(gc.callbacks)) != before
    collections.end()
    collections.end()
    assert (gc.get_threshold(), len(gc.callbacks)) == before
    assert gc.get_freeze_count() < 1000  # the interpreter sets a few aside itself
