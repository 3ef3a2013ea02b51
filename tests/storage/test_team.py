"""A cluster of an ordinary user, whose job the members of a group see, stop, scale and disturb."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.storage.journal_search import read_kinds
from jupyter_hyperpod.storage.store import Store
from tests.cells import train
from tests.storage.people import OPERATOR, OWNER, READER, STRANGER
from tests.storage.team import Team, needs_root, team_in

pytestmark = [pytest.mark.slow, needs_root]


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    with team_in(tmp_path) as team:
        yield team


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
