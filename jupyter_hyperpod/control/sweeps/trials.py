"""Begins sweeps, reads them from the jobs of their trials, and goes on with them.

A sweep is its trials: each job says which trial of which sweep it is, and holds the plan. No file has to agree with
the jobs, and what a restart, a deletion or an interrupted submission leaves is a sweep of which trials are missing. One
process at a time submits, so that no trial is submitted twice.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from ...core.env_references import EnvReference
from ...core.errors import Conflict, HyperpodError, NotFound, SpecError, StoreError
from ...core.events import TERMINAL_STATES
from ...core.names import is_job_id, may_be_trial
from ...core.options import near_matches
from ...core.spec import TrialSpec
from ...core.units import plural
from ...core.views import View
from ...policy.sweeps.samplers import Point
from ...storage.folded import FoldedJournal
from ...storage.store import JobStore, Store
from ...system.locks import one_at_a_time
from .. import jobs, lookup
from .metric import Metric, trial_of
from .plan import SweepPlan, prepared, settled, trial_job

LOCK = "sweeps.lock"
LOCK_WAIT_S = 120.0
PRUNED = "pruned: "  # how the reason of a trial begins that was ended because others were better
AGAIN = ("failed", "stopped")  # states of trials that may be submitted once more
_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"


@dataclass
class SweepTrial:
    """One trial and its job, whose journal it follows."""

    spec: TrialSpec
    job: JobStore
    metric: str
    journal: FoldedJournal = field(init=False)
    _metric: Metric = field(init=False)

    def __post_init__(self) -> None:
        self.journal = FoldedJournal(self.job)
        self.journal.catch_up()
        self._metric = Metric(self.metric, self.job.path)

    @property
    def number(self) -> int:
        """1 for the first."""
        return self.spec.number

    @property
    def view(self) -> View:
        """The job's view."""
        return self.journal.view

    @property
    def state(self) -> str:
        """The job's state; "pruned" for one that was ended because others were better."""
        stopped = self.view["state"] == "stopped" and str(self.view["reason"]).startswith(PRUNED)
        return "pruned" if stopped else str(self.view["state"])

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self.view["state"] in TERMINAL_STATES

    @property
    def value(self) -> float | None:
        """The metric's newest value; None where there is none yet."""
        return self._metric.value(self.view)

    @property
    def counted(self) -> float | None:
        """The value by which the trial can be the best: of one that succeeded; else None."""
        return self.value if self.view["state"] == "succeeded" else None

    @property
    def doubt(self) -> str:
        """A sentence where the trial has two values for the metric that differ; else ""."""
        told = self._metric.doubt(self.view)
        return f"{self.metric} of trial {self.number} {told}" if told else ""

    @property
    def value_text(self) -> str:
        """The value as people read it, as `Metric.text` has it."""
        return self._metric.text(self.view)


@dataclass
class Sweep:
    """A sweep as its trials tell it, in the order of their numbers."""

    store: Store
    id: str
    plan: SweepPlan
    trials: list[SweepTrial]

    @property
    def missing(self) -> list[int]:
        """The numbers of trials that have no job."""
        return sorted(set(range(1, self.plan.trials + 1)) - {trial.number for trial in self.trials})

    @property
    def unfinished(self) -> list[SweepTrial]:
        """The trials that have not ended."""
        return [trial for trial in self.trials if not trial.over]

    @property
    def best(self) -> SweepTrial | None:
        """The trial that succeeded with the best value, the first of equal ones; None where there is none."""
        found: SweepTrial | None = None
        for trial in self.trials:
            value = trial.counted
            if value is not None and (found is None or self.plan.better(value, found.value or 0.0)):
                found = trial
        return found

    def poll(self) -> bool:
        """Read what is new in the trials' journals; whether anything was."""
        news = [bool(trial.journal.poll()) for trial in self.unfinished]
        return any(news)

    def add(self, job_id: str) -> SweepTrial:
        """Take up a new trial."""
        job = self.store.job(job_id)
        spec = job.spec().trial
        assert spec is not None
        self.trials.append(SweepTrial(spec, job, self.plan.metric))
        self.trials.sort(key=lambda trial: trial.number)
        return self.trials[-1]


