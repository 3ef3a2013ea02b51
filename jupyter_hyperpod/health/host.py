"""Judges the machine itself: pressure, memory, free space, mounts, clock. Pure.

Parses texts of /proc; a text is None where its file cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.health import Finding, failed, passed, skipped
from ..core.units import format_bytes

STALLED_PERCENT = {"cpu": 98.0, "memory": 40.0, "io": 90.0}  # of the last minute; "full" except for cpu
LOW_MEMORY = 0.02
LOW_SPACE, LOW_SPACE_BYTES = 0.02, 1 << 30
SKEW_S = 5.0
_MOUNT_FAULTS = {"hangs": "MountHangs", "broken": "MountBroken"}


def pressure(resource: str, text: str | None) -> Finding:
    """Pressure-stall information, ``/proc/pressure/RESOURCE``: how long work waited for the resource."""
    probe, kind = f"{resource}-pressure", "some" if resource == "cpu" else "full"
    found = re.search(rf"^{kind} .*\bavg60=([0-9]{{1,3}}(?:\.[0-9]{{1,6}})?)(?!\S)", text or "", re.MULTILINE)
    if found is None:
        return skipped(probe, f"the kernel offers no /proc/pressure/{resource} with a line {kind!r} and avg60")
    share = float(found[1])
    said = f"work stood still for want of {resource} {share:g} % of the last minute"
    if share >= STALLED_PERCENT[resource]:
        severity = "drain" if resource == "memory" else "monitor"
        return failed(probe, severity, f"{resource.capitalize()}Pressure", said)
    return passed(probe, said)


def meminfo(text: str | None) -> dict[str, int]:
    """The fields of ``/proc/meminfo``, in bytes."""
    found = re.findall(r"^(\w+):\s+([0-9]{1,15}) kB", text or "", re.MULTILINE)
    return {name: int(kib) * 1024 for name, kib in found}


def memory(text: str | None) -> Finding:
    """``/proc/meminfo``: how much memory is available."""
    values = meminfo(text)
    total, free = values.get("MemTotal"), values.get("MemAvailable")
    if not total or free is None:
        return skipped("memory", "there is no /proc/meminfo with MemTotal and MemAvailable")
    said = f"{format_bytes(free)} of {format_bytes(total)} memory are available"
    if free < LOW_MEMORY * total:
        return failed("memory", "drain", "MemoryPressure", said)
    return passed("memory", said)


def space(path: str, total_bytes: int | None, free_bytes: int | None) -> Finding:
    """Free space of the file system under ``path``."""
    if not total_bytes or free_bytes is None:
        return skipped("free-space", f"{path} does not tell its size")
    said = f"{format_bytes(free_bytes)} of {format_bytes(total_bytes)} are free on {path}"
    if free_bytes < min(LOW_SPACE * total_bytes, LOW_SPACE_BYTES):
        return failed("free-space", "drain", "DiskPressure", said, path)
    return passed("free-space", said)


def mounts(found: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """The shared mounts, from the records of `mounts.probe.survey`."""
    result = []
    for mount in found:
        probe, path, state, said = f"mount-{mount['name']}", mount["notebook_path"], mount["state"], mount["reason"]
        if state in _MOUNT_FAULTS:
            result.append(failed(probe, "drain", _MOUNT_FAULTS[state], said, path))
        elif state == "ready":
            result.append(passed(probe, f"{path} answered in {1000 * mount['took_s']:.0f} ms"))
        else:
            result.append(skipped(probe, said or f"it is {state}"))
    return result


def clock(skew_s: float | None) -> Finding:
    """The difference between this machine's clock and that of the shared storage."""
    if skew_s is None:
        return skipped(
            "clock", "the job store's file system is on this machine: there is no other clock to compare with"
        )
    said = f"this machine's clock is {abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} the shared storage's"
    if abs(skew_s) > SKEW_S:
        return failed("clock", "drain", "ClockSkew", said)
    return passed("clock", said)
