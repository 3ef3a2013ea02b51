"""Sweeps whose next trial depends on how earlier ones ended: Optuna chooses, and ends trials that others surpass.

Optuna keeps nothing: its study is made again from the jobs, so any process may go on with a sweep.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from ...core.backends import DEFAULT_BACKEND
from ...core.elastic import ElasticRange
from ...core.env_references import EnvReference
from ...core.errors import ClusterError, Conflict, SpecError
from ...core.events import Event
from ...core.extras import remedy
from ...policy.sweeps.samplers import Point
from ...policy.sweeps.space import Choices
from ...storage.journal import JournalFollower
from ...storage.store import JobStore, Store
from .. import cluster, jobs
from ..clusters.shape import local_shape
from . import following, trials
from .plan import ASKING, LOSS, PRUNERS, RESULT, SweepPlan, as_number, prepared, settled
from .trials import PRUNED, Sweep, SweepTrial

AT_ONCE = 4  # trials where it is not known how many nodes there are
CAPACITY_S = 5.0


@dataclass
class Template:
    """What a trial's job is made of: code and fields; ``earlier``: the job that they are of, if they are of one."""

    source: str
    fields: Mapping[str, Any]
    earlier: JobStore | None = None


@dataclass
class Asked:
    """A trial of the study, and the values of its job that the study has been told."""

    trial: Any
    follower: JournalFollower[Event]
    told: set[int] = field(default_factory=set)
    over: bool = False


def begin(
    store: Store, source: str, fields: Mapping[str, Any], plan: SweepPlan
) -> tuple[Sweep, Iterator[list[SweepTrial]]]:
    """Begin a sweep of any plan: the sweep, and what `following.updates` yields of it.

    Of a plan that asks, the first trials are submitted when the first value is taken. Raises as `trials.begin` does.
    """
    if not plan.asks:
        sweep = trials.read(store, trials.begin(store, source, fields, plan))
        return sweep, following.updates(sweep)
    store.refuse_foreign()
    plan = settled(source, plan)
    study = Study(store, plan)
    shared = prepared(source, fields, plan)
    trials.checked_point(source, shared, plan)
    sweep = Sweep(store, trials.new_id(str(shared["name"])), plan, [])
    return sweep, drive(sweep, study, Template(source, shared))


def resume(sweep: Sweep, env: Iterable[tuple[str, str | EnvReference]] | None = None) -> Iterator[list[SweepTrial]]:
    """Go on with a sweep whose plan asks, as copies of one of its trials. Raises as `trials.template` does."""
    sweep.store.refuse_foreign()
    return drive(sweep, Study(sweep.store, sweep.plan), Template(*trials.template(sweep, env)))


def drive(
    sweep: Sweep, study: Study, template: Template, *, at_once: int | None = None, lost_after_s: float = 60.0
) -> Iterator[list[SweepTrial]]:
    """Submit trials as nodes are free, tell the study what comes of them, and yield those that have ended.

    ``at_once``: how many trials run at a time, as many as there is room for where None. Raises Conflict where another
    process goes on with the same sweep.
    """
    silence = following.SweepSilence(sweep, lost_after_s)
    capacity = Capacity(sweep.store, template.fields)
    told: set[int] = set()
    for trial in sweep.trials:
        study.adopt(trial)
    while True:
        news = following.poll(sweep)
        for trial in sweep.trials:
            study.listen(trial)
        ended = [trial for trial in sweep.trials if trial.over and trial.number not in told]
        told.update(trial.number for trial in ended)
        while sweep.missing and len(sweep.unfinished) < (at_once or capacity.trials()):
            _submit_next(sweep, study, template)
            news = True
        yield ended
        if not sweep.unfinished and not sweep.missing:
            return
        silence.check(news)
        time.sleep(following.TICK_S)


def _submit_next(sweep: Sweep, study: Study, template: Template) -> None:
    number = sweep.missing[0]
    asked, point = study.ask()
    own = template.earlier is None
    code, ready = trials.made(template.source, template.fields, sweep.plan, sweep.id, number, point, own=own)
    earlier = template.earlier or (sweep.trials[0].job if sweep.trials else None)
    job_id = trials.submit_trial(sweep, number, code, ready, earlier)
    sweep.add(job_id)
    study.keep(number, asked, jobs.follow(sweep.store, job_id))


