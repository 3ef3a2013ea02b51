"""Simulates three ways to recover: people repair, the job restarts by itself, or survivors continue."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace

from ..core.elastic import ElasticRange
from ..core.errors import SpecError
from ..core.units import format_duration, plural
from .calibrate import Measured
from .outcome import Outcome
from .quantities import DAY_S
from .request import AUTOMATIC, MANUAL, PlanRequest
from .scenario import Scenario, Timing, in_place, whole_job
from .simulate import simulate

IN_PLACE = "in place"
MOST_FAILURES = 1_000_000  # in all repetitions together: takes some minutes


@dataclass(frozen=True, slots=True)
class Trial:
    """How a request is simulated: ``runs`` repetitions from ``seed``; the rest is about survivors that continue."""

    runs: int = 20
    seed: int = 0
    spares: int = 1
    repair_s: float = DAY_S
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
    names = ("runs", "seed", "spares", "repair", "regroup", "elastic")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if not options.simulate:
        if given:
            raise SpecError(f"--{next(iter(given))} is about a simulation, which was not asked for; add --simulate")
        return None
    timing = measured.timing() if measured is not None else Timing()
    if "regroup" in given:
        timing = replace(timing, regroup_s=given.pop("regroup"), stalls={})
    if "repair" in given:
        given["repair_s"] = given.pop("repair")
    return Trial(**given, timing=timing, measured=measured.job_id if measured else "")


def scenarios(request: PlanRequest, trial: Trial) -> dict[str, Scenario]:
    """The scenario of each regime. Raises SpecError, also where the simulation would take very long."""
    cluster, saved = request.cluster, request.checkpoints
    found = request.compare()
    days = found.undisturbed_days
    stretches = found.manual.stretch + found.automatic.stretch + 1.0
    expected = trial.runs * days * DAY_S / cluster.mtbf_s * stretches
    if expected > trial.most_failures:
        raise SpecError(
            f"simulating {trial.runs} runs would take about {expected:,.0f} failures, at most "
            f"{trial.most_failures:,} are simulated: "
            "ask for fewer runs, or for less work"
        )
    return {
        MANUAL: whole_job(cluster, days, request.manual, request.convention, saved),
        AUTOMATIC: whole_job(cluster, days, request.automatic, request.convention, saved),
        IN_PLACE: in_place(
            cluster,
            days,
            request.automatic,
            trial.spares,
            trial.repair_s,
            checkpoints=saved,
            interval="fixed" if saved.interval_s else "observed",
            elastic=trial.elastic,
            timing=trial.timing,
        ),
    }


def simulate_all(request: PlanRequest, trial: Trial) -> dict[str, Outcome]:
    """Every regime, from seeds of its own. Raises SpecError."""
    return {name: simulate(found, trial.seed, trial.runs) for name, found in scenarios(request, trial).items()}
