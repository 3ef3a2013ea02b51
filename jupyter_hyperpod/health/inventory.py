"""What a node should have by its type against what it shows: accelerators and EFA devices. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ..core.health import Finding, failed, passed, skipped
from .tables import Instance

INFINIBAND = "/sys/class/infiniband"
_TYPE = re.compile(r"[a-z][a-z0-9-]{0,30}\.[a-z0-9-]{1,30}")


@dataclass(frozen=True, slots=True)
class Inventory:
    """``type``: EC2's name, "" where it is not known. Counts are None where they could not be taken."""

    type: str = ""
    kind: str = "cpu"
    expected: int | None = None
    found: int | None = None
    busy: int | None = None
    efa_expected: int | None = None
    efa_found: int | None = None
    cpus: int = 0
    memory_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return asdict(self)


def instance_type(*texts: str) -> str:
    """The first text that has the form of an instance type: DMI's product name, an environment variable."""
    for text in texts:
        bare = text.strip().removeprefix("ml.")
        if _TYPE.fullmatch(bare):
            return bare
    return ""


def efa_devices(entries: Iterable[tuple[str, str]]) -> int:
    """EFA devices among (name, driver) of /sys/class/infiniband."""
    return sum(driver == "efa" or name.startswith("efa_") for name, driver in entries)


def compare(inventory: Inventory, known: Instance | None) -> list[Finding]:
    """Expected against found."""
    if known is None:
        why = f"{inventory.type} is not in the table" if inventory.type else "this is no known instance type"
        return [skipped("devices", f"{why}: what it should have is not known"), skipped("efa", why)]
    return [_devices(inventory, known), _efa(inventory, known)]


def _devices(inventory: Inventory, known: Instance) -> Finding:
    if not known.devices:
        return passed("devices", f"{known.type} has no accelerators, and needs none")
    if inventory.found is None:
        return skipped("devices", f"{known.type} has {known.devices} {known.model}, but there is no tool to count them")
    said = f"{known.type} has {known.devices} {known.model}, {inventory.found} are there"
    if inventory.found < known.devices:
        return failed("devices", "reboot", "DevicesMissing", said)
    return passed("devices", said)


def _efa(inventory: Inventory, known: Instance) -> Finding:
    if not known.efa:
        return passed("efa", f"{known.type} has no EFA device, and needs none")
    if inventory.efa_found is None:
        return skipped("efa", f"{known.type} has {known.efa} EFA devices, but {INFINIBAND} is not there")
    said = f"{known.type} has {known.efa} EFA devices, {inventory.efa_found} are there"
    if inventory.efa_found < known.efa:
        return failed("efa", "reboot", "EfaMissing", said)
    return passed("efa", said)
