"""A store that several users share: real users, each verb, and what a hostile member tries."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.cli import main, parser, terminal, verbs
from jupyter_hyperpod.control import cluster, housekeeping, jobs
from jupyter_hyperpod.core.events import Command, encode
from jupyter_hyperpod.storage import member_files, sharing
from jupyter_hyperpod.storage.journal import JournalFollower, command_writer, follow_commands
from jupyter_hyperpod.storage.member_files import MEMBERS
from jupyter_hyperpod.storage.store import JobStore, Store
from tests.storage.people import OPERATOR, OWNER, READER, READERS, SOURCE, STRANGER, as_user, second

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")

LOADED = (parser, terminal, verbs)  # before a child becomes a user who may not read them
SECRETS = ("secret", "environment")


def follower_of(job: JobStore) -> JournalFollower[Command]:
    return follow_commands(job.commands)


def received(job: JobStore) -> tuple[list[Command], list[str]]:
    """What the owner's processes accept, and what they refuse."""

    def read() -> Any:
        follower = follower_of(job)
        found = follower.poll()
        return [[json.loads(encode(command)) for command in found], follower.problems]

    answer = as_user(OWNER, read)
    assert isinstance(answer, list), answer
    lines, problems = answer
    return [Command(*(line[k] for k in ("writer", "seq", "time_s", "kind", "data"))) for line in lines], problems


def test_who_may_open_what(shared: JobStore) -> None:
    """Each file and directory, each role, reading and writing, against the table in `sharing.py`."""
    root = shared.path.parent.parent
    as_user(OWNER, lambda: cluster_files(root))
    for job in (shared, second(shared)):
        inside = job.path
        readable = [
            inside / "spec.json",
            inside / "view.json",
            *inside.glob("events/*.jsonl"),
            *root.glob("cells/*"),
            root / "sharing.json",
        ]
        assert len(readable) == 6
        private = [*(inside / name for name in SECRETS), *(root / "cluster").glob("supervisor.*")]
        assert len(private) == 4
        for path in (*readable, *private):
            for uid in (STRANGER, READER, OPERATOR, OWNER):
                reads = uid == OWNER or (path in readable and uid != STRANGER)
                assert tried(uid, lambda path=path: len(path.read_bytes())) == reads, (path, uid)
                writes = tried(uid, lambda path=path: os.close(os.open(path, os.O_WRONLY)))
                assert writes == (uid == OWNER), (path, uid)
        for path in [root, *(path for path in root.rglob("*") if path.is_dir())]:
            for uid in (STRANGER, READER, OPERATOR):
                made = tried(uid, partial(plant_directory, path))
                assert made == (uid == OPERATOR and path.name == MEMBERS), (path, uid)


def cluster_files(root: Path) -> None:
    for name in ("supervisor.lock", "supervisor.log"):
        os.close(os.open(root / "cluster" / name, os.O_CREAT | os.O_WRONLY, 0o600))


def plant_directory(path: Path) -> None:
    (path / "planted").mkdir()
    (path / "planted").rmdir()


def tried(uid: int, act: Callable[[], Any]) -> bool:
    answer = as_user(uid, act)
    assert not isinstance(answer, str) or answer.startswith("PermissionError"), answer
    return not isinstance(answer, str)


def test_a_store_that_is_not_shared_is_refused_in_words(shared: JobStore) -> None:
    root = shared.path.parent.parent
    text = as_user(STRANGER, lambda: jobs.list_jobs(Store(root)))
    assert "belongs to uid-61001, who does not share it with you; ask uid-61001 to run" in text
    text = as_user(OPERATOR, lambda: jobs.submit(Store(root), SOURCE))
    assert "who alone submits jobs, deletes them and starts the cluster; take a store of your own" in text
    text = as_user(READER, lambda: jobs.stop(Store(root), shared.id))
    assert "the job belongs to uid-61001, and you may not operate it; ask uid-61001 to run" in text
    text = as_user(OPERATOR, lambda: cluster.request(Store(root), {"op": "stop"}))
    assert "the cluster obeys only uid-61001, the owner of the store" in text


def test_a_command_of_a_member_names_the_member(shared: JobStore) -> None:
    root = shared.path.parent.parent
    as_user(OPERATOR, lambda: jobs.stop(Store(root), shared.id, identity="root"))
    as_user(OWNER, lambda: jobs.scale(Store(root), shared.id, 2))
    (stop, scale), problems = received(shared)
    assert problems == []
    assert (stop.kind, stop.data["by"]) == ("stop", {"user": "uid-61002", "uid": OPERATOR, "identity": ""})
    assert stop.data["reason"] == "stopped by uid-61002: stopped by root (uid-61002)"
    assert (scale.kind, scale.data["by"]["uid"]) == ("scale", OWNER)


def test_the_command_of_root_reaches_the_owner(shared: JobStore) -> None:
    jobs.stop(Store(shared.path.parent.parent), shared.id, identity="ada")
    (stop,), problems = received(shared)
    assert (stop.data["by"]["uid"], stop.data["reason"], problems) == (0, "stopped by ada (root)", [])


