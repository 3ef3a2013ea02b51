"""What a browser draws of a sweep, or of ticked jobs, in parallel coordinates; kept between requests."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...core.errors import NotFound
from ...core.names import is_job_id, may_be_trial
from ...core.spec import JobSpec, TrialSpec
from ...policy.sweeps.space import Axis, Choices
from ...storage.store import Store
from ..runs import run_record
from . import axes, trials
from .metric import short
from .plan import LOSS, SweepPlan, as_number, described
from .sweep_table import trial_record
from .trials import Sweep, SweepTrial

KEPT = 4  # sweeps whose journals are followed between two requests
TICKED = "ticked-aaaaaaaa"  # stands for the sweep of jobs that are none
MOST_AXES = 16
TEXT_SHOWN = 80


class SweepPictures:
    """Pictures of the sweeps of one store. May be used from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[tuple[str, ...], tuple[Sweep, set[str]]] = OrderedDict()
        self._lock = threading.Lock()

    def of_sweep(self, text: str) -> dict[str, Any]:
        """The picture of the sweep that `trials.find` finds. Raises NotFound."""
        with self._lock:
            sweep_id = text if (text,) in self._kept else trials.find(self._store, text)
            sweep, before = self._kept.pop((sweep_id,), (None, set[str]()))
            there = {job_id for job_id in self._store.job_ids() if may_be_trial(job_id, sweep_id)}
            if sweep is not None:
                sweep.poll()
            if sweep is None or there != before:  # a trial was submitted, or deleted
                known = {trial.job.id: trial for trial in sweep.trials} if sweep else None
                sweep = trials.read(self._store, sweep_id, known)
            self._keep((sweep_id,), sweep, there)
            return picture(sweep) | {"sweep": True, "metrics": [sweep.plan.metric]}

    def of_jobs(self, job_ids: Sequence[str], metric: str = "", maximize: bool = False) -> dict[str, Any]:
        """The picture of some jobs: an axis for each parameter in which they differ. Raises NotFound.

        Without a ``metric`` they are judged as their sweep says, where all are of the same; else by their losses.
        """
        with self._lock:
            key = (*job_ids, metric, str(maximize))
            sweep, _ = self._kept.pop(key, (None, None))
            sweep = sweep or _ticked(self._store, job_ids, metric, maximize)
            sweep.poll()
            self._keep(key, sweep, set())
            return picture(sweep) | {"sweep": False, "metrics": _logged(sweep)}

    def _keep(self, key: tuple[str, ...], sweep: Sweep, jobs: set[str]) -> None:
        self._kept[key] = sweep, jobs
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)


def picture(sweep: Sweep) -> dict[str, Any]:
    """Axes, trials with their values, and which of them is the best."""
    best = sweep.best
    counted = [trial.counted for trial in sweep.trials if trial.counted is not None]
    last = axes.metric_axis(sweep.plan.metric, counted)
    return {
        "id": sweep.id,
        "sentence": described(sweep.plan) if sweep.plan.sampler else "",
        "metric": sweep.plan.metric,
        "maximize": sweep.plan.maximize,
        "wanted": sweep.plan.trials,
        "live": bool(sweep.unfinished),
        "axes": [axes.to_json(axes.axis_of(name, axis)) for name, axis in sweep.plan.space.items()],
        "metric_axis": axes.to_json(last) if last else None,
        "best": best.job.id if best else "",
        "trials": [_record(trial) for trial in sweep.trials],
    }


def _record(trial: SweepTrial) -> dict[str, Any]:
    """A trial as `sweep show --json` has it, with the value by which it counts, and its values as people read them."""
    told = {name: short(value) for name, value in trial.spec.values.items()}
    return trial_record(trial) | {
        "counted": trial.counted,
        "told": told,
        "name": str(trial.view["name"] or trial.job.id),
    }


def _ticked(store: Store, job_ids: Sequence[str], metric: str, maximize: bool) -> Sweep:
    """Jobs as if they were the trials of a sweep whose names are the parameters in which they differ."""
    specs = {job_id: store.job(job_id).spec() for job_id in job_ids if is_job_id(job_id)}
    if not specs:
        raise NotFound("none of these jobs is there")
    if not metric:
        metric, maximize = _judged(specs.values())
    found = {job_id: _parameters(spec) for job_id, spec in specs.items()}
    names = dict.fromkeys(name for one in found.values() for name in one)
    space = {name: axis for name in names if (axis := _differing(name, found.values())) is not None}
    space = dict(list(space.items())[:MOST_AXES])
    plan = SweepPlan(space, "", len(found), metric=metric, maximize=maximize)
    made = []
    for number, (job_id, one) in enumerate(found.items(), 1):
        values = {name: one[name] for name in space if name in one}
        made.append(SweepTrial(TrialSpec(TICKED, number, values), store.job(job_id), metric))
    return Sweep(store, "", plan, made)


def _judged(specs: Iterable[JobSpec]) -> tuple[str, bool]:
    """The metric of jobs, and whether it is to be large."""
    plans = [spec.trial.plan if spec.trial else {} for spec in specs]
    told = {(str(plan.get("metric", LOSS)), bool(plan.get("maximize", False))) for plan in plans}
    return told.pop() if len(told) == 1 else (LOSS, False)


def _parameters(spec: JobSpec) -> dict[str, Any]:
    """What was chosen of a job: numbers as numbers, and what a trial tries."""
    own = {name: _plain(text) for name, text in run_record.chosen(spec).items() if not name.startswith("sweep.")}
    return own | dict(spec.trial.values if spec.trial else {})


def _plain(text: str) -> Any:
    for kind in (int, float):
        try:
            if (value := as_number(kind(text))) is not None:
                return int(value) if kind is int else value
        except ValueError:
            continue
    return text[:TEXT_SHOWN]


def _differing(name: str, jobs: Iterable[Mapping[str, Any]]) -> Axis | None:
    """The axis of a name; None where it is the same everywhere."""
    told = [one.get(name, Ellipsis) for one in jobs]
    values = {(type(value).__name__, value): value for value in told if value is not Ellipsis}
    if len({(type(value).__name__, value) for value in told}) < 2:
        return None
    return Choices(tuple(sorted(values.values(), key=_order)))


def _order(value: Any) -> tuple[int, float, str]:
    """Numbers by size, then all else by its text."""
    number = as_number(value) if not isinstance(value, bool) else None
    return (1, 0.0, str(value)) if number is None else (0, number, "")


def _logged(sweep: Sweep) -> list[str]:
    """What any of the jobs can be judged by."""
    names = {
        name for trial in sweep.trials for name, value in trial.view["metrics"].items() if as_number(value) is not None
    }
    return [LOSS, *sorted(names - {LOSS})]
