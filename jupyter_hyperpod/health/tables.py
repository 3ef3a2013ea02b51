"""Reads tables of facts: what each Xid and each line of the kernel's log means, what each instance type has.

The files name their sources.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class InstanceDevices:
    """The devices of an instance type; ``kind`` is nvidia, neuron or cpu, ``links`` the NVLinks per GPU."""

    type: str
    kind: str
    devices: int
    model: str
    efa: int
    memory_gib: int
    links: int


@cache
def _table(name: str) -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(f"{name}.toml").read_text())


@cache
def kernel_log() -> list[tuple[re.Pattern[str], str, str]]:
    """Pattern, severity and fault of each rule for lines of the kernel's log."""
    return [(re.compile(rule["pattern"]), rule["severity"], rule["fault"]) for rule in _table("kernel_log")["rules"]]


def xid(code: int, message: str = "") -> tuple[str, str]:
    """What one of NVIDIA's Xid errors means, and its severity (one of `core.health.SEVERITIES`).

    ``message`` is the rest of its line, which holds the needed action for Xid 154.
    """
    table = _table("xid")
    _, text, bucket = table["xid"].get(str(code), ("UNKNOWN", "not in NVIDIA's catalog", "CONTACT_SUPPORT"))
    severity: str = table["hyperpod"].get(str(code)) or table["severity"][bucket]
    if code == 154:
        wanted = message.rpartition(" to ")[2]
        severity = next(
            (level for words, level in table["recovery_action"].items() if f"({words})" in wanted), severity
        )
    return text, severity


@cache
def instances() -> dict[str, InstanceDevices]:
    """Every type in the table, by EC2's name."""
    return {name: InstanceDevices(name, **found) for name, found in _table("instances")["types"].items()}


def instance(name: str) -> InstanceDevices | None:
    """The devices of an instance type, by EC2's or SageMaker's name; None where the table lacks it."""
    return instances().get(name.removeprefix("ml."))