def line(to: JobStore, kind: str = "stop", by: int = OPERATOR, writer: str = "control.00000000", **data: Any) -> bytes:
    fields = {"stop": {"reason": "enough"}, "scale": {"target": 2}, "fault": {"fault": "kill", "rank": 0, "node": None}}
    record: dict[str, Any] = {
        "job": to.id,
        "by": {"user": "root", "uid": by, "identity": "root"},
        **fields.get(kind, {}),
        **data,
    }
    return encode(Command(writer, 1, time.time(), kind, record))


def plant(job: JobStore, content: bytes, name: str = "control.0a0b0c0d.jsonl", uid: int = OPERATOR) -> Any:
    path = job.commands / MEMBERS / name
    return as_user(uid, lambda: path.write_bytes(content) and path.chmod(0o644))


def test_a_fitting_command_is_accepted(shared: JobStore) -> None:
    """So that the refusals below are for the reason that each of them names."""
    plant(shared, line(shared))
    (stop,), problems = received(shared)
    assert (stop.writer, stop.seq, problems) == (f"member-{OPERATOR}.control.0a0b0c0d", 1, [])
    assert str(stop.data["reason"]) == "stopped by uid-61002: enough"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"by": OWNER}, "in the name of root was refused: uid-61002 wrote it"),
        ({"by": 0}, "was refused: uid-61002 wrote it"),
        ({"kind": "drain", "node": "n", "cause": "c", "reason": "r"}, "drain is not for members"),
        ({"kind": "blame", "rank": None, "cause": "c", "reason": "r"}, "blame is not for members"),
        ({"kind": "fault", "fault": "flip-parameter"}, "the fault flip-parameter changes values"),
        ({"kind": "fault", "fault": "nan"}, "the fault nan changes values"),
        ({"kind": "fault", "fault": ["kill"]}, "its fault is unknown"),
        ({"kind": "fault", "rank": "0; rm -rf /"}, "its rank is not a number"),
        ({"kind": "fault", "rank": None, "node": "a\nb"}, "its node is not a name"),
        ({"kind": "fault", "node": "node-1"}, "exactly one aim"),
        ({"kind": "fault", "fault": "throttle", "factor": 1e9}, "its factor is not possible"),
        ({"kind": "scale", "target": "2"}, "not a number of nodes"),
        ({"kind": "scale", "target": True}, "not a number of nodes"),
        ({"kind": "stop", "reason": "x" * 501}, "not a text of at most 500"),
        ({"kind": "stop", "reason": {"a": 1}}, "not a text of at most 500"),
        ({"job": "other-abcdefgh"}, "it is not for "),
    ],
)
def test_a_command_that_does_not_fit_is_refused(shared: JobStore, changes: dict[str, Any], words: str) -> None:
    plant(shared, line(shared, **changes))
    found, problems = received(shared)
    assert found == []
    assert len(problems) == 1 and words in problems[0], problems


def test_what_only_the_product_writes_is_taken_out(shared: JobStore) -> None:
    plant(shared, line(shared, "scale", writer="supervisor.00000000", lends=True, evil=1))
    (scale,), _ = received(shared)
    assert scale.data == {"target": 2, "by": {"user": "uid-61002", "uid": OPERATOR, "identity": ""}}
    assert scale.writer.startswith("member-")


def test_links_pipes_and_directories_are_not_opened(shared: JobStore) -> None:
    members = shared.commands / MEMBERS
    os.chown(shared.path / "secret", OWNER, OWNER)

    def attack() -> None:
        (members / "control.00000001.jsonl").symlink_to(shared.path / "secret")
        (members / "control.00000002.jsonl").symlink_to("/dev/zero")
        os.mkfifo(members / "control.00000003.jsonl", 0o666)
        (members / "control.00000004.jsonl").mkdir()
        (members / "control.0000000\n.jsonl").write_bytes(line(shared))
        (members / "supervisor.00000005.jsonl").write_bytes(line(shared))
        (members / "control.00000006.jsonl").write_bytes(b"x" * 100_000)
        (members / "control.00000007.jsonl").write_bytes(b"\xff\x00\n")
        (members / "control.00000008.jsonl").write_bytes(line(shared))
        os.link(members / "control.00000008.jsonl", members / "control.00000009.jsonl")
        for path in members_files(members):
            path.chmod(0o644)

    def members_files(directory: Path) -> list[Path]:
        names = (*(f"control.0000000{n}.jsonl" for n in (6, 7, 8)), "supervisor.00000005.jsonl")
        return [directory / name for name in names]

    assert as_user(OPERATOR, attack) is None
    secret = (shared.path / "secret").read_bytes()
    found, problems = received(shared)
    assert found == []
    text = "\n".join(problems)
    for words in ("is not a regular file", "has several names", "more than 16384 bytes", "is not a file of commands"):
        assert words in text, problems
    assert all("\n" not in problem and len(problem) <= 300 for problem in problems)
    assert secret.hex() not in text and (shared.path / "secret").read_bytes() == secret


