"""Reads what processes use from /proc and the control groups of Linux. The parsers are pure; a text is None where its
file cannot be read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TypeVar

from .processes import descendants

T = TypeVar("T")

GROUPS = "/sys/fs/cgroup"
_UNLIMITED = 1 << 60  # version 1 writes a number near 2**63 where there is no limit
_NET = re.compile(r"^\s*([^\s:]+):\s*(.*)$", re.MULTILINE)


def text(path: str) -> str | None:
    """The content of a file, None where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return None


def cpu_ticks(stat: bytes | None) -> int | None:
    """A process's `stat_text`: the CPU time of a process and of all children that it has waited for, in clock ticks."""
    fields = (stat or b"").rpartition(b")")[2].split()
    with suppress(ValueError, IndexError):
        return sum(max(0, int(field)) for field in fields[11:15]) if len(fields) > 14 else None
    return None


def resident_pages(statm: str | None) -> tuple[int, int] | None:
    """``/proc/PID/statm``: the pages that are a process's alone, and those that it may share with others."""
    with suppress(ValueError, IndexError):
        _, resident, shared = map(int, (statm or "").split()[:3])
        return max(0, resident - shared), max(0, shared)
    return None


def network_bytes(dev: str | None) -> tuple[int, int] | None:
    """``/proc/net/dev``: bytes received and sent by all interfaces but the loopback; None where there is no other."""
    found = []
    for name, numbers in _NET.findall(dev or ""):
        fields = numbers.split()
        if name != "lo" and len(fields) >= 16 and fields[0].isdecimal() and fields[8].isdecimal():
            found.append((int(fields[0]), int(fields[8])))
    return (sum(received for received, _ in found), sum(sent for _, sent in found)) if found else None


def total_memory(meminfo: str | None) -> int | None:
    """``/proc/meminfo``: the memory of the machine, in bytes."""
    found = re.search(r"^MemTotal:\s+([0-9]{1,15}) kB", meminfo or "", re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def quota(limit: str | None, period: str | None = None) -> float | None:
    """Cores that ``cpu.max`` allows, or ``cpu.cfs_quota_us`` with its ``period``; None where they set no limit."""
    words = f"{limit or ''} {period or ''}".split()
    with suppress(ValueError, IndexError):
        allowed, per = int(words[0]), int(words[1])
        return allowed / per if allowed > 0 and per > 0 else None
    return None


def limit_bytes(limit: str | None) -> int | None:
    """``memory.max`` or ``memory.limit_in_bytes``; None where they set no limit."""
    with suppress(ValueError):
        found = int((limit or "").strip())
        return found if 0 < found < _UNLIMITED else None
    return None


def groups_of(cgroup: str | None) -> dict[str, str]:
    """``/proc/PID/cgroup``: controller -> the path of its group; "" is that of version 2."""
    found = {}
    for line in (cgroup or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon and path.startswith("/"):
            found.update(dict.fromkeys(controllers.split(","), path))
    return found


def _folders(root: str, path: str) -> Iterator[str]:
    """The folders of a group and of those around it; in a container the path may be one outside."""
    inner = PurePosixPath(path.lstrip("/"))
    for one in (inner, *inner.parents):
        if ".." not in one.parts:
            yield f"{root}/{one}".removesuffix("/.")


def limits(cgroup: str | None = None, root: str = GROUPS) -> tuple[float | None, int | None]:
    """Cores and bytes of memory that the control groups of this process allow; None where they set no limit."""
    groups = groups_of(text("/proc/self/cgroup") if cgroup is None else cgroup)
    cores: list[float] = []
    memory: list[int] = []
    for controller, path in groups.items():
        named = f"{root}/{controller}" if controller else root
        for folder in _folders(named, path):
            if controller in ("", "cpu"):
                cores += _known(quota(text(f"{folder}/cpu.max")))
                cores += _known(quota(text(f"{folder}/cpu.cfs_quota_us"), text(f"{folder}/cpu.cfs_period_us")))
            if controller in ("", "memory"):
                memory += _known(limit_bytes(text(f"{folder}/memory.max")))
                memory += _known(limit_bytes(text(f"{folder}/memory.limit_in_bytes")))
    return min(cores, default=None), min(memory, default=None)


def _known(value: T | None) -> list[T]:
    return [] if value is None else [value]


def cores_allowed() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def tree(pid: int) -> list[int]:
    """A process and all that it and those have started."""
    if not os.path.exists(f"/proc/{pid}/task/{pid}/children"):
        return [pid, *descendants(pid)]  # of kernels without these files every process is looked at
    found = [pid]
    for one in found:  # which grows meanwhile
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{one}/task"):
                found += map(int, (text(f"/proc/{one}/task/{thread}/children") or "").split())
    return found
