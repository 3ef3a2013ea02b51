"""A model from an object store into memory: ours against other loaders, and against what the machine can do at all.

Every load happens in a process of its own, into memory that was never touched, from servers on this machine: the lean
one (`tests.support.lean_s3`), which takes the server out of the comparison, and real ones. Arms take turns
(`benchmarks.arms.rotation`).
What could not be installed or failed is reported with its own words.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.arms import fair_rounds, rotation
from benchmarks.kept import Kept
from benchmarks.loading.arms import (
    CASES,
    CHECKSUMS,
    CONVENTIONAL,
    FAULTS,
    LIBRARIES,
    LIMIT,
    LOCAL,
    OURS,
    SAFETENSORS,
    Arm,
)
from benchmarks.loading.hosts import Facts
from benchmarks.loading.rig import Rig, once
from jupyter_hyperpod.bench.laboratory import progress
from jupyter_hyperpod.bench.report import bar, not_run, report, row
from jupyter_hyperpod.core.errors import HyperpodError, SpecError

Samples = dict[tuple[str, str], list[Facts]]
Reasons = dict[tuple[str, str], str]


def run(
    runs: int = 5,
    cases: str = "all",
    arms: str = "all",
    gigabytes: float = 1.0,
    peers: str = "all",
    connections: int = 0,
    keep: str | None = None,
) -> dict[str, Any]:
    """Measure every arm of ``cases`` (names of `benchmarks.loading.arms.CASES`, or all) ``runs`` times, in rounds.

    Where a case has two arms, an even number of times; more often where little is between a bar and what is usual
    (`Case.often`). ``arms`` narrows them to those whose names begin so (ours are always measured). With ``peers`` none,
    only what needs no other packages takes part. ``connections`` replaces the number that each arm was given. Loads
    found in the directory ``keep`` are not repeated. Raises SpecError for unknown names.
    """
    chosen = list(CASES) if cases == "all" else cases.split(",")
    if unknown := set(chosen) - CASES.keys():
        raise SpecError(f"no case named {', '.join(sorted(unknown))}; expected some of {', '.join(CASES)}")
    kept = Kept(keep, megabytes=round(gigabytes * 1000), connections=connections)
    samples, reasons = Samples(), Reasons()
    with Rig(gigabytes, connections) as rig:
        for case in chosen:
            fitting = [arm for arm in CASES[case].arms if _wanted(arm, arms, peers)]
            _Rounds(rig, case, kept, samples, reasons).measure(fitting, runs * CASES[case].often)
        rows = _rows(samples, rig.data_bytes)
        rows += [not_run(arm, CASES[case].label, why) for (case, arm), why in reasons.items()]
        return report("loading", rows, bars_of(samples, rig.data_bytes))


def _wanted(arm: Arm, arms: str, peers: str) -> bool:
    if arm.name.startswith(OURS):
        return True
    return (peers != "none" or not arm.system) and (arms == "all" or arm.name.startswith(tuple(arms.split(","))))


@dataclass(frozen=True, slots=True)
class _Rounds:
    """The rounds of one case; an arm that fails once takes no further part."""

    rig: Rig
    case: str
    kept: Kept
    samples: Samples
    reasons: Reasons

    def measure(self, arms: Sequence[Arm], runs: int) -> None:
        """Let the arms take turns, ``runs`` times or once more."""
        rounds = fair_rounds(len(arms), runs)
        for number, order in enumerate(rotation([arm.name for arm in arms], rounds)):
            times = []
            for name in order:
                arm = next(arm for arm in arms if arm.name == name)
                if (self.case, name) not in self.reasons and (facts := self._load(arm, number)):
                    self.samples.setdefault((self.case, name), []).append(facts)
                    times.append(f"{name} {facts['seconds']:.2f} s")
            progress(f"{self.case}, round {number + 1} of {rounds}: {', '.join(times)}")

    def _load(self, arm: Arm, number: int) -> Facts | None:
        name = f"{self.case}-{number}-{re.sub('[^a-z0-9]+', '-', arm.name.lower())}"
        if name not in self.kept:
            try:
                self.kept.add(name, once(self.rig, CASES[self.case], arm, seed=number))
            except HyperpodError as error:
                self.reasons[self.case, arm.name] = str(error)
                progress(f"{self.case}, {arm.name}: {error}")
                return None
        return self.kept[name]


def _rows(samples: Samples, data_bytes: int) -> list[dict[str, Any]]:
    """Lines of the table: what each arm did in each case."""
    rows = []
    order = [(case, arm.name) for case in CASES for arm in CASES[case].arms]
    for case, arm in filter(samples.__contains__, order):
        found, label = samples[case, arm], CASES[case].label

        def add(metric: str, unit: str, values: list[float], arm: str = arm, label: str = label) -> None:
            rows.append(row(arm, label, metric, unit, values))

        loaded = [one["held_bytes"] or data_bytes for one in found]
        add("time", "s", [one["seconds"] for one in found])
        add("rate", "GB/s", [size / one["seconds"] / 1e9 for one, size in zip(found, loaded, strict=True)])
        add("CPU", "s/GB", [one["cpu_s"] / size * 1e9 for one, size in zip(found, loaded, strict=True)])
        if "local" not in case and arm != LIMIT:
            add("peak memory", "models", [one["peak_bytes"] / data_bytes for one in found])
        if "first_layer_s" in found[0]:
            add("first layer", "of the time", [one["first_layer_s"] / one["seconds"] for one in found])
        if "body_bytes" in found[0]:
            add(
                "bytes sent",
                "of those needed",
                [one["body_bytes"] / size for one, size in zip(found, _needed(case, found, data_bytes), strict=True)],
            )
    return rows


def _needed(case: str, found: Sequence[Facts], data_bytes: int) -> list[float]:
    """What has to be read once: parts of a model add up, ranks that each hold all of it need it once."""
    return [one["held_bytes"] if CASES[case].parts else data_bytes for one in found]


def bars_of(samples: Samples, data_bytes: int) -> list[dict[str, Any]]:
    """The promises that these samples allow to judge."""

    def median(case: str, arm: str, value: str = "seconds") -> float | None:
        found = samples.get((case, arm))
        return statistics.median(one[value] for one in found) if found else None

    bars: list[dict[str, Any]] = []

    def add(name: str, above: float | None, below: float | None, limit: float | None = None, **bounds: float) -> None:
        if above is not None and below:
            bars.append(bar(name, above / below, limit, **bounds))

    ours = median("lean", OURS)
    libraries = [name for name in LIBRARIES if ("lean", name) in samples]
    fastest = min((median("lean", name) or 0.0 for name in libraries), default=None)
    leanest = min((median("lean", name, "cpu_s") or 0.0 for name in libraries), default=None)
    add("times_conventional_lean", median("lean", CONVENTIONAL), ours, at_least=5.0)
    add("times_conventional_seaweedfs", median("seaweedfs", CONVENTIONAL), median("seaweedfs", OURS), at_least=2.5)
    add("times_best_library", fastest, ours, at_least=1.5)
    add("cpu_ratio_best_library", median("lean", OURS, "cpu_s"), leanest, 0.6)
    add("fraction_of_limit", median("lean", LIMIT), ours, at_least=0.85)
    add("peak_memory_ratio", median("lean", OURS, "peak_bytes"), data_bytes, 1.05)
    if "lean" in {case for case, _ in samples}:
        add("first_layer_fraction", median("lean", OURS, "first_layer_s"), ours, 0.10)
    add("checksum_slowdown", median("checksum", CHECKSUMS), median("checksum", OURS), 1.15)
    add("fanout_bytes_ratio", median("ranks", f"{OURS}, 4 ranks", "body_bytes"), data_bytes, 1.05)
    add("fanout_time_ratio", median("ranks", f"{OURS}, 4 ranks"), median("ranks", OURS), 1.5)
    if parts := _all_of(samples, "parts"):
        bars.append(bar("tp_bytes_ratio", max(one["body_bytes"] / one["held_bytes"] for one in parts), 1.05))
    if alone := _all_of(samples, "alone"):
        bars.append(bar("tp_rank_bytes_ratio", max(one["largest_share"] for one in alone), 1.05))
    add("faults_slowdown", median("faults", FAULTS), median("faults", OURS), 2.0)
    local = [value for name in LOCAL if (value := median("local", name))]
    add("local_fraction", min(local, default=None), median("local", OURS), at_least=0.9)
    add("local_vs_safetensors", median("local", SAFETENSORS), median("local", OURS), at_least=1.0)
    return bars


def _all_of(samples: Samples, case: str) -> list[Facts]:
    return [one for (where, _), found in samples.items() if where == case for one in found]
