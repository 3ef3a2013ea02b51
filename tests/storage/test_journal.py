"""Journals under real processes: killed in the middle of a write, many at once, on a full disk."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.core.errors import ProtocolError, StoreError
from jupyter_hyperpod.core.events import Event, encode
from jupyter_hyperpod.storage import journal
from jupyter_hyperpod.storage.journal import (
    command_writer,
    event_writer,
    follow_commands,
    follow_events,
    read_events,
    replay_events,
)
from jupyter_hyperpod.storage.journal_search import read_kinds
from jupyter_hyperpod.system.users import own_name
from tests.storage import full_disk

WRITER = Path(__file__).with_name("writer_process.py")
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start writer processes; whatever the test leaves running is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def one(name: str, size: int, count: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(WRITER), str(tmp_path), name, str(size), str(count)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        return started[-1]

    yield one
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def whole_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def kill_while_writing(process: subprocess.Popen[bytes], delay_s: float) -> int:
    """SIGKILL the writer after a few records and a moment; return the last sequence number it acknowledged."""
    assert process.stdout is not None
    for _ in range(2):
        acknowledged = int(process.stdout.readline())
    threading.Event().wait(delay_s)  # aims at another byte of the write each time
    process.send_signal(signal.SIGKILL)
    rest = process.communicate()[0].split()
    return int(rest[-1]) if rest else acknowledged


def test_a_writer_killed_in_the_middle_of_a_write_costs_no_one_anything(start: Start, tmp_path: Path) -> None:
    follower = follow_events(tmp_path)
    dice = random.Random(0)
    torn = 0
    for _ in range(60):
        acknowledged = kill_while_writing(start("victim", 4 << 20, 10_000), dice.uniform(0, 0.08))
        (path,) = tmp_path.glob("victim.*.jsonl")
        seen = [event.seq for event in follower.poll()]
        assert seen == list(range(1, len(seen) + 1))
        assert acknowledged <= len(seen) == whole_lines(path)
        torn += not path.read_bytes().endswith(b"\n")
        with event_writer(tmp_path, "victim") as successor:
            successor.append("warning.raised", {"text": "next"})
        (event,) = follower.poll()
        assert event.data["text"] == "next"
        assert len(read_events(tmp_path)) == len(seen) + 1
        for used in tmp_path.glob("*.jsonl"):
            used.unlink()
        if torn >= 2:
            break
    assert torn >= 2, "no write was torn in 60 kills"
    assert follower.problems == []


def test_a_replay_begins_after_the_cursor_and_leaves_out_what_is_no_event(tmp_path: Path) -> None:
    for writer in ("a.1", "b.1"):
        lines = [
            encode(Event(writer, seq, seq + 0.5 * (writer == "b.1"), "warning.raised", {"text": "x"}))
            for seq in (1, 2, 3)
        ]
        (tmp_path / f"{writer}.jsonl").write_bytes(
            lines[0] + b"no event\n" + lines[1] + lines[1] + lines[2] + lines[2][:-1]
        )
    everything = [("a.1", 1), ("b.1", 1), ("a.1", 2), ("b.1", 2), ("a.1", 3), ("b.1", 3)]
    assert [(event.writer, event.seq) for event in replay_events(tmp_path, {})] == everything
    rest = [(writer, seq) for writer, seq in everything if seq > {"a.1": 2, "b.1": 0}[writer]]
    assert [(event.writer, event.seq) for event in replay_events(tmp_path, {"a.1": 2})] == rest
    assert list(replay_events(tmp_path, {"a.1": 3, "b.1": 3})) == []


def test_a_torn_tail_is_waited_for_and_read_once_it_is_whole(tmp_path: Path) -> None:
    line = encode(Event("w.1", 1, 1.0, "warning.raised", {"text": "grüße"}))
    path = tmp_path / "w.1.jsonl"
    follower = follow_events(tmp_path)
    with open(path, "wb", buffering=0) as file:
        for at in range(len(line) - 1):
            file.write(line[at : at + 1])
            assert follower.poll() == []
        file.write(line[-1:])
        assert [event.data["text"] for event in follower.poll()] == ["grüße"]
    assert follower.problems == []


def test_a_follower_misses_nothing_while_many_write_and_die(start: Start, tmp_path: Path) -> None:
    victims = {f"victim{at}": start(f"victim{at}", 5000, 10**9) for at in range(3)}
    others = {f"other{at}": start(f"other{at}", 5000, 1000) for at in range(3)}
    writers = victims | others
    acknowledged: dict[str, int] = {}
    seen: dict[str, list[int]] = {name: [] for name in writers}
    follower = follow_events(tmp_path)
    dice = random.Random(7)
    fate = {name: dice.randint(1, 800) for name in victims}

    def count(name: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        acknowledged[name] = process.stdout.read().count(b"\n")

    readers = [threading.Thread(target=count, args=item) for item in writers.items()]
    for reader in readers:
        reader.start()
    last_round = False
    while not last_round:
        last_round = all(process.poll() is not None for process in writers.values())
        for event in follower.poll():
            seen[event.writer.partition(".")[0]].append(event.seq)
        for name, process in victims.items():
            if len(seen[name]) >= fate[name]:
                process.kill()
    for reader in readers:
        reader.join()

    for name, process in writers.items():
        (path,) = tmp_path.glob(f"{name}.*.jsonl")
        assert seen[name] == list(range(1, len(seen[name]) + 1)), "gap, repetition or disorder"
        assert acknowledged[name] <= len(seen[name]) == whole_lines(path)
        assert process.returncode == (-signal.SIGKILL if name in victims else 0)
        assert name in victims or len(seen[name]) == 1000
    assert follower.problems == []


def test_a_cursor_resumes_without_gap_or_repetition(tmp_path: Path) -> None:
    with event_writer(tmp_path, "a") as one, event_writer(tmp_path, "b") as two:
        for number in range(10):
            (one if number % 3 else two).append("warning.raised", {"text": str(number)})
        first = follow_events(tmp_path)
        seen = [event.data["text"] for event in first.poll()]
        for number in range(10, 20):
            (two if number % 3 else one).append("warning.raised", {"text": str(number)})
    again = follow_events(tmp_path, json.loads(json.dumps(first.cursor)))
    seen += [event.data["text"] for event in again.poll()]
    assert sorted(seen, key=int) == [str(number) for number in range(20)]


@pytest.mark.parametrize(
    "rubbish",
    [
        b"",
        b"\0" * 512,
        b"{}",
        b'{"v":1',
        b"[" * 5000,
        b"\xff\xfe",
        b'{"writer":"x","seq":1,"time_s":1,"kind":"?","data":{}}',
    ],
)
def test_a_corrupt_line_is_left_out_and_reported_once(tmp_path: Path, rubbish: bytes) -> None:
    with event_writer(tmp_path, "w") as writer:
        writer.append("warning.raised", {"text": "before"})
        path = tmp_path / f"{writer.name}.jsonl"
        with open(path, "ab") as file:
            file.write(rubbish + b"\n")
        writer.append("warning.raised", {"text": "after"})
    follower = follow_events(tmp_path)
    assert [event.data["text"] for event in follower.poll()] == ["before", "after"]
    assert follower.poll() == []
    (problem,) = follower.problems
    assert path.name in problem


def test_two_writers_of_one_name_never_share_a_file(tmp_path: Path) -> None:
    with event_writer(tmp_path, "agent") as one, event_writer(tmp_path, "agent") as two:
        assert one.name != two.name
        one.append("warning.raised", {"text": "1"})
        two.append("warning.raised", {"text": "2"})
    assert len(read_events(tmp_path)) == 2


def test_a_clock_that_goes_back_does_not_reorder_a_writer(tmp_path: Path) -> None:
    times = iter([10.0, 5.0, 7.0, 11.0])
    with journal.RecordWriter(tmp_path, "w", Event, clock=lambda: next(times)) as writer:
        for number in range(4):
            writer.append("warning.raised", {"text": str(number)})
    events = read_events(tmp_path)
    assert [event.data["text"] for event in events] == ["0", "1", "2", "3"]
    assert [event.time_s for event in events] == [10.0, 10.0, 10.0, 11.0]


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 100)), max_size=40))
def test_merging_keeps_each_writers_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, float]]
) -> None:
    directory = tmp_path_factory.mktemp("merge")
    now = [0.0]
    writers = [journal.RecordWriter(directory, f"w{at}", Event, clock=lambda: now[0]) for at in range(4)]
    for at, now[0] in steps:
        writers[at].append("warning.raised", {"text": ""})
    for writer in writers:
        writer.close()
    events = read_events(directory)
    assert len(events) == len(steps)
    assert [event.time_s for event in events] == sorted(event.time_s for event in events)
    for writer in writers:
        mine = [event.seq for event in events if event.writer == writer.name]
        assert mine == list(range(1, len(mine) + 1))


def test_journals_are_private(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with event_writer(tmp_path, "w") as writer:
            mode = stat.S_IMODE((tmp_path / f"{writer.name}.jsonl").stat().st_mode)
    finally:
        os.umask(old)
    assert mode == 0o600


def test_a_command_in_another_name_than_its_writers_is_refused(tmp_path: Path) -> None:
    with command_writer(tmp_path, "cli") as writer:
        writer.append("stop", {"reason": "enough", "by": {"user": "ada", "uid": writer.owner() + 1}})
        writer.append("stop", {"reason": "enough", "by": {"user": "ada", "uid": writer.owner()}})
        writer.append("stop", {"reason": "enough"})
    follower = follow_commands(tmp_path)
    assert [command.seq for command in follower.poll()] == [2, 3]
    assert f"a command in the name of ada was refused: {own_name()} wrote it" in follower.problems[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_command_of_another_user_is_refused(tmp_path: Path) -> None:
    with command_writer(tmp_path, "cli") as writer:
        writer.append("stop", {"reason": "enough"})
        os.chown(tmp_path / f"{writer.name}.jsonl", 65534, -1)
    follower = follow_commands(tmp_path)
    assert follower.poll() == []
    assert f"was refused: the job belongs to {own_name()}" in follower.problems[0]


def test_commands_and_events_do_not_pass_for_each_other(tmp_path: Path) -> None:
    with command_writer(tmp_path, "cli") as writer:
        writer.append("stop", {"reason": "enough"})
        with pytest.raises(ProtocolError, match="unknown kind 'job.state'"):
            writer.append("job.state", {"state": "running", "reason": ""})
    assert [command.kind for command in follow_commands(tmp_path).poll()] == ["stop"]
    follower = follow_events(tmp_path)
    assert follower.poll() == []
    assert "unknown kind 'stop'" in follower.problems[0]


def test_a_follower_forgets_files_that_are_read_and_complete(tmp_path: Path) -> None:
    follower, found = follow_events(tmp_path), []
    with event_writer(tmp_path, "w", segment_bytes=300) as writer:
        for number in range(60):
            writer.append("warning.raised", {"text": f"warning {number}"})
            found += follower.poll()
    assert [event.seq for event in found] == list(range(1, 61)) and not follower.problems
    *_, newest, _first = sorted(path.name for path in tmp_path.iterdir())
    assert "+0000000000" in newest and list(follower.read_so_far()) == [newest]


def test_a_journal_that_does_not_exist_yet_is_empty(tmp_path: Path) -> None:
    follower = follow_events(tmp_path / "later")
    assert follower.poll() == []
    (tmp_path / "later").mkdir()
    with event_writer(tmp_path / "later", "w") as writer:
        writer.append("warning.raised", {"text": "x"})
    assert len(follower.poll()) == 1


def test_waiting_returns_at_once_when_something_comes(tmp_path: Path) -> None:
    follower = follow_events(tmp_path)
    with event_writer(tmp_path, "w") as writer:
        timer = threading.Timer(0.05, lambda: writer.append("warning.raised", {"text": "x"}))
        timer.start()
        assert len(follower.wait(timeout_s=30)) == 1
        timer.join()
    assert follower.wait(timeout_s=0.02) == []
    assert follower.wait(timeout_s=30, stop=lambda: True) == []


def test_an_oversized_line_is_left_out_and_what_follows_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "LINE_LIMIT_BYTES", 1000)
    follower = follow_events(tmp_path)
    with event_writer(tmp_path, "w") as writer:
        path = tmp_path / f"{writer.name}.jsonl"
        with open(path, "ab", buffering=0) as file:
            for _ in range(3):
                file.write(b"x" * 600)
                assert follower.poll() == []
            file.write(b"\n")
        writer.append("warning.raised", {"text": "after"})
    assert [event.data["text"] for event in follower.poll()] == ["after"]
    assert "more than 1000 bytes" in follower.problems[0]


def test_a_full_disk_is_an_error_and_leaves_the_journal_whole(tmp_path: Path) -> None:
    code = """
