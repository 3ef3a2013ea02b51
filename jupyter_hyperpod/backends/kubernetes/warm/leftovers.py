"""Removes what a job leaves in a pod, and finds what cannot be removed: then the pod is not used again."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from ....system.processes import descendants

MOUNTS = "/proc/self/mountinfo"
IPC = ("/proc/sysvipc/shm", "/proc/sysvipc/sem", "/proc/sysvipc/msg")  # a line each, after the first
QUEUES = "/dev/mqueue"
CLOCK_NS = 20_000_000  # the clock of files goes in ticks, behind that of processes


def end_descendants(limit_s: float = 5.0) -> bool:
    """Kill whatever this process's children have started, in whichever session it is, and collect it. The caller adopts
    orphans. False where something is still there."""
    until_s = time.monotonic() + limit_s
    while True:
        for pid in descendants(os.getpid()):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            if time.monotonic() > until_s:
                return False
            time.sleep(0.005)
            continue
        return True


def mount_points(text: str) -> set[str]:
    """The directories and files at which something is mounted, of the text of proc_pid_mountinfo(5)."""
    places = [line.split()[4] for line in text.splitlines() if len(line.split()) > 4]
    return {place.encode().decode("unicode_escape").encode("latin-1").decode(errors="replace") for place in places}


class ContainerFiles:
    """The files of a container that no volume holds, as they are when this object is made."""

    def __init__(self, root: str, scratch: Collection[str], others: Collection[str] = ()) -> None:
        """``others``: directories that are left alone, as everything is that is mounted."""
        self._root, self._others = root, others
        self._since_ns = time.time_ns() - CLOCK_NS
        own = self._places()
        self._scratch = {place for place in scratch if place not in own and os.path.isdir(place)}
        self._known = {place: {path for path, _ in self._walk(place, own)} for place in self._scratch}

    def restore(self) -> str:
        """Empty the scratch directories of what is new there; why the rest is not as it was, "" where it is."""
        own = self._places()
        for place, known in self._known.items():
            if why := self._empty(place, known, own):
                return why
        for path, found in self._walk(self._root, own | self._scratch):
            if found.st_ctime_ns > self._since_ns:
                return f"{path} was changed"
        return ""

    def _empty(self, place: str, known: Collection[str], mounts: Collection[str]) -> str:
        there = dict(self._walk(place, mounts))
        for path in sorted(there.keys() - known, reverse=True):  # what is in a directory before it
            if any(mount == path or mount.startswith(f"{path}/") for mount in mounts):
                return f"something is mounted in {path}"
            try:
                (os.rmdir if stat.S_ISDIR(there[path].st_mode) else os.unlink)(path)
            except OSError as error:
                return f"{path} cannot be removed: {error.strerror}"
        for path in known:
            if path not in there:
                return f"{path} is gone"
            if not stat.S_ISDIR(there[path].st_mode) and there[path].st_ctime_ns > self._since_ns:
                return f"{path} was changed"
        return ""

    def _places(self) -> set[str]:
        return {*self._others, *mount_points(Path(MOUNTS).read_text())}

    def _walk(self, top: str, left_out: Collection[str]) -> Iterator[tuple[str, os.stat_result]]:
        """Everything below a directory, but nothing that is mounted there or left out."""
        waiting = [top]
        while waiting:
            place = waiting.pop()
            try:
                entries = list(os.scandir(place))
            except PermissionError:
                if place == top or not _opened(place):
                    continue  # what it cannot read, a job of the same user could not change
                entries = list(os.scandir(place))
            except OSError:
                continue
            for entry in entries:
                if entry.path in left_out:
                    continue
                with suppress(FileNotFoundError):
                    yield entry.path, entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)


def _opened(place: str) -> bool:
    """Whether a directory that could not be read can be now: its owner may have closed it."""
    try:
        os.chmod(place, 0o700)
    except OSError:
        return False
    return True


def empty(directory: str) -> None:
    """Remove everything in a directory that belongs to nobody but the pod."""
    for place, folders, files in os.walk(directory, topdown=False):
        for name in files:
            os.unlink(os.path.join(place, name))
        for name in folders:
            path = os.path.join(place, name)
            (os.unlink if os.path.islink(path) else os.rmdir)(path)


def kept_by_kernel() -> str:
    """What outlives processes without being a file, "" for nothing."""
    for path in IPC:
        with suppress(OSError):
            if len(Path(path).read_text().splitlines()) > 1:
                return f"{path} is not empty"
    with suppress(OSError):
        if os.listdir(QUEUES):
            return f"{QUEUES} is not empty"
    return ""
