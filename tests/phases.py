"""What a coordinator journaled of its phases, held against its table of transitions."""

from __future__ import annotations

from collections.abc import Iterable

from jupyter_hyperpod.core.events import Event
from jupyter_hyperpod.runtime.coordinator.phase import STARTS, Phase, PhaseError, step


def ways(events: Iterable[Event]) -> list[tuple[Phase | None, Phase]]:
    """From which phase to which, coordinator by coordinator; the first of each has none before it."""
    newest: dict[str, Phase] = {}
    found: list[tuple[Phase | None, Phase]] = []
    for event in events:
        if event.kind == "phase.changed":
            phase = Phase(event.data["phase"])
            found.append((newest.get(event.writer), phase))
            newest[event.writer] = phase
    return found


def unlisted(events: Iterable[Event]) -> list[str]:
    """What the table has no place for, in words."""
    problems = []
    for before, after in ways(events):
        if before is None:
            problems += [] if after in STARTS else [f"a coordinator began with {after.value!r}"]
            continue
        try:
            step(before, after)
        except PhaseError as error:
            problems.append(str(error))
    return problems
