"""Reads tables of hardware facts: what each Xid means, what each instance type has. The files name their sources."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class Xid:
    """One of NVIDIA's Xid errors; ``severity`` is one of `core.health.SEVERITIES`."""

    code: int
    name: str
    text: str
    severity: str


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


def xid(code: int, message: str = "") -> Xid:
    """The meaning of an Xid; ``message`` is the rest of its line, which holds the needed action for Xid 154."""
    table = _table("xid")
    name, text, bucket = table["xid"].get(str(code), ("UNKNOWN", "not in NVIDIA's catalog", "CONTACT_SUPPORT"))
    severity = table["hyperpod"].get(str(code)) or table["severity"][bucket]
    if code == 154:
        wanted = message.rpartition(" to ")[2]
        severity = next(
            (level for words, level in table["recovery_action"].items() if f"({words})" in wanted), severity
        )
    return Xid(code, name, text, severity)


def instance(name: str) -> InstanceDevices | None:
    """The devices of an instance type, by EC2's or SageMaker's name; None where the table lacks it."""
    bare = name.removeprefix("ml.")
    found = _table("instances")["types"].get(bare)
    return None if found is None else InstanceDevices(bare, **found)


def instance_types() -> list[str]:
    """Every type in the table."""
    return list(_table("instances")["types"])
