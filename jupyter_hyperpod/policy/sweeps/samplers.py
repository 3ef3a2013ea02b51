"""Which values a trial gets: a grid, or random points that are a function of the seed and the trial's number. Pure.

Nothing is drawn from a generator that has a state: what trial 17 gets is the same in each version of Python, and
does not depend on who asks for it, or how often.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from ...core.errors import SpecError
from ...core.units import plural
from ..decision import Decision
from .space import Choices, Space, Value, different, size

GRID, RANDOM = "grid", "random"
MOST_TRIALS = 1000
Point = dict[str, Value]


def choose(space: Space, sampler: str | None, trials: int | None) -> Decision[tuple[str, int]]:
    """The sampler and the number of trials. Raises SpecError where the space does not fit them.

    Without a sampler: the whole grid where all are lists and no number is given, else random points.
    """
    if not space:
        raise SpecError("a sweep needs at least one name with its values, such as --sweep lr=1e-4,3e-4")
    if trials is not None and not 1 <= trials <= MOST_TRIALS:
        raise SpecError(f"--trials is {trials}; expected 1 to {MOST_TRIALS:,}")
    points = size(space)
    ranges = ", ".join(name for name, axis in space.items() if not isinstance(axis, Choices))
    if sampler == GRID or (sampler is None and points is not None and trials is None):
        if points is None:
            raise SpecError(f"a grid needs lists, and {ranges} is a range; leave the sampler out, and give --trials N")
        if points > MOST_TRIALS and trials is None:
            raise SpecError(
                f"the grid has {points:,} points; the most is {MOST_TRIALS:,} trials: write shorter lists, or give "
                "--trials N for N random points of it"
            )
        if trials is not None and trials < points:
            raise SpecError(f"the grid has {points:,} points, and --trials is {trials}; leave one of them out")
        each = "the one point" if points == 1 else f"each of the {points:,} points"
        return Decision((GRID, points), f"tries {each} of the grid")
    if trials is None:
        what = f"{ranges} is a range" if points is None else f"the sampler {sampler} tries as many points as it is told"
        raise SpecError(f"{what}; say how many trials there are to be: --trials N, or trials=N of hp.sweep")
    name = sampler or RANDOM
    if points is not None:
        check_enough(space, name, trials)
    return Decision((name, trials), f"tries {plural(trials, 'point')} that the sampler {name} chooses")


def check_enough(space: Space, sampler: str, trials: int) -> None:
    """Raise SpecError where random trials would have to repeat points."""
    if sampler == RANDOM and (most := different(space)) is not None and trials > most:
        ranges = any(not isinstance(axis, Choices) for axis in space.values())
        what = "lists and ranges of whole numbers have" if ranges else "lists have"
        raise SpecError(
            f"--trials is {trials}, and the {what} only {plural(most, 'different point')}; ask for {most} or fewer"
        )


def points(space: Space, sampler: str, trials: int, seed: int) -> Iterator[Point]:
    """The points of a grid or of random trials, in the order of their numbers.

    No point of lists and of whole numbers comes twice before all of them have come.
    """
    if sampler == GRID:
        yield from (_grid_point(space, number) for number in range(trials))
        return
    most, seen = different(space), set[str]()
    for number in range(trials):
        attempt = 0
        while True:
            point = {name: axis.at(_share(seed, name, number, attempt)) for name, axis in space.items()}
            if most is None or len(seen) >= most or repr(point) not in seen:
                break
            attempt += 1
        seen.add(repr(point))
        yield point


def _grid_point(space: Space, number: int) -> Point:
    """The last name changes fastest."""
    found: Point = {}
    for name, axis in reversed(list(space.items())):
        assert isinstance(axis, Choices)
        number, at = divmod(number, len(axis.values))
        found[name] = axis.values[at]
    return {name: found[name] for name in space}


def _share(seed: int, name: str, number: int, attempt: int) -> float:
    """A number from 0 to less than 1, with 53 bits, that looks random."""
    digest = hashlib.sha256(f"{seed}/{name}/{number}/{attempt}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / (1 << 53)
