"""Decides when the ranks of a script without hp.Session are restarted, and when their number changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..core.elastic import ElasticRange
from ..core.units import plural
from .decision import Decision

HOLD_S = 0.5  # a lost peer may cause a rank's exception, and the loss may be noticed only a moment later
GROW_PATIENCE_S = 2.0
Verdict = Literal["wait", "restart", "fail"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """What happened to one rank: it was ``lost``, could not reach its peers (``communication``), or raised (``error``).

    ``age_s``: seconds since it was noticed.
    """

    rank: int
    kind: Literal["lost", "communication", "error"]
    text: str
    age_s: float


def judge(troubles: Sequence[Trouble], restarts: int, limit: int) -> Decision[Verdict]:
    """Restart all ranks after a loss, at most ``limit`` times. An exception of the program is never retried.

    The peers of a lost rank raise too, so an exception counts only when no loss has been noticed for a moment.
    """
    first = min(troubles, key=lambda trouble: (-trouble.age_s, trouble.rank))
    lost = [trouble for trouble in troubles if trouble.kind == "lost"]
    errors = [trouble for trouble in troubles if trouble.kind == "error"]
    if not lost and first.age_s < HOLD_S:
        return Decision("wait", f"{first.text}: waiting whether a rank was lost")
    if not lost and errors:
        return Decision("fail", min(errors, key=lambda trouble: (-trouble.age_s, trouble.rank)).text)
    text = (lost or [first])[0].text
    if restarts >= limit:
        times = f"its {limit} restart{'s are' if limit != 1 else ' is'} used up" if limit else "script_restarts is 0"
        hint = "nothing more can be recovered outside hp.Session; --script-restarts N allows more"
        return Decision("fail", f"{text}; {times}: {hint}")
    return Decision("restart", f"{text}: all ranks start again from their own checkpoint ({restarts + 1} of {limit})")


def resize(
    here: int, preempted: int, newcomers: int, target: int, allowed: ElasticRange, waited_s: float
) -> Decision[int]:
    """How many ranks the script should continue with after an elastic event; 0: no event is needed.

    ``newcomers`` are idle workers; there has been room for them for ``waited_s``. They come one by one, and one event
    should serve all.
    """
    size = allowed.fit(min(target, here - preempted + newcomers))
    if preempted:
        return Decision(size or here - preempted, f"{preempted} of {here} ranks are preempted")
    if not size or size == here:
        return Decision(0, f"as many ranks as there can be: {here}")
    if size > here and size < target and waited_s < GROW_PATIENCE_S:
        return Decision(0, f"{size} of {target} ranks could go on: waiting for more")
    return Decision(
        size,
        f"{plural(size, 'rank')} instead of {here} can go on" if size > here else f"the job is to run on {size}",
    )


def call_number(calls: Sequence[int], tries: int) -> int:
    """The call of elastic_event_detected() that returns True on every rank: ahead of the rank that is furthest.

    A rank may continue while it is being asked, so each retry looks further ahead.
    """
    return max(calls) + (1 << 2 * tries)