class Capacity:
    """How many trials run at a time: as many as the cluster's nodes have room for."""

    def __init__(self, store: Store, fields: Mapping[str, Any]) -> None:
        elastic = fields.get("elastic")
        elastic = ElasticRange.parse(elastic) if isinstance(elastic, str) else elastic
        self._store, self._local = store, fields.get("backend", DEFAULT_BACKEND) == DEFAULT_BACKEND
        self._each = int(elastic.minimum if elastic else fields.get("nodes") or 1)
        self._known, self._next_s = AT_ONCE, 0.0

    def trials(self) -> int:
        """The number of trials, 1 or more."""
        if self._local and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + CAPACITY_S
            nodes = [node for node in cluster.status(self._store)["nodes"] if not node["spare"]]
            with suppress(ClusterError):
                self._known = max(1, (len(nodes) or local_shape(self._store)["nodes"]) // self._each)
        return self._known


class Study:
    """Optuna's study of a sweep, in memory. Raises ModuleNotFoundError's sentence as SpecError where it is missing."""

    def __init__(self, store: Store, plan: SweepPlan) -> None:
        self._store, self._plan = store, plan
        try:
            self._optuna = import_module("optuna")
            sampler = getattr(self._optuna.samplers, ASKING[plan.sampler])(seed=plan.seed)
        except ModuleNotFoundError as error:
            raise SpecError(remedy(error) or f"the sampler {plan.sampler} needs the package {error.name}") from None
        pruner = getattr(self._optuna.pruners, PRUNERS[plan.pruner])()
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        direction = "maximize" if plan.maximize else "minimize"
        self._study = self._optuna.create_study(sampler=sampler, pruner=pruner, direction=direction)
        self._asked: dict[int, Asked] = {}

    def ask(self) -> tuple[Any, Point]:
        """A trial of the study, with its values."""
        trial = self._study.ask()
        return trial, {name: self._value(trial, name) for name in self._plan.space}

    def _value(self, trial: Any, name: str) -> Any:
        axis = self._plan.space[name]
        if isinstance(axis, Choices):
            return trial.suggest_categorical(name, list(axis.values))
        if axis.whole:
            return trial.suggest_int(name, int(axis.low), int(axis.high), log=axis.logarithmic)
        return trial.suggest_float(name, axis.low, axis.high, log=axis.logarithmic)

    def keep(self, number: int, asked: Any, follower: JournalFollower[Event]) -> None:
        """Remember which job belongs to a trial of the study."""
        self._asked[number] = Asked(asked, follower)

    def enqueue(self, point: Point) -> None:
        """Let the next trial be this point."""
        self._study.enqueue_trial(dict(point))

    def optuna_trials(self) -> list[Any]:
        """The trials as Optuna knows them."""
        return list(self._study.get_trials(deepcopy=False))

    def adopt(self, trial: SweepTrial) -> None:
        """Take up a trial that another process has asked for."""
        self.enqueue(dict(trial.spec.values))
        asked, _ = self.ask()
        self.keep(trial.number, asked, jobs.follow(self._store, trial.job.id))

    def listen(self, trial: SweepTrial) -> None:
        """Tell the study what is new of a trial; ask its job to stop where it is worse than others."""
        asked = self._asked[trial.number]
        if asked.over:
            return
        fresh = False
        for step, value in self._values(asked.follower.poll()):
            if step not in asked.told:
                asked.told.add(step)
                asked.trial.report(value, step)
                fresh = True
        if trial.over:
            self._end(trial, asked)
        elif fresh and self._plan.pruner and asked.trial.should_prune():
            reason = f"{PRUNED}its {self._plan.metric} at step {max(asked.told)} is worse than that of others"
            with suppress(Conflict):
                jobs.stop(self._store, trial.job.id, reason)

    def _end(self, trial: SweepTrial, asked: Asked) -> None:
        asked.over = True
        state = self._optuna.trial.TrialState
        if trial.state == "pruned" and asked.told:
            self._study.tell(asked.trial, state=state.PRUNED)
        elif trial.view["state"] == "succeeded" and trial.value is not None:
            self._study.tell(asked.trial, trial.value)
        else:
            self._study.tell(asked.trial, state=state.FAIL)

    def _values(self, events: Iterable[Event]) -> Iterator[tuple[int, float]]:
        """Step and value of the metric, as they come."""
        for event in events:
            value = None
            if event.kind == "metric.logged":
                value = as_number(event.data["values"].get(self._plan.metric))
            elif event.kind == "step.committed" and self._plan.metric in (LOSS, RESULT):
                value = as_number(event.data["loss"])
            if value is not None:
                yield int(event.data["step"]), value
