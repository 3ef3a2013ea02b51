"""Computes what a fault cost from the times of committed steps, alike for every system. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

STEADY = 6


@dataclass(frozen=True, slots=True)
class Commit:
    """A member has applied ``step`` steps; ``time_s`` is its clock, seconds since the Unix epoch.

    ``generation`` changes whenever a new group of members has formed.
    """

    time_s: float
    step: int
    rank: int
    world_size: int
    generation: int


def step_times(commits: Iterable[Commit]) -> dict[int, float]:
    """Step -> when it was first committed."""
    found: dict[int, float] = {}
    for commit in commits:
        found[commit.step] = min(commit.time_s, found.get(commit.step, commit.time_s))
    return found


@dataclass(frozen=True, slots=True)
class Stall:
    """All in seconds but ``repeated``.

    ``step_s`` an undisturbed step; ``stall_s`` fault to the next commit of the new group, minus one
    step; ``regained_s`` fault to the first step that had not been committed before, minus one step: where a system
    begins again from a checkpoint, that includes the ``repeated`` steps; ``strength_s`` fault to the first commit by as
    many members as before.
    """

    step_s: float
    stall_s: float
    regained_s: float
    strength_s: float
    repeated: int


def measure(commits: Sequence[Commit], fault_s: float, members: int) -> Stall | None:
    """What the fault at ``fault_s`` cost a group of ``members``; None while that is not known yet."""
    before = [commit for commit in commits if commit.time_s <= fault_s]
    generation = max(commit.generation for commit in before)
    anew = [commit for commit in commits if commit.generation > generation]
    highest = max(commit.step for commit in commits if commit.generation <= generation)
    regained = [commit.time_s for commit in anew if commit.step > highest]
    strength = [commit.time_s for commit in anew if commit.world_size >= members]
    if not regained or not strength:
        return None
    step_s = undisturbed_s(before)
    return Stall(
        step_s=step_s,
        stall_s=min(commit.time_s for commit in anew) - fault_s - step_s,
        regained_s=min(regained) - fault_s - step_s,
        strength_s=min(strength) - fault_s,
        repeated=max(0, highest + 1 - min(commit.step for commit in anew)),
    )


def undisturbed_s(commits: Sequence[Commit]) -> float:
    """Median time of the last steps of the newest generation that has committed two, in seconds."""
    times: list[float] = []
    for generation in sorted({commit.generation for commit in commits}, reverse=True):
        times = [at for _, at in sorted(step_times(c for c in commits if c.generation == generation).items())]
        if len(times) > 1:
            break
    recent = times[-STEADY:]
    return statistics.median(later - earlier for earlier, later in zip(recent, recent[1:], strict=False))


def steady(commits: Sequence[Commit], members: int) -> bool:
    """The newest generation has committed enough steps with all its members to be disturbed."""
    if not commits:
        return False
    generation = max(commit.generation for commit in commits)
    whole = {c.step for c in commits if c.generation == generation and c.world_size >= members}
    return len(whole) > STEADY


def percentile(samples: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest sample that at least ``share`` of all do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
