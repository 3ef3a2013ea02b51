"""Output beyond the journal's share: rotated files within their cap, and readers that see all of it or are told."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.storage.folded import FoldedJournal
from jupyter_hyperpod.storage.journal import follow_events, read_events
from jupyter_hyperpod.storage.journal_writer import JournalWriter
from jupyter_hyperpod.storage.output import output_relay
from jupyter_hyperpod.storage.output.output_cap import FILES, output_directory, parts
from jupyter_hyperpod.storage.output.output_choice import OutputChoice
from jupyter_hyperpod.storage.output.output_range import read_output
from jupyter_hyperpod.storage.output.output_reader import JournalGaps, OutputReader, is_notice
from jupyter_hyperpod.storage.output.output_relay import OutputRelay, StepLabel
from jupyter_hyperpod.storage.store import JobStore
from tests.storage import full_disk

CAP_MB = 2
# a worker's output of 100 lines of a kilobyte, for a process whose disk is full before the end of it
FLOOD = """
import json, os
from jupyter_hyperpod.storage.journal import read_events
from jupyter_hyperpod.storage.journal_writer import JournalWriter
from jupyter_hyperpod.storage.output.output_reader import OutputReader
from jupyter_hyperpod.storage.output.output_relay import OutputRelay, StepLabel
from jupyter_hyperpod.storage.store import JobStore
(here / "events").mkdir()
os.environ["HYPERPOD_OUTPUT_MB"] = "0"
job = JobStore(here)
relay = OutputRelay(job, "node-1", JournalWriter(job.events, "agent-1"))
for number in range(100):
    relay.write("node-1.a.7", 0, "stdout", f"{number:03}" + "x" * 996 + "\\n", StepLabel(number + 1, 1))
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobStore:
    """A job whose journal takes no output, and whose nodes keep two megabytes each."""
    monkeypatch.setenv(output_relay.SHARE_VARIABLE, "0")
    (tmp_path / "events").mkdir()
    return JobStore(tmp_path)


def relay(job: JobStore, node: str = "node-1", cap: int = round(CAP_MB * 1e6)) -> OutputRelay:
    return OutputRelay(job, node, JournalWriter(job.events, f"agent-{node}"), cap)


def total(job: JobStore, node: str = "node-1") -> int:
    return sum(path.stat().st_size for path in output_directory(job).glob(f"{node}@*"))


def text(reader: OutputReader) -> str:
    return "".join(event.data["text"] for event in reader.poll())


def line(number: int) -> str:
    return f"{number:09} {'x' * 989}\n"


