"""A cluster of an ordinary user, whose job the members of a group see, stop, scale and disturb."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.storage.journal_search import read_kinds
from jupyter_hyperpod.storage.store import Store
from tests.cells import train
from tests.leaks import wait_until_gone
from tests.storage.people import GROUPS, OPERATOR, OPERATORS, OWNER, READER, READERS, STRANGER, pass_through

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="only root can become other users"),
]

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

    def run(self, uid: int, *words: str) -> subprocess.CompletedProcess[str]:
        """A command line of a person."""
        groups = ",".join(str(gid) for gid in (uid, *GROUPS[uid]))
        view = [sys.executable, str(TREE / "tests" / "support" / "named_user.py"), str(self.place), str(uid), groups]
        view += [str(Path(sys.base_prefix).resolve()), str(Path(sys.prefix).resolve()), str(TREE), "--"]
        command = [sys.executable, "-m", "jupyter_hyperpod", *words, "--store", str(self.root)]
        environment = {**os.environ, MARK: self.mark, "HOME": str(self.place / NAMES[uid]), "USER": NAMES[uid]}
        return subprocess.run(
            ["unshare", "--mount", "--propagation", "private", *view, *command],
            cwd=self.place / NAMES[uid],
            env={**environment, "PYTHONPATH": str(TREE)},
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


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    pass_through(tmp_path)
    team = Team(tmp_path, f"team-{secrets.token_hex(6)}")
    try:
        yield team
    finally:
        team.run(OWNER, "cluster", "stop")
        left = wait_until_gone(team.mark, 20, MARK)
        for pid in left:
            os.kill(pid, 9)
        assert not left, f"the cluster was stopped but these went on: {left}"


def test_members_operate_a_job_of_an_ordinary_user(team: Team, eventually: Callable[..., Any]) -> None:
    cell = team.place / "ada" / "cell.py"
    cell.write_text(train())
    cell.chmod(0o644)
    team.done(OWNER, "cluster", "start", "--nodes", "2", "--spares", "0")
    team.done(OWNER, "share", "team", "ops:operate")
    options = ["--nodes", "2", "--elastic", "1:2", "--name", "fit"]
    job_id = json.loads(team.done(OWNER, "submit", str(cell), *options, "--json"))["id"]
    job = Store(team.root).job(job_id)

    def events(kind: str) -> list[dict[str, Any]]:
        return [dict(event.data) for event in read_kinds(job.events, {kind})]

    def steps() -> int:
        return max((event["step"] for event in events("step.committed")), default=0)

    def sizes() -> list[int]:
        return [len(event["members"]) for event in events("generation.formed")]

    def trains_on(nodes: int) -> bool:
        return bool(sizes()) and sizes()[-1] == nodes and steps() > before + 5

    before = 0
    eventually(lambda: trains_on(2), 90)

    kill = ["fault", "kill", "--job", job_id, "--rank", "1"]
    assert "ada" in team.refused(STRANGER, *kill)
    assert "belongs to ada, and you may not operate it" in team.refused(READER, *kill)
    assert "members of a group may inject" in team.refused(OPERATOR, "fault", "nan", *kill[2:])
    assert events("fault.injected") == []
    for uid in (OPERATOR, OWNER):
        team.done(uid, *kill)
        count = 1 if uid == OPERATOR else 2
        eventually(lambda count=count: len(events("fault.injected")) == count, 60)
        before = steps()
        eventually(lambda: trains_on(2), 90)

    assert "ada" in team.refused(READER, "scale", job_id, "1")
    before = steps()
    team.done(OPERATOR, "scale", job_id, "1")
    eventually(lambda: trains_on(1), 90)

    for uid in (READER, STRANGER):
        assert "ada" in team.refused(uid, "stop", job_id)
    team.done(OPERATOR, "stop", job_id)
    eventually(lambda: events("job.state")[-1]["state"] == "stopped", 60)
    assert "stopped by bob" in events("job.state")[-1]["reason"]
    for uid in (OWNER, OPERATOR, READER):
        assert "stopped by bob" in team.done(uid, "describe", job_id)
    assert "every micro-batch of every step counts exactly once" in team.done(READER, "audit", job_id)
    foreign = [path for path in job.path.rglob("*") if path.lstat().st_uid not in (OWNER, OPERATOR)]
    assert foreign == [], "root wrote into the store of another user"
