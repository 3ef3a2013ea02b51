"""The process that follows one job whose head runs elsewhere:

    python -m jupyter_hyperpod.control.remote.follower --store DIR --job ID

It has the head started, brings it the job and every command, and writes here what is written there, byte for byte. It
may end at any time: the job goes on, and the next follower continues from the files that are here. Where the cluster
does not answer, it waits.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ...backends import load
from ...backends.base import RemoteHead
from ...backends.types import HeadPhase
from ...core.errors import ClusterError, Conflict, HyperpodError, ProtocolError, StoreError
from ...core.events import TERMINAL_STATES
from ...core.spec import JobSpec
from ...storage.folded import FoldedJournal
from ...storage.journal import files, follow_commands
from ...storage.journal_writer import JournalWriter
from ...storage.mirror.beginning import batches, first_frames
from ...storage.mirror.mirror_frames import Frame, FrameReader
from ...storage.mirror.source import OF_CLIENT
from ...storage.mirror.target import FROM_HEAD, MirrorTarget
from ...storage.segments import as_written
from ...storage.store import ENDED_MARK, JobStore, Store, create_first
from ...system.diagnostics import note
from ...system.locks import one_at_a_time
from .followed import BUSY, FETCHED, LOCK

WRITER = "follower"
ARRIVED = "arrived"  # written when the head has the job
SILENT_S, RUN_S = 15.0, 60.0
LOOK_S, PAUSE_S, LONGEST_PAUSE_S = 0.2, 0.5, 10.0
STOP_ANYWAY_S = 60.0
GONE_S = 5.0
VAIN_STARTS = 3  # of a head that has never had the job: its image or its Python is another one
REFUSED_S = 10.0  # a server that has just begun refuses what it allows a moment later
AWAY_S = 20.0  # a shorter absence of the cluster is not worth a sentence


class HeadFollower:
    """One job; `run` returns when the job is over and everything of it is here."""

    def __init__(self, store: Store, job: JobStore) -> None:
        self._store, self._job, self._spec = store, job, job.spec()
        self._found: RemoteHead | None = None
        self._journal = JournalWriter(job.events, WRITER)
        self._commands = follow_commands(job.commands)
        self._view = FoldedJournal(job)
        self._sent: dict[str, int] = {}  # path -> bytes that the head has
        self._said, self._away_s, self._told_away = "", 0.0, False
        # since when the cluster says that no head runs, refuses, and has nothing where the head kept the job
        self._down_s = self._refused_s = self._gone_s = 0.0
        self._pause_s = PAUSE_S
        self._undelivered: tuple[float, str] | None = None  # since when commands wait, and why
        self._told_undelivered = False
        self._complete = False  # the job is over, and everything is here
        self._over = threading.Event()

    def run(self) -> None:
        """Follow until the end, however often the connection fails. Raises StoreError where this store refuses."""
        while not self._over.is_set():
            try:
                if self._complete:
                    self._let_go()
                elif self._up() and self._bring():
                    self._fetch()
            except (ClusterError, ProtocolError, OSError) as error:  # ProtocolError: what came was torn
                note(str(error))
                if self._refused(error):
                    self._end("failed", str(error))
                self._away(str(error))
            if not self._over.is_set():
                self._stop_without_head()
            self._over.wait(self._pause_s)
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def close(self) -> None:
        self._over.set()
        self._journal.close()
        if self._found is not None:
            self._found.close()

    # -- the head ------------------------------------------------------------------------------------------------

    @property
    def _head(self) -> RemoteHead:
        """Raises ClusterError where this machine does not know how to reach the cluster."""
        if self._found is None:
            self._found = load(self._spec.backend).remote_head(self._spec.backend_options, self._job.id)
        if self._found is None:
            raise ClusterError(f"the head of {self._job.id} runs beside its supervisor")
        return self._found

    def _refused(self, error: Exception) -> bool:
        """Whether a job that the head does not have yet never will be there: a server that starts refuses, too."""
        if self._arrived or self._found is None or not self._found.refused(error):
            self._refused_s = 0.0
            return False
        self._refused_s = self._refused_s or time.monotonic()
        return time.monotonic() - self._refused_s >= REFUSED_S

    @property
    def _arrived(self) -> bool:
        return (self._job.path / ARRIVED).exists()

    def _up(self) -> bool:
        """Have the head started; whether it runs."""
        self._head.start(self._spec.python or sys.executable)
        state = self._head.state()
        if state.phase is HeadPhase.RUNNING:
            self._down_s = 0.0
            return True
        self._down_s = self._down_s or time.monotonic()
        if state.phase is HeadPhase.ENDED and (self._job.path / ENDED_MARK).exists():
            self._complete = True
        elif state.phase is HeadPhase.ENDED:
            self._head.remove()  # it has waited too long: the next one takes the job, or gives what nobody has fetched
        elif state.phase is HeadPhase.FAILED:
            self._head.remove()
            self._end("failed", f"the head of the job has ended before the job had: {state.reason}")
        elif not self._arrived and state.failed >= VAIN_STARTS:
            self._head.remove()
            self._end("failed", f"the head of the job cannot start, after {state.failed} tries. {state.reason}")
        elif not self._arrived:
            self._say(f"the head of the job starts: {state.reason}" if state.reason else "the head of the job starts")
        else:
            raise ClusterError(f"the head of the job is being replaced: {state.reason}")
        return False

    def _bring(self) -> bool:
        """Bring the job where it is not there, or what it lacks of the commands; whether the job is there."""
        if not self._receive([]):
            if self._arrived:
                return self._is_gone()
            for frames in batches(self._first()):
                self._receive(frames)
            self._receive([Frame({"commit": 1})])
        if create_first(self._job.path / ARRIVED):
            self._job.forget_environment()
        self._gone_s = 0.0
        self._send_news()
        return True

    def _is_gone(self) -> bool:
        """The head does not have the job any more. False; a moment later, so that a file system may come back."""
        self._gone_s = self._gone_s or time.monotonic()
        gone = f"{self._head.store}, where the head kept the job, is gone"
        if time.monotonic() - self._gone_s < GONE_S:
            raise ClusterError(gone)
        self._head.remove()
        self._end("failed", ". ".join(filter(None, [f"{gone}, and so is the job", self._head.advice])))
        return False

    def _first(self) -> Iterator[Frame]:
        """Everything with which a job begins."""
        spec = {**self._spec.to_json(), self._spec.backend: dict(self._head.own_options)}
        JobSpec.from_json(spec)  # what the head reads is checked here, where somebody sees it
        return first_frames(self._store, self._job, json.dumps(spec).encode(), self._sent)

    def _receive(self, frames: list[Frame]) -> bool:
        """Let the head take frames; whether it has the job. What it has of our files is known afterwards."""
        data = b"".join(frame.encode() for frame in frames)
        said = self._head.run(["receive", "--size", str(len(data))], data, RUN_S)
        try:
            answer = json.loads(said)
            self._sent = {str(path): int(size) for path, size in answer["sizes"].items()}
            return bool(answer["here"])
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ProtocolError(f"the head answered {said[:200]!r}; expected what it has of the job") from None

    def _send_news(self) -> None:
        """Bring what commands and our own events have more than the head has."""
        frames = []
        for folder, ours in (("commands", ("",)), ("events", OF_CLIENT)):
            for path in sorted(files(self._job.path / folder), key=lambda path: as_written(path.name)):
                name, at = f"{folder}/{path.name}", self._sent.get(f"{folder}/{path.name}", 0)
                if path.name.startswith(ours) and path.stat().st_size > at:
                    with open(path, "rb") as file:
                        file.seek(at)
                        lines, newline, _ = file.read().rpartition(b"\n")
                    if newline:
                        frames.append(Frame({"path": name, "at": at}, lines + newline))
        if frames:
            self._receive(frames)

    # -- what it writes ------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        """Write here what is written there, until the connection is cut or the job is over."""
        target, reader = MirrorTarget(self._job.path, FROM_HEAD), FrameReader()
        known = json.dumps(target.known()).encode()
        done = threading.Event()
        sender = threading.Thread(target=self._keep_sending, args=[done], name="hyperpod-commands", daemon=True)
        sender.start()
        try:
            for data in self._head.follow(["stream", "--size", str(len(known))], known, SILENT_S):
                self._heard()
                self._say_undelivered()
                for frame in reader.feed(data):
                    if "end" in frame.head:
                        self._complete = True
                        return
                    target.take(frame)
        finally:
            done.set()
            sender.join(RUN_S)

    def _keep_sending(self, done: threading.Event) -> None:
        while not done.wait(LOOK_S):
            try:
                self._send_news()
                self._undelivered = None
            except (ClusterError, ProtocolError, OSError) as error:
                since_s = self._undelivered[0] if self._undelivered else time.monotonic()
                self._undelivered = since_s, str(error)
                note(f"commands wait: {error}")
                done.wait(PAUSE_S)

    def _let_go(self) -> None:
        """The head is needed no more."""
        with suppress(ClusterError, ProtocolError):  # perhaps it has gone
            self._receive([Frame({"fetched": 1})])
        self._head.remove()
        create_first(self._job.path / FETCHED)
        self._over.set()

    # -- what people read ----------------------------------------------------------------------------------------

    def _stop_without_head(self) -> None:
        """Obey a stop that comes before the head has the job, or where no head has run for long."""
        if self._arrived and not (self._down_s and time.monotonic() - self._down_s >= STOP_ANYWAY_S):
            return
        for command in self._commands.poll():
            if command.kind == "stop":
                with suppress(ClusterError):
                    self._head.remove()
                self._end("stopped", str(command.data.get("reason") or "stopped before it had begun"))

    def _say(self, reason: str) -> None:
        """Why the job waits; one entry per new reason."""
        if reason != self._said:
            self._said = reason
            self._journal.write("job.state", {"state": "pending", "reason": reason})

    def _away(self, problem: str) -> None:
        """The cluster does not answer: after a while that is said, once."""
        now_s = time.monotonic()
        self._away_s = self._away_s or now_s
        if self._complete or self._over.is_set():
            return
        if not self._arrived:
            self._say(problem)
        elif now_s - self._away_s >= AWAY_S and not self._told_away:
            self._told_away = True
            since = f"{now_s - self._away_s:.0f} s"
            text = f"nothing has been heard for {since} of the job, which goes on in its pods: {problem}"
            self._journal.write("warning.raised", {"text": text})

    def _say_undelivered(self) -> None:
        """Say once that commands do not reach a head that is heard, such as one whose disk is full."""
        waits = self._undelivered
        if waits is None:
            self._told_undelivered = False
        elif time.monotonic() - waits[0] >= AWAY_S and not self._told_undelivered:
            self._told_undelivered = True
            text = f"what was asked of the job does not reach its head: {waits[1]}"
            self._journal.write("warning.raised", {"text": text})

    def _heard(self) -> None:
        self._away_s, self._told_away, self._pause_s = 0.0, False, PAUSE_S

    def _end(self, state: str, reason: str) -> None:
        """The job is over without its head having said so."""
        if self._view.catch_up()["state"] not in TERMINAL_STATES:
            self._journal.write_end(self._store.root, "job.state", {"state": state, "reason": reason})
        self._job.forget_environment()
        for mark in (ENDED_MARK, FETCHED):
            create_first(self._job.path / mark)
        self._over.set()


def main(arguments: list[str] | None = None) -> int:
    """Entry point; exit status 0 also where another process follows the job."""
    parser = argparse.ArgumentParser(prog="python -m jupyter_hyperpod.control.remote.follower")
    parser.add_argument("--store", required=True, type=Path)
    parser.add_argument("--job", required=True)
    options = parser.parse_args(arguments)
    store = Store(options.store)
    try:
        job = store.job(options.job)
        with one_at_a_time(job.path / LOCK, BUSY, 0.0, where_possible=True):
            follower = HeadFollower(store, job)
            try:
                follower.run()
            finally:
                follower.close()
    except Conflict:
        return 0
    except (HyperpodError, StoreError) as error:
        note(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