def test_the_journal_has_the_first_and_says_once_where_the_rest_is(
    job: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(output_relay.SHARE_VARIABLE, "0.002")
    worker = relay(job)
    for number in range(5):
        worker.write("node-1.a.7", 3, "stdout", line(number), StepLabel())
    worker.begin()
    worker.write("node-1.a.8", 3, "stdout", line(5), StepLabel())
    worker.close()
    journal = read_events(job.events)
    assert [e.data["text"][:9] for e in journal if e.kind == "output.written"] == [
        "000000000",
        "000000001",
        "000000005",
    ]
    (warning,) = [event.data["text"] for event in journal if event.kind == "warning.raised"]
    assert warning.startswith(f"further output of rank 3 is in {output_directory(job)}; all that it has printed takes")
    assert "takes at most 2 MB, the oldest is dropped first (--output-cap)" in warning
    assert warning.endswith(f"`jupyter hyperpod logs {job.id} --rank 3` shows it")
    assert text(OutputReader(job)) == "".join(map(line, range(2, 5)))
    (file,) = output_directory(job).iterdir()
    assert (file.stat().st_mode & 0o777, output_directory(job).stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("worst", ["x", "\0", "\N{GRINNING FACE}"])
def test_a_flood_stays_within_its_cap_and_keeps_the_newest(job: JobStore, worst: str) -> None:
    worker, most = relay(job), 0
    for number in range(60):
        worker.write("node-1.a.7", 0, "stdout", f"{number:04}" + worst * 99_000 + "\n", StepLabel())
        most = max(most, total(job))
    worker.close()
    assert CAP_MB * 1e6 / 2 < most <= CAP_MB * 1e6
    found = text(OutputReader(job))
    assert found.endswith("0059" + worst * 99_000 + "\n")
    assert "of older output were dropped here, up to " in found.splitlines()[0]


def test_nodes_do_not_share_a_cap_and_an_agent_that_begins_again_goes_on(job: JobStore) -> None:
    other = relay(job, "node-1.b")
    other.write("node-1.b.a.1", 1, "stdout", "of another node\n", StepLabel())
    for agent in range(4):
        worker = relay(job)
        for number in range(1000):
            worker.write(f"node-1.{agent}.7", 0, "stdout", line(1000 * agent + number), StepLabel())
        worker.close()
    other.close()
    assert total(job) <= CAP_MB * 1e6
    numbers = [part.number for part in parts(output_directory(job))["node-1"]]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) and numbers[0] > 0
    lines = text(OutputReader(job)).splitlines()
    assert "of another node" in lines
    kept = [int(one[:9]) for one in lines if one[:9].isdecimal()]
    assert kept == list(range(kept[0], 4000))


def test_a_reader_that_keeps_up_sees_every_line_once(job: JobStore) -> None:
    worker, reader, seen = relay(job), OutputReader(job), []
    for number in range(8000):
        worker.write("node-1.a.7", 0, "stdout", line(number), StepLabel())
        if number % 200 == 0:
            seen += text(reader).splitlines()
            assert not reader.missed
    seen += text(reader).splitlines()
    worker.close()
    assert [int(one[:9]) for one in seen] == list(range(8000))
    assert len(reader._follower._sources) <= 2 * FILES, "what is gone is forgotten"


def test_a_reader_that_is_too_slow_is_told(job: JobStore) -> None:
    worker, reader = relay(job), OutputReader(job)
    worker.write("node-1.a.7", 0, "stdout", line(0), StepLabel())
    assert text(reader) == line(0) and not reader.missed
    for number in range(1, 5000):
        worker.write("node-1.a.7", 0, "stdout", line(number), StepLabel())
    first, *rest = text(reader).splitlines()
    assert reader.missed == {"node-1"}
    assert " MB of older output were dropped here, up to 20" in first
    assert first.endswith(": the output of node-1 may take 2 MB on the disk (--output-cap)]")
    assert int(rest[-1][:9]) == 4999
    worker.write("node-1.a.7", 0, "stdout", line(5000), StepLabel())
    assert text(reader) == line(5000) and not reader.missed, "said once"
    worker.close()


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 120), st.booleans()), max_size=8))
def test_what_is_read_is_all_or_a_gap_is_told(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[int, bool]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(output_relay.SHARE_VARIABLE, "0")
        job = JobStore(tmp_path_factory.mktemp("job"))
        job.events.mkdir()
        worker, reader, number, expected = relay(job, cap=1_000_000), OutputReader(job), 0, 0
        for count, restart in [*story, (1, False)]:
            for _ in range(count):
                worker.write("node-1.a.7", 0, "stdout", line(number).replace("x", "x" * 15), StepLabel())
                number += 1
            if restart:
                worker.close()
                worker = relay(job, cap=1_000_000)
            found = text(reader).splitlines()
            seen = [int(one[:9]) for one in found if one[:9].isdecimal()]
            assert seen == list(range(number - len(seen), number)), "in order, up to the newest"
            if seen[0] != expected:
                assert reader.missed == {"node-1"} and "dropped here" in found[0]
            expected = number
        worker.close()


def test_output_that_a_full_disk_refuses_is_counted(tmp_path: Path) -> None:
    code = """
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
relay.write("node-1.a.7", 0, "stdout", "the end\\n", StepLabel())
relay.close()
print(json.dumps([event.data["text"] for event in OutputReader(job).poll()]))
"""
    *found, last = json.loads(full_disk.run(FLOOD + code, tmp_path, 30_000)[0])
    kept = [int(one[:3]) for one in found if one[:3].isdecimal()]
    dropped = [
        int(note[1]) for one in found if (note := re.fullmatch(r"\[(\d+) kB of output were dropped: .*]\n", one))
    ]
    assert kept == list(range(len(kept))) and 10 < len(kept) < 40
    assert len(kept) + sum(dropped) == 100 and last == "the end\n"


@pytest.mark.parametrize("value", ["much", "-1", "nan", "inf", ""])
def test_a_setting_that_is_no_size_is_refused(job: JobStore, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(output_relay.SHARE_VARIABLE, value)
    with pytest.raises(SpecError, match=r"\$HYPERPOD_OUTPUT_MB is .*; expected a number of megabytes, 0 or more"):
        relay(job)


def test_strange_files_beside_the_parts_are_left_alone(job: JobStore) -> None:
    worker = relay(job)
    worker.write("node-1.a.7", 0, "stdout", "a\n", StepLabel())
    worker.close()
    strange = output_directory(job) / "notes.jsonl"
    strange.write_text("not ours\n")
    os.utime(strange, (0, 0))
    assert text(OutputReader(job)) == "a\n" and strange.exists()


def test_output_that_the_disk_refused_to_the_end_is_counted_in_the_journal(tmp_path: Path) -> None:
    (said,) = full_disk.run(FLOOD + 'relay.close()\nprint(read_events(job.events)[-1].data["text"])', tmp_path, 30_000)
    assert re.fullmatch(r"\d+ kB of output of node-1 were dropped: the disk refused them", said)


def test_marks_of_steps_label_what_follows_them_and_are_not_shown(job: JobStore) -> None:
    worker, out, err = relay(job), StepLabel(), StepLabel()
    step = output_relay.step_mark
    worker.write("node-1.a.7", 0, "stdout", f"before\n{step(1, 1)}one\npart{step(1, 2)} of two\n", out)
    worker.write("node-1.a.7", 0, "stderr", "no mark yet\n", err)
    worker.write("node-1.a.7", 0, "stdout", f"two\n{step(2, 1)}", out)
    worker.write("node-1.a.7", 0, "stdout", "next session\n\x1eHYPERPOD-STEP-99999999999999999999-1\x1e\n", out)
    worker.close()
    found = [(e.data["text"], e.data.get("session"), e.data.get("step")) for e in OutputReader(job).poll()]
    assert found == [
        ("before\n", None, None),
        ("one\npart", 1, 1),
        (" of two\n", 1, 2),
        ("no mark yet\n", None, None),
        ("two\n", 1, 2),
        ("next session\n\x1eHYPERPOD-STEP-99999999999999999999-1\x1e\n", 2, 1),
    ]


def test_files_have_the_rights_of_their_store(job: JobStore) -> None:
    job.path.chmod(0o2750)  # as a store that is shared with a group
    worker = relay(job)
    worker.write("node-1.a.7", 0, "stdout", "a\n", StepLabel(1, 1))
    worker.close()
    files = list(output_directory(job).iterdir())
    assert output_directory(job).stat().st_mode & 0o7777 == 0o2750
    assert len(files) == 2 and {file.stat().st_mode & 0o777 for file in files} == {0o640}, "output and its index"


def taken(job: JobStore) -> int:
    """Bytes of output on the disk, in the journal and beside it."""
    return sum(path.stat().st_size for path in [*job.events.glob("output-*"), *output_directory(job).glob("*@*")])


@pytest.mark.parametrize("share", ["64", "0.3", "0"])
def test_the_oldest_file_goes_first_where_the_file_system_tells_seconds_only(
    job: JobStore, monkeypatch: pytest.MonkeyPatch, share: str
) -> None:
    """Several files are full within one tick of the file system's clock."""
    monkeypatch.setenv(output_relay.SHARE_VARIABLE, share)
    worker, at_s = relay(job, cap=1_000_000), 1_000_000.0
    for number in range(2400):
        if number % 800 == 0:
            worker.begin()
        worker.write("node-1.a.7", 0, "stdout", line(number), StepLabel(1, number + 1))
        if number % 50 == 0:
            for path in [*job.events.glob("output-*"), *output_directory(job).glob("*@*")]:
                os.utime(path, (at_s, at_s))
            at_s += number == 1200
    worker.close()
    found = [int(event.data["text"][:9]) for event in read_output(job, OutputChoice()) if not is_notice(event)]
    assert found == list(range(found[0], 2400)) and len(found) > 400


@pytest.mark.parametrize("share", ["64", "0.3", "0"])
def test_the_cap_holds_for_all_that_a_node_prints_whoever_prints_it(
    job: JobStore, monkeypatch: pytest.MonkeyPatch, share: str
) -> None:
    """Workers that begin again and again have a full share of the journal each, and do not get past the cap."""
    monkeypatch.setenv(output_relay.SHARE_VARIABLE, share)
    number, most = 0, 0
    for agent in range(3):
        worker = relay(job, cap=1_000_000)
        for _ in range(3):
            worker.begin()
            for _ in range(900):
                worker.write(f"node-1.{agent}.7", 0, "stdout", line(number), StepLabel(1, number + 1))
                number += 1
            most = max(most, taken(job))
        worker.close()
    assert 500_000 < most <= 1_000_000
    notice, *kept = read_output(job, OutputChoice())
    assert is_notice(notice) and not any(map(is_notice, kept))
    assert "(--output-cap)]" in notice.data["text"] and "of older output were dropped here" in notice.data["text"]
    found = [int(event.data["text"][:9]) for event in kept]
    assert found == list(range(found[0], number)) and len(found) > 400
    said = re.match(r"\[([\d.]+) MB", notice.data["text"])
    assert said and abs(float(said[1]) * 1e6 - 1150 * found[0]) < 150 * number, "about as much as is gone"


def test_who_follows_the_journal_too_slowly_is_told(job: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(output_relay.SHARE_VARIABLE, "64")
    worker, journal, gaps = relay(job, cap=1_000_000), follow_events(job.events), JournalGaps(job)
    found: list[int] = []
    for number in range(4000):
        if number % 450 == 0:
            worker.begin()
        worker.write("node-1.a.7", 0, "stdout", line(number), StepLabel())
        if number in (100, 3900, 3999):
            events = gaps.told(journal.poll())
            assert gaps.missed == (frozenset({"node-1"}) if number == 3900 else frozenset())
            if number == 3900:
                notice = next(event for event in events if is_notice(event))
                gone = int(notice.data["text"].split()[0][1:].replace(",", ""))
                events.remove(notice)
            found += [int(event.data["text"][:9]) for event in events if event.kind == "output.written"]
    worker.close()
    assert sorted(set(range(4000)) - set(found)) == list(range(101, 101 + gone)) and len(found) == len(set(found))


def test_old_output_that_is_gone_changes_no_view(job: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fold of what is left is the fold of all."""
    monkeypatch.setenv(output_relay.SHARE_VARIABLE, "64")
    worker, whole = relay(job, cap=2_000_000), FoldedJournal(job)
    for number in range(3000):
        if number % 900 == 0:
            worker.begin()
        worker.write("node-1.a.7", 0, "stdout", line(number), StepLabel())
        if number % 100 == 0:
            whole.poll()
    worker.close()
    whole.poll()
    left = FoldedJournal(job).catch_up()
    assert left == whole.view and len(left["output"]) > 100
    assert len(whole._follower._sources) <= 2 * FILES, "what is gone is forgotten"
