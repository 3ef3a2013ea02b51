"""What a keeper is told of the job that it is to run: one line of JSON, in its arguments or on a pipe. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ....core.errors import ProtocolError
from ....core.spec import LaunchPlan


@dataclass(frozen=True, slots=True)
class PodOrder:
    """Run the plan's process as the element ``name``, and keep the pod for ``keep_s`` afterwards (0: end it)."""

    name: str
    plan: LaunchPlan
    keep_s: float

    def line(self) -> str:
        """One line, without its end; `from_line` undoes it."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str) -> PodOrder:
        """Read an order. Raises ProtocolError."""
        try:
            record: Mapping[str, Any] = json.loads(line)
            plan = dict(record["plan"])
            plan["arguments"] = tuple(plan["arguments"])
            return cls(str(record["name"]), LaunchPlan(**plan), float(record["keep_s"]))
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ProtocolError(f"a keeper cannot read what it was told: {error!r}") from None