with event_writer(here, "w") as writer:
    writer.append("warning.raised", {"text": "a" * 30_000})
    try:
        writer.append("warning.raised", {"text": "b" * 60_000})
    except StoreError as error:
        print(error)
    print(writer.append("warning.raised", {"text": "c" * 1000}).seq)
"""
    error, seq = full_disk.run(code, tmp_path, 64_000)
    assert re.fullmatch(r"cannot append to .*/w\.\w+\.jsonl: File too large", error)
    assert seq == "2"
    follower = follow_events(tmp_path)
    assert [event.data["text"][0] for event in follower.poll()] == ["a", "c"]
    assert follower.problems == []


def test_a_journal_that_cannot_be_created_says_where_and_why(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot create .*missing.*No such file"):
        event_writer(tmp_path / "missing", "w")


def test_an_unreadable_file_is_reported_and_the_others_are_read(tmp_path: Path, unreadable: Any) -> None:
    with event_writer(tmp_path, "w") as writer:
        writer.append("warning.raised", {"text": "x"})
    unreadable(tmp_path / "bad.jsonl")
    follower = follow_events(tmp_path)
    assert len(follower.poll()) == 1
    assert "bad.jsonl" in follower.problems[0]


@pytest.fixture
def unreadable() -> Callable[[Path], None]:
    """A directory in a file's place: unreadable as a file even for root."""

    def make(path: Path) -> None:
        path.mkdir()

    return make


