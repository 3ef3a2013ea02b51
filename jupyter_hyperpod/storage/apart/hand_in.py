"""Brings what a pod's processes write into their own store to that of the head, from where each file there ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ...core.errors import ProtocolError, StoreError
from ..mirror.mirror_frames import Frame
from ..mirror.source import EVENTS, MirrorScope, MirrorSource, grows
from ..segments import in_order, last_records
from ..store import ENDPOINT_FILE, JobStore, write_private
from .head_files import call
from .pod_paths import FOLDERS, is_from_pod, may_go
from .wire import HeadAddress, Wire, digest, told

CONNECT_S, ANSWER_S = 1.0, 10.0
ASKS_S = 0.4  # between two questions for the coordinator's address while nothing is written
FROM_PODS = MirrorScope(FOLDERS, takes=is_from_pod)


class HandIn:
    """The files of this pod, of one job; one connection, which is made anew where it is lost. Not thread-safe."""

    def __init__(self, job: JobStore) -> None:
        self._job = job
        self._wire: Wire | None = None
        self._address: HeadAddress | None = None
        self._source: MirrorSource | None = None
        self._had: set[str] = set()  # files that the head may remove once they are gone here
        self._asked_s = 0.0

    def bring(self, limit_s: float = ANSWER_S, *, ended: bool = False, durable: bool = False) -> bool:
        """Bring everything that is new; whether there was any.

        Takes the coordinator's address back where it has changed. ``ended``: nothing is written any more. ``durable``:
        what the head has is on its disk afterwards. Raises OSError, StoreError, ProtocolError; TimeoutError, where this
        takes longer or where another head has taken the job over.
        """
        until_s = time.monotonic() + limit_s
        try:
            wire, source = self._connected(min(CONNECT_S, limit_s))
            present = {path for path in self._paths() if may_go(path)}
            sent = False
            for frame in source.news(ended):
                wire.patience(_left(until_s))
                wire.send(frame)
                sent = True
            if gone := sorted(self._had - present):
                wire.send(Frame({"gone": gone}))
            self._had = present
            if not (sent or gone or ended or durable) and self._asked_lately():
                return False
            wire.send(Frame({"sync": self._known_endpoint(), "durable": durable}))
            answer = told(wire.wait_for(_left(until_s), self._has_same_head))
        except BaseException:
            self.close()
            raise
        if "path" in answer.head:
            write_private(self._job.path / ENDPOINT_FILE, answer.content)
        return bool(sent or gone)

    def forget_old(self) -> None:
        """Remove complete segments of facts that the head has on its disk: a pod's own does not fill in months.

        Raises as `bring` does.
        """
        names = [path.removeprefix(f"{EVENTS}/") for path in self._paths() if path.startswith(f"{EVENTS}/")]
        complete = [f"{EVENTS}/{name}" for name in last_records(in_order(names)) if not may_go(f"{EVENTS}/{name}")]
        if not complete:
            return
        self.bring(durable=True)
        for path in complete:
            with suppress(OSError):
                if self._source is not None and self._source.sent(path) >= os.stat(self._job.path / path).st_size:
                    (self._job.path / path).unlink()

    def _has_same_head(self) -> bool:
        return HeadAddress.of(self._job.path) == self._address

    def _asked_lately(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._asked_s < ASKS_S and (self._job.path / ENDPOINT_FILE).exists():
            return True
        self._asked_s = now_s
        return False

    def close(self) -> None:
        """End the connection."""
        if self._wire is not None:
            self._wire.close()
        self._wire = self._source = None

    def _connected(self, limit_s: float) -> tuple[Wire, MirrorSource]:
        address = HeadAddress.of(self._job.path)
        if address != self._address:
            self.close()  # another head has taken the job over
        if self._wire is None or self._source is None:
            self._wire, self._address = call(self._job.path, limit_s), address
            growing = [path for path in self._paths() if grows(*path.split("/", 1))]
            self._wire.send(Frame({"sizes": growing}))
            known = told(self._wire.wait_for(ANSWER_S, self._has_same_head)).head.get("sizes")
            if not isinstance(known, dict):
                raise ProtocolError("the head does not say what it has of this pod's files")
            self._source = MirrorSource(self._job.path, known, FROM_PODS)
        return self._wire, self._source

    def _paths(self) -> Iterable[str]:
        for folder in FOLDERS:
            with suppress(OSError):
                for name in os.listdir(self._job.path / folder):
                    if is_from_pod(path := f"{folder}/{name}"):
                        yield path

    def _known_endpoint(self) -> str:
        with suppress(OSError):
            return digest((self._job.path / ENDPOINT_FILE).read_bytes())
        return ""


def _left(until_s: float) -> float:
    """Raises TimeoutError where nothing is left."""
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the head of the job takes too long")
    return left_s


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
