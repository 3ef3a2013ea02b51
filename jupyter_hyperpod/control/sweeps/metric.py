"""The value by which a trial is judged, and what a job's listings say of a trial."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...core.errors import HyperpodError
from ...core.spec import TrialSpec
from ...core.units import cut
from ...core.views import View
from ...storage.store import JobStore, Store
from ...storage.values import pulled
from .plan import LOSS, RESULT, as_number, not_finite

SHOWN = 60  # characters of a trial in a table


class Metric:
    """Reads the metric of one job from its view, and the variable at its end once."""

    def __init__(self, name: str, job: Path) -> None:
        self.name, self._job = name, job
        self._left: float | None = None
        self._odd = ""
        self._looked = False

    def found(self, view: Mapping[str, Any]) -> list[tuple[float, str]]:
        """The values for the metric and what they are: what was logged under its name, the variable at the end of the
        code, and the loss of the newest step where that is asked for."""
        if view["state"] == "succeeded" and not self._looked:
            self._looked = True
            # another user may not read it, and what it holds may need a package that is not here
            with suppress(HyperpodError, OSError, ImportError, ValueError, LookupError, TypeError, AttributeError):
                left = pulled(self._job)[0].get(self.name)
                self._left, self._odd = as_number(left), not_finite(left)
        loss = as_number(view["loss"]) if self.name in (LOSS, RESULT) else None
        known = (
            (as_number(view["metrics"].get(self.name)), "what was logged"),
            (self._left, "the variable at the end"),
            (loss, "the loss of the last step"),
        )
        return [(value, what) for value, what in known if value is not None]

    def value(self, view: Mapping[str, Any]) -> float | None:
        """The newest value, the first of those `found`; None where there is none yet."""
        return next(iter(self.found(view)), (None, ""))[0]

    def text(self, view: Mapping[str, Any]) -> str:
        """The value with six significant digits; "nan" or "inf" for a result that is no finite number; "-" for none."""
        if (value := self.value(view)) is not None:
            return number_text(value)
        lost = self.name in view["metrics"] and view["metrics"][self.name] is None  # JSON has no NaN
        lost = lost or (self.name in (LOSS, RESULT) and view["step"] > 0)
        return self._odd or ("nan" if lost else "-")

    def doubt(self, view: Mapping[str, Any]) -> str:
        """Which two values differ, in words; else ""."""
        found = self.found(view)
        if len(found) < 2 or math.isclose(found[0][0], found[1][0], rel_tol=1e-6):
            return ""
        (taken, of), (other, otherwise) = found[:2]
        return f"is {of}, {taken:.6g}, and not {otherwise}, {other:.6g}"


def number_text(value: float | None) -> str:
    """A number with six significant digits; "-" for none."""
    return "-" if value is None else f"{value:.6g}"


def values_text(values: Mapping[str, Any]) -> str:
    """``lr=0.001, batch=32``."""
    return ", ".join(f"{name}={short(value)}" for name, value in values.items())


def short(value: Any) -> str:
    """A value for people; `sweep show --json` and the code of the trial have all its digits."""
    if isinstance(value, float):
        return number_text(value)
    return cut(value if isinstance(value, str) else repr(value), 24)


def trial_of(store: Store, job_id: str) -> TrialSpec | None:
    """The trial that a job is; None where it is none, was deleted, or cannot be read."""
    try:
        return store.job(job_id).spec().trial
    except (HyperpodError, OSError):
        return None


def trial_text(job: JobStore, trial: TrialSpec, view: Mapping[str, Any]) -> str:
    """A trial in a few words: ``lr=0.001, width=8: accuracy 0.93``."""
    metric = Metric(str(trial.plan.get("metric", LOSS)), job.path)
    text = metric.text(view)
    return values_text(trial.values) + (f": {metric.name} {text}" if text != "-" else "")


def trial_line(store: Store, view: View) -> str:
    """A trial in a line, for the description of its job; "" for a job that is none."""
    if (trial := trial_of(store, view["id"])) is None:
        return ""
    return f"{trial.number} of {trial.sweep}, {trial_text(store.job(view['id']), trial, view)}"


def trial_texts(store: Store, views: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Job -> its trial in a few words, for a table."""
    found = {}
    for view in views:
        with suppress(HyperpodError, OSError):
            if (trial := trial_of(store, view["id"])) is not None:
                found[view["id"]] = cut(trial_text(store.job(view["id"]), trial, view), SHOWN)
    return found
