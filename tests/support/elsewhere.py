"""Runs this package as on another system: modules and names that only Linux, or only Unix, has are hidden from it.

    python -m tests.support.elsewhere {windows,macos} PROGRAM [ARGUMENT ...]

Only the package's own modules are deceived: what it uses of the standard library and of other people works as here.
`msvcrt`, which Windows has in place of file locks, is played by a lock of this system.
"""

from __future__ import annotations

import builtins
import importlib
import runpy
import sys
from types import ModuleType
from typing import Any

PACKAGE = "jupyter_hyperpod"
LINUX_MODULES = {"_posixshmem"}
UNIX_MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "pty", "tty", "syslog", "crypt", "spwd", "readline"}
LINUX_NAMES = {
    "os": "memfd_create MFD_CLOEXEC MFD_ALLOW_SEALING pidfd_open sched_getaffinity sched_setaffinity posix_fallocate "
    "posix_fadvise copy_file_range eventfd O_PATH O_TMPFILE O_DIRECT getxattr setxattr unshare setns splice getrandom",
    "socket": "SO_PEERCRED AF_NETLINK AF_PACKET AF_VSOCK TCP_KEEPIDLE TCP_USER_TIMEOUT TCP_QUICKACK SO_BINDTODEVICE "
    "SOCK_CLOEXEC SOCK_NONBLOCK",
    "signal": "pidfd_send_signal SIGRTMIN SIGRTMAX SIGPWR SIGSTKFLT sigtimedwait sigwaitinfo",
    "time": "CLOCK_BOOTTIME CLOCK_TAI",
    "select": "epoll EPOLLIN EPOLLRDHUP",
    "fcntl": "F_OFD_SETLK F_ADD_SEALS F_SEAL_SHRINK F_SEAL_GROW F_SETPIPE_SZ",
    "resource": "prlimit RLIMIT_NICE",
    "sys": "",
}
UNIX_NAMES = {
    "os": "fork forkpty geteuid getuid getgid getegid getgroups getgrouplist setsid setuid setgid killpg getpgid "
    "getpgrp setpgid getsid fchmod chown fchown lchown mkfifo mknod waitid WNOHANG WIFEXITED O_CLOEXEC O_NOFOLLOW "
    "O_DIRECTORY O_NONBLOCK O_NOCTTY O_SYNC O_DSYNC statvfs fstatvfs getloadavg uname sysconf confstr nice getpriority "
    "setpriority wait wait3 wait4 pread pwrite preadv pwritev sendfile register_at_fork pipe2 sync fdatasync "
    "set_blocking posix_spawn",
    "socket": "AF_UNIX SCM_RIGHTS MSG_DONTWAIT MSG_NOSIGNAL sethostname CMSG_LEN recv_fds send_fds",
    "signal": "SIGKILL SIGSTOP SIGCONT SIGTSTP SIGUSR1 SIGUSR2 SIGHUP SIGQUIT SIGALRM SIGVTALRM SIGCHLD SIGPIPE "
    "SIGWINCH pthread_sigmask pthread_kill setitimer getitimer ITIMER_VIRTUAL ITIMER_REAL alarm sigwait siginterrupt",
    "time": "clock_gettime clock_settime CLOCK_MONOTONIC CLOCK_REALTIME CLOCK_THREAD_CPUTIME_ID pthread_getcpuclockid",
    "select": "poll POLLIN POLLHUP",
}
HAS: dict[str, dict[str, dict[str, object]]] = {
    "windows": {
        "os": {"O_BINARY": 0, "O_NOINHERIT": 0, "supports_effective_ids": set()},
        "sys": {"platform": "win32"},
    },
    "macos": {"sys": {"platform": "darwin"}},
}


class Reduced(ModuleType):
    """A module without some of its names, and with others."""

    def __init__(self, real: ModuleType, hidden: set[str], more: dict[str, object]) -> None:
        super().__init__(real.__name__)
        self.__dict__["_kept"] = (real, hidden)
        self.__dict__.update(more)

    def __getattr__(self, name: str) -> Any:
        real, hidden = self.__dict__["_kept"]
        if name in hidden:
            raise AttributeError(f"module {real.__name__!r} has no attribute {name!r} on this system")
        return getattr(real, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.__dict__["_kept"][0], name, value)


def _windows_locks() -> ModuleType:
    """What `msvcrt` does for locks, by a lock of this system; one that is held is refused as there."""
    import fcntl

    def locking(descriptor: int, kind: int, count: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PermissionError(13, "Permission denied") from error

    module = ModuleType("msvcrt")
    module.__dict__.update(LK_NBLCK=2, LK_UNLCK=0, locking=locking)
    return module


def pretend(system: str) -> None:
    """From now on, modules of the package that are imported find this system."""
    windows = system == "windows"
    refused = LINUX_MODULES | (UNIX_MODULES if windows else set())
    reduced = {}
    for name, words in LINUX_NAMES.items():
        if name not in refused:
            hidden = set(words.split()) | (set(UNIX_NAMES.get(name, "").split()) if windows else set())
            reduced[name] = Reduced(importlib.import_module(name), hidden, HAS[system].get(name, {}))
    locks = _windows_locks() if windows else None
    real_import, real_by_name = builtins.__import__, importlib.import_module

    def found(name: str) -> ModuleType | None:
        if name in refused:
            raise ModuleNotFoundError(f"No module named {name!r} on this system", name=name)
        return locks if name == "msvcrt" and locks is not None else reduced.get(name)

    def imported(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> ModuleType:
        importer = str((globals or {}).get("__name__", ""))
        mine = importer == PACKAGE or importer.startswith(f"{PACKAGE}.")
        other = found(name) if mine and not level else None
        return other if other is not None else real_import(name, globals, locals, fromlist, level)

    def by_name(name: str, package: str | None = None) -> ModuleType:
        return locks if name == "msvcrt" and locks is not None else real_by_name(name, package)

    builtins.__import__ = imported
    importlib.import_module = by_name


def main() -> None:
    """See the head of this module; PROGRAM is a file, or `cli` for the command line of the package."""
    system, program, *arguments = sys.argv[1:]
    pretend(system)
    sys.argv = [program, *arguments]
    if program == "cli":
        runpy.run_module(PACKAGE, run_name="__main__")
    else:
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
