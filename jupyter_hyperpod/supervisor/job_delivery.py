"""Brings a job to the pods of its nodes, where each has a store of its own, and serves them the head's files."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from ..backends import load
from ..backends.base import ApartPods
from ..core.backend_options import POD_ADDRESS
from ..core.errors import ClusterError
from ..storage.apart.arrival import Arrived
from ..storage.apart.continued import continued
from ..storage.apart.file_service import FileService
from ..storage.apart.wire import ADDRESS_FILE
from ..storage.journal_writer import JournalWriter
from ..storage.mirror.beginning import SPEC, batches, first_frames
from ..storage.mirror.mirror_frames import Frame
from ..storage.store import ENDPOINT_FILE, JobStore, Store
from ..system.diagnostics import note

WRITER = "delivery"
AT_ONCE = 16
FIRST_BYTES, BATCH_BYTES = 1 << 20, 4 << 20  # of what goes in the first command; of one that comes later
RUN_S, AGAIN_S, LONGEST_PAUSE_S = 60.0, 1.0, 30.0
SAID_AFTER_S = 10.0  # a pod that has just begun may refuse a moment


class JobDelivery:
    """One job. It works on threads of its own until it is closed."""

    def __init__(self, store: Store, job: JobStore, pods: ApartPods, host: str) -> None:
        """Raises OSError where nothing can listen at ``host``, and HyperpodError."""
        self._store, self._job, self._pods = store, job, pods
        self._python = job.spec().python
        self._files = FileService(job, host)
        self._has: set[str] = set()  # pods that have the job
        self._failed: dict[str, _Failed] = {}
        self._under_way: dict[str, Future[None]] = {}
        self._said: set[str] = set()
        self._journal = JournalWriter(job.events, WRITER)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="delivery", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, store: Store, job: JobStore) -> JobDelivery | None:
        """The delivery of a job; None where its nodes have the store of their head. Raises OSError, HyperpodError."""
        spec = job.spec()
        pods = load(spec.backend).apart_pods(spec.backend_options, job.id)
        if pods is None:
            return None
        host = os.environ.get(POD_ADDRESS, "")
        if not host:
            raise ClusterError(f"{POD_ADDRESS} is not set: nodes would not know where their head is")
        return cls(store, job, pods, host)

    def close(self) -> None:
        """End; what pods have not brought by now is lost."""
        self._closed.set()
        self._pods.close()
        self._thread.join(RUN_S)
        self._files.close()
        self._journal.close()

    @property
    def works(self) -> bool:
        """Whether its thread lives."""
        return self._thread.is_alive()

    def _run(self) -> None:
        unknown_s = 0.0
        with ThreadPoolExecutor(AT_ONCE, "delivery") as pool:
            while not self._closed.is_set():
                try:
                    self._go(pool, self._pods.running())
                    unknown_s = 0.0
                except Exception as error:  # an answer may be any; the next round may go well
                    unknown_s = unknown_s or time.monotonic()
                    note(f"the pods of {self._job.id} are not known: {error!r}")
                    if time.monotonic() - unknown_s >= SAID_AFTER_S:
                        self._say("pods", f"nothing can be brought to pods that begin now: {error}")
                if not self._closed.is_set():
                    self._pods.wait(AGAIN_S)

    def _go(self, pool: ThreadPoolExecutor, running: Mapping[str, str]) -> None:
        for pod in [pod for pod, going in self._under_way.items() if going.done()]:
            self._judge(pod, self._under_way.pop(pod))
        for pod in self._failed.keys() - running.keys():
            del self._failed[pod]
        now_s = time.monotonic()
        for pod in running.keys() - self._has - self._under_way.keys():
            if now_s >= self._failed.get(pod, _Failed()).again_s:
                self._under_way[pod] = pool.submit(self._bring, pod, running[pod])

    def _judge(self, pod: str, went: Future[None]) -> None:
        try:
            went.result()
        except Exception as error:  # whatever it is, other pods are brought the job
            failed = self._failed.setdefault(pod, _Failed(time.monotonic()))
            failed.pause_s = min(2 * failed.pause_s, LONGEST_PAUSE_S)
            failed.again_s = time.monotonic() + failed.pause_s
            note(f"{pod} does not have {self._job.id} yet: {error!r}")
            if time.monotonic() - failed.since_s >= SAID_AFTER_S:
                self._say(pod, f"the job cannot be brought to {pod}: {error}")
        else:
            self._failed.pop(pod, None)
            self._has.add(pod)

    def _say(self, about: str, text: str) -> None:
        if about not in self._said:
            self._said.add(about)
            self._journal.write("warning.raised", {"text": text})

    def _bring(self, pod: str, node: str) -> None:
        """Bring the job, or where its head is to a pod that has it. Raises ClusterError, StoreError, OSError."""
        there = self._send(pod, [*self._address(), *self._all(node, FIRST_BYTES)])
        if there.here:
            return
        for frames in batches(self._frames(node, there.sizes), BATCH_BYTES):
            self._send(pod, frames)
        self._send(pod, [*self._address(), Frame({"commit": 1})])

    def _all(self, node: str, most: int) -> list[Frame]:
        """Everything, and that this is all; nothing where it is more than so many bytes."""
        found, size = [], 0
        for frame in self._frames(node, {}):
            found.append(frame)
            size += len(frame.content)
            if size > most:
                return []
        return [*found, Frame({"commit": 1})]

    def _frames(self, node: str, there: Mapping[str, int]) -> Iterator[Frame]:
        spec = (self._job.path / SPEC).read_bytes()
        yield from first_frames(self._store, self._job, spec, there)
        yield from continued(self._job, node)

    def _address(self) -> Iterator[Frame]:
        """Where the head serves files, and the coordinator's address, if there is one."""
        yield Frame({"path": ADDRESS_FILE, "whole": 1}, self._files.address.encode())
        with suppress(OSError):
            yield Frame({"path": ENDPOINT_FILE, "whole": 1}, (self._job.path / ENDPOINT_FILE).read_bytes())

    def _send(self, pod: str, frames: list[Frame]) -> Arrived:
        data = b"".join(frame.encode() for frame in frames)
        place = ["--store", str(self._store.root), "--job", self._job.id, "--size", str(len(data))]
        command = [self._python, "-m", "jupyter_hyperpod.storage.apart.arrival", *place]
        return Arrived.parse(self._pods.run(pod, command, data, RUN_S))


@dataclass
class _Failed:
    """A pod that could not be brought the job: since when, and when it is tried again, on the monotonic clock."""

    since_s: float = 0.0
    again_s: float = 0.0
    pause_s: float = AGAIN_S / 2
