"""A job's files are carried to another store: cut anywhere, nothing is lost, repeated or written outside of the job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jupyter_hyperpod.core.errors import ProtocolError, StoreError
from jupyter_hyperpod.core.people import Person
from jupyter_hyperpod.storage.journal import BROUGHT, command_writer, event_writer, follow_commands, follow_events
from jupyter_hyperpod.storage.mirror.mirror_frames import Frame, FrameReader
from jupyter_hyperpod.storage.mirror.source import MirrorSource
from jupyter_hyperpod.storage.mirror.target import FROM_CLIENT, FROM_HEAD, MirrorTarget


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The job as its head has it."""
    job = tmp_path / "there"
    job.mkdir()
    (job / "spec.json").touch()
    for folder in ("events", "output", "commands"):
        (job / folder).mkdir()
    return job


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "here" / "events").mkdir(parents=True)
    return tmp_path / "here"


def sent(there: Path, here: Path) -> bytes:
    source = MirrorSource(there, MirrorTarget(here, FROM_HEAD).known())
    return b"".join(frame.encode() for frame in source.news())


def taken(here: Path, data: bytes) -> None:
    target = MirrorTarget(here, FROM_HEAD)
    for frame in FrameReader().feed(data):
        target.take(frame)


def files(job: Path) -> dict[str, bytes]:
    return {str(path.relative_to(job)): path.read_bytes() for path in job.rglob("*") if path.is_file()}


