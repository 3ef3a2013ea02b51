"""Compares jobs: until which step they are the same to the last bit, and what of code and settings differs. Pure."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from ...core.units import few, plural
from ...policy import parity
from ...policy.decision import Decision
from ...policy.identity import UNKNOWN, KnownSteps, SameUntil, same_until
from ...storage.fingerprint.record import packages_of
from ..report import loss_text
from ..text_tables import Table
from .losses import ExactLosses
from .run_record import LOSS, RATE, RunRecord
from .series import CurvePlace

DIFF_LINES = 1500
COMPARED_CHARACTERS = 400_000  # of longer sources only the digests are compared: the comparison takes its square
SESSIONS_COMPARED = 50
SESSIONS_SAID = 6
MISSING = "-"


@dataclass(frozen=True)
class Pair:
    """The first job and another one: a decision for each session that both have."""

    first: str
    other: str
    sessions: Mapping[int, Decision[SameUntil]]

    @property
    def sentence(self) -> str:
        """What is known of both, in the words of the decisions."""
        if not self.sessions:
            return f"{self.first} and {self.other} have no step in common: there is nothing to compare"
        if len(self.sessions) == 1:
            return next(iter(self.sessions.values())).reason
        told = [f"session {number}: {found.reason}" for number, found in self.sessions.items()]
        more = len(told) - SESSIONS_SAID
        return "; ".join([*told[:SESSIONS_SAID], *([f"and {plural(more, 'session')} more"] if more > 0 else [])])


@dataclass(frozen=True)
class JobComparison:
    """``differences``: part (code, parameters, environment, packages) -> name -> value of each job, where they differ.

    ``alike``: how many names of each part are equal; ``by_version``: of how many equal packages only the versions were
    compared; ``values_unseen``: variables that more than one job sets with --env. ``metrics``: name -> the last value
    of each job.
    """

    records: Sequence[RunRecord]
    pairs: Sequence[Pair]
    differences: Mapping[str, Mapping[str, Sequence[str]]]
    alike: Mapping[str, int]
    by_version: int
    values_unseen: Sequence[str]
    metrics: Mapping[str, Sequence[str]]

    @property
    def changes(self) -> dict[str, str]:
        """Package -> what its difference between two of the jobs may change, where that is known."""
        first, *others = (record.fingerprint for record in self.records)
        found = (one for other in others for one in parity.differences(first, other))
        return {one.name: one.change for one in found if one.kind in ("package", "files", "origin")}

    def equal(self, part: str) -> str:
        """How many names are equal, such as ``207 (of 143 only the versions were compared)``; "" for none."""
        only = (
            f" (of {self.by_version:,} only the versions were compared)"
            if part == "packages" and self.by_version
            else ""
        )
        if part == "environment" and (unseen := self.values_unseen):
            count = plural(len(unseen), "variable")
            only = f" (the values of {count} set with --env were not compared: {few(unseen, parity.SHOWN)})"
        return f"{self.alike[part]:,}{only}" if self.alike[part] or only else ""

    def to_json(self) -> dict[str, Any]:
        """The comparison for programs."""
        return {
            "jobs": [record.job_id for record in self.records],
            "identity": [
                {
                    "jobs": [pair.first, pair.other],
                    "sentence": pair.sentence,
                    "sessions": {
                        str(number): {**asdict(found.value), "sentence": found.reason}
                        for number, found in pair.sessions.items()
                    },
                }
                for pair in self.pairs
            ],
            "differences": {part: {n: list(v) for n, v in found.items()} for part, found in self.differences.items()},
            "alike": dict(self.alike),
            "packages_alike_by_version_alone": self.by_version,
            "values_not_compared": list(self.values_unseen),
            "packages_may_change": self.changes,
            "metrics": {name: list(values) for name, values in self.metrics.items()},
            **all_curves(self.records),
        }

    def table(self, part: str) -> Table:
        """A part's differences side by side."""
        headers = ("", *(record.job_id for record in self.records))
        return Table(headers, [[name, *values] for name, values in self.differences[part].items()], "no differences")

    def metric_table(self) -> Table:
        """The last value of all that was logged, side by side."""
        headers = ("", *(f">{record.job_id}" for record in self.records))
        return Table(headers, [[name, *values] for name, values in self.metrics.items()], "nothing was logged")


def compare(records: Sequence[RunRecord]) -> JobComparison:
    """Compare jobs with the first of them."""
    first = records[0]
    pairs = [Pair(first.job_id, other.job_id, dict(_sessions(first, other))) for other in records[1:]]
    parts: dict[str, list[Mapping[str, str]]] = {
        "code": [_code(record) for record in records],
        "parameters": [record.parameters() for record in records],
        "environment": [record.environment() for record in records],
        "packages": _packages(records),
    }
    differences, alike = {}, {}
    for part, known in parts.items():
        differences[part], alike[part] = _side_by_side(known)
    by_version = len(_known_by_version(records) - differences["packages"].keys())
    unseen = _values_unseen(records)
    alike["environment"] -= len({f"${name}" for name in unseen} - differences["environment"].keys())
    return JobComparison(records, pairs, differences, alike, by_version, unseen, dict(_metrics(records)))


def _sessions(first: RunRecord, other: RunRecord) -> Iterator[tuple[int, Decision[SameUntil]]]:
    both = sorted(first.losses.keys() & other.losses.keys())
    for number in both[:SESSIONS_COMPARED]:
        known = [_known(record.job_id, record.losses[number]) for record in (first, other)]
        found = same_until(*known)
        if found.value.verdict != UNKNOWN or len(both) == 1:
            yield number, found


