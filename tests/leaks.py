"""Run a command and insist that it leaves no process, socket, shared memory, mount, network or temporary file behind.

    python tests/leaks.py COMMAND [ARGUMENT …]

The command gets a temporary directory and a job store of its own and a mark in its environment. Every process
started under it inherits the mark, daemons included, and so is found in /proc however it was re-parented.
Exit status: that of the command, or 1 where it succeeded but left something.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

MARK = "TEST_RUN_MARK"  # not HYPERPOD_…: a daemon drops those of the process that happened to start it
GRACE_S = 30.0
EXEC_TRIES, EXEC_PAUSE_S = 20, 0.005
OURS = re.compile(r"hyperpod|slurm|kube")
TREE = Path(__file__).resolve().parents[1]
# Caches that other people's tools keep in the temporary directory by design.
CACHES = (
    "jest_",
    "node-compile-cache",
    "playwright-transform-cache",
    "v8-compile-cache",
    "xfs-",
    "hsperfdata",
    "pytest-of-",
    "tmp_home",
    "pymp-",
)


def marked_processes(mark: str, variable: str = MARK) -> dict[int, str]:
    """Return pid -> command line of every living process that was started with `variable` = `mark`.

    An empty mark stands for any value.
    """
    wanted = setting(variable, mark)
    found = {pid: command_line(pid) for pid, environment in environments().items() if wanted in environment}
    return {pid: line for pid, line in found.items() if line}


def setting(variable: str, mark: str = "") -> bytes:
    """What is found in the environment of a process where `variable` is `mark`, or anything where that is empty."""
    return f"\0{variable}={mark}".encode() + (b"\0" if mark else b"")


def environments() -> dict[int, bytes]:
    """Return pid -> environment of every other process, as bytes: this is asked before and after every test."""
    found: dict[int, bytes] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with suppress(OSError):
                found[int(name)] = b"\0" + _said_of(int(name), "environ")
    return found


def command_line(pid: int) -> str:
    """Return what a process was started as, "" where it has ended."""
    try:
        return _said_of(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _said_of(pid: int, name: str) -> bytes:
    """Return /proc's `name` of a process. While it becomes another program that is empty: it is asked again."""
    for _ in range(EXEC_TRIES):
        content = Path(f"/proc/{pid}/{name}").read_bytes()
        if content:
            break
        os.readlink(f"/proc/{pid}/exe")  # neither a zombie nor the kernel's own thread has one
        time.sleep(EXEC_PAUSE_S)
    return content


def wait_until_gone(mark: str, timeout_s: float, variable: str = MARK) -> dict[int, str]:
    """Return the marked processes that are still there after at most `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while (left := marked_processes(mark, variable)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def shared_memory() -> set[str]:
    """Return the names in /dev/shm."""
    try:
        return set(os.listdir("/dev/shm"))
    except OSError:
        return set()


def of_the_kernel() -> set[str]:
    """Return mounts, network interfaces and namespaces, and control groups that look like ours or like a testbed's."""
    found = set()
    with suppress(OSError), open("/proc/self/mountinfo") as lines:
        points = [line.split(" ")[4] for line in lines]
        found |= {f"mount {point}" for point in points if OURS.search(point)}
    for kind, place in (("network interface", "/sys/class/net"), ("network namespace", "/run/netns")):
        with suppress(OSError):
            found |= {f"{kind} {name}" for name in os.listdir(place)}
    for directory, names, _ in os.walk("/sys/fs/cgroup"):
        found |= {f"control group {directory}/{name}" for name in names if OURS.search(name)}
    return found


def kernel_left(before: set[str]) -> set[str]:
    """Return what is still there after a while that was not before: the kernel removes some of it late."""
    deadline = time.monotonic() + GRACE_S
    while (left := of_the_kernel() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def files_left(directory: Path) -> list[str]:
    """Return what is in `directory`, other tools' caches and empty directories left out."""
    left = []
    for entry in sorted(directory.iterdir()):
        if entry.name.startswith(CACHES):
            continue
        if entry.is_dir() and not entry.is_symlink() and not any(p for p in entry.rglob("*") if not p.is_dir()):
            continue
        left.append(entry.name)
    return left


def described(path: Path) -> str:
    """Return a path, with some of the files in it where it is a directory: they tell who left it."""
    inside = sorted(str(p.relative_to(path)) for p in path.rglob("*") if not p.is_dir()) if path.is_dir() else []
    return f"{path}: {', '.join(inside[:8])}" if inside else str(path)


def strays_in_tree() -> set[str]:
    """Return untracked files of the working tree that are not ignored, and its sockets (git does not see those)."""
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"], cwd=TREE, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    sockets = []
    for directory, names, files in os.walk(TREE):
        names[:] = [name for name in names if name not in ("node_modules", ".venv", ".git")]
        paths = [Path(directory) / name for name in files]
        sockets += [str(path.relative_to(TREE)) for path in paths if path.is_socket()]
    return {*listed, *sockets}


def main(command: list[str]) -> int:
    """Run `command`; return its exit status, or 1 where it left something behind."""
    if not command:
        print(__doc__, file=sys.stderr)
        return 2
    directory = Path(tempfile.mkdtemp(prefix="hyperpod-test."))
    mark = directory.name
    memory, kernel = shared_memory(), of_the_kernel()
    strays = strays_in_tree()
    environment = os.environ | {
        MARK: mark,
        "TMPDIR": str(directory),
        "JUPYTER_HYPERPOD_STORE": str(directory / "store"),
    }
    try:
        status = subprocess.run(command, env=environment, check=False).returncode
        problems = [f"process {pid}: {line[:200]}" for pid, line in wait_until_gone(mark, GRACE_S).items()]
        for pid in marked_processes(mark):
            os.kill(pid, signal.SIGKILL)
        problems += [
            f"shared memory /dev/shm/{name}" for name in sorted(shared_memory() - memory) if "hyperpod" in name
        ]
        problems += sorted(kernel_left(kernel))
        problems += [f"in the working tree {name}" for name in sorted(strays_in_tree() - strays)]
        problems += [f"temporary file {described(directory / name)}" for name in files_left(directory)]
    finally:
        for mounted in sorted(
            name.removeprefix("mount ") for name in of_the_kernel() - kernel if str(directory) in name
        ):
            subprocess.run(["umount", "--lazy", mounted], check=False)
        if not any(str(directory) in name for name in of_the_kernel()):  # what is behind a mount is not this run's
            shutil.rmtree(directory, ignore_errors=True)
    for problem in problems:
        print(f"left behind: {problem}", file=sys.stderr)
    if not problems:
        print("\nnothing was left behind: no process, socket, mount, network or temporary file")
    return status or bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
