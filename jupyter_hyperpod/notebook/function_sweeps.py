"""``hp.sweep``: a sweep of a function, from a notebook or from plain Python."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..control import jobs
from ..control.sweeps import asking, following, sweep_table, trials, verbs
from ..control.sweeps.function_source import cell_of
from ..control.sweeps.plan import RESULT, SweepPlan, space_of
from ..control.sweeps.trials import Sweep, SweepTrial
from ..control.text_tables import Table
from ..core.errors import SpecError
from ..core.options import near_matches
from ..core.spec import JobSpec
from ..storage.store import Store
from .shell import is_kernel
from .sweeps import SweepDisplay


class TrialResult(NamedTuple):
    """One trial: what it tried, what came of it, and its job."""

    number: int
    values: Mapping[str, Any]
    value: float | None
    state: str
    job: str


class FunctionSweep:
    """A sweep that was begun, or one that is there already: ``FunctionSweep.of("first")``."""

    def __init__(self, sweep: Sweep, updates: Iterator[list[SweepTrial]] | None = None) -> None:
        self._sweep = sweep
        self._updates = updates

    @classmethod
    def of(cls, name: str, store: str | None = None) -> FunctionSweep:
        """The sweep of this id or name. Raises NotFound."""
        return cls(trials.read(Store(store), name))

    @property
    def id(self) -> str:
        """The sweep's id, for `jupyter hyperpod sweep show`."""
        return self._sweep.id

    @property
    def best(self) -> TrialResult | None:
        """The trial that succeeded with the best value so far; None without one."""
        self._sweep.poll()
        found = self._sweep.best
        return None if found is None else _result(found)

    @property
    def trials(self) -> list[TrialResult]:
        """All trials, in the order of their numbers."""
        self._sweep.poll()
        return [_result(trial) for trial in self._sweep.trials]

    @property
    def jobs(self) -> list[str]:
        """The ids of the trials' jobs."""
        return [trial.job.id for trial in self._sweep.trials]

    def table(self) -> Table:
        """The table of trials, which a notebook shows as one; ``print(sweep.table().render())`` elsewhere."""
        self._sweep.poll()
        return sweep_table.trials_table(self._sweep)

    def wait(self) -> FunctionSweep:
        """Follow the sweep until all trials have ended; an interrupt leaves them running."""
        from IPython.core.getipython import get_ipython

        table = SweepDisplay(rich=is_kernel(get_ipython()))
        try:
            for ended in self._updates or following.updates(self._sweep):
                table.show(self._sweep, ended)
        except KeyboardInterrupt:
            print(verbs.detached_line(self._sweep, "jupyter hyperpod"), flush=True)
            raise
        finally:
            table.finish(self._sweep)
        print("\n".join(sweep_table.end_lines(self._sweep, "jupyter hyperpod")), flush=True)
        return self

    def stop(self) -> list[str]:
        """Stop all trials that have not ended; return their jobs' ids."""
        self._sweep.poll()
        return trials.stop(self._sweep, f"stopped by {jobs.person()}: the sweep {self.id}")

    def report(self, output: str | None = None) -> str:
        """Write the report as one HTML file, and return its path."""
        self._sweep.poll()
        return str(verbs.report(self._sweep, output).record["path"])

    def __repr__(self) -> str:
        return sweep_table.summary_line(self._sweep)


def sweep(
    function: Callable[..., Any],
    space: Mapping[str, Sequence[Any] | str],
    trials: int | None = None,
    *,
    name: str | None = None,
    metric: str = RESULT,
    maximize: bool = False,
    sampler: str | None = None,
    pruner: str = "",
    seed: int = 0,
    wait: bool = True,
    store: str | None = None,
    **fields: Any,
) -> FunctionSweep:
    """Run ``function`` with values of ``space``, each time as a job, and return the sweep when all have ended.

    ``space``: name of an argument -> a list of values, or a range as text: ``"1e-4..1e-1:log"``, ``"1..8"``.
    ``trials``: the number of random points; all combinations without it. ``metric``: what is judged; the number that
    the function returns, or the loss of its last step where it returns none, or the name of a value of ``session.log``.
    ``sampler``, ``pruner``: as the options of these names.
    ``fields`` are those of a job, such as ``nodes`` or ``elastic``. The source of the function is what travels, with
    the functions, imports and plain values of its module that it uses. Raises SpecError where that does not suffice.
    """
    known = [*inspect.signature(sweep).parameters, *JobSpec.__dataclass_fields__]
    if unknown := [field for field in fields if field not in known]:
        raise SpecError(
            f"{unknown[0]!r} is no argument of sweep() and no field of a job{near_matches(unknown[0], known)}"
        )
    axes = space_of(space)
    plan = SweepPlan.make(
        axes, sampler=sampler, trials=trials, seed=seed, metric=metric, maximize=maximize, pruner=pruner
    )
    if plan.asks and not wait:
        raise SpecError(f"the sampler {plan.sampler} chooses a trial by how earlier ones ended: leave out wait=False")
    source = cell_of(function, axes)
    place = Store(store)
    fields.setdefault("name", name or function.__name__.strip("_").replace("__", "_") or "sweep")
    begun = FunctionSweep(*asking.begin(place, source, {**fields, "seed": seed}, plan))
    return begun.wait() if wait else begun


def _result(trial: SweepTrial) -> TrialResult:
    return TrialResult(trial.number, dict(trial.spec.values), trial.value, trial.state, trial.job.id)