def begin(store: Store, source: str, fields: Mapping[str, Any], plan: SweepPlan) -> str:
    """Submit a sweep and return its id. All trials become jobs at once, and the cluster starts as many as fit.

    Not for a plan that asks: that is what `asking.begin` is for. Raises the errors of `jobs.submit` before the first
    job is there; later, what was submitted stays, and `resume` submits the others.
    """
    plan = settled(source, plan)
    shared = prepared(source, fields, plan)
    name = new_id(str(shared["name"]))
    points = dict(enumerate(plan.points(), 1))
    ready = [made(source, shared, plan, name, number, point, own=True) for number, point in points.items()]
    with submitting(store):
        first: JobStore | None = None
        try:
            for code, one in ready:  # the others import what was there for the first
                job_id = jobs.submit(store, code, one, earlier=first)
                first = first or store.job(job_id)
        except BaseException as error:  # an interrupt, or a full disk
            if there := len(_trial_specs(store, name)):
                error.add_note(
                    f"{there} of {plural(len(ready), 'trial')} submitted; `jupyter hyperpod sweep resume {name}` "
                    "submits the rest"
                )
            raise
    return name


def new_id(name: str) -> str:
    """An id for a sweep of this name."""
    return f"{name}-" + "".join(secrets.choice(_ALPHABET) for _ in range(8))


def checked_point(source: str, fields: Mapping[str, Any], plan: SweepPlan) -> None:
    """Raise SpecError where a value of the space could be lost in the code."""
    made(source, fields, plan, "check-aaaaaaaa", 1, {name: axis.at(0.0) for name, axis in plan.space.items()}, own=True)


def checked_points(source: str, fields: Mapping[str, Any], plan: SweepPlan) -> dict[int, Point]:
    """Number -> values of all trials of a plan that does not ask. Raises SpecError where a value could be lost."""
    points = dict(enumerate(plan.points(), 1)) if not plan.asks else {}
    for number, point in points.items():
        trial_job(source, fields, plan, TrialSpec("check-aaaaaaaa", number, point), _what(fields))
    return points


def _what(fields: Mapping[str, Any]) -> str:
    """What the code is called in errors."""
    return os.path.basename(str(fields.get("filename", ""))) if fields.get("script") else "the cell"


def made(
    source: str,
    fields: Mapping[str, Any],
    plan: SweepPlan,
    name: str,
    number: int,
    point: Mapping[str, Any],
    *,
    own: bool,
) -> tuple[str, dict[str, Any]]:
    """The code and the fields of the job of one trial. Raises SpecError where a value could be lost."""
    trial = TrialSpec(name, number, dict(point), plan.to_json())
    return trial_job(source, fields, plan, trial, _what(fields), own=own)


def submit_trial(sweep: Sweep, number: int, source: str, fields: Mapping[str, Any], earlier: JobStore | None) -> str:
    """Submit one trial of a plan that asks. Raises Conflict where its number is taken, and as `jobs.submit` does."""
    with submitting(sweep.store):
        if any(trial.number == number for trial in _trial_specs(sweep.store, sweep.id).values()):
            raise Conflict(f"trial {number} of {sweep.id} was submitted meanwhile: another process goes on with it")
        return jobs.submit(sweep.store, source, fields, earlier=earlier)


@contextmanager
def submitting(store: Store) -> Iterator[None]:
    """One process at a time submits trials to a store."""
    store.prepare()
    busy = f"another process has been submitting trials to {store.root} for {LOCK_WAIT_S:.0f} s; try again"
    with one_at_a_time(store.root / LOCK, busy, LOCK_WAIT_S, where_possible=True):
        yield


def resume(store: Store, sweep_id: str, env: Iterable[tuple[str, str | EnvReference]] | None = None) -> list[str]:
    """Submit the trials that have no job, as copies of one that has; return the new jobs' ids.

    Raises SpecError where a variable of the earlier jobs is neither kept nor given.
    """
    store.refuse_foreign()
    with submitting(store):
        found = read(store, sweep_id)
        if not (missing := found.missing) or found.plan.asks:
            return []
        source, fields, earlier = template(found, env)
        points = dict(enumerate(found.plan.points(), 1))
        ready = [made(source, fields, found.plan, found.id, number, points[number], own=False) for number in missing]
        return [jobs.submit(store, code, one, earlier=earlier) for code, one in ready]


