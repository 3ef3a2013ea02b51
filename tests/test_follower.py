"""A job's head runs elsewhere: however often the connection fails, everything arrives once, and what is wrong is told.

The head's own program runs in real processes here, with a store of its own. Only the way to it is the test's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from jupyter_hyperpod.backends.kubernetes.backend import KubernetesBackend
from jupyter_hyperpod.backends.types import HeadPhase, HeadState
from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control import housekeeping, jobs
from jupyter_hyperpod.control.remote import followed, follower
from jupyter_hyperpod.core.errors import ClusterError, Conflict, HyperpodError
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.notebook.push import with_values
from jupyter_hyperpod.storage.journal import command_writer, event_writer
from jupyter_hyperpod.storage.mirror.mirror_frames import CONTENT_BYTES
from jupyter_hyperpod.storage.source_record import SourceRecord
from jupyter_hyperpod.storage.store import JobStore, Store
from jupyter_hyperpod.storage.values import leave, pulled
from jupyter_hyperpod.supervisor.head_pod import SETTLED

Wait = Callable[..., None]
OPTIONS = {"image": "train:1", "claim": "data:/fsx", "head": "pod", "account": "heads"}


class Refusal(ClusterError):
    """What no later try would change."""


class BadWay:
    """A `RemoteHead` whose every third connection fails, half of them after the other side has done its work."""

    def __init__(self, store: Path, job_id: str) -> None:
        self._store, self._job_id, self._calls = store, job_id, 0
        self.trouble: HyperpodError | None = None
        self.found, self.removed = HeadState(HeadPhase.RUNNING), False

    @property
    def store(self) -> str:
        return str(self._store)

    @property
    def own_options(self) -> dict[str, str]:
        return {"image": "train:1", "claim": "data:/fsx", "namespace": "team"}

    def refused(self, error: Exception) -> bool:
        return isinstance(error, Refusal)

    def start(self, python: str) -> None:
        if self.trouble is not None:
            raise self.trouble

    def state(self) -> HeadState:
        return self.found

    def _program(self, arguments: Sequence[str]) -> list[str]:
        act, *more = arguments
        program = [sys.executable, "-m", "jupyter_hyperpod.supervisor.head_pod"]
        return [*program, act, "--store", self.store, "--job", self._job_id, *more]

    def run(self, arguments: Sequence[str], data: bytes, limit_s: float) -> bytes:
        self._calls += 1
        if self._calls % 6 == 2:
            raise ClusterError("TLS handshake timeout")
        done = subprocess.run(self._program(arguments), input=data, capture_output=True, timeout=limit_s, check=True)
        if self._calls % 6 == 5:
            raise ClusterError("the connection was cut before the exit status was known")
        return done.stdout

    def follow(self, arguments: Sequence[str], data: bytes, silent_s: float) -> Iterator[bytes]:
        self._calls += 1
        cut = self._calls % 2
        with subprocess.Popen(self._program(arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(data)
            process.stdin.flush()
            try:
                while piece := os.read(process.stdout.fileno(), 700 if cut else 1 << 16):
                    yield piece
                    if cut:
                        raise ClusterError("the connection was cut")
            finally:
                process.kill()

    def remove(self) -> None:
        self.removed = True

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def job(store: Store) -> JobStore:
    def fill(building: Path) -> None:
        folder = building / "include" / "0" / "own package"
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / "größe.py").write_text("x = 1\n")
        (folder / "table.bin").write_bytes(os.urandom(3 * CONTENT_BYTES + 17))
        SourceRecord(building).of("/fsx/own.py", b"x = 1")

    digest = store.put_cell(with_values("\nprint(values)", {"values": list(range(9))}, store))
    spec = JobSpec(name="far", cell_digest=digest, backend="kubernetes", kubernetes=OPTIONS, include=("/x",))
    return store.create_job(spec, fill)


@pytest.fixture
def way(job: JobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BadWay:
    way = BadWay(tmp_path / "there", job.id)
    monkeypatch.setattr(KubernetesBackend, "remote_head", lambda *_: way)
    monkeypatch.setattr(follower, "PAUSE_S", 0.02)
    monkeypatch.setattr(follower, "LONGEST_PAUSE_S", 0.1)
    return way


@pytest.fixture
def following(store: Store, job: JobStore, way: BadWay) -> threading.Thread:
    """Started by the test, and at its end by then."""
    arguments = ["--store", str(store.root), "--job", job.id]
    return threading.Thread(target=follower.main, args=[arguments], daemon=True)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_over_a_bad_connection_everything_arrives_once(
    store: Store, job: JobStore, way: BadWay, following: threading.Thread, eventually: Wait
) -> None:
    following.start()
    there = JobStore(Path(way.store) / "jobs" / job.id)
    eventually((job.path / follower.ARRIVED).exists, timeout_s=60)
    assert files(there.path / "include") == files(job.path / "include")
    assert SourceRecord(there.path).known("/fsx/own.py") == b"x = 1"
    assert files(Path(way.store) / "cells") == files(store.cells) and len(files(store.cells)) == 2
    assert there.spec().kubernetes == way.own_options and there.secret() == job.secret()

    with command_writer(job.commands, "control") as commands, event_writer(there.events, "coordinator") as journal:
        for number in range(40):
            journal.append("warning.raised", {"text": f"{number} " + "x" * 200})
        commands.append("stop", {"reason": "enough"})
        eventually(lambda: b"enough" in b"".join(files(there.commands).values()), timeout_s=60)
        journal.append("job.state", {"state": "stopped", "reason": "enough"})
    (there.path / "sources" / "1-data.jsonl").write_bytes(b"a version without a line's end")
    eventually(lambda: jobs.job_view(store, job.id)["state"] == "stopped", timeout_s=60)
    with pytest.raises(Conflict, match="is being fetched"):
        housekeeping.delete_jobs(store, [job.id])
    leave(there.path, ["best"], {"best": 0.5})
    (there.path / "ended").touch()
    (there.path / SETTLED).touch()
    following.join(60)
    assert not following.is_alive() and way.removed
    assert pulled(job.path) == ({"best": 0.5}, [])
    for folder in ("events", "sources"):
        assert files(job.path / folder) == files(there.path / folder)
    housekeeping.delete_jobs(store, [job.id])


def test_what_is_in_the_way_is_told_and_a_server_that_has_just_begun_may_refuse(
    store: Store, job: JobStore, way: BadWay, following: threading.Thread, eventually: Wait
) -> None:
    way.trouble = ClusterError("no kubeconfig says where the cluster is")
    following.start()
    eventually(lambda: "no kubeconfig" in jobs.job_view(store, job.id)["reason"])
    way.trouble = Refusal("you may not create jobs")
    eventually(lambda: "may not create" in jobs.job_view(store, job.id)["reason"])
    way.trouble, way.found = None, HeadState(HeadPhase.WAITING, "no node is free")
    eventually(lambda: "no node is free" in jobs.job_view(store, job.id)["reason"])
    with command_writer(job.commands, "control") as commands:
        commands.append("stop", {"reason": "enough"})
    following.join(60)
    view = jobs.job_view(store, job.id)
    assert (view["state"], view["reason"]) == ("stopped", "enough") and way.removed
    followed.ensure(store, job)
    assert not followed.follows(job), "all of it is here"


def test_what_is_refused_for_long_ends_the_job(
    store: Store, job: JobStore, way: BadWay, following: threading.Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "REFUSED_S", 0.2)
    way.trouble = Refusal("you may not create jobs")
    following.start()
    following.join(60)
    view = jobs.job_view(store, job.id)
    assert (view["state"], view["reason"]) == ("failed", "you may not create jobs")


def test_a_head_that_begins_in_vain_again_and_again_ends_the_job_with_the_reason(
    store: Store, job: JobStore, way: BadWay, following: threading.Thread, eventually: Wait
) -> None:
    way.found = HeadState(HeadPhase.WAITING, "Failed: no such file: /opt/venv/bin/python", 2)
    following.start()
    eventually(lambda: "no such file" in jobs.job_view(store, job.id)["reason"])
    way.found = HeadState(HeadPhase.WAITING, "Failed: no such file: /opt/venv/bin/python", 3)
    following.join(60)
    view = jobs.job_view(store, job.id)
    assert view["state"] == "failed" and view["reason"].startswith("the head of the job cannot start, after 3 tries. ")
    assert "no such file" in view["reason"] and way.removed


def test_looking_at_a_job_that_nothing_follows_has_it_followed_again(
    store: Store, job: JobStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(followed, "ensure", lambda _, one: asked.append(one.id))
    local = store.create_job(JobSpec("here", store.put_cell("1")))
    for one in (job, local):
        with event_writer(one.events, "control") as journal:
            journal.append("job.submitted", {"id": one.id, "spec": one.spec().to_json()})
    for words in (["list"], ["describe", job.id]):
        assert main(["--store", str(store.root), *words]) == 0
        assert f"nothing was fetched of {job.id} lately" in capsys.readouterr().err
    (job.path / followed.FETCHED).touch()
    assert main(["--store", str(store.root), "list"]) == 0
    assert "fetched" not in capsys.readouterr().err
    assert asked == [job.id, job.id] and local.id not in asked
