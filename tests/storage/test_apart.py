"""Stores of pods that share none with their head: what one brings the other, what one alone may do, who is let in."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_hyperpod.core.errors import ProtocolError, StoreError
from jupyter_hyperpod.core.events import decode_event
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage.apart.arrival import arrive
from jupyter_hyperpod.storage.apart.continued import continued
from jupyter_hyperpod.storage.apart.file_service import FileService
from jupyter_hyperpod.storage.apart.hand_in import HandIn, settle
from jupyter_hyperpod.storage.apart.head_files import HeadFiles, of_job
from jupyter_hyperpod.storage.apart.wire import ADDRESS_FILE, HeadAddress, Wire
from jupyter_hyperpod.storage.journal import event_writer, follow_events
from jupyter_hyperpod.storage.journal_writer import JournalWriter
from jupyter_hyperpod.storage.mirror.beginning import batches, first_frames
from jupyter_hyperpod.storage.mirror.mirror_frames import Frame
from jupyter_hyperpod.storage.mirror.target import MirrorTarget
from jupyter_hyperpod.storage.output.output_cap import parts, rows
from jupyter_hyperpod.storage.output.output_relay import OutputRelay, StepLabel
from jupyter_hyperpod.storage.source_record import SourceRecord
from jupyter_hyperpod.storage.store import ENDPOINT_FILE, JobStore, Store
from jupyter_hyperpod.system.processes import start_ticks

LIMIT_S = 60.0


class Places:
    """A head with its store and its service, and pods with stores of their own."""

    def __init__(self, root: Path) -> None:
        self.root, self.store = root, Store(root / "head").prepare()
        folder = root / "code"
        folder.mkdir()
        (folder / "helper.py").write_text("x = 1\n")
        (folder / "empty.txt").touch()
        (folder / "large.bin").write_bytes(os.urandom(3 << 20))

        def include(job: Path) -> None:
            (job / "include" / "0").mkdir(parents=True)
            for path in folder.iterdir():
                (job / "include" / "0" / path.name).write_bytes(path.read_bytes())

        spec = JobSpec("apart", self.store.put_cell("print(1)"), env={"TOKEN": "planted"})
        self.job = self.store.create_job(spec, include)
        self.service = FileService(self.job, "127.0.0.1")

    def frames(self, there: dict[str, int] | None = None) -> list[bytes]:
        spec = (self.job.path / "spec.json").read_bytes()
        batch = batches(first_frames(self.store, self.job, spec, there or {}))
        return [b"".join(frame.encode() for frame in frames) for frames in batch]

    def address(self) -> bytes:
        return Frame({"path": ADDRESS_FILE, "whole": 1}, self.service.address.encode()).encode()

    def bring(self, pod: str) -> JobStore:
        """A pod's store, with the job."""
        store = Store(self.root / pod)
        for data in (self.address(), *self.frames(), Frame({"commit": 1}).encode()):
            arrive(store, self.job.id, data)
        return store.job(self.job.id)

    def another_head(self) -> None:
        """As after the loss of the head's pod: at another address, which is brought to pods."""
        self.service.close()
        self.service = FileService(self.job, "127.0.0.1")


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    found = Places(tmp_path)
    yield found
    found.service.close()


def until(condition: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.01)


def same(there: Path, here: Path, folder: str) -> bool:
    def found(job: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (job / folder).glob("*")}

    return found(there) == found(here)


