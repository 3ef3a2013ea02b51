"""Log rules: they watch what ranks print. Their fields are those of HyperPod's ``logMonitoringConfiguration``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import SpecError

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "eq": operator.eq,
}
SECTION = "logMonitoringConfiguration"
MAX_RULES = 32
MAX_PATTERN = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_. -]{0,79}")
_FIELDS = {
    "name": "name",
    "logPattern": "pattern",
    "expectedStartCutOffInSeconds": "start_cutoff_s",
    "expectedRecurringFrequencyInSeconds": "frequency_s",
    "metricThreshold": "threshold",
    "operator": "operator",
    "metricEvaluationDataPoints": "data_points",
    "stopPattern": "stop_pattern",
    "faultOnMatch": "fault_on_match",
}


@dataclass(frozen=True, slots=True)
class LogRule:
    """One rule. Thresholds may be fractional; the metric is the pattern's first group. Raises SpecError.

    ``start_cutoff_s``: some rank has to print a match within that time after the job's start. ``frequency_s``: a rank
    that has printed a match has to print the next one within that time. A value for which ``operator`` (one of
    `OPERATORS`) holds against ``threshold``, ``data_points`` times in a row, is SLOW. ``stop_pattern`` ends the rule
    for a rank.
    """

    name: str
    pattern: str
    start_cutoff_s: float | None = None
    frequency_s: float | None = None
    threshold: float | None = None
    operator: str | None = None
    data_points: int = 1
    stop_pattern: str = ""
    fault_on_match: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise SpecError(
                f"rule name {str(self.name)[:80]!r} is not allowed; use letters, digits, '-', '_', '.', ' '"
            )
        pattern = _compiled(self.name, "logPattern", self.pattern)
        if self.stop_pattern:
            _compiled(self.name, "stopPattern", self.stop_pattern)
        for field, seconds in (("StartCutOff", self.start_cutoff_s), ("RecurringFrequency", self.frequency_s)):
            if seconds is not None and not (_is_number(seconds) and 0 < seconds < math.inf):
                raise SpecError(f"rule {self.name!r}: expected{field}InSeconds is {seconds!r}; expected more than 0")
        if (self.threshold is None) != (self.operator is None):
            raise SpecError(f"rule {self.name!r} needs both metricThreshold and operator, or neither")
        if self.operator is not None and self.operator not in OPERATORS:
            raise SpecError(
                f"rule {self.name!r}: operator {self.operator!r} is unknown; expected {', '.join(OPERATORS)}"
            )
        if self.threshold is not None and not (_is_number(self.threshold) and math.isfinite(self.threshold)):
            raise SpecError(f"rule {self.name!r}: metricThreshold is {self.threshold!r}; expected a number")
        if self.threshold is not None and pattern.groups < 1:
            raise SpecError(
                f"rule {self.name!r} has a metricThreshold, so its logPattern needs a group, as in loss=([0-9.]+)"
            )
        if type(self.data_points) is not int or self.data_points < 1:
            raise SpecError(
                f"rule {self.name!r}: metricEvaluationDataPoints is {self.data_points!r}; expected 1 or more"
            )
        if type(self.fault_on_match) is not bool:
            raise SpecError(f"rule {self.name!r}: faultOnMatch is {self.fault_on_match!r}; expected true or false")

    def breaks(self, value: float) -> bool:
        """Whether a metric is on the wrong side of the threshold."""
        return (
            self.operator is not None and self.threshold is not None and OPERATORS[self.operator](value, self.threshold)
        )


def parse(content: Any) -> tuple[LogRule, ...]:
    """Rules from JSON: a list, or an object with the section ``logMonitoringConfiguration``. Raises SpecError."""
    found = content.get(SECTION) if isinstance(content, Mapping) else content
    if not isinstance(found, Sequence) or isinstance(found, str) or not 1 <= len(found) <= MAX_RULES:
        raise SpecError(f"log rules are a list of 1 to {MAX_RULES} objects, or an object with {SECTION}")
    rules = tuple(_rule(record) for record in found)
    if len({rule.name for rule in rules}) < len(rules):
        raise SpecError("two log rules have the same name")
    return rules


def _rule(record: Any) -> LogRule:
    if not isinstance(record, Mapping):
        raise SpecError(f"a log rule is a {type(record).__name__}, expected an object")
    if unknown := sorted(str(name) for name in record if name not in _FIELDS):
        raise SpecError(f"a log rule has no field {unknown[0]!r}; expected some of {', '.join(_FIELDS)}")
    if missing := [name for name in ("name", "logPattern") if name not in record]:
        raise SpecError(f"a log rule lacks {' and '.join(missing)}")
    values = {_FIELDS[name]: value for name, value in record.items() if value is not None}
    return LogRule(**values)


def _compiled(rule: str, field: str, text: Any) -> re.Pattern[str]:
    if not isinstance(text, str) or not 0 < len(text) <= MAX_PATTERN:
        raise SpecError(f"rule {rule!r}: {field} is no text of 1 to {MAX_PATTERN} characters")
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise SpecError(f"rule {rule!r}: {field} {text[:80]!r} is no regular expression: {error}") from error


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
