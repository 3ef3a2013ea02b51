"""Serves the files of one job to the pods of its nodes, which have stores of their own. It runs where the head is.

| a pod sends | the head does | it answers |
|---|---|---|
| ``claim`` NAME ``claimant`` TEXT | lets the first claimant have it | ``won`` |
| ``recorded`` PATH | | ``path`` with what is recorded, or ``none`` |
| ``path`` ``record`` with content | records it where nothing is | ``path`` with what is recorded |
| ``path`` ``end_of`` SESSION ``at``, then ``leave_end`` | keeps the end of a session | ``kept`` |
| ``fetch_end`` SESSION | | pieces, then ``over``; or ``none`` |
| ``forget_ends`` | removes those | ``forgotten`` |
| ``path`` ``pulled`` with content | keeps the values that come back | ``kept`` |
| ``sizes`` PATHS | | ``sizes``: how much of each is here |
| ``path`` with content, ``gone`` PATHS | writes, removes files of the pod | |
| ``sync`` DIGEST ``durable`` | writes to the disk what it has | ``taken``, the coordinator's address if it is another |
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...core.errors import HyperpodError, ProtocolError, StoreError
from ...system import portable
from ...system.addresses import listen_for_words
from ...system.diagnostics import note
from ..mirror.mirror_frames import CONTENT_BYTES, Frame
from ..mirror.source import EVENTS
from ..mirror.target import MirrorTarget, is_joined
from ..source_record import SourceRecord
from ..store import ENDPOINT_FILE, JobStore, create_first, private_directory, write_private
from ..values import PULLED
from .pod_paths import FROM_POD, is_from_pod
from .wire import HeadAddress, Wire, digest, refusal, word

PROOF_S, SILENT_S = 5.0, 120.0
MOST_CALLERS, MOST_STRANGERS = 4096, 128
AGAIN_S = 0.05
_CLAIM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9 ._-]{0,200}")
HERE = 1 << 40  # bytes of a segment whose records are in a joined one


class FileService:
    """Listens at ``host`` until it is closed. Raises OSError.

    Callers without a proof yet have few places: where all are taken, the oldest is dropped.
    """

    def __init__(self, job: JobStore, host: str) -> None:
        self._job, self._target = job, MirrorTarget(job.path, FROM_POD)
        self._secret = job.secret()
        self._listener = listen_for_words(host, 0, MOST_CALLERS)
        self.address = HeadAddress(*self._listener.getsockname()[:2])
        self._strangers: dict[socket.socket, None] = {}  # oldest first
        self._places = threading.Lock()
        self._callers = threading.BoundedSemaphore(MOST_CALLERS)
        self._locks = _Locks()
        self._closed = False
        self._wires: set[Wire] = set()
        threading.Thread(target=self._accept, name="files", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for wire in list(self._wires):
            wire.hang_up()

    def _accept(self) -> None:
        while not self._closed:
            try:
                caller, _ = self._listener.accept()
            except OSError:  # the caller has gone, or no descriptor is left
                time.sleep(0.0 if self._closed else AGAIN_S)
                continue
            with self._places:
                if len(self._strangers) >= MOST_STRANGERS:
                    oldest = next(iter(self._strangers))
                    del self._strangers[oldest]
                    with suppress(OSError):  # its own thread closes it
                        oldest.shutdown(socket.SHUT_RDWR)
                try:
                    handle = caller.dup()  # of a socket under TLS, nothing else could end the connection
                except OSError:  # no descriptor is left
                    caller.close()
                    continue
                self._strangers[handle] = None
            try:
                threading.Thread(target=self._attend, args=(caller, handle), daemon=True).start()
            except RuntimeError:  # no thread is left
                self._known(handle)
                caller.close()

    def _known(self, handle: socket.socket) -> None:
        """Its place is free again."""
        with self._places:
            self._strangers.pop(handle, None)
            handle.close()

    def _attend(self, caller: socket.socket, handle: socket.socket) -> None:
        try:
            wire = Wire.answer(caller, self._secret, PROOF_S)
        except (OSError, HyperpodError):
            return
        finally:
            self._known(handle)
        if not self._callers.acquire(blocking=False):
            wire.close()
            return
        pod = _Pod(self._job, self._target, self._locks)
        self._wires.add(wire)
        try:
            wire.patience(SILENT_S)
            while not self._closed:
                pod.take(wire.receive(), wire)
        except (OSError, ProtocolError):  # it has gone, or is none of ours
            pass
        except HyperpodError as error:
            note(str(error))
        finally:
            pod.close()
            self._wires.discard(wire)
            wire.close()
            self._callers.release()


class _Locks:
    """One lock for each path, or for a few of them: two processes of a pod may send the same bytes at the same time."""

    def __init__(self, count: int = 64) -> None:
        self._locks = [threading.Lock() for _ in range(count)]

    def of(self, path: str) -> threading.Lock:
        return self._locks[hash(path) % len(self._locks)]


class _Pod:
    """What one connection asks."""

    def __init__(self, job: JobStore, target: MirrorTarget, locks: _Locks) -> None:
        self._job, self._target, self._locks = job, target, locks
        self._written: set[str] = set()  # paths that are perhaps not on the disk yet
        self._draft: Path | None = None
        self._refused: Exception | None = None  # the disk refused a file: the next ``sync`` says so
        self._answers: dict[str, Callable[[Frame], Frame]] = {
            "claim": self._claim,
            "recorded": self._recorded,
            "record": self._record,
            "pulled": self._pulled,
            "leave_end": self._leave_end,
            "forget_ends": self._forget_ends,
            "sizes": self._sizes,
            "sync": self._sync,
        }

    def take(self, frame: Frame, wire: Wire) -> None:
        """Do what a frame asks. Raises ProtocolError for what is no question, OSError where nobody listens."""
        if "end_of" in frame.head:
            self._extend_end(frame)
        elif "fetch_end" in frame.head:
            self._send_end(_number(frame, "fetch_end"), wire)
        elif question := next((name for name in self._answers if name in frame.head), None):
            try:
                answer = self._answers[question](frame)
            except StoreError as error:
                answer = refusal(error)
            wire.send(answer)
        elif "path" in frame.head or "gone" in frame.head:
            self._mirror(frame)
        else:
            raise ProtocolError(f"a pod asks {str(dict(frame.head))[:80]}")

    def close(self) -> None:
        if self._draft is not None:
            self._draft.unlink(missing_ok=True)

    def _claim(self, frame: Frame) -> Frame:
        name, claimant = word(frame, "claim"), word(frame, "claimant").encode()[:64]
        if not _CLAIM.fullmatch(name):
            raise StoreError(f"{name[:80]!r} cannot be claimed; expected letters, digits, blanks, dots and dashes")
        place = private_directory(self._job.path / "claims") / name
        with self._locks.of(name):
            won = create_first(place, claimant) or place.read_bytes() == claimant
            _to_disk(place)  # or another member would win after a loss of the head
        return Frame({"won": won})

    def _recorded(self, frame: Frame) -> Frame:
        path = word(frame, "recorded")
        found = SourceRecord(self._job.path).known(path)
        return Frame({"none": 1}) if found is None else Frame({"path": path}, found)

    def _record(self, frame: Frame) -> Frame:
        path = word(frame, "path")
        with self._locks.of(path):
            return Frame({"path": path}, SourceRecord(self._job.path).of(path, frame.content))

    def _pulled(self, frame: Frame) -> Frame:
        write_private(self._job.path / PULLED, frame.content)
        return Frame({"kept": 1})

    def _extend_end(self, frame: Frame) -> None:
        if self._draft is None:
            place = self._job.session_end(_number(frame, "end_of"))
            self._draft = private_directory(place.parent) / f"{place.name}.{secrets.token_hex(4)}"
        with open(self._draft, "ab") as file:
            file.write(frame.content)

    def _leave_end(self, frame: Frame) -> Frame:
        if self._draft is None:
            raise ProtocolError("a pod leaves the end of a session that it has not sent")
        os.replace(self._draft, self._job.session_end(_number(frame, "leave_end")))
        self._draft = None
        return Frame({"kept": 1})

    def _send_end(self, session: int, wire: Wire) -> None:
        try:
            file = open(self._job.session_end(session), "rb")
        except FileNotFoundError:
            wire.send(Frame({"none": 1}))
            return
        with file:
            while piece := file.read(CONTENT_BYTES):
                wire.send(Frame({"path": "end"}, piece))
        wire.send(Frame({"over": 1}))

    def _forget_ends(self, _: Frame) -> Frame:
        self._job.forget_session_ends()
        return Frame({"forgotten": 1})

    def _sizes(self, frame: Frame) -> Frame:
        asked = frame.head["sizes"]
        if not isinstance(asked, list) or not all(isinstance(path, str) and is_from_pod(path) for path in asked):
            raise ProtocolError("a pod asks for the sizes of files that are none of its own")
        sizes = {}
        for path in asked:
            with suppress(OSError):
                sizes[path] = os.stat(self._job.path / path).st_size
        with suppress(OSError):
            names = os.listdir(self._job.events)
            for path in set(asked) - sizes.keys():
                if path.startswith(f"{EVENTS}/") and is_joined(path.removeprefix(f"{EVENTS}/"), names):
                    sizes[path] = HERE
        return Frame({"sizes": sizes})

    def _mirror(self, frame: Frame) -> None:
        if self._refused is not None:
            return  # what follows a piece that was refused is brought again with it
        try:
            if "gone" in frame.head:
                self._remove(frame.head["gone"])
            else:
                path = word(frame, "path")
                with self._locks.of(path):
                    self._target.take(frame)
                if "whole" not in frame.head:
                    self._written.add(path)
        except (StoreError, OSError) as error:
            self._refused = error

    def _remove(self, paths: object) -> None:
        if not isinstance(paths, list) or not all(isinstance(path, str) and is_from_pod(path) for path in paths):
            raise ProtocolError("a pod removes files that are none of its own")
        for path in paths:
            (self._job.path / path).unlink(missing_ok=True)

    def _sync(self, frame: Frame) -> Frame:
        if self._refused is not None:
            error, self._refused = self._refused, None
            raise StoreError(str(error)) from error
        if frame.head.get("durable"):
            for path in self._written:
                with suppress(FileNotFoundError):  # it was joined, or reached the cap
                    _to_disk(self._job.path / path)
            self._written.clear()
        found = b""
        with suppress(OSError):
            found = (self._job.path / ENDPOINT_FILE).read_bytes()
        if not found or digest(found) == frame.head["sync"]:
            return Frame({"taken": 1})
        return Frame({"path": ENDPOINT_FILE, "taken": 1}, found)


def _to_disk(path: Path) -> None:
    """Wait until a file and its name are on the disk. Raises StoreError, FileNotFoundError."""
    for place in (path, path.parent):
        try:
            file = os.open(place, os.O_RDONLY | portable.NOT_INHERITED)
            try:
                os.fsync(file)
            finally:
                os.close(file)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(f"cannot write {place}: {error.strerror}") from error


def _number(frame: Frame, name: str) -> int:
    found = frame.head.get(name)
    if type(found) is not int or not 0 < found < 1 << 30:
        raise ProtocolError(f"a frame has {str(found)[:80]!r} as {name}; expected the number of a session")
    return found
