"""Declares the options of ``plan`` once, for the command line and the magic."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, field, replace

from ..core.elastic import ElasticRange
from ..core.errors import SpecError
from ..core.options import argument
from .calibrate import Measured
from .goodput import (
    CONVENTIONS,
    NO_CHECKPOINTS,
    PRODUCTIVE,
    CheckpointCosts,
    ClusterModel,
    Downtime,
    Regime,
    RegimeComparison,
    compare,
    regime,
)
from .quantities import parse_count, parse_price, parse_rate, parse_time

SUMMARY = "how often a cluster fails, what that costs, and what faster recovery saves"
MANUAL, AUTOMATIC = "by hand", "automatic"


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """One question. The defaults are the published example: 32 % less training time on 256 instances."""

    cluster: ClusterModel = field(default_factory=lambda: ClusterModel(256, 0.0005, 8, 5.0))
    manual: Downtime = field(default_factory=lambda: Downtime.parse("280min"))
    automatic: Downtime = field(default_factory=lambda: Downtime.parse("40min"))
    gpu_hours: float = 10e6
    convention: str = PRODUCTIVE
    checkpoints: CheckpointCosts = NO_CHECKPOINTS

    def regime(self, instances: int, name: str) -> Regime:
        """The run on this many instances where recovery is `MANUAL` or `AUTOMATIC`. Raises SpecError."""
        cluster = replace(self.cluster, instances=instances)
        downtime = self.manual if name == MANUAL else self.automatic
        return regime(cluster, downtime, self.gpu_hours, self.convention, self.checkpoints)

    def compare(self) -> RegimeComparison:
        """The closed form. Raises SpecError."""
        return compare(self.cluster, self.manual, self.automatic, self.gpu_hours, self.convention, self.checkpoints)


@argument
def _whole(text: str) -> int:
    number = parse_count(text)
    if number != int(number):
        raise SpecError(f"{text!r} is not a whole number")
    return int(number)


_time = argument(parse_time)


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``plan``."""
    parser._negative_number_matcher = re.compile(r"-[0-9.]")  # "-5min" is a negative value, not an option
    add = parser.add_argument
    add("--instances", type=_whole, metavar="N", default=256, help="instances of the cluster (default: 256)")
    add(
        "--rate",
        type=argument(parse_rate),
        metavar="RATE",
        help="failures of one instance, as in 0.05%%, 0.05%%/h or 1.2%%/d (default: 0.05%%)",
    )
    for name, where, usual in (
        ("--manual", "people repair it; or by stage: detect=5min,repair=4h", "280min"),
        ("--auto", "the cluster repairs itself", "40min"),
    ):
        text = f"what a failure costs where {where} (default: {usual})"
        add(name, type=argument(Downtime.parse), metavar="T", default=Downtime.parse(usual), help=text)
    add(
        "--gpu-hours",
        type=argument(parse_count),
        metavar="N",
        default=10e6,
        help="the work, as it would take where nothing fails, for example 10M (default: 10M)",
    )
    add("--price", type=argument(parse_price), metavar="P", default=5.0, help="of a GPU-hour, in dollars (default: 5)")
    add("--gpus", type=_whole, metavar="N", default=8, help="GPUs of an instance (default: 8)")
    add(
        "--convention",
        choices=tuple(CONVENTIONS),
        default=PRODUCTIVE,
        help="; ".join(f"{name}: {text}" for name, text in CONVENTIONS.items()) + f" (default: {PRODUCTIVE})",
    )
    add(
        "--checkpoint-cost",
        type=_time,
        metavar="T",
        help="how long training stands still for a checkpoint (default: saving costs nothing)",
    )
    add(
        "--interval",
        type=_time,
        metavar="T",
        help="training time between two checkpoints (default: Daly's, where saving costs something)",
    )
    _add_simulation_options(parser)


def _add_simulation_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--simulate", action="store_true", help="simulate it as well, with the policies of running jobs")
    add("--runs", type=_whole, metavar="N", help="simulate: repetitions (default: 20)")
    add("--seed", type=_whole, metavar="S", help="simulate: seed of the first one (default: 0)")
    add("--spares", type=_whole, metavar="K", help="simulate: warm spare instances (default: 1)")
    add(
        "--repair",
        type=_time,
        metavar="T",
        help="simulate: until an instance is replaced (default: 24h)",
    )
    add("--regroup", type=_time, metavar="T", help="simulate: until survivors go on (default: 60s)")
    add("--elastic", type=argument(ElasticRange.parse), metavar="RANGE", help="simulate: sizes that the job may run on")
    add("--calibrate", metavar="JOB", help="take rate, step and recovery times from what this job's journal measured")
    add("--plot", metavar="FILE", help="draw training time, goodput and cost over instances: a new .svg file")


def plan_request(options: argparse.Namespace, measured: Measured | None = None) -> PlanRequest:
    """The request in parsed options; ``measured`` values fill the gaps. Raises SpecError."""
    rate, cost_s = options.rate, options.checkpoint_cost
    if measured is not None:
        rate = measured.rate if rate is None else rate
        cost_s = measured.saving_s if cost_s is None else cost_s
    usual = PlanRequest()
    return PlanRequest(
        cluster=ClusterModel(
            options.instances, usual.cluster.rate if rate is None else rate, options.gpus, options.price
        ),
        manual=options.manual,
        automatic=options.auto,
        gpu_hours=options.gpu_hours,
        convention=options.convention,
        checkpoints=CheckpointCosts(cost_s or 0.0, options.interval),
    )