def test_reading_some_kinds_parses_only_those(tmp_path: Path) -> None:
    with event_writer(tmp_path, "a") as one, event_writer(tmp_path, "b") as two:
        one.append("job.state", {"state": "running", "reason": ""})
        two.append("warning.raised", {"text": 'not a "job.state"'})
        with open(tmp_path / f"{two.name}.jsonl", "ab") as file:
            file.write(b'{"kind":"job.state"\n')
        two.append("job.state", {"state": "succeeded", "reason": ""})
        with open(tmp_path / f"{two.name}.jsonl", "ab") as file:
            file.write(b'{"kind":"job.state"')
    assert [event.data["state"] for event in read_kinds(tmp_path, ("job.state",))] == ["running", "succeeded"]
    assert read_kinds(tmp_path / "missing", ("job.state",)) == []


def test_the_oldest_files_can_be_forgotten(tmp_path: Path) -> None:
    for number in range(5):
        path = tmp_path / f"w.{number}.jsonl"
        path.touch()
        os.utime(path, (number, number))
    journal.forget_oldest(tmp_path, 8)
    assert len(list(tmp_path.iterdir())) == 5
    journal.forget_oldest(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.3.jsonl", "w.4.jsonl"]
    journal.forget_oldest(tmp_path / "not there", 2)


EXHAUSTED = """
import os, resource, sys
from pathlib import Path
from jupyter_hyperpod.storage.journal import follow_commands, follow_events

directory = Path(sys.argv[1])
followers = follow_events(directory), follow_commands(directory)
used = max(map(int, os.listdir("/proc/self/fd")))
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, limits[1]))
held = []
while True:
    try:
        held.append(os.dup(0))
    except OSError:
        break
found = [len(follower.poll()) for follower in followers]
for one in held:
    os.close(one)
print(found, len(followers[0].poll()))
"""


def test_a_follower_without_a_free_descriptor_reads_later(tmp_path: Path) -> None:
    """A coordinator polls commands in each turn: an error there would end it."""
    with event_writer(tmp_path, "control") as writer:
        writer.append("warning.raised", {"text": "a line"})
    done = subprocess.run([sys.executable, "-c", EXHAUSTED, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[0, 0] 1\n", done.stderr


def test_files_of_commands_that_rest_are_looked_at_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, looked = [100.0], Counter[str]()
    own_stat = os.stat

    def counted(path: Any, **options: Any) -> os.stat_result:
        looked[Path(path).suffix] += 1
        return own_stat(path, **options)

    clock = SimpleNamespace(monotonic=lambda: now_s[0], time_ns=time.time_ns, time=time.time)
    monkeypatch.setattr(journal, "time", clock)
    follower = follow_commands(tmp_path)
    writers = [command_writer(tmp_path, "control") for _ in range(20)]
    for writer in writers:
        writer.append("scale", {"target": 2})
    assert len(follower.poll()) == 20
    now_s[0] += journal.REST_S + 1
    assert follower.poll() == []
    monkeypatch.setattr(os, "stat", counted)
    for _ in range(10):
        now_s[0] += journal.LOOK_S / 100
        assert follower.poll() == []
    assert looked[".jsonl"] == 0
    late = command_writer(tmp_path, "control")
    late.append("scale", {"target": 3})
    now_s[0] += journal.LOOK_S / 100
    assert [command.writer for command in follower.poll()] == [late.name], "a new one is read at once"
    writers[0].append("scale", {"target": 4})
    now_s[0] += journal.LOOK_S
    assert [command.writer for command in follower.poll()] == [writers[0].name], "and an old one a moment later"
    for writer in (*writers, late):
        writer.close()


def test_a_file_that_rested_is_read_to_its_end_where_its_writer_has_begun_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(journal, "time", SimpleNamespace(monotonic=lambda: now_s[0], time_ns=lambda: 0, time=time.time))
    follower = journal.JournalFollower(tmp_path, journal.decode_event, rest_s=journal.REST_S)
    with event_writer(tmp_path, "one", segment_bytes=300) as writer:
        writer.append("warning.raised", {"text": "first"})
        assert len(follower.poll()) == 1
        now_s[0] += journal.REST_S + 1
        assert follower.poll() == []
        now_s[0] += journal.LOOK_S / 2
        for text in ("second" * 60, "third"):
            writer.append("warning.raised", {"text": text})
        assert len(list(tmp_path.iterdir())) == 2
        assert [event.data["text"][:5] for event in follower.poll()] == ["secon", "third"]