def test_a_job_arrives_whole_and_private_however_often_it_is_cut(places: Places) -> None:
    store = Store(places.root / "pod")
    arrive(store, places.job.id, places.address())
    first = places.frames()[0]
    with pytest.raises(ProtocolError):
        arrive(store, places.job.id, b"[]\n")
    there = arrive(store, places.job.id, first[: len(first) // 2])
    assert not (store.jobs / places.job.id).exists()
    assert not there.here and there.sizes
    for data in places.frames(there.sizes):
        arrive(store, places.job.id, data)
    arrive(store, places.job.id, Frame({"commit": 1}).encode())
    job = store.job(places.job.id)
    assert same(places.job.path, job.path, "include/0") and job.spec() == places.job.spec()
    assert job.environment() == {"TOKEN": "planted"} and job.secret() == places.job.secret()
    assert store.cell(job.spec().cell_digest) == "print(1)"
    for name in ("secret", "environment", ADDRESS_FILE):
        assert (job.path / name).stat().st_mode & 0o777 == 0o600
    (job.path / "spec.json").write_text("mine")
    assert arrive(store, places.job.id, places.address() + places.frames()[0]).here  # as of a head that is made anew
    assert (job.path / "spec.json").read_text() == "mine"


def test_what_one_may_do_is_done_by_one_of_all_pods(places: Places) -> None:
    pods = [places.bring(f"pod-{number}") for number in range(4)]
    won: list[bool] = []
    threads = [threading.Thread(target=lambda job=job: won.append(job.claim("once"))) for job in pods * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 11 + [True]
    assert pods[2].claim("strike host drop") and not pods[3].claim("strike host drop")
    with pytest.raises(StoreError, match="cannot be claimed"):
        pods[0].claim("../x")
    assert not places.job.claim("once") and pods[0].claim("another") and not pods[1].claim("another")


def test_sources_are_those_of_the_first_member_of_all_pods(places: Places) -> None:
    first, second = (SourceRecord(places.bring(pod).path) for pod in ("a", "b"))
    assert first.known("/code/m.py") is None
    assert first.of("/code/m.py", b"x = 1\n") == b"x = 1\n"
    assert second.known("/code/m.py") == b"x = 1\n" and second.of("/code/m.py", b"x = 2\n") == b"x = 1\n"
    assert SourceRecord(places.job.path).known("/code/m.py") == b"x = 1\n"
    assert second.of("/code/empty.py", b"") == b"" and first.known("/code/empty.py") == b""


def test_the_end_of_a_session_reaches_pods_that_come_later(places: Places) -> None:
    first, second = places.bring("a"), places.bring("b")
    content = os.urandom((5 << 20) + 7)
    assert not second.find_session_end(2).exists()
    first.session_end(2).parent.mkdir()
    first.session_end(2).write_bytes(content)
    first.leave_session_end(2)
    assert second.find_session_end(2).read_bytes() == content
    assert [path.name for path in places.job.session_end(2).parent.iterdir()] == ["2.state"]
    first.forget_session_ends()
    assert not first.session_end(2).exists()
    assert not second.find_session_end(2).exists(), "of an earlier run of the cell"
    first.session_end(2).parent.mkdir(exist_ok=True)
    first.session_end(2).write_bytes(b"another run")
    first.leave_session_end(2)
    assert second.find_session_end(2).read_bytes() == b"another run"
    with pytest.raises(StoreError, match="cannot use"):
        first.leave_session_end(3)


def test_what_a_pod_writes_is_with_the_head_byte_for_byte_though_the_head_is_replaced(places: Places) -> None:
    pod = places.bring("pod")
    hand_in = HandIn(pod)
    with event_writer(pod.events, "worker-n.1.2", segment_bytes=2000) as journal:
        for number in range(200):
            journal.append("warning.raised", {"text": f"{number} ä"})
            if number % 7 == 0:
                hand_in.bring()
            if number == 100:
                places.another_head()
                with pytest.raises((OSError, StoreError, ProtocolError)):
                    hand_in.bring()
                arrive(Store(places.root / "pod"), places.job.id, places.address())
    (pod.path / "output").mkdir()
    (pod.path / "output" / "n.steps").write_bytes(bytes(36))
    hand_in.bring()
    assert same(places.job.path, pod.path, "events") and same(places.job.path, pod.path, "output")
    assert [int(event.data["text"].split()[0]) for event in follow_events(places.job.events).poll()] == list(range(200))
    hand_in.forget_old()
    assert len(list(pod.events.iterdir())) == 1, "only the segment that may grow is kept"
    hand_in.bring()
    assert len(follow_events(places.job.events).poll()) == 200
    hand_in.close()


def test_values_that_come_back_are_those_of_the_last_run(places: Places) -> None:
    first, second = places.bring("a"), places.bring("b")
    for pod, text in ((first, "first run"), (second, "second run")):
        (pod.path / "pulled.json").write_text(text)
        pod.leave_values(pod.path / "pulled.json")
    for pod in (second, first):
        assert settle(pod.path, LIMIT_S) == ""
    assert (places.job.path / "pulled.json").read_text() == "second run"


def test_of_members_that_record_at_the_same_moment_all_get_the_same(places: Places) -> None:
    pods = [SourceRecord(places.bring(f"pod-{number}").path) for number in range(8)]
    gate = threading.Barrier(len(pods))
    got: dict[str, list[bytes]] = {f"/code/m{number}.py": [] for number in range(20)}

    def record(pod: SourceRecord, mine: bytes) -> None:
        for path, found in got.items():
            gate.wait(LIMIT_S)
            found.append(pod.of(path, mine))

    threads = [threading.Thread(target=record, args=(pod, b"%d" % place)) for place, pod in enumerate(pods)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(found) == len(pods) and len(set(found)) == 1 for found in got.values()), got


def test_a_file_of_any_name_keeps_nothing_else_back(places: Places) -> None:
    pod = places.bring("pod")
    (pod.path / "output").mkdir()
    for name in ("logs/profile of rank 0.log", "output/my plot.png", "output/ä"):
        (pod.path / name).write_text("x")
    with event_writer(pod.events, "agent-n") as journal:
        journal.append("warning.raised", {"text": "1"})
    (pod.path / "logs" / "hp-1.log").write_text("whole\nthe last words")
    hand_in = HandIn(pod)
    hand_in.bring()
    assert same(places.job.path, pod.path, "events")
    assert (places.job.path / "logs" / "hp-1.log").read_text() == "whole\n"
    hand_in.bring(ended=True)
    assert (places.job.path / "logs" / "hp-1.log").read_text() == "whole\nthe last words"
    hand_in.close()


def test_segments_that_were_joined_there_are_not_brought_again(places: Places) -> None:
    pod = places.bring("pod")
    with event_writer(pod.events, "worker-n.1.2", segment_bytes=200) as journal:
        for number in range(5):
            journal.append("warning.raised", {"text": str(number)})
    assert settle(pod.path, LIMIT_S) == ""
    (first,) = (path for path in places.job.events.iterdir() if "+" not in path.name)
    writer = first.name.removesuffix(".jsonl")
    first.rename(first.with_name(f"{writer}+000000000001~000000000003@000000000001.jsonl"))
    before = {path.name for path in places.job.events.iterdir()}
    assert settle(pod.path, LIMIT_S) == "" and {path.name for path in places.job.events.iterdir()} == before


def test_output_of_two_pods_of_one_node_is_one_row(places: Places) -> None:
    def printed(pod: JobStore, words: str) -> None:
        journal = JournalWriter(pod.events, "agent-n")
        relay = OutputRelay(pod, "n", journal, 1_000_000)
        relay.begin()
        for number in range(40):
            relay.write("m", 0, "stdout", f"{words} {number} {'x' * 20_000}\n", StepLabel(1, number + 1))
        relay.close()
        journal.close()
        assert settle(pod.path, LIMIT_S) == ""

    printed(places.bring("first"), "early")
    store = Store(places.root / "second")
    more = b"".join(frame.encode() for frame in continued(places.job, "n"))
    for data in (places.address(), *places.frames(), more, Frame({"commit": 1}).encode()):
        arrive(store, places.job.id, data)
    printed(store.job(places.job.id), "late")
    (row,) = rows(parts(places.job.path / "output")["n"])
    assert [part.number for part in row] == sorted({part.number for part in row})
    assert [part.before for part in row] == sorted(part.before for part in row)
    words = [
        event.data["text"].split()[0]
        for part in row
        for event in map(decode_event, part.path.read_bytes().splitlines())
    ]
    begins = [word for word in words if not word.startswith("x")]
    assert begins == sorted(begins) and set(begins) == {"early", "late"} and len(row) > 2


def test_a_head_that_is_busy_is_not_waited_for_longer_than_said(places: Places) -> None:
    pod = places.bring("pod")
    with event_writer(pod.events, "agent-n") as journal:
        journal.append("warning.raised", {"text": "1"})
    silent = socket.create_server(("127.0.0.1", 0))
    (pod.path / ADDRESS_FILE).write_bytes(HeadAddress(*silent.getsockname()).encode())
    began_s = time.monotonic()
    assert "is not with the head" in settle(pod.path, 0.3)
    assert time.monotonic() - began_s < 5
    silent.close()


def test_another_head_is_found_while_the_lost_one_is_waited_for(places: Places) -> None:
    pod = places.bring("pod")
    hand_in = HandIn(pod)
    hand_in.bring()
    lost = hand_in._wire
    assert lost is not None
    waits = threading.Thread(target=lambda: pytest.raises(OSError, lost.wait_for, LIMIT_S, hand_in._has_same_head))
    waits.start()
    places.another_head()
    arrive(Store(places.root / "pod"), places.job.id, places.address())
    waits.join(LIMIT_S)
    assert not waits.is_alive()
    hand_in.bring(ended=True)
    hand_in.close()


def test_two_processes_of_a_pod_may_bring_the_same(places: Places) -> None:
    pod = places.bring("pod")
    hand_in = HandIn(pod)
    with event_writer(pod.events, "agent-n") as journal:
        for number in range(50):
            journal.append("warning.raised", {"text": str(number)})
            assert settle(pod.path, LIMIT_S) == ""
            if number % 3:
                hand_in.bring()
    assert same(places.job.path, pod.path, "events")
    hand_in.close()


def test_output_that_reached_its_cap_goes_there_too_and_other_pods_keep_theirs(places: Places) -> None:
    pod, other = places.bring("pod"), places.bring("other")
    for job, name in ((pod, "output-n"), (other, "output-m")):
        with event_writer(job.events, name) as journal:
            journal.append("output.written", {"text": "x", "member": "m", "node": "n", "rank": 0, "stream": "stdout"})
    ours, theirs = HandIn(pod), HandIn(other)
    ours.bring()
    theirs.bring()
    next(pod.events.iterdir()).unlink()
    ours.bring()
    assert same(places.job.path, other.path, "events")
    ours.close()
    theirs.close()


def test_the_coordinator_s_address_comes_back(places: Places) -> None:
    pod = places.bring("pod")
    hand_in = HandIn(pod)
    here, there = pod.path / ENDPOINT_FILE, places.job.path / ENDPOINT_FILE
    assert not hand_in.bring() and not here.exists()
    for port in (1, 2):
        there.write_text(json.dumps({"host": "10.0.0.1", "port": port}))
        until(lambda: not hand_in.bring() and here.exists() and here.read_text() == there.read_text(), "it is here")
    hand_in.close()


@pytest.mark.parametrize(
    "path",
    ["../x", "events/../x", "spec.json", "events/coordinator.1.jsonl", "events/supervisor.1.jsonl", "secret",
     "events/control.x.jsonl", "commands/a.jsonl", "pulled.json", ENDPOINT_FILE, "sessions/1.state", "logs/a/b.log"],
)  # fmt: skip
def test_a_pod_writes_what_is_its_own_and_nothing_else(places: Places, path: str) -> None:
    before = {found: found.read_bytes() for found in places.root.rglob("*") if found.is_file()}
    wire = Wire.call(places.service.address, places.job.secret(), LIMIT_S)
    with pytest.raises(OSError):
        wire.send(Frame({"path": path, "at": 0}, b"x\n"), Frame({"sync": ""}))
        wire.receive()
    wire.close()
    assert {found: found.read_bytes() for found in places.root.rglob("*") if found.is_file()} == before


@pytest.mark.parametrize("question", [{"claim": "x"}, {"sizes": ["spec.json"]}, {"x": 1}])
def test_what_is_no_question_ends_the_connection(places: Places, question: dict[str, object]) -> None:
    wire = Wire.call(places.service.address, places.job.secret(), LIMIT_S)
    with pytest.raises(OSError):
        wire.send(Frame(question))
        wire.receive()
    wire.close()
    assert places.bring("pod").claim("x")


def test_strangers_get_nothing_and_keep_nobody_out(places: Places) -> None:
    pod = places.bring("pod")
    held = [socket.create_connection((places.service.address.host, places.service.address.port)) for _ in range(200)]
    for one in held[:20]:
        one.sendall(os.urandom(64))
    with pytest.raises(OSError):
        Wire.call(places.service.address, secrets.token_bytes(32), LIMIT_S).receive()
    assert pod.claim("mine")
    for one in held:
        one.close()


def test_a_head_that_does_not_answer_is_named(places: Places) -> None:
    pod = places.bring("pod")
    places.service.close()
    with pytest.raises(StoreError, match=f"the head of {pod.id} does not answer"):
        HeadFiles(pod.path, 0.0).claim("x")
    assert "is not with the head" in settle(pod.path, 1.0)
    assert settle(places.job.path, 1.0) == "" and of_job(places.job.path) is None
    (pod.path / ADDRESS_FILE).write_text("{}")
    with pytest.raises(StoreError, match="names no head"):
        HeadAddress.of(pod.path)


PROGRAM = """
import os, signal, sys, time
from pathlib import Path
job = Path(sys.argv[1])
(job / "logs" / "seen").write_text("")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
(job / "output").mkdir(exist_ok=True)
(job / "output" / "pid").write_text(str(os.getpid()))
print("begun", flush=True)
while True:
    time.sleep(0.01)
"""


def test_a_pod_waits_for_its_job_and_passes_signals_on(places: Places, tmp_path: Path) -> None:
    job = Store(places.root / "pod").jobs / places.job.id
    log, process = job / "logs" / "hp-1-0.log", tmp_path / "process"
    words = [sys.executable, "-m", "jupyter_hyperpod.storage.apart.pod_start", "--log", str(log)]
    words += ["--process", str(process), "--folder", str(job), "--", sys.executable, "-c", PROGRAM, str(job)]
    pod = subprocess.Popen(words, env=os.environ | {"HYPERPOD_JOB_DIR": str(job)})
    try:
        places.bring("pod")
        until(process.exists, "the program runs")
        kept = places.job.path / "logs" / log.name
        until(lambda: kept.exists() and kept.read_text() == "begun\n", "the head has the log")
        program = int(process.read_text())
        pod.send_signal(signal.SIGTERM)
        assert pod.wait(LIMIT_S) == 7
        assert start_ticks(program) is None
    finally:
        pod.kill()
        pod.wait()


def test_a_program_does_not_outlive_its_pod(places: Places, tmp_path: Path) -> None:
    job = places.bring("pod").path
    process = tmp_path / "process"
    words = [sys.executable, "-m", "jupyter_hyperpod.storage.apart.pod_start"]
    words += [
        "--log",
        str(job / "logs" / "a.log"),
        "--process",
        str(process),
        "--folder",
        "/nowhere",
        "--",
        sys.executable,
        "-c",
        PROGRAM,
        str(job),
    ]
    pod = subprocess.Popen(words, env=os.environ | {"HYPERPOD_JOB_DIR": str(job)})
    until(lambda: process.exists() and process.read_text() != "", "the program runs")
    program = int(process.read_text())
    pod.kill()
    pod.wait()
    until(lambda: start_ticks(program) is None, "the program is gone")


def test_a_full_disk_of_the_head_loses_nothing_and_is_named(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    pod, full = places.bring("pod"), [True]
    extend = MirrorTarget._extend

    def refuse(target: MirrorTarget, path: Path, at: int, content: bytes) -> None:
        if full[0] and path.suffix == ".jsonl":
            raise StoreError(f"cannot write {path}: No space left on device")
        extend(target, path, at, content)

    monkeypatch.setattr(MirrorTarget, "_extend", refuse)
    hand_in = HandIn(pod)
    with event_writer(pod.events, "worker-n.1.2") as journal:
        for number in range(3):
            journal.append("warning.raised", {"text": str(number) * 400_000})
        for _ in range(3):
            with pytest.raises(StoreError, match="No space left"):
                hand_in.bring()
        assert "No space left" in settle(pod.path, 5.0)
        full[0] = False
        hand_in.bring()
    assert same(places.job.path, pod.path, "events")
    hand_in.close()
