"""Identifies processes by pid *and* start time, so that a reused pid is never mistaken for the earlier process."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from dataclasses import dataclass

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# opened before any fork: a child of a process with threads must not; Windows has no library without a name
_LIBC = ctypes.CDLL(None, use_errno=True) if hasattr(os, "fork") else None


@dataclass(frozen=True, slots=True)
class Identity:
    """A process; ``start`` in clock ticks since boot."""

    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class Activity:
    """What a process does: between two equal readings it did nothing. ``ticks``: CPU time, in clock ticks."""

    stopped: bool
    ticks: int


@dataclass(frozen=True, slots=True)
class _Stat:
    """Some fields of proc_pid_stat(5); times in clock ticks."""

    state: str
    parent: int
    group: int
    session: int
    start: int
    cpu: int


def stat_text(pid: int) -> bytes | None:
    """The content of proc_pid_stat(5); None where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read()
    except OSError:
        return None


def _stat(pid: int) -> _Stat | None:
    content = stat_text(pid)
    if content is None:
        return None
    fields = content.rpartition(b")")[2].split()
    parent, group, session = map(int, fields[1:4])
    return _Stat(fields[0].decode(), parent, group, session, int(fields[19]), int(fields[11]) + int(fields[12]))


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None where it is gone or a zombie."""
    found = _stat(pid)
    return None if found is None or found.state in "ZX" else found.start


def identify(pid: int) -> Identity:
    """The identity of a process that certainly exists (this one, an unreaped child)."""
    found = _stat(pid)
    return Identity(pid, found.start if found else 0)


def alive(process: Identity) -> bool:
    """True while this very process runs."""
    return start_ticks(process.pid) == process.start


def activity(pid: int) -> Activity | None:
    """Whether the process is stopped, and the CPU time that it has used; None where there is no such process."""
    found = _stat(pid)
    return None if found is None else Activity(found.state in "Tt", found.cpu)


def is_stopped(pid: int) -> bool:
    """True while a process is stopped (SIGSTOP, a debugger)."""
    found = activity(pid)
    return found is not None and found.stopped


def session_members(leader: Identity) -> list[int]:
    """Living processes of the session or group that `leader` opened, even if `leader` itself has ended."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and (stat := _stat(int(name))) is not None:
            belongs = leader.pid in (stat.session, stat.group)
            if belongs and stat.start >= leader.start and stat.state not in "ZX":
                found.append(int(name))
    return found


def signal_group(leader: Identity, number: int) -> bool:
    """Send a signal to the whole process group and session of `leader`; False where no process of it is left."""
    stat = _stat(leader.pid)
    if stat is not None and stat.start != leader.start:
        return False
    members = session_members(leader)
    if members:
        with suppress(ProcessLookupError):
            os.killpg(leader.pid, number)
    for pid in members:
        if (stat := _stat(pid)) is not None and stat.group != leader.pid and stat.session == leader.pid:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    return bool(members)


def descendants(pid: int) -> list[int]:
    """Living processes that this one has started, and those that they have started, nearest first."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (stat := _stat(int(name))) is not None and stat.state not in "ZX":
            children.setdefault(stat.parent, []).append(int(name))
    found = list(children.get(pid, ()))
    for one in found:  # which grows meanwhile
        found += children.get(one, ())
    return found


def adopt_orphans() -> None:
    """Become the parent of what this process's descendants leave behind, whichever session that is in."""
    if _LIBC is not None and hasattr(_LIBC, "prctl"):
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def follow_parent(parent: int) -> bool:
    """Have the kernel kill this process when its parent ends, where it can; False where `parent` has ended already."""
    if _LIBC is not None and hasattr(_LIBC, "prctl"):
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; at once if that has happened already."""
    if not follow_parent(parent):
        os.kill(os.getpid(), signal.SIGKILL)


def thread_names() -> list[str]:
    """Names of this process's threads, native ones included: a fork is safe only with a single thread."""
    names = []
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError), open(f"/proc/self/task/{thread}/comm") as file:
            names.append(file.read().strip())
    return names


def close_descriptors(lowest: int = 3) -> None:
    """Close every descriptor from `lowest` on."""
    os.closerange(lowest, max((int(name) for name in os.listdir("/proc/self/fd")), default=lowest) + 1)


def raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as it may have: the usual limit is a thousand."""
    import resource  # of Unix, as nodes are

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
