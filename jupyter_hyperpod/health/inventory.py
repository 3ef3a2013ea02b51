"""Compares the accelerators and EFA devices that a node shows with those of its instance type. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..core.health import Finding, failed, passed, skipped
from .tables import InstanceDevices

INFINIBAND = "/sys/class/infiniband"
_TYPE = re.compile(r"[a-z][a-z0-9-]{0,30}\.[a-z0-9-]{1,30}")


@dataclass(frozen=True, slots=True)
class Inventory:
    """``type``: EC2's name, "" where unknown. A count is None where it could not be taken."""

    type: str = ""
    kind: str = "cpu"
    expected: int | None = None
    found: int | None = None
    busy: int | None = None
    efa_expected: int | None = None
    efa_found: int | None = None
    cpus: int = 0
    memory_bytes: int = 0


def instance_type(*texts: str) -> str:
    """The first text that looks like an instance type, such as DMI's product name or an environment variable."""
    for text in texts:
        bare = text.strip().removeprefix("ml.")
        if _TYPE.fullmatch(bare):
            return bare
    return ""


def efa_devices(entries: Iterable[tuple[str, str]]) -> int:
    """EFA devices among (name, driver) of /sys/class/infiniband."""
    return sum(driver == "efa" or name.startswith("efa_") for name, driver in entries)


def compare(inventory: Inventory, known: InstanceDevices | None) -> list[Finding]:
    """Compare the expected numbers with those found."""
    if known is None:
        why = f"{inventory.type} is not in the table" if inventory.type else "this is no known instance type"
        return [skipped("devices", f"{why}: what it should have is not known"), skipped("efa", why)]
    model, found = known.model or "accelerators", inventory.found
    no_tool, no_directory = "there is no tool to count them", f"{INFINIBAND} is not there"
    return [
        _count("devices", "DevicesMissing", known.type, known.devices, model, found, no_tool),
        _count("efa", "EfaMissing", known.type, known.efa, "EFA devices", inventory.efa_found, no_directory),
    ]


def _count(probe: str, fault: str, kind: str, expected: int, what: str, found: int | None, uncounted: str) -> Finding:
    if not expected:
        return passed(probe, f"{kind} has no {what}, and needs none")
    said = f"{kind} has {expected} {what}"
    if found is None:
        return skipped(probe, f"{said}, but {uncounted}")
    if found < expected:
        return failed(probe, "reboot", fault, f"{said}, {found} are there")
    return passed(probe, f"{said}, {found} are there")