def _known(name: str, losses: ExactLosses) -> KnownSteps:
    return KnownSteps(name, losses.steps, losses.bits, losses.closed_step, losses.digest)


def _code(record: RunRecord) -> dict[str, str]:
    found = {"source": record.spec.cell_digest[:16] if record.spec else "not kept"}
    return found | {f"imported {name.partition('-')[2]}": digest[:16] for name, digest in record.sources.items()}


def _packages(records: Sequence[RunRecord]) -> list[Mapping[str, str]]:
    """The packages of each; files and origins only where each job that has the package knows its own."""
    unknown = _known_by_version(records)
    return [record.packages(by_version=unknown) for record in records]


def _known_by_version(records: Sequence[RunRecord]) -> set[str]:
    """Packages of whose files one of the jobs knows nothing: a submission takes only a moment to look at them."""
    known = [packages_of(record.fingerprint) for record in records]
    return {name for found in known for name, one in found.items() if not one.content}


def _values_unseen(records: Sequence[RunRecord]) -> list[str]:
    """Variables that more than one of the jobs sets with --env: whether they have the same value is not known."""
    counts = Counter(name for record in records if record.spec is not None for name in record.spec.env)
    return sorted(name for name, count in counts.items() if count > 1)


def _side_by_side(known: Sequence[Mapping[str, str]]) -> tuple[dict[str, list[str]], int]:
    """Name -> the value of each job, where they differ; and how many names do not."""
    names = dict.fromkeys(name for one in known for name in one)
    found = {name: [one.get(name, MISSING) for one in known] for name in names}
    differing = {name: values for name, values in found.items() if len(set(values)) > 1}
    return differing, len(found) - len(differing)


def _metrics(records: Sequence[RunRecord]) -> Iterator[tuple[str, list[str]]]:
    yield "state", [record.view["state"] for record in records]
    yield "steps", [str(record.view["step"]) for record in records]
    yield "loss", [loss_text(record.view) for record in records]
    yield "goodput", [MISSING if (g := record.time.goodput) is None else f"{100 * g:.1f} %" for record in records]
    yield "incidents", [str(record.incident_count) for record in records]
    for name in dict.fromkeys(record.metric[0] for record in records if record.metric is not None):
        values = [record.metric[1] if record.metric and record.metric[0] == name else MISSING for record in records]
        yield f"{name}, by which the sweep judges", values
    for name in dict.fromkeys(name for record in records for name in record.metric_names()):
        yield (f"{name} (logged)" if name in _OWN else name), [_last(record, name) for record in records]


_OWN = frozenset({"state", "steps", "loss", "goodput", "incidents"})


def _last(record: RunRecord, name: str) -> str:
    found = [(session, curve) for (session, known), curve in record.curves.items() if known == name]
    if not found:
        return MISSING
    curve = max(found, key=lambda one: one[0])[1]
    return "not a number" if curve.last is None else f"{curve.last:.6g}"


def curve_names(records: Sequence[RunRecord]) -> list[str]:
    """Loss, throughput and all logged values, in the order in which they came."""
    logged = dict.fromkeys(name for record in records for name in record.metric_names())
    return [LOSS, RATE, *logged]


def all_curves(records: Sequence[RunRecord]) -> dict[str, Any]:
    """``curves``: name -> the places of each job. ``times_s``: the same -> the seconds from its start to each place."""
    names = curve_names(records)
    return {
        "curves": {name: _curves(records, name) for name in names},
        "times_s": {name: _times(records, name) for name in names},
    }


def _curves(records: Sequence[RunRecord], name: str) -> list[list[list[float]]]:
    """By job: [step, lowest, highest, last] of each place that is kept of a curve, in its newest session."""
    return [[[place.step, place.low, place.high, place.last] for place in _newest(one, name)] for one in records]


def _times(records: Sequence[RunRecord], name: str) -> list[list[float]]:
    """By job: the seconds from its start to each of these places."""
    starts = [one.view["started_s"] or one.view["submitted_s"] or 0.0 for one in records]
    return [
        [round(place.time_s - start_s, 3) for place in _newest(one, name)]
        for one, start_s in zip(records, starts, strict=True)
    ]


def _newest(record: RunRecord, name: str) -> Sequence[CurvePlace]:
    sessions = [session for session, known in record.curves if known == name]
    return record.curves[max(sessions), name].places if sessions else []


def source_difference(one: RunRecord, other: RunRecord) -> list[str]:
    """How the other job's source differs from that of the first, as lines of a unified diff."""
    if one.source is None or other.source is None:
        missing = [record.job_id for record in (one, other) if record.source is None]
        return [f"the source of {' and of '.join(missing)} is not kept, or may not be read"]
    if one.source == other.source:
        return []
    if len(one.source) + len(other.source) > COMPARED_CHARACTERS:
        return ["the sources differ; they are too long to be compared line by line"]
    lines = difflib.unified_diff(
        one.source.splitlines(), other.source.splitlines(), one.job_id, other.job_id, n=3, lineterm=""
    )
    found = list(islice(lines, DIFF_LINES + 1))
    return found if len(found) <= DIFF_LINES else [*found[:DIFF_LINES], "… further differences are left out"]


def lines(found: JobComparison) -> Iterator[str]:
    """The comparison for a terminal, without its tables."""
    for pair in found.pairs:
        yield f"{pair.sentence}."
    same = [f"{part} {found.equal(part)}" for part in found.alike if found.equal(part)]
    if same:
        yield f"equal: {', '.join(same)}"
