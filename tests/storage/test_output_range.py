"""Ranges of output: what is found by halving is what a scan of everything finds, and costs far less."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_hyperpod.control.watch import OutputLines
from jupyter_hyperpod.core.events import Event
from jupyter_hyperpod.core.spec import OUTPUT_CAP
from jupyter_hyperpod.core.views import new_job_view
from jupyter_hyperpod.storage import journal
from jupyter_hyperpod.storage.journal import follow_events
from jupyter_hyperpod.storage.journal_writer import JournalWriter
from jupyter_hyperpod.storage.output import output_range, output_relay, step_index
from jupyter_hyperpod.storage.output.output_cap import output_directory
from jupyter_hyperpod.storage.output.output_choice import OutputChoice
from jupyter_hyperpod.storage.output.output_range import last_output, place_of, position, read_output
from jupyter_hyperpod.storage.output.output_reader import is_notice
from jupyter_hyperpod.storage.output.output_relay import OutputRelay, StepLabel
from jupyter_hyperpod.storage.output.step_index import StepRange
from jupyter_hyperpod.storage.store import JobStore

# what happens: a node prints so many bytes after a while, in another step, or its agent begins again
STORY = st.lists(
    st.tuples(
        st.sampled_from(["node-1", "node-2"]),
        st.integers(1, 40_000),
        st.sampled_from([0.0, 0.001, 1.0, 60.0, -3.0]),
        st.integers(-1, 2),
        st.sampled_from(["", "", "", "", "again", "session", "damage", "unlabelled", "other event"]),
    ),
    max_size=40,
)


class Clock:
    """The time, for all writers; only the test moves it."""

    def __init__(self) -> None:
        self.now_s = 1_790_000_000.0

    def time(self) -> float:
        return self.now_s

    def rule(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr("time.time", self.time)
        patch.setattr(journal.event_writer, "__defaults__", (math.inf, self.time))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    made.rule(monkeypatch)
    return made


def job_in(path: Path) -> JobStore:
    (path / "events").mkdir(parents=True)
    return JobStore(path)


class Node:
    """An agent that writes what its worker prints."""

    def __init__(self, job: JobStore, name: str, cap: int = OUTPUT_CAP) -> None:
        self.job, self.name, self.label, self.cap = job, name, StepLabel(1, 1), cap
        self.begin()

    def begin(self) -> None:
        self.journal = JournalWriter(self.job.events, f"agent-{self.name}")
        self.relay = OutputRelay(self.job, self.name, self.journal, self.cap)

    def print(self, text: str, label: StepLabel | None = None) -> None:
        rank = int(self.name[-1]) - 1
        self.relay.write(f"{self.name}.a.7", rank, "stdout", text, replace(label or self.label))

    def end(self) -> None:
        self.relay.close()
        self.journal.close()


def told(story: list[tuple[str, int, float, int, str]], job: JobStore, clock: Clock, cap: int) -> None:
    nodes = {name: Node(job, name, cap) for name in ("node-1", "node-2")}
    for number, (name, size, later_s, change, what) in enumerate(story):
        node, clock.now_s = nodes[name], clock.now_s + later_s
        node.label.step = max(1, node.label.step + change)
        if what == "again":
            node.end()
            node.begin()
            node.label = StepLabel(1, 1)
        if what == "session":
            node.label = StepLabel(node.label.session + 1, 1)
        if what == "other event":  # from a clock that is set back afterwards
            clock.now_s += 3.0
            node.journal.write("warning.raised", {"text": "something else"})
            clock.now_s -= 3.0
        if what == "damage":
            for path in [*job.events.iterdir(), *output_directory(job).glob("*@*")][-2:]:
                with open(path, "ab") as file:
                    file.write(b'{"v":1,"writer":"x","seq":1,"time_s":17900\n')
        node.print(f"{number:04} {'x' * size}\n", StepLabel() if what == "unlabelled" else None)
    for node in nodes.values():
        node.end()


def scan(job: JobStore, choice: OutputChoice) -> list[Event]:
    """Every piece, read from the beginning."""
    found = follow_events(job.events).poll() + follow_events(output_directory(job)).poll()
    names_steps = any("step" in event.data for event in found)  # else it is as of a version that named none
    steps = choice.steps if names_steps else None
    return sorted(
        (
            event
            for event in found
            if choice.takes(event)
            and (steps is None or steps.has(event.data.get("session", 0), event.data.get("step", 0)))
        ),
        key=place_of,
    )


def pieces(found: Iterator[Event]) -> list[tuple[float, str, int]]:
    return [place_of(event) for event in found if not is_notice(event)]


@settings(max_examples=60, deadline=None)
@given(story=STORY, data=st.data())
def test_a_range_is_what_a_scan_finds(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[str, int, float, int, str]], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        clock.rule(patch)
        patch.setattr(step_index, "SPAN_BYTES", 30_000)
        patch.setattr("jupyter_hyperpod.storage.output.output_relay.SEGMENT_BYTES", 50_000)
        patch.setenv(output_relay.SHARE_VARIABLE, data.draw(st.sampled_from(["0", "0.02", "0.3"])))
        job = job_in(tmp_path_factory.mktemp("job"))
        begin_s = clock.now_s
        told(story, job, clock, data.draw(st.sampled_from([1_000_000, OUTPUT_CAP])))
        at = st.floats(-5, max(clock.now_s - begin_s, 0) + 5).map(lambda seconds: begin_s + seconds)
        choice = OutputChoice(rank=data.draw(st.sampled_from([None, 0, 1])))
        if data.draw(st.booleans()):
            since_s, until_s = sorted([data.draw(at), data.draw(at)])
            choice = replace(choice, since_s=since_s, until_s=until_s)
        if data.draw(st.booleans()):
            first = data.draw(st.integers(1, 8))
            choice = replace(choice, steps=StepRange(1, first, first + data.draw(st.integers(0, 3))))
        if data.draw(st.booleans()):
            choice = replace(choice, node=data.draw(st.sampled_from(["node-1", "node-2"])))
        expected = [place_of(event) for event in scan(job, choice)]
        if choice.steps is not None and data.draw(st.booleans()):
            index = output_directory(job) / f"node-1{step_index.SUFFIX}"
            if index.exists():
                os.truncate(index, data.draw(st.integers(0, index.stat().st_size)))
        found = pieces(read_output(job, choice))
        assert found == expected
        tail = data.draw(st.integers(1, 5))
        last = list(last_output(job, replace(choice, tail=tail), lambda events: events))
        kept = pieces(iter(last))
        assert kept == expected[len(expected) - len(kept) :]
        assert len(kept) == min(tail, len(expected)) or len(last) == tail


def test_a_place_in_a_file_is_found_among_damaged_and_long_lines(tmp_path: Path) -> None:
    lines = [
        b'{"v":1,"writer":"a","seq":%d,"time_s":%d.5,"kind":"k","data":{"x":"%s"}}\n' % (n, n, b"y" * (n % 7 * 3000))
        for n in range(200)
    ]
    lines[50:50] = [b"\n", b"x" * 100_000 + b"\n", b'{"v":1,"writer":"a","seq":1,"time_s":"never"}\n']
    path = tmp_path / "file"
    path.write_bytes(b"".join(lines) + b'{"v":1,"writer":"a","seq":200,"time')
    content = path.read_bytes()
    for n in range(200):
        begin = content.index(b'"time_s":%d.5' % n)
        begin = content.rindex(b"\n", 0, begin) + 1 if n else 0
        for time_s in (n - 0.4, n + 0.5):
            assert position(path, time_s) == begin, (n, time_s)
    assert position(path, 199.6) == len(content) and position(path, math.inf) == len(content)
    assert position(path, -math.inf) == 0 and position(tmp_path / "missing", 1.0) == 0


def print_steps(node: Node, clock: Clock, texts: Iterable[str]) -> None:
    """Each text is printed in a step of its own, one per second."""
    for step, text in enumerate(texts, 1):
        clock.now_s += 1.0
        node.label.step = step
        node.print(text)
    node.end()


def test_what_was_dropped_is_said_where_it_was_asked_for(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(output_relay.SHARE_VARIABLE, "0.01")
    job = job_in(tmp_path)
    node = Node(job, "node-1", 1_000_000)
    print_steps(node, clock, (f"{step:04} {'x' * 10_000}\n" for step in range(1, 301)))
    every = list(read_output(job, OutputChoice()))
    notice, *kept = every
    assert is_notice(notice) and not any(map(is_notice, kept)), "the journal's share is the oldest, and goes first"
    first = kept[0].data["step"]
    assert 200 < first < 240 and [event.data["step"] for event in kept] == list(range(first, 301))
    assert f", step {first}: the output of node-1 may take 1 MB on the disk (--output-cap)]" in notice.data["text"]
    (said,) = read_output(job, OutputChoice(steps=StepRange(1, 100, 110)))
    assert is_notice(said), "what is asked for is gone"
    assert not any(is_notice(e) for e in read_output(job, OutputChoice(steps=StepRange(1, 250, 260))))
    assert not any(is_notice(e) for e in read_output(job, OutputChoice(since_s=clock.now_s - 20.0)))
    assert [e.data["step"] for e in last_output(job, OutputChoice(tail=3), lambda found: found)] == [298, 299, 300]


def test_a_clock_that_is_set_back_hides_no_step(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_index, "SPAN_BYTES", 100)
    monkeypatch.setenv(output_relay.SHARE_VARIABLE, "0.4")  # another file within the five seconds
    job = job_in(tmp_path)
    node = Node(job, "node-1")
    clock.now_s += 5.0
    node.journal.write("warning.raised", {"text": "the clock is ahead"})
    clock.now_s -= 5.0
    for step in range(1, 201):
        if step == 120:
            clock.now_s -= 5.0
        clock.now_s += 0.1
        node.label.step = step
        node.print(f"{step:03} {'x' * 10_000}\n")
    node.end()
    for step in range(1, 201):
        (found,) = read_output(job, OutputChoice(steps=StepRange(1, step, step)))
        assert found.data["step"] == step


@pytest.mark.parametrize("share", ["64", "0"])
@pytest.mark.parametrize("back_s", [1000.0, 25.0])
def test_agents_that_begin_with_a_clock_that_was_set_back_hide_nothing(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, share: str, back_s: float
) -> None:
    """By step, by time and page by page, also while what the last one prints is in no index yet."""
    monkeypatch.setattr(step_index, "SPAN_BYTES", 100)
    monkeypatch.setenv(output_relay.SHARE_VARIABLE, share)
    job = job_in(tmp_path)
    for agent in range(3):
        node = Node(job, "node-1")
        if agent == 2:
            monkeypatch.setattr(step_index, "SPAN_BYTES", 1 << 20)
        for step in range(50 * agent + 1, 50 * agent + 51):
            clock.now_s += 1.0
            node.label.step = step
            node.print(f"{step:03} {'x' * 8_000}\n")
        if agent < 2:
            node.end()
            clock.now_s -= back_s
    every = list(read_output(job, OutputChoice()))
    assert sorted(event.data["step"] for event in every) == list(range(1, 151))
    assert pieces(iter(every)) == sorted(pieces(iter(every))), "in the order of time"
    for event in every:
        (found,) = read_output(job, OutputChoice(steps=StepRange(1, event.data["step"], event.data["step"])))
        assert found == event
        choice = OutputChoice(since_s=event.time_s, until_s=event.time_s)
        assert event in read_output(job, choice), "by time"
    paged: list[tuple[float, str, int]] = []
    while more := pieces(read_output(job, OutputChoice(), after=paged[-1] if paged else None))[:7]:
        paged += more
    assert paged == pieces(iter(every))
    last = list(last_output(job, OutputChoice(tail=20), lambda found: found))
    assert pieces(iter(last)) == paged[-20:]
    node.end()


def test_output_without_steps_is_found_by_commits(tmp_path: Path, clock: Clock) -> None:
    job = job_in(tmp_path)
    node = Node(job, "node-1")
    record = {"generation": 1, "loss": 0.5, "loss_hex": "0x1p-1", "step_time_s": 1.0, "samples": 4, "world_size": 1}
    with journal.event_writer(job.events, "worker-node-1.a") as commits:
        for step in range(1, 11):
            clock.now_s += 1.0
            node.print(f"{step}\n", StepLabel())
            clock.now_s += 1.0
            commits.append("step.committed", record | {"redone": 0, "session": 1, "step": step})
    node.end()
    assert [e.data["text"] for e in read_output(job, OutputChoice(steps=StepRange(1, 4, 5)))] == ["4\n", "5\n", "6\n"]
    labelled = Node(job, "node-2")
    labelled.print("4\n", StepLabel(1, 4))
    labelled.end()
    found = list(read_output(job, OutputChoice(steps=StepRange(1, 4, 5))))
    assert [e.data["node"] for e in found] == ["node-1", "node-1", "node-1", "node-2"]


def test_a_job_that_an_earlier_version_began_shows_its_older_steps(tmp_path: Path, clock: Clock) -> None:
    """Its output named no step until this version went on with it. What is unlabelled since then is of no step."""
    job = job_in(tmp_path)
    record = {"generation": 1, "loss": 0.5, "loss_hex": "0x1p-1", "step_time_s": 1.0, "samples": 4, "world_size": 1}
    with journal.event_writer(job.events, "worker-node-1.a") as commits:
        for step in range(1, 11):
            if step in (1, 6):
                node = Node(job, "node-1")
            clock.now_s += 1.0
            node.print(f"{step}\n", StepLabel(1, step) if step > 5 else StepLabel())
            clock.now_s += 1.0
            node.print("begins\n", StepLabel()) if step == 8 else None
            commits.append("step.committed", record | {"redone": 0, "session": 1, "step": step})
            if step in (5, 10):
                node.end()

    def shown(first: int, last: int) -> list[str]:
        return [str(e.data["text"]).strip() for e in read_output(job, OutputChoice(steps=StepRange(1, first, last)))]

    assert shown(2, 3) == ["2", "3", "4"], "by commits, as that version does"
    assert shown(5, 6) == ["5", "6"] and shown(8, 9) == ["8", "9"]
    assert shown(1, 10) == [str(step) for step in range(1, 11)]


def test_the_last_lines_are_whole(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_range, "TAIL_BYTES", 250)
    job = job_in(tmp_path)
    node = Node(job, "node-1")
    for number in range(20):
        for text in (f"{number}: begins ", "ends\n"):
            clock.now_s += 1.0
            node.print(text)
    node.end()
    choice = OutputChoice(tail=1)
    shown = list(
        last_output(job, choice, lambda found: OutputLines(new_job_view("a"), choice).feed_all(found, ends=True))
    )
    assert shown == [("stdout", "19: begins ends")]


def test_a_reader_goes_on_from_a_place(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(output_relay.SHARE_VARIABLE, "0.02")
    job = job_in(tmp_path)
    nodes = [Node(job, f"node-{number}") for number in (1, 2)]
    for number in range(40):
        nodes[number % 2].print(f"{number}\n" + "x" * 1000)
        clock.now_s += 0.25 * (number % 3 == 0)  # several have the same time
    for node in nodes:
        node.end()
    every = pieces(read_output(job, OutputChoice()))
    found: list[tuple[float, str, int]] = []
    while more := pieces(read_output(job, OutputChoice(), after=found[-1] if found else None))[:7]:
        found += more
    assert found == every and len(found) == 40


def test_little_is_read(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(output_relay.SHARE_VARIABLE, "4")
    job = job_in(tmp_path)
    node = Node(job, "node-1")
    print_steps(node, clock, (f"{step:06} {'x' * 500}\n" for step in range(1, 20_001)))
    read = [0]
    decode = journal.decode_event

    def counted(line: bytes) -> Event:
        read[0] += 1
        return decode(line)

    monkeypatch.setattr("jupyter_hyperpod.storage.output.output_range.decode_event", counted)
    begin_s = clock.now_s - 20_000.0
    for choice, steps in [
        (OutputChoice(tail=100), range(19_901, 20_001)),
        (OutputChoice(since_s=begin_s + 10_000.5, until_s=begin_s + 10_010.0), range(10_001, 10_011)),
        (OutputChoice(steps=StepRange(1, 15_000, 15_004)), range(15_000, 15_005)),
        (OutputChoice(steps=StepRange(1, 3000, 3004)), range(3000, 3005)),
    ]:
        read[0] = 0
        assert [e.data["step"] for e in last_output(job, choice, lambda found: found)] == list(steps)
        assert read[0] < 700, choice
