"""The head of one job in a pod of its own: a supervisor with a store of its own, and what is asked of it from outside.

    python -m jupyter_hyperpod.supervisor.head_pod ACT --store DIR --job ID [--size N]

serve     the pod's program
receive   takes N bytes of frames from standard input
stream    sends frames to standard output, without end; N bytes of standard input say what the other side has

`receive` and `stream` are run in the pod by the machine that has submitted the job (`control/remote`): the one brings
the job and its commands, the other takes away what was written. Where the pod is lost, the next one continues with the
same store, as a host does that takes over from another.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..control import cluster
from ..core.errors import HyperpodError
from ..core.names import validate_job_id
from ..storage.apart.arrival import put, read_all
from ..storage.journal import BROUGHT
from ..storage.mirror.mirror_frames import Frame, FrameReader
from ..storage.mirror.source import MirrorSource
from ..storage.mirror.target import FROM_CLIENT
from ..storage.store import ENDED_MARK, JobStore, Store, create_first
from ..system.diagnostics import note
from .job_delivery import JobDelivery

LOOK_S, BEAT_S = 0.2, 2.0
QUIET_S = 3.0  # after the end, members may still write their last output
ARRIVES_S = 1800.0  # whoever brings the job later has another pod started
KEPT_S = 24 * 3600.0  # how long the pod waits for somebody to fetch what is left
STREAMED_S = 3600.0  # then whoever listens asks again
SETTLED, FETCHED = ".settled", ".fetched"


class HeadPod:
    """What the pod does until its job has ended and everything was fetched."""

    def __init__(self, store: Store, job_id: str) -> None:
        self._store = store
        self._job = store.jobs / job_id
        self._delivers = True  # as far as is known

    def run(self) -> int:
        """The exit status, 0: Kubernetes starts a program again that ends otherwise."""
        until_s = time.monotonic() + ARRIVES_S
        while not self._job.is_dir():
            if time.monotonic() > until_s:
                note(f"{self._job.name} has not arrived within {ARRIVES_S / 60:.0f} minutes")
                return 0
            time.sleep(LOOK_S)
        delivery = self._deliver(None)
        while not (self._job / ENDED_MARK).exists():
            delivery = self._deliver(delivery)
            self._look_after()
            time.sleep(1.0)
        with suppress(HyperpodError):
            if not (self._job / SETTLED).exists():
                cluster.stop(self._store, reason="its only job has ended")
        self._until_quiet()
        if delivery is not None:
            delivery.close()
        create_first(self._job / SETTLED)
        until_s = time.monotonic() + KEPT_S
        while not (self._job / FETCHED).exists() and time.monotonic() < until_s:
            time.sleep(LOOK_S)
        if delivery is not None and (self._job / FETCHED).exists():
            shutil.rmtree(self._store.root, ignore_errors=True)  # it was the head's alone, and nothing else is in it
        return 0

    def _deliver(self, before: JobDelivery | None) -> JobDelivery | None:
        """What serves nodes that have stores of their own, where they have; ``before``, where that works."""
        if not self._delivers or (before is not None and before.works) or (self._job / SETTLED).exists():
            return before
        if before is not None:
            before.close()
        try:
            delivery = JobDelivery.of(self._store, JobStore(self._job))
            self._delivers = delivery is not None  # a job's options stay
            return delivery
        except (HyperpodError, OSError) as error:
            note(str(error))
            return None

    def _look_after(self) -> None:
        """Start the supervisor where none runs: here, once another pod that served the store is lost."""
        try:
            if not cluster.connectable(self._store):
                cluster.ensure_started(self._store, nodes=0, spares=0)
        except HyperpodError as error:
            note(str(error))

    def _until_quiet(self) -> None:
        source, quiet_s = MirrorSource(self._job, {}), time.monotonic()
        while time.monotonic() - quiet_s < QUIET_S:
            if sum(1 for _ in source.news()):  # to the end, frame by frame: the output of a job may be large
                quiet_s = time.monotonic()
            time.sleep(LOOK_S)


def receive(store: Store, job_id: str, size: int) -> None:
    """Take frames; prints, as JSON, whether the job is here, and how long its files from outside are."""
    job, building = store.jobs / job_id, store.jobs / f".new-{job_id}"
    frames = list(FrameReader().feed(read_all(size)))
    for frame in frames:
        if "commit" in frame.head:
            if building.is_dir() and not job.is_dir():
                create_first(building / BROUGHT)
                os.rename(building, job)
            _wake(store, job_id)
        elif "fetched" in frame.head:
            create_first(job / FETCHED)
        else:
            put(store, job_id, frame, FROM_CLIENT, ("events", "commands"))
    if frames and job.is_dir() and any(str(frame.head.get("path")).startswith("commands/") for frame in frames):
        _wake(store, job_id)
    place = job if job.is_dir() else building
    brought = ("events/*", "commands/*", *([] if job.is_dir() else ["include/**/*"]))
    found = (path for pattern in brought for path in place.glob(pattern) if path.is_file())
    sizes = {str(path.relative_to(place)): path.stat().st_size for path in found}
    print(json.dumps({"here": job.is_dir(), "sizes": sizes}), flush=True)


def _wake(store: Store, job_id: str) -> None:
    with suppress(HyperpodError):
        cluster.poke(store, job_id)


def stream(store: Store, job_id: str, size: int) -> None:
    """Send what grows, from where the other side is, until the end of the job, or for an hour."""
    known = json.loads(read_all(size) or b"{}")
    source = MirrorSource(store.job(job_id).path, known)
    began_s = beaten_s = time.monotonic()
    while time.monotonic() - began_s < STREAMED_S:
        settled = (store.jobs / job_id / SETTLED).exists()
        sent = _send(source.news())
        if settled and not sent:
            _send([Frame({"end": 1})])
            return
        if not sent and time.monotonic() - beaten_s >= BEAT_S:
            sent = _send([Frame({"beat": 1})])
        if sent:
            beaten_s = time.monotonic()
        else:
            time.sleep(LOOK_S)


def _send(frames: Iterable[Frame]) -> bool:
    sent = False
    for frame in frames:
        sys.stdout.buffer.write(frame.encode())
        sent = True
    sys.stdout.buffer.flush()
    return sent


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m jupyter_hyperpod.supervisor.head_pod")
    parser.add_argument("act", choices=("serve", "receive", "stream"))
    parser.add_argument("--store", required=True, type=Path)
    parser.add_argument("--job", required=True, type=validate_job_id)
    parser.add_argument("--size", type=int, default=0, help="how many bytes standard input brings")
    options = parser.parse_args(arguments)
    try:
        store = Store(options.store)
        if options.act == "serve":
            return HeadPod(store.prepare(), options.job).run()
        (receive if options.act == "receive" else stream)(store, options.job, options.size)
    except HyperpodError as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:
        os._exit(0)  # nobody listens any more
    return 0


if __name__ == "__main__":
    sys.exit(main())
