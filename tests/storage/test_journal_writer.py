"""The writer of events on a disk that is full: facts wait, samples are dropped and counted, and a loss is said."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.core.errors import ProtocolError
from jupyter_hyperpod.core.events import WAITING_SAMPLES
from jupyter_hyperpod.storage import journal_writer
from jupyter_hyperpod.storage.journal import read_events
from jupyter_hyperpod.storage.journal_writer import JournalWriter
from tests.storage import full_disk

Wait = Callable[..., Any]


class Disk:
    """`os.write` as it is on a disk that fills up: really refused, and free again when told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        real = os.write

        def write(descriptor: int, content: Any) -> int:
            if self.full and descriptor > 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(descriptor, content)

        monkeypatch.setattr(os, "write", write)


def output(text: str) -> tuple[str, dict[str, Any]]:
    return "output.written", {"member": "m", "node": "n", "rank": 0, "stream": "stdout", "text": text}


def warning(text: str) -> tuple[str, dict[str, Any]]:
    return "warning.raised", {"text": text}


def texts(directory: Path) -> list[str]:
    return [event.data["text"].strip() for event in read_events(directory)]


def test_facts_wait_for_room_and_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    journal = JournalWriter(tmp_path, "agent-1")
    assert journal.write(*warning("0"))
    disk.full = True
    for number in range(1, 4):
        assert not journal.write(*warning(str(number)))
    assert journal.flush() is False and journal.waiting == 3 and "No space left" in journal.problem
    disk.full = False
    journal.write(*warning("4"))
    journal.close()
    events = read_events(tmp_path)
    assert [event.data["text"] for event in events] == list("01234")
    assert [event.seq for event in events] == [1, 2, 3, 4, 5]
    assert journal.problem == ""


def test_ten_thousand_facts_and_more_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    journal = JournalWriter(tmp_path, "supervisor")
    disk.full = True
    for number in range(12_000):
        journal.write(*warning(str(number)))
    disk.full = False
    journal.close()
    assert texts(tmp_path) == [str(number) for number in range(12_000)]


def test_samples_are_dropped_before_any_fact_and_their_number_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_writer, "SAMPLES_LIMIT_BYTES", 5_000)
    disk = Disk(monkeypatch)
    journal = JournalWriter(tmp_path, "agent-1")
    disk.full = True
    for number in range(20):
        journal.write(*warning(f"{number:<700}"))
        journal.write(*output(f"printed {number:<700}"))
    disk.full = False
    journal.close()
    found = texts(tmp_path)
    facts = [text for text in found[:-1] if not text.startswith("printed")]
    samples = [int(text.split()[1]) for text in found[:-1] if text.startswith("printed")]
    assert facts == [str(number) for number in range(20)], "facts, all of them, in order"
    assert samples and samples == list(range(20 - len(samples), 20)), "the newest samples are kept"
    assert found[-1].startswith(f"{20 - len(samples)} samples (output, metrics) of agent-1 were dropped: cannot ")


def test_more_facts_than_should_wait_are_kept_and_the_process_says_so_loudly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(journal_writer, "FACTS_LIMIT_BYTES", 5_000)
    disk = Disk(monkeypatch)
    journal = JournalWriter(tmp_path, "worker-1")
    disk.full = True
    for number in range(20):
        assert journal.crowded == (number > 5)
        journal.write(*warning(f"{number:<600}"))
    said = capfd.readouterr().err
    assert said.count("wait in memory and will not be dropped: make room") == 1
    assert "No space left on device" in said
    disk.full = False
    assert journal.flush() and not journal.crowded
    journal.close()
    assert texts(tmp_path) == [str(number) for number in range(20)]


def test_settle_stands_still_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    journal = JournalWriter(tmp_path, "worker-1")
    disk.full = True
    journal.write(*warning("waits"))
    looks: list[int] = []

    def meanwhile() -> None:
        looks.append(len(texts(tmp_path)))
        disk.full = len(looks) < 3

    journal.settle(meanwhile)
    assert looks == [0, 0, 0] and texts(tmp_path) == ["waits"]
    journal.settle(lambda: pytest.fail("nothing waits any more"))
    journal.close()


def test_what_is_lost_with_the_process_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    disk = Disk(monkeypatch)
    journal = JournalWriter(tmp_path, "worker-1")
    disk.full = True
    journal.write(*warning("never written"))
    journal.write(*output("nor this"))
    journal.close()
    assert "lost with this process: 1 fact and 1 sample (output, metrics)" in capfd.readouterr().err


