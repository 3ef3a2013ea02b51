"""Reads from /proc whether a process of this host is stopped, and how much CPU time it has used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pulse:
    """``ticks``: CPU time in clock ticks. Format: proc_pid_stat(5), fields state, utime and stime."""

    stopped: bool
    ticks: int


def pulse(pid: int) -> Pulse | None:
    """Read the pulse now; None where the process does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return Pulse(fields[0] in (b"T", b"t"), int(fields[11]) + int(fields[12]))
