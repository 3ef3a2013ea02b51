"""What a plan is asked for: the options of ``plan``, declared once for the command line and the magic."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from ..core.errors import SpecError
from .goodput import CONVENTIONS, PRODUCTIVE, Checkpoints, Cluster, Comparison, Downtime, compare
from .quantities import parse_count, parse_price, parse_rate, parse_time

SUMMARY = "how often a cluster fails, what that costs, and what faster recovery saves"
Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """One question. The defaults are the published example: 32 % less training time on 256 instances."""

    cluster: Cluster = field(default_factory=lambda: Cluster(256, 0.0005, 8, 5.0))
    manual: Downtime = field(default_factory=lambda: Downtime.parse("280min"))
    automatic: Downtime = field(default_factory=lambda: Downtime.parse("40min"))
    gpu_hours: float = 10e6
    convention: str = PRODUCTIVE
    checkpoints: Checkpoints = field(default_factory=Checkpoints)

    def compare(self, instances: int | None = None) -> Comparison:
        """The closed form, for another number of instances where one is given. Raises SpecError."""
        cluster = self.cluster
        if instances is not None:
            cluster = Cluster(instances, cluster.rate, cluster.gpus, cluster.price)
        return compare(cluster, self.manual, self.automatic, self.gpu_hours, self.convention, self.checkpoints)


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Declare what may stand behind ``plan``."""
    parser._negative_number_matcher = re.compile(r"-[0-9.]")  # "-5min" is a value, and answered as a wrong one
    add = parser.add_argument
    add("--instances", type=_read(_whole), metavar="N", default=256, help="instances of the cluster (default: 256)")
    add(
        "--rate",
        type=_read(parse_rate),
        metavar="RATE",
        default=0.0005,
        help="failures of one instance, as in 0.05%%, 0.05%%/h or 1.2%%/d (default: 0.05%%)",
    )
    add(
        "--manual",
        type=_read(Downtime.parse),
        metavar="T",
        default=Downtime.parse("280min"),
        help="what a failure costs where people repair it; or by stage: detect=5min,repair=4h (default: 280min)",
    )
    add(
        "--auto",
        type=_read(Downtime.parse),
        metavar="T",
        default=Downtime.parse("40min"),
        help="what a failure costs where the cluster repairs itself (default: 40min)",
    )
    add(
        "--gpu-hours",
        type=_read(parse_count),
        metavar="N",
        default=10e6,
        help="the work, as it would take where nothing fails, for example 10M (default: 10M)",
    )
    add("--price", type=_read(parse_price), metavar="P", default=5.0, help="of a GPU-hour, in dollars (default: 5)")
    add("--gpus", type=_read(_whole), metavar="N", default=8, help="GPUs of an instance (default: 8)")
    add(
        "--convention",
        choices=tuple(CONVENTIONS),
        default=PRODUCTIVE,
        help="; ".join(f"{name}: {text}" for name, text in CONVENTIONS.items()) + f" (default: {PRODUCTIVE})",
    )
    add(
        "--checkpoint-cost",
        type=_read(parse_time),
        metavar="T",
        default=0.0,
        help="how long training stands still for a checkpoint (default: saving costs nothing)",
    )
    add(
        "--interval",
        type=_read(parse_time),
        metavar="T",
        help="training time between two checkpoints (default: Daly's, where saving costs something)",
    )


def plan_request(options: argparse.Namespace) -> PlanRequest:
    """The request that parsed options make; raises SpecError."""
    return PlanRequest(
        cluster=Cluster(options.instances, options.rate, options.gpus, options.price),
        manual=options.manual,
        automatic=options.auto,
        gpu_hours=options.gpu_hours,
        convention=options.convention,
        checkpoints=Checkpoints(options.checkpoint_cost, options.interval),
    )


def _whole(text: str) -> int:
    number = parse_count(text)
    if number != int(number):
        raise SpecError(f"{text!r} is not a whole number")
    return int(number)


def _read(parse: Callable[[str], Parsed]) -> Callable[[str], Parsed]:
    """A parser whose SpecError argparse shows."""

    def read(text: str) -> Parsed:
        try:
            return parse(text)
        except SpecError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read