def test_the_file_of_another_user_passes_for_nobodys_command(shared: JobStore) -> None:
    """A name of a file that another person wrote, for another job, when its first name is gone."""
    plant(second(shared), line(second(shared), by=READER))
    path = second(shared).commands / MEMBERS / "control.0a0b0c0d.jsonl"
    os.chown(path, READER, READER)
    os.rename(path, shared.commands / MEMBERS / path.name)
    found, problems = received(shared)
    assert found == [] and "it is not for first-" in problems[0]


def test_members_change_nothing_of_each_other_or_of_the_owner(shared: JobStore) -> None:
    plant(shared, line(shared))
    mine = shared.commands / MEMBERS / "control.0a0b0c0d.jsonl"
    as_user(OWNER, lambda: jobs.scale(Store(shared.path.parent.parent), shared.id, 2))
    os.chown(mine, STRANGER, STRANGER)
    for act in (
        mine.unlink,
        lambda: mine.rename(mine.with_name("control.11111111.jsonl")),
        lambda: mine.write_bytes(b"x"),
        lambda: os.rename(mine.parent, shared.commands / "other"),
        lambda: os.rmdir(mine.parent),
        lambda: os.rename(shared.commands, shared.path / "other"),
        lambda: os.listdir(shared.commands),
        lambda: os.listdir(mine.parent),
    ):
        assert "PermissionError" in str(as_user(OPERATOR, act))


def test_a_flood_is_bounded(shared: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_files, "MOST_COMMANDS", 20)
    monkeypatch.setattr(member_files, "MOST_FILES", 60)
    monkeypatch.setattr(member_files, "MOST_UNFINISHED", 5)
    members = shared.commands / MEMBERS

    def flood() -> None:
        for number in range(200):
            path = members / f"control.{number:08x}.jsonl"
            path.write_bytes(line(shared) if number % 2 else b"{")
            path.chmod(0o644)

    assert as_user(OPERATOR, flood) is None
    with command_writer(shared.commands, "control") as journal:
        journal.append("stop", {"reason": "the owner is still heard"})
    os.chown(next(shared.commands.glob("*.jsonl")), OWNER, OWNER)
    found, problems = received(shared)
    assert [command.data["reason"] for command in found if command.writer.startswith("control.")] != []
    assert len(found) <= 21 and 0 < len(problems) <= member_files.MOST_PROBLEMS


def test_a_line_that_never_ends_is_given_up(shared: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_files, "UNFINISHED_S", -1.0)
    plant(shared, b"{")
    assert received(shared)[1] == ["a command was refused: it was not complete after -1 s"]


def test_a_user_known_to_be_in_no_such_group_is_refused(shared: JobStore) -> None:
    """For example one who was taken out of the group, and still has the file open."""
    plant(shared, line(shared, by=65534))
    os.chown(shared.commands / MEMBERS / "control.0a0b0c0d.jsonl", 65534, 65534)
    found, problems = received(shared)
    assert found == [] and "nobody is not in the group gid-62002" in problems[0]


def test_what_a_member_leaves_behind_stops_no_later_deletion(shared: JobStore) -> None:
    root = shared.path.parent.parent
    as_user(OPERATOR, lambda: (shared.commands / MEMBERS / "mine" / "deep").mkdir(parents=True))
    other = second(shared).id
    assert "cannot be deleted: Permission denied" in as_user(OWNER, lambda: housekeeping.delete(Store(root), shared.id))
    assert as_user(OWNER, lambda: housekeeping.delete(Store(root), other)) is None
    assert Store(root).job_ids() == []


def test_private_again(shared: JobStore) -> None:
    root = shared.path.parent.parent
    plant(shared, line(shared))
    assert as_user(OWNER, lambda: sharing.unshare(root)) is None
    assert received(shared) == ([], [])
    for path in (root, *root.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode & 0o077 == 0, (path, oct(mode))
    assert "does not share it with you" in as_user(READER, lambda: jobs.list_jobs(Store(root)))


def test_only_the_owner_shares_and_only_with_groups_of_their_own(shared: JobStore) -> None:
    root = shared.path.parent.parent
    assert "who alone may share it" in as_user(OPERATOR, lambda: sharing.unshare(root))
    text = as_user(OWNER, lambda: sharing.share(root, sharing.Sharing(4)))
    assert "you must be in it, and have logged in since" in text
    with pytest.raises(Exception, match="who alone may share it"):
        sharing.share(root, sharing.Sharing(READERS))


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "own"
    assert main(["share", "--store", str(root)]) == 0
    assert "is private" in capsys.readouterr().out
    assert main(["share", "62001", "62002:operate", "--store", str(root)]) == 0
    said = capsys.readouterr().out
    assert "the group gid-62001 reads, the group gid-62002 stops, scales and disturbs jobs" in said
    assert "cannot get there" in said
    assert (root / "cluster").stat().st_mode & 0o7777 == 0o2750
    assert main(["share", "--private", "--store", str(root)]) == 0
    assert "is private" in capsys.readouterr().out
    for words in (["no-such-group"], ["62001:own"], ["62001", "62002"], ["62001", "--private"]):
        assert main(["share", *words, "--store", str(root)]) == 2, words
    assert main(["share", "62001:operate", "--store", str(root)]) == 0
    assert sharing.sharing_of(root) == sharing.Sharing(62001, 62001)