def test_a_store_that_is_being_deleted_takes_nothing_of_the_journal_along(there: Path, here: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (there / "events" / name).write_bytes(b"one\n")
    taken(here, sent(there, here))
    (there / "events" / "a.jsonl").unlink()
    taken(here, sent(there, here))
    (there / "events" / "b.jsonl").unlink()
    taken(here, sent(there, here))
    assert len(files(here)) == 2
    (there / "spec.json").unlink()
    with pytest.raises(StoreError, match="is gone"):
        sent(there, here)


def test_a_stream_that_is_cut_after_any_byte_is_continued(there: Path, here: Path) -> None:
    with event_writer(there / "events", "coordinator", segment_bytes=150) as journal:
        for number in range(6):
            journal.append("warning.raised", {"text": f"{number}\u00e4"})
    (there / "output" / "node-1.steps").write_bytes(bytes(range(40)))
    (there / "view.json").write_text("{}")
    size = len(sent(there, here))
    for cut in range(0, size, 7):
        taken(here, sent(there, here)[: cut + 1])
    taken(here, sent(there, here))
    assert files(here) | {"spec.json": b""} == files(there)
    assert [event.data["text"][0] for event in follow_events(here / "events").poll()] == list("012345")
    assert [frame.head for frame in FrameReader().feed(sent(there, here)) if "at" in frame.head] == []


def test_who_reads_while_it_arrives_misses_nothing_where_segments_end(there: Path, here: Path) -> None:
    """A reader takes a segment for complete as soon as the next one is there."""
    target, source = MirrorTarget(here, FROM_HEAD), MirrorSource(there, {})
    reader, read = follow_events(here / "events"), []
    with (
        event_writer(there / "events", "worker-a", segment_bytes=2000) as worker,
        event_writer(there / "events", "coordinator", segment_bytes=2000) as head,
    ):
        for number in range(60):
            for journal in (worker, head):
                journal.append("warning.raised", {"text": str(number)})
            if number % 4 == 3:
                for frame in source.news():
                    target.take(frame)
                    read += reader.poll()
    for writer in ("worker-a.", "coordinator."):
        assert [event.data["text"] for event in read if event.writer.startswith(writer)] == [str(n) for n in range(60)]
    assert len(list((here / "events").glob("*+*"))) > 4


def test_values_that_come_back_are_there_before_the_end_is(there: Path, here: Path) -> None:
    target = MirrorTarget(here, FROM_HEAD)
    (there / "pulled.json").write_text('{"values": {}, "problems": []}')
    (there / "events" / "coordinator.1.jsonl").write_text("the end\n")
    for frame in MirrorSource(there, {}).news():
        target.take(frame)
        assert (here / "pulled.json").exists() or not (here / "events" / "coordinator.1.jsonl").exists()
    assert files(here) | {"spec.json": b""} == files(there)
    assert (here / "pulled.json").stat().st_mode & 0o777 == 0o600


def test_how_a_job_ends_comes_after_all_that_was_written_before(there: Path, here: Path) -> None:
    """A reader that sees the end has every step, whenever the head goes on writing while it is read."""
    events, target, source = there / "events", MirrorTarget(here, FROM_HEAD), MirrorSource(there, {})
    writers = ["coordinator.1", "output-a.1", "supervisor.1", "worker-a.1", "worker-b.1"]

    def write(step: int, written: list[str]) -> None:
        for writer in written:
            with open(events / f"{writer}.jsonl", "a") as file:
                file.write(f'{{"step": {step}}}\n')

    def steps(writer: str) -> int:
        path = here / "events" / f"{writer}.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    heads, others = [writers[0], writers[2]], [writers[1], *writers[3:]]
    write(1, [*others[:-1], *heads])  # the last one has not begun
    step = 2
    for _ in range(4):
        for frame in source.news():
            target.take(frame)
            if step < 12:
                write(step, [*others, *heads])
                step += 1
            seen = max(map(steps, heads))
            assert all(steps(other) >= seen for other in others[:-1]) and steps(others[-1]) >= seen - 1
    assert files(there)["events/coordinator.1.jsonl"] == files(here)["events/coordinator.1.jsonl"]


def test_a_file_that_grew_before_the_cut_is_not_written_twice(there: Path, here: Path) -> None:
    (there / "events" / "a.jsonl").write_bytes(b"one\ntwo\n")
    data = sent(there, here)
    (here / "events" / "a.jsonl").write_bytes(b"one\nt")
    taken(here, data)
    taken(here, data)
    assert (here / "events" / "a.jsonl").read_bytes() == b"one\ntwo\n"


def test_a_torn_line_waits_and_what_is_gone_is_removed(there: Path, here: Path) -> None:
    (there / "events" / "a.jsonl").write_bytes(b"one\ntw")
    (there / "events" / "control.1.jsonl").write_bytes(b"ours\n")
    (here / "events" / "control.1.jsonl").write_bytes(b"ours\nmore\n")
    source = MirrorSource(there, {})
    taken(here, b"".join(frame.encode() for frame in source.news()))
    assert (here / "events" / "a.jsonl").read_bytes() == b"one\n"
    (there / "events" / "a.jsonl").rename(there / "events" / "a+000000000001~000000000002@000000000002.jsonl")
    taken(here, b"".join(frame.encode() for frame in source.news()))
    names = sorted(path.name for path in (here / "events").iterdir())
    assert names == ["a+000000000001~000000000002@000000000002.jsonl", "control.1.jsonl"]
    assert (here / "events" / "control.1.jsonl").read_bytes() == b"ours\nmore\n", "what is ours is never touched"


@pytest.mark.parametrize(
    "path",
    ["../x", "events/../../x", "/etc/x", "spec.json", "secret", "events/a/b", "events/.x", "", "commands/a"],
)
def test_a_path_that_is_none_of_the_head_s_is_refused(here: Path, path: str) -> None:
    before = files(here.parent)
    with pytest.raises(ProtocolError, match="none of a job's"):
        MirrorTarget(here, FROM_HEAD).take(Frame({"path": path, "at": 0}, b"x\n"))
    assert files(here.parent) == before


def test_a_link_is_not_followed_and_a_gap_is_refused(here: Path, tmp_path: Path) -> None:
    (here / "events" / "a.jsonl").symlink_to(tmp_path / "outside")
    with pytest.raises(Exception, match="cannot write"):
        MirrorTarget(here, FROM_HEAD).take(Frame({"path": "events/a.jsonl", "at": 0}, b"x\n"))
    assert not (tmp_path / "outside").exists()
    with pytest.raises(ProtocolError, match="begins at 5"):
        MirrorTarget(here, FROM_HEAD).take(Frame({"path": "events/b.jsonl", "at": 5}, b"x\n"))


@pytest.mark.parametrize("data", [b"x\n", b"[]\n", b'{"path": 1}\n', b'{"path": "a", "size": -1}\n'])
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(FrameReader().feed(data))


def test_a_command_of_another_machine_s_user_is_obeyed_where_it_was_brought(there: Path) -> None:
    with command_writer(there / "commands", "control") as journal:
        journal.append("stop", {"reason": "x", "by": Person("me", 4711, "").to_json()})
    assert follow_commands(there / "commands").poll() == []
    (there / BROUGHT).touch()
    assert [command.kind for command in follow_commands(there / "commands").poll()] == ["stop"]


def test_only_what_a_client_brings_is_taken_from_it(there: Path) -> None:
    target = MirrorTarget(there, FROM_CLIENT)
    target.take(Frame({"path": "include/lib/a/b.py", "whole": 1}, b"x"))
    target.take(Frame({"path": "spec.json", "whole": 1}, json.dumps({}).encode()))
    assert (there / "include/lib/a/b.py").read_bytes() == b"x"
    for path in ("events/coordinator.1.jsonl", "view.json", "include/../x", "coordinator.json"):
        with pytest.raises(ProtocolError):
            target.take(Frame({"path": path, "whole": 1}, b"x"))
