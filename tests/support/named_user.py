"""Runs a command as a user of the system whom only this command's own view of the files knows.

    unshare --mount python named_user.py PLACE UID GID,… DIRECTORY… -- COMMAND …

PLACE has the files `passwd` and `group` of that view. Each DIRECTORY, such as where Python is installed, is passable in
it, whatever the modes of the directories above. Nothing outside of the view is changed, and it ends with the command.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def main() -> None:
    place, uid, groups, *rest = sys.argv[1:]
    directories, command = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
    for name in ("passwd", "group"):
        mount("--bind", f"{place}/{name}", f"/etc/{name}")
    open_ways([Path(directory) for directory in directories])
    numbers = [int(number) for number in groups.split(",")]
    os.setgroups(numbers)
    os.setgid(int(uid))
    os.setuid(int(uid))
    os.umask(0o077)
    os.execvp(command[0], command)


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def open_ways(directories: list[Path]) -> None:
    """Replace what is closed above the directories by an empty directory with nothing but them."""
    inside: dict[Path, list[tuple[Path, int]]] = {}
    for directory in directories:
        closed = next((above for above in [*directory.parents][::-1] if not above.stat().st_mode & 0o001), None)
        if closed is not None:
            inside.setdefault(closed, []).append((directory, os.open(directory, os.O_PATH)))
    for closed, kept in inside.items():
        mount("-t", "tmpfs", "-o", "mode=755", "none", str(closed))
        for directory, opened in kept:
            directory.mkdir(parents=True, exist_ok=True)
            subprocess.run(
                ["mount", "-c", "--bind", f"/proc/self/fd/{opened}", str(directory)], check=True, pass_fds=[opened]
            )
            os.close(opened)


if __name__ == "__main__":
    main()
