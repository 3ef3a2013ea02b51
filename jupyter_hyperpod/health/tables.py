"""Facts about hardware as data: what an Xid means for its node, what an instance type has. Sources are in the files."""

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
class Instance:
    """What an instance type has; ``kind`` is nvidia, neuron or cpu, ``links`` NVLinks a GPU."""

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
    """What is known of an Xid; ``message`` is the rest of its line, in which Xid 154 says what it needs."""
    table = _table("xid")
    name, text, bucket = table["xid"].get(str(code), ("UNKNOWN", "not in NVIDIA's catalog", "CONTACT_SUPPORT"))
    severity = table["hyperpod"].get(str(code)) or table["severity"][bucket]
    if code == 154:
        wanted = message.rpartition(" to ")[2]
        severity = next(
            (level for words, level in table["recovery_action"].items() if f"({words})" in wanted), severity
        )
    return Xid(code, name, text, severity)


def instance(name: str) -> Instance | None:
    """What a type of instance has, by EC2's or SageMaker's name; None where it is not in the table."""
    bare = name.removeprefix("ml.")
    found = _table("instances")["types"].get(bare)
    return None if found is None else Instance(bare, **found)


def instance_types() -> list[str]:
    """Every type in the table."""
    return list(_table("instances")["types"])
