"""Brings what a pod's processes write into their own store to that of the head, from where each file there ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ...core.errors import ProtocolError, StoreError
from ..mirror.mirror_frames import Frame
from ..mirror.source import EVENTS, MirrorSource, grows, is_of_head
from ..segments import OUTPUT_WRITER, in_order, last_records
from ..store import ENDPOINT_FILE, JobStore, write_private
from .head_files import call
from .wire import HeadAddress, Wire, digest, told

FOLDERS = (EVENTS, "output", "logs")
ANSWER_S = 10.0
ASKS_S = 0.4  # between two questions for the coordinator's address while nothing is written


class HandIn:
    """The files of this pod, of one job; one connection, which is made anew where it is lost. Not thread-safe."""

    def __init__(self, job: JobStore) -> None:
        self._job = job
        self._wire: Wire | None = None
        self._address: HeadAddress | None = None
        self._source: MirrorSource | None = None
        self._had: set[str] = set()  # files that the head may remove once they are gone here
        self._asked_s = 0.0

    def bring(self, timeout_s: float = ANSWER_S) -> bool:
        """Bring everything that is new; whether there was any.

        Takes the coordinator's address back where it has changed. Raises OSError, StoreError, ProtocolError.
        """
        try:
            wire, source = self._connected(timeout_s)
            present = {path for path in self._paths() if may_go(path)}
            sent = wire.send_each(source.news())
            if gone := sorted(self._had - present):
                wire.send(Frame({"gone": gone}))
            self._had = present
            now_s = time.monotonic()
            if not sent and not gone and now_s - self._asked_s < ASKS_S and (self._job.path / ENDPOINT_FILE).exists():
                return False
            self._asked_s = now_s
            wire.send(Frame({"sync": self._known_endpoint()}))
            answer = told(wire.receive())
        except BaseException:
            self.close()
            raise
        if "path" in answer.head:
            write_private(self._job.path / ENDPOINT_FILE, answer.content)
        return bool(sent or gone)

    def forget_old(self) -> None:
        """Remove complete segments of facts that the head has, so that a pod's disk does not fill in months."""
        if self._source is None:
            return
        names = [path.removeprefix(f"{EVENTS}/") for path in self._paths() if path.startswith(f"{EVENTS}/")]
        for name in last_records(in_order(names)):
            path = self._job.events / name
            with suppress(OSError):
                if not may_go(f"{EVENTS}/{name}") and self._source.sent(f"{EVENTS}/{name}") == os.stat(path).st_size:
                    path.unlink()

    def close(self) -> None:
        """End the connection."""
        if self._wire is not None:
            self._wire.close()
        self._wire = self._source = None

    def _connected(self, timeout_s: float) -> tuple[Wire, MirrorSource]:
        address = HeadAddress.of(self._job.path)
        if address != self._address:
            self.close()  # another head has taken the job over
        if self._wire is None or self._source is None:
            self._wire, self._address = call(self._job.path, timeout_s), address
            self._wire.patience(timeout_s)
            growing = [path for path in self._paths() if grows(*path.split("/", 1))]
            self._wire.send(Frame({"sizes": growing}))
            known = told(self._wire.receive()).head.get("sizes")
            if not isinstance(known, dict):
                raise ProtocolError("the head does not say what it has of this pod's files")
            self._source = MirrorSource(self._job.path, known, FOLDERS, (), names=False)
        return self._wire, self._source

    def _paths(self) -> Iterable[str]:
        for folder in FOLDERS:
            with suppress(OSError):
                for name in os.listdir(self._job.path / folder):
                    if is_of_head(folder, name):
                        yield f"{folder}/{name}"

    def _known_endpoint(self) -> str:
        with suppress(OSError):
            return digest((self._job.path / ENDPOINT_FILE).read_bytes())
        return ""


def may_go(path: str) -> bool:
    """Whether a file may vanish because the output of its node has reached its cap."""
    return path.startswith(("output/", f"{EVENTS}/{OUTPUT_WRITER}"))


def settle(job: Path, limit_s: float) -> str:
    """Bring all that is here before somebody is told that it is over; why that failed, "" where it did not.

    Nothing is done in a store that the head itself uses.
    """
    if HeadAddress.of(job) is None:
        return ""
    hand_in = HandIn(JobStore(job))
    try:
        hand_in.bring(limit_s)
    except (OSError, StoreError, ProtocolError) as error:
        return f"what was written last is not with the head of the job yet: {error}"
    finally:
        hand_in.close()
    return ""
