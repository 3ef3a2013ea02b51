"""Judges the machine itself: pressure, memory, free space, mounts, clock, processes. Parses texts of /proc; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.health import Finding, failed, passed, skipped
from ..core.units import format_bytes

STALLED_PERCENT = {"cpu": 98.0, "memory": 40.0, "io": 90.0}  # of the last minute; "full" except for cpu
LOW_MEMORY = 0.02
LOW_SPACE, LOW_SPACE_BYTES = 0.02, 1 << 30
SKEW_S = 5.0


def pressure(resource: str, text: str) -> Finding:
    """Pressure-stall information, ``/proc/pressure/RESOURCE``: how long work waited for the resource."""
    probe, kind = f"{resource}-pressure", "some" if resource == "cpu" else "full"
    for line in text.splitlines():
        words = line.split()
        if words[:1] != [kind]:
            continue
        values = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        share = _number(values.get("avg60", ""))
        if share is None:
            break
        said = f"work stood still for want of {resource} {share:g} % of the last minute"
        if share >= STALLED_PERCENT[resource]:
            severity = "drain" if resource == "memory" else "monitor"
            return failed(probe, severity, f"{resource.capitalize()}Pressure", said)
        return passed(probe, said)
    return skipped(probe, f"/proc/pressure/{resource} has no line {kind!r} with avg60")


def memory(text: str) -> Finding:
    """``/proc/meminfo``: how much memory is available."""
    values = {
        name: int(words[0])
        for name, _, rest in (line.partition(":") for line in text.splitlines())
        if (words := rest.split()) and words[0].isdecimal()
    }
    total, free = values.get("MemTotal", 0), values.get("MemAvailable")
    if not total or free is None:
        return skipped("memory", "/proc/meminfo has no MemTotal and MemAvailable")
    said = f"{format_bytes(free * 1024)} of {format_bytes(total * 1024)} memory are available"
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


def mounts(found: Sequence[Mapping[str, object]]) -> list[Finding]:
    """The shared mounts, from the records of `mounts.probe.survey`."""
    result = []
    for mount in found:
        probe, state, said = f"mount-{mount['name']}", str(mount["state"]), str(mount["reason"])
        if state in ("hangs", "broken"):
            fault = {"hangs": "MountHangs", "broken": "MountBroken"}[state]
            result.append(failed(probe, "drain", fault, said, str(mount["notebook_path"])))
        elif state == "ready":
            result.append(
                passed(probe, f"{mount['notebook_path']} answered in {1000 * _float(mount['took_s']):.0f} ms")
            )
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


def process(name: str, pid: int | None, stat: str | None) -> Finding:
    """A process that has to be alive, by ``/proc/PID/stat``; None where the file does not exist."""
    if pid is None:
        return skipped("process", f"{name} has no process yet")
    state = "" if stat is None else stat.rpartition(")")[2].split()[:1]
    if stat is None or state in (["Z"], ["X"]):
        return failed("process", "reboot", "ProcessDead", f"process {pid} of {name} has ended")
    if state == ["T"]:
        return failed("process", "monitor", "ProcessStopped", f"process {pid} of {name} is stopped")
    if state == ["D"]:
        return failed("process", "monitor", "ProcessBlocked", f"process {pid} of {name} waits for a device")
    return passed("process", f"process {pid} of {name} lives")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _float(value: object) -> float:
    return value if isinstance(value, float) else 0.0
