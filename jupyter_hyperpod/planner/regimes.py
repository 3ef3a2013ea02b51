"""Simulates three ways to recover: people repair, the job restarts by itself, or survivors continue."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace

from ..core.elastic import ElasticRange
from ..core.errors import SpecError
from ..core.units import format_duration, plural
from .calibrate import Measured
from .goodput import undisturbed_days
from .outcome import Outcome
from .quantities import DAY_S, HOUR_S
from .request import PlanRequest
from .scenario import Scenario, Spread, Timing, whole_job
from .simulate import simulate

MANUAL, AUTOMATIC, IN_PLACE = "by hand", "automatic", "in place"
MOST_FAILURES = 1_000_000  # in all repetitions together: takes some minutes
LONGEST = 1000.0  # times the undisturbed run


@dataclass(frozen=True, slots=True)
class Trial:
    """How a request is simulated: ``runs`` repetitions from ``seed``; the rest is about survivors that continue."""

    runs: int = 20
    seed: int = 0
    spares: int = 1
    repair_s: float = 24 * HOUR_S
    elastic: ElasticRange | None = None
    timing: Timing = field(default_factory=Timing)
    most_failures: int = MOST_FAILURES
    measured: str = ""  # the job whose journal the timing was read from

    @property
    def assumed(self) -> str:
        """The assumptions of the simulation of survivors that continue, as a sentence."""
        source = f"as measured in {self.measured}" if self.measured else "assumed"
        return (
            f"In place: {format_duration(self.timing.regroup_s)} to regroup ({source}), "
            f"{plural(self.spares, 'warm spare')}, {format_duration(self.repair_s)} until an instance is replaced; "
            "errors of the program start the whole job again."
        )


def trial_of(options: argparse.Namespace, measured: Measured | None = None) -> Trial | None:
    """The trial that parsed options make, None where no simulation is asked for. Raises SpecError."""
    given = [name for name in ("runs", "seed", "spares", "repair", "regroup", "elastic") if _given(options, name)]
    if not options.simulate:
        if given:
            raise SpecError(f"--{given[0]} is about a simulation, which was not asked for; add --simulate")
        return None
    timing = measured.timing() if measured is not None else Timing()
    if options.regroup is not None:
        timing = replace(timing, regroup_s=options.regroup, stalls={})
    named = {"runs": options.runs, "seed": options.seed, "spares": options.spares, "repair_s": options.repair}
    fields = {name: value for name, value in named.items() if value is not None}
    return Trial(**fields, elastic=options.elastic, timing=timing, measured=measured.job_id if measured else "")


def _given(options: argparse.Namespace, name: str) -> bool:
    return getattr(options, name) is not None


def scenarios(request: PlanRequest, trial: Trial) -> dict[str, Scenario]:
    """The scenario of each regime. Raises SpecError, also where the simulation would take very long."""
    cluster = request.cluster
    days = undisturbed_days(cluster, request.gpu_hours)
    found = {
        name: whole_job(cluster, days, downtime, request.convention, request.checkpoints)
        for name, downtime in ((MANUAL, request.manual), (AUTOMATIC, request.automatic))
    }
    found[IN_PLACE] = Scenario(
        cluster,
        days * DAY_S,
        request.automatic,
        checkpoints=request.checkpoints,
        interval="fixed" if request.checkpoints.interval_s else "observed",
        repair=Spread(trial.repair_s, "exponential"),
        spares=trial.spares,
        elastic=trial.elastic,
        timing=trial.timing,
    )
    expected = trial.runs * days * DAY_S / cluster.mtbf_s * sum(_stretches(request))
    if expected > trial.most_failures:
        raise SpecError(
            f"simulating {trial.runs} runs would take about {expected:,.0f} failures, at most "
            f"{trial.most_failures:,} are simulated: "
            "ask for fewer runs, or for less work"
        )
    return {name: replace(scenario, limit_s=days * DAY_S * LONGEST) for name, scenario in found.items()}


def simulate_all(request: PlanRequest, trial: Trial) -> dict[str, Outcome]:
    """Every regime, from seeds of its own. Raises SpecError."""
    return {name: simulate(found, trial.seed, trial.runs) for name, found in scenarios(request, trial).items()}


def _stretches(request: PlanRequest) -> tuple[float, ...]:
    found = request.compare()
    return found.manual.stretch, found.automatic.stretch, 1.0