def submit_again(
    store: Store, sweep_id: str, state: str, env: Iterable[tuple[str, str | EnvReference]] | None = None
) -> list[str]:
    """Submit the trials once more that ended in this state, with the same values; return the new jobs' ids.

    The earlier jobs stay, and count no more. Raises as `resume` does.
    """
    store.refuse_foreign()
    with submitting(store):
        found = read(store, sweep_id)
        chosen = [trial for trial in found.trials if trial.state == state]
        if not chosen:
            return []
        source, fields, earlier = template(found, env)
        ready = [
            made(source, fields, found.plan, found.id, trial.number, trial.spec.values, own=False) for trial in chosen
        ]
        return [jobs.submit(store, code, one, earlier=earlier) for code, one in ready]


def template(
    sweep: Sweep, env: Iterable[tuple[str, str | EnvReference]] | None = None
) -> tuple[str, dict[str, Any], JobStore]:
    """The code and the fields of a trial of which others can be made: one whose variables are kept, where there is one.

    Raises SpecError where no trial has them, and ``env`` does not give them.
    """
    error: HyperpodError | None = None
    given = list(env or ())
    for trial in [*sweep.unfinished, *sweep.trials]:
        try:
            fields = lookup.fields_of(trial.job, given)
            return sweep.store.cell(trial.job.spec().cell_digest), fields, trial.job
        except (SpecError, NotFound, StoreError) as problem:
            error = problem
    raise error or NotFound(f"no trial of {sweep.id} is left")


def read(store: Store, text: str, known: Mapping[str, SweepTrial] | None = None) -> Sweep:
    """The sweep that a person means by its id, by its name (the newest of that name), or by one of its jobs.

    ``known``: trials that were read before, by their jobs. Raises NotFound.
    """
    known = known or {}
    sweep_id = find(store, text)
    specs = _trial_specs(store, sweep_id)
    plan = SweepPlan.from_json(next(iter(specs.values())).plan)
    first: dict[int, SweepTrial] = {}
    for job_id, spec in reversed(specs.items()):  # oldest first: a newer job of a trial counts if it was to run again
        if spec.number not in first or first[spec.number].state in AGAIN:
            first[spec.number] = known.get(job_id) or SweepTrial(spec, store.job(job_id), plan.metric)
    return Sweep(store, sweep_id, plan, [first[number] for number in sorted(first)])


def find(store: Store, text: str) -> str:
    """The id of the sweep that a person means. Raises NotFound."""
    known = sweep_ids(store)
    if text in known:
        return text
    for candidate in known:
        if candidate.rpartition("-")[0] == text:
            return candidate
    if is_job_id(text) and (trial := trial_of(store, text)) is not None:
        return trial.sweep
    names = [*known, *{candidate.rpartition("-")[0] for candidate in known}]
    there = "`jupyter hyperpod sweep list` shows them" if known else "`jupyter hyperpod submit FILE --sweep` begins one"
    raise NotFound(f"no sweep {text[:80]!r}{near_matches(text, names)}; {there}")


def sweep_ids(store: Store) -> list[str]:
    """The ids of all sweeps, the one with the newest trial first."""
    found: dict[str, None] = {}
    for job_id in store.job_ids():
        if may_be_trial(job_id) and (trial := trial_of(store, job_id)) is not None:
            found[trial.sweep] = None
    return list(found)


def _trial_specs(store: Store, sweep_id: str) -> dict[str, TrialSpec]:
    """Job -> its trial, of all jobs of a sweep, newest first."""
    found = {}
    for job_id in store.job_ids():
        if may_be_trial(job_id, sweep_id):
            trial = trial_of(store, job_id)
            if trial is not None and trial.sweep == sweep_id:
                found[job_id] = trial
    return found


def all_jobs(sweep: Sweep) -> list[str]:
    """The ids of all its jobs, also of those that were run again."""
    return list(_trial_specs(sweep.store, sweep.id))


def stop(sweep: Sweep, reason: str) -> list[str]:
    """Ask all trials to stop that have not ended; return their jobs' ids."""
    stopped = []
    for trial in reversed(sweep.unfinished):  # the last first: a trial that waits would begin where another stops
        with suppress(Conflict):
            jobs.stop(sweep.store, trial.job.id, reason)
            stopped.append(trial.job.id)
    return stopped[::-1]
