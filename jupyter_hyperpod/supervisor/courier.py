"""Brings a job to the pods of its nodes, where each has a store of its own, and serves them the head's files."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from ..backends import load
from ..backends.base import ApartPods
from ..core.errors import ClusterError, HyperpodError, ProtocolError
from ..storage.apart.file_service import FileService
from ..storage.apart.wire import ADDRESS_FILE
from ..storage.journal_writer import JournalWriter
from ..storage.mirror.beginning import SPEC, batches, first_frames
from ..storage.mirror.mirror_frames import Frame
from ..storage.store import ENDPOINT_FILE, JobStore, Store
from ..system.diagnostics import note

ADDRESS_VARIABLE = "HYPERPOD_POD_ADDRESS"  # of this pod, at which others reach it
WRITER = "courier"
AT_ONCE = 8
LOOK_S, RUN_S, AGAIN_S = 1.0, 60.0, 1.0
SAID_AFTER_S = 10.0  # a pod that has just begun may refuse a moment


class Courier:
    """One job. It works on threads of its own until it is closed."""

    def __init__(self, store: Store, job: JobStore, pods: ApartPods, host: str) -> None:
        """Raises OSError where nothing can listen at ``host``, and HyperpodError."""
        self._store, self._job, self._pods = store, job, pods
        self._python = job.spec().python
        self._files = FileService(job, host)
        self._has: set[str] = set()  # pods that have the job
        self._failed_s: dict[str, float] = {}  # since when a pod could not be brought it
        self._under_way: dict[str, Future[None]] = {}
        self._said: set[str] = set()
        self._journal = JournalWriter(job.events, WRITER)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="courier", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, store: Store, job: JobStore) -> Courier | None:
        """The courier of a job; None where its nodes have the store of their head. Raises OSError, HyperpodError."""
        spec = job.spec()
        pods = load(spec.backend).apart_pods(spec.backend_options, job.id)
        if pods is None:
            return None
        host = os.environ.get(ADDRESS_VARIABLE, "")
        if not host:
            raise ClusterError(f"{ADDRESS_VARIABLE} is not set: nodes would not know where their head is")
        return cls(store, job, pods, host)

    def close(self) -> None:
        """End; what pods have not brought by now is lost."""
        self._closed.set()
        self._pods.close()
        self._thread.join(RUN_S)
        self._files.close()
        self._journal.close()

    def _run(self) -> None:
        with ThreadPoolExecutor(AT_ONCE, "courier") as pool:
            while not self._closed.is_set():
                try:
                    running = set(self._pods.running())
                    self._go(pool, running)
                    waits = bool(running - self._has)
                except HyperpodError as error:
                    note(f"the pods of {self._job.id} are not known: {error}")
                    waits = True
                if not self._closed.is_set():
                    self._pods.wait(AGAIN_S if waits else LOOK_S)

    def _go(self, pool: ThreadPoolExecutor, running: set[str]) -> None:
        for pod in [pod for pod, going in self._under_way.items() if going.done()]:
            self._judge(pod, self._under_way.pop(pod))
        for pod in self._failed_s.keys() - running:
            del self._failed_s[pod]
        for pod in running - self._has - self._under_way.keys():
            self._under_way[pod] = pool.submit(self._bring, pod)

    def _judge(self, pod: str, went: Future[None]) -> None:
        try:
            went.result()
        except (HyperpodError, OSError) as error:
            since_s = self._failed_s.setdefault(pod, time.monotonic())
            note(f"{pod} does not have {self._job.id} yet: {error}")
            if time.monotonic() - since_s >= SAID_AFTER_S and pod not in self._said:
                self._said.add(pod)
                self._journal.write("warning.raised", {"text": f"the job cannot be brought to {pod}: {error}"})
        else:
            self._failed_s.pop(pod, None)
            self._has.add(pod)

    def _bring(self, pod: str) -> None:
        """Bring the job. Raises ClusterError, StoreError, OSError."""
        there = self._send(pod, [Frame({"path": ADDRESS_FILE, "whole": 1}, self._files.address.encode())])
        spec = (self._job.path / SPEC).read_bytes()
        for frames in batches(first_frames(self._store, self._job, spec, there)):
            self._send(pod, frames)
        self._send(pod, [*self._endpoint(), Frame({"commit": 1})])

    def _endpoint(self) -> Iterator[Frame]:
        with suppress(OSError):
            yield Frame({"path": ENDPOINT_FILE, "whole": 1}, (self._job.path / ENDPOINT_FILE).read_bytes())

    def _send(self, pod: str, frames: list[Frame]) -> Mapping[str, int]:
        data = b"".join(frame.encode() for frame in frames)
        place = ["--store", str(self._store.root), "--job", self._job.id, "--size", str(len(data))]
        said = self._pods.run(pod, [self._python, "-m", "jupyter_hyperpod.storage.apart.arrival", *place], data, RUN_S)
        try:
            sizes = {str(path): int(size) for path, size in json.loads(said).items()}
        except (ValueError, AttributeError, TypeError):
            raise ProtocolError(f"{pod} answered {said[:200]!r}; expected what it has of the job") from None
        return sizes
