"""Four people and two groups of the system, of whom one has a store that the others may see or operate."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.leaks import wait_until_gone
from tests.storage.people import GROUPS, OPERATOR, OPERATORS, OWNER, READER, READERS, STRANGER, pass_through

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="only root can become other users"
)
NAMES = {OWNER: "ada", OPERATOR: "bob", READER: "carol", STRANGER: "dan"}
MARK = "TEST_TEAM_MARK"
TREE = Path(__file__).resolve().parents[2]


class Team:
    """Four people and two groups that exist in the views of their own commands only."""

    def __init__(self, place: Path, mark: str) -> None:
        self.place, self.mark, self.root = place, mark, place / "store"
        lines = ["root:x:0:0::/root:/bin/sh"]
        for uid, name in NAMES.items():
            (place / name).mkdir(mode=0o700)
            os.chown(place / name, uid, uid)
            lines.append(f"{name}:x:{uid}:{uid}::{place / name}:/bin/sh")
        (place / "passwd").write_text("\n".join([*lines, ""]))
        members = {
            "team": (READERS, "ada,bob,carol"),
            "ops": (OPERATORS, "ada,bob"),
            **{n: (u, "") for u, n in NAMES.items()},
        }
        (place / "group").write_text("".join(f"{name}:x:{gid}:{who}\n" for name, (gid, who) in members.items()))
        for name in ("passwd", "group"):
            (place / name).chmod(0o644)
        self.root.mkdir(mode=0o700)
        os.chown(self.root, OWNER, OWNER)

    def seen_as(self, uid: int, *words: str) -> list[str]:
        """A command as a person starts it."""
        groups = ",".join(str(gid) for gid in (uid, *GROUPS[uid]))
        view = [sys.executable, str(TREE / "tests" / "support" / "named_user.py"), str(self.place), str(uid), groups]
        view += [str(Path(sys.base_prefix).resolve()), str(Path(sys.prefix).resolve()), str(TREE), "--"]
        return ["unshare", "--mount", "--propagation", "private", *view, *words]

    def home(self, uid: int) -> Path:
        return self.place / NAMES[uid]

    def environment(self, uid: int) -> dict[str, str]:
        """What a person's programs find set."""
        own = {MARK: self.mark, "HOME": str(self.home(uid)), "USER": NAMES[uid], "PYTHONPATH": str(TREE)}
        return {**os.environ, **own}

    def run(self, uid: int, *words: str) -> subprocess.CompletedProcess[str]:
        """A command line of a person."""
        return subprocess.run(
            self.seen_as(uid, sys.executable, "-m", "jupyter_hyperpod", *words, "--store", str(self.root)),
            cwd=self.home(uid),
            env=self.environment(uid),
            capture_output=True,
            text=True,
            timeout=120,
        )

    def done(self, uid: int, *words: str) -> str:
        """The output of a command line that must succeed."""
        found = self.run(uid, *words)
        assert found.returncode == 0, (NAMES[uid], words, found.stdout, found.stderr)
        return found.stdout

    def refused(self, uid: int, *words: str) -> str:
        """The sentence of a command line that must be refused."""
        found = self.run(uid, *words)
        assert found.returncode in (1, 2) and found.stdout == "", (NAMES[uid], words, found)
        assert found.stderr.startswith("error: ") and found.stderr.count("\n") == 1, found.stderr
        return found.stderr


@contextmanager
def team_in(place: Path) -> Iterator[Team]:
    """People with a store in this place; at the end their cluster, and nothing may be left."""
    pass_through(place)
    team = Team(place, f"team-{secrets.token_hex(6)}")
    try:
        yield team
    finally:
        team.run(OWNER, "cluster", "stop")
        left = wait_until_gone(team.mark, 60, MARK)
        for pid in left:
            os.kill(pid, 9)
        assert not left, f"the cluster was stopped but these went on: {left}"