def test_what_no_journal_can_hold_does_not_stand_in_the_way_of_the_rest(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, "worker-1")
    with pytest.raises(ProtocolError, match=r"warning\.raised holds a value that JSON cannot"):
        journal.write("warning.raised", {"text": "a", "value": float("nan")})
    assert journal.write(*warning("b"))
    journal.close()
    assert texts(tmp_path) == ["b"]


def test_a_directory_that_comes_late_loses_nothing(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path / "events", "supervisor")
    assert not journal.write(*warning("early"))
    assert "No such file or directory" in journal.problem
    (tmp_path / "events").mkdir()
    assert journal.flush()
    journal.close()
    assert texts(tmp_path / "events") == ["early"]


def test_a_real_limit_on_the_file_is_survived(tmp_path: Path) -> None:
    code = """
from jupyter_hyperpod.storage import journal_writer
from jupyter_hyperpod.storage.journal import read_events
import json
journal_writer.SAMPLES_LIMIT_BYTES = 20_000
journal = journal_writer.JournalWriter(here, "agent-1")
sample = {"member": "m", "node": "n", "rank": 0, "stream": "stdout", "text": "x" * 500}
for number in range(200):
    journal.write("warning.raised", {"text": str(number)})
    journal.write("output.written", sample)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.close()
print(json.dumps([(event.kind, event.data["text"]) for event in read_events(here)]))
"""
    found = json.loads(full_disk.run(code, tmp_path, 10_000)[0])
    facts = [text for kind, text in found if kind == "warning.raised"]
    kept = sum(kind == "output.written" for kind, _ in found)
    assert facts[:-1] == [str(number) for number in range(200)]
    assert facts[-1].startswith(f"{200 - kept} samples") and 0 < kept < 200


def test_samples_that_a_full_disk_still_refuses_at_the_end_are_counted_in_the_journal(tmp_path: Path) -> None:
    code = """
from jupyter_hyperpod.storage import journal_writer
from jupyter_hyperpod.storage.journal import read_events
import json
journal = journal_writer.JournalWriter(here, "agent-1")
sample = {"member": "m", "node": "n", "rank": 0, "stream": "stdout", "text": "x" * 2000}
for number in range(200):
    journal.write("output.written", sample)
journal.write("warning.raised", {"text": "a fact"})
journal.close()
print(json.dumps([(event.kind, event.data["text"]) for event in read_events(here)]))
"""
    found = json.loads(full_disk.run(code, tmp_path, 20_000)[0])
    kept = sum(kind == "output.written" for kind, _ in found)
    assert 0 < kept < 10 and [text for _, text in found[kept:-1]] == ["a fact"]
    assert found[-1][1].startswith(f"{200 - kept} samples (output, metrics) of agent-1 were dropped: cannot append to ")


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60))
def test_whatever_the_disk_does_facts_are_all_there_in_order(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[bool, bool]]
) -> None:
    directory = tmp_path_factory.mktemp("journal")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(journal_writer, "SAMPLES_LIMIT_BYTES", 2_000)
        disk = Disk(monkeypatch)
        journal = JournalWriter(directory, "w")
        facts = []
        for number, (full, fact) in enumerate(story):
            disk.full = full
            if fact:
                facts.append(number)
            journal.write(*(warning(str(number)) if fact else output(str(number))))
        disk.full = False
        journal.close()
    events = read_events(directory)
    written = [int(event.data["text"]) for event in events if event.data["text"].isdecimal()]
    samples = [number for number in written if number not in facts]
    dropped = sum(int(event.data["text"].split()[0]) for event in events if " dropped: " in event.data["text"])
    assert written == sorted(written) and [number for number in written if number in facts] == facts
    assert len(samples) + dropped == len(story) - len(facts)


def test_a_reader_sees_what_one_thread_settles_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Wait
) -> None:
    disk = Disk(monkeypatch)
    disk.full = True
    done = threading.Event()

    def write() -> None:
        journal = JournalWriter(tmp_path, "worker-1")
        journal.write(*warning("late"))
        journal.settle()
        journal.close()
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    eventually(lambda: list(tmp_path.iterdir()))
    assert not done.is_set() and texts(tmp_path) == []
    disk.full = False
    thread.join(30)
    assert done.is_set() and texts(tmp_path) == ["late"]


def test_only_output_metrics_and_samples_of_nodes_may_be_dropped() -> None:
    assert WAITING_SAMPLES == {"output.written", "metric.logged", "nodes.sampled"}
