"""SweepPlan: what a sweep tries and by which value it judges. It is the same in each of its trials' jobs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ...core.errors import SpecError
from ...core.spec import TrialSpec
from ...policy.sweeps import assignments, samplers, settled_values, space
from ...policy.sweeps.samplers import Point
from ...policy.sweeps.space import Axis, Choices, Space

LOSS = "loss"
# samplers and pruners of Optuna, by their names in the options
ASKING = {"tpe": "TPESampler", "gp": "GPSampler"}
PRUNERS = {"": "NopPruner", "median": "MedianPruner", "halving": "SuccessiveHalvingPruner"}
RESULT = "result"  # the name of what a function returns
LONGEST_NAME = 34  # of a sweep, so that `-1000` fits behind it in the name of a job
DEFAULT_PRIORITY = 0  # of a job; trials get one less, so that a sweep takes what others leave


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """``space``: name -> its values. ``sampler`` chooses ``trials`` points of it by ``seed``. ``metric``: the name of
    the value that is to be small, or large where ``maximize``. ``pruner``: what ends bad trials early; "" for nothing.
    ``arguments``: those of the file, with ``{name}`` where a trial's value is put. ``choice``: the sampler in words.
    """

    space: Space
    sampler: str
    trials: int
    seed: int = 0
    metric: str = LOSS
    maximize: bool = False
    pruner: str = ""
    arguments: tuple[str, ...] = ()
    choice: str = ""

    @classmethod
    def make(
        cls, tried: Space, *, sampler: str | None = None, trials: int | None = None, pruner: str = "", **more: Any
    ) -> SweepPlan:
        """A plan with the sampler and the number of trials that fit the space. Raises SpecError."""
        chosen = samplers.choose(tried, sampler, trials)
        found = cls(tried, *chosen.value, pruner=pruner, choice=chosen.reason, **more)
        if pruner and not found.asks:
            raise SpecError(f"the pruner {pruner} needs a sampler that learns from trials, such as --sampler tpe")
        return found

    @property
    def asks(self) -> bool:
        """Whether a trial's values depend on how earlier trials ended."""
        return self.sampler not in (samplers.GRID, samplers.RANDOM)

    def points(self) -> Iterator[Point]:
        """The values of each trial, in the order of their numbers; of a plan that does not ask."""
        return samplers.points(self.space, self.sampler, self.trials, self.seed)

    def better(self, one: float, other: float) -> bool:
        """Whether the first value is better than the second."""
        return one > other if self.maximize else one < other

    def to_json(self) -> dict[str, Any]:
        """For `TrialSpec.plan`; inverse of `from_json`."""
        record = {one.name: getattr(self, one.name) for one in fields(self)}
        return record | {"space": space.to_json(self.space), "arguments": list(self.arguments)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> SweepPlan:
        """Build from `to_json`; unknown keys of a newer version are ignored. Raises SpecError."""
        known = {one.name for one in fields(cls)}
        values = {key: value for key, value in record.items() if key in known}
        try:
            values |= {"space": space.from_json(values["space"]), "arguments": tuple(values.get("arguments", ()))}
            return cls(**values)
        except (TypeError, KeyError) as error:
            raise SpecError(f"the plan of a sweep cannot be read: {error!r}") from None


def space_of(given: Mapping[str, Sequence[Any] | str]) -> dict[str, Axis]:
    """A space of lists, and of ranges as text. Raises SpecError."""
    found: dict[str, Axis] = {}
    for name, values in given.items():
        space.check_name(name)
        if isinstance(values, str):
            found[name] = space.parse_axis(name, values)
            continue
        try:
            found[name] = Choices(tuple(values))
        except TypeError:
            raise SpecError(f"{name}: {values!r:.80} is neither a list of values nor a range such as '1..8'") from None
    return found


def job_name(sweep: str, number: int) -> str:
    """The name of the job of a trial: ``first-abcdefgh`` -> ``first-3``."""
    return f"{sweep.rpartition('-')[0]}-{number}"


def trial_job(
    source: str, fields: Mapping[str, Any], plan: SweepPlan, trial: TrialSpec, what: str, *, own: bool = True
) -> tuple[str, dict[str, Any]]:
    """The code and the fields of the job of one trial; ``source`` is that of another trial where it is not its ``own``.

    Raises SpecError where a value could be lost.
    """
    in_arguments = {name for name in trial.values if any(f"{{{name}}}" in word for word in plan.arguments)}
    in_code = {name: value for name, value in trial.values.items() if name not in in_arguments}
    changed = assignments.with_values(source, in_code, what, own=own)
    more: dict[str, Any] = {"name": job_name(trial.sweep, trial.number), "trial": trial}
    if plan.arguments:
        more["arguments"] = tuple(_filled(word, trial.values) for word in plan.arguments)
    return changed, {**fields, **more}


def _filled(word: str, values: Mapping[str, Any]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", str(value))
    return word


def settled(source: str, plan: SweepPlan) -> SweepPlan:
    """The plan with each value as the kind that the code has for its name. Raises SpecError for one that cannot be."""
    in_arguments = [name for name in plan.space if any(f"{{{name}}}" in word for word in plan.arguments)]
    found = replace(plan, space=settled_values.settled(source, plan.space, in_arguments))
    samplers.check_enough(found.space, found.sampler, found.trials)
    return found


def remarks(source: str, plan: SweepPlan) -> list[str]:
    """What a person should know of a sweep before it runs, as sentences."""
    found = []
    bound = assignments.bound_names(source)
    for name in plan.space:
        if name in bound and any(f"{{{name}}}" in word for word in plan.arguments):
            found.append(
                f"{name} is given to the file as an argument, because {{{name}}} is among them; the {name} that the "
                "code assigns stays as it is"
            )
    known = plan.metric in (LOSS, RESULT) or plan.metric in bound
    if not known and not assignments.may_log(source, plan.metric):
        found.append(
            f"the code neither assigns {plan.metric} at its top level nor logs it by session.log({plan.metric}=…): "
            "where nothing that it imports does, no trial will have a value; name another with --metric"
        )
    return found


def prepared(source: str, fields: Mapping[str, Any], plan: SweepPlan) -> dict[str, Any]:
    """The fields that all trials share: a name that has room for a number, and the metric as what is brought back.

    Raises SpecError for what a sweep cannot do.
    """
    if fields.get("pull"):
        raise SpecError("--pull brings back the values of one job, and a sweep has many; leave it out")
    found = {"priority": DEFAULT_PRIORITY - 1, **fields}
    # the button that runs a job's cell again would run the whole sweep
    found["origin"] = {name: text for name, text in fields.get("origin", {}).items() if name != "cell_id"}
    found["name"] = str(fields.get("name") or "sweep")[:LONGEST_NAME].rstrip("-_") or "sweep"
    if plan.metric.isidentifier() and plan.metric in assignments.bound_names(source):
        found["pull"] = (plan.metric,)
    return found


def as_number(value: object) -> float | None:
    """A metric's value, which may be a number of numpy or a tensor of one element; None where it is no number."""
    if value is None or isinstance(value, str | bytes) or isinstance(value, Sequence):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def not_finite(value: object) -> str:
    """ "nan", "inf" or "-inf" for a number that is not finite, else ""."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return ""
    return "" if isinstance(value, str) or math.isfinite(number) else str(number)


def described(plan: SweepPlan) -> str:
    """The plan in one sentence."""
    tried = ", ".join(f"{name}={axis}" for name, axis in plan.space.items())
    ends = f"; the pruner {plan.pruner} ends others early" if plan.pruner else ""
    which = "largest" if plan.maximize else "smallest"
    return f"{plan.choice}: {tried}; seed {plan.seed}; the {which} {plan.metric} is the best{ends}"
