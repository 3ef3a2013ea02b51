"""The extension of Jupyter Server: its settings, routes, start and stop."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_server.extension.application import ExtensionApp
from tornado.websocket import WebSocketHandler
from traitlets import Bool, Bunch, Float, Int, TraitError, Unicode, validate

from .. import __version__
from ..control.clusters.shape import IDLE_VARIABLE, OFF, parse_idle_timeout
from ..core.errors import HyperpodError, SpecError
from ..core.events import Event
from ..core.units import parse_duration
from ..storage.store import Store
from ..system.variables import SAMPLES_OFF, SAMPLES_VARIABLE
from .contents import MountContents
from .contract import Contract
from .garbage import ShortCollections
from .handlers import ROUTES
from .retention import Retention
from .services import Services
from .tailer import AnyReader, Tailer

if TYPE_CHECKING:
    from ..control.metrics import Metrics
    from ..control.runs.run_table import RunTable
    from ..control.sweeps.picture import SweepPictures

HERE = Path(__file__).parent
STATE_CHANGED = "https://events.jupyter.org/jupyter_hyperpod/state_changed/v1"
REQUEST_THREADS = 8
FILE_THREADS = 8  # separate threads: a mount that hangs blocks only files, never jobs
STREAM_THREADS = 4


class HyperpodExtension(ExtensionApp):
    """Clusters and training jobs for the browser."""

    name = "jupyter_hyperpod"
    load_other_extensions = True

    store = Unicode(
        "",
        help="Directory of the job store. Empty: $JUPYTER_HYPERPOD_STORE, else ~/.local/state/jupyter_hyperpod.",
    ).tag(config=True)
    allow_faults = Bool(
        True,
        help="Whether users who may stop jobs here may also inject faults, to see jobs recover. False forbids it to "
        "all users; each user's own switch is `Break something` in the panel.",
    ).tag(config=True)
    standby = Bool(
        False,
        help="Whether this server's host stands by for another host that serves the same store, and takes over its "
        "jobs on SLURM when that host is lost. Where no host serves the store, this one does.",
    ).tag(config=True)
    idle_timeout = Unicode(
        "",
        help="After how long without a job, a schedule and a request a local cluster ends by itself, such as 30min or "
        "4h; off: never. Clusters get it that are started from this server, its notebooks and its terminals. "
        f"Empty: as ${IDLE_VARIABLE} says, else 4h.",
    ).tag(config=True)
    node_samples = Bool(
        True,
        help="Whether what jobs use on their nodes is sampled: CPU time, memory, network, devices. False: not for jobs "
        f"that are submitted from this server, its notebooks and its terminals; ${SAMPLES_VARIABLE} is then "
        f"`{SAMPLES_OFF}` there.",
    ).tag(config=True)
    poll_interval_s = Float(
        0.05,
        min=0.001,
        help="Seconds between two reads of the journals that a browser follows.",
    ).tag(config=True)
    idle_interval_s = Float(
        1.0,
        min=0.01,
        help="Seconds between two reads of the journals while no browser follows any.",
    ).tag(config=True)
    heartbeat_s = Float(
        20.0,
        min=0.0,
        help="Seconds between two pings of a websocket; one that does not answer in that time is closed. 0: no pings.",
    ).tag(config=True)
    socket_lifetime_s = Float(
        300.0,
        min=0.0,
        help="Seconds after which a websocket is closed. The browser connects again at once and goes on where it was, "
        "if its person is still signed in and authorized. 0: never.",
    ).tag(config=True)
    jobs_listed = Int(
        100,
        min=1,
        help="How many of the newest jobs the list in the browser holds at once; jobs that run are in it however old.",
    ).tag(config=True)
    keep_jobs = Unicode(
        "",
        help="How long jobs that have ended are kept, such as 90d; the server then deletes them, once per hour. "
        "Checkpoints elsewhere stay. Empty: for ever.",
    ).tag(config=True)
    keep_newest_jobs = Int(
        0,
        min=0,
        help="How many of the newest jobs that have ended are kept, however old they are.",
    ).tag(config=True)
    recent_bytes = Int(
        256 * 1024,
        min=0,
        help="Bytes of memory for the newest events of each journal that a browser follows; readers further behind "
        "read the disk.",
    ).tag(config=True)
    max_body_bytes = Int(
        64 * 1024,
        min=1024,
        help="Largest body of a request, in bytes.",
    ).tag(config=True)
    max_file_bytes = Int(
        32 * 1024 * 1024,
        min=1024,
        help="Largest file of a mount that the browser opens or saves in one piece, in bytes; downloads have no limit.",
    ).tag(config=True)
    max_message_bytes = Int(
        1024 * 1024,
        min=1024,
        help="Largest message a browser may send on the websocket, in bytes.",
    ).tag(config=True)

    @validate("keep_jobs")
    def _valid_keep_jobs(self, proposal: Bunch) -> str:
        text = str(proposal["value"])
        try:
            parse_duration(text or "0")
        except SpecError as error:
            raise TraitError(f"HyperpodExtension.keep_jobs: {error}") from None
        return text

    @validate("idle_timeout")
    def _valid_idle_timeout(self, proposal: Bunch) -> str:
        text = str(proposal["value"])
        try:
            parse_idle_timeout(text or OFF)
        except SpecError as error:
            raise TraitError(f"HyperpodExtension.idle_timeout: {error}") from None
        return text

    def initialize_settings(self) -> None:
        """Build the handlers' shared services, without starting threads or touching the store."""
        if self.idle_timeout:
            os.environ[IDLE_VARIABLE] = self.idle_timeout  # kernels and terminals inherit it
        if not self.node_samples:
            os.environ[SAMPLES_VARIABLE] = SAMPLES_OFF
        assert self.serverapp is not None
        assert self.serverapp.event_logger is not None
        self.serverapp.event_logger.register_event_schema(HERE / "events" / "state_changed.yaml")
        self.contract = Contract(HERE / "openapi.yaml")
        self.job_store = Store(self.store or None)
        self._first = threading.Lock()
        self._metrics: Metrics | None = None
        self._run_table: RunTable | None = None
        self._sweep_pictures: SweepPictures | None = None
        self.requests = ThreadPoolExecutor(REQUEST_THREADS, thread_name_prefix="hyperpod-request")
        self.files = ThreadPoolExecutor(FILE_THREADS, thread_name_prefix="hyperpod-files")
        self.streams = ThreadPoolExecutor(STREAM_THREADS, thread_name_prefix="hyperpod-stream")
        own = self.serverapp.contents_manager
        self.contents = MountContents(self.job_store, self.files, self.max_file_bytes, own, parent=self.serverapp)
        self.sockets: set[WebSocketHandler] = set()
        self.garbage = ShortCollections()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = False
        self.tailer = Tailer(
            self.job_store,
            poll_interval_s=self.poll_interval_s,
            idle_interval_s=self.idle_interval_s,
            recent_bytes=self.recent_bytes,
            jobs_listed=self.jobs_listed,
            on_change=self._changed,
            log=self.log,
        )
        keep_s = parse_duration(self.keep_jobs) if self.keep_jobs else math.inf
        self.retention = Retention(self.job_store, keep_s, self.keep_newest_jobs, self.log)

    def initialize_handlers(self) -> None:
        services: Services = self
        self.handlers.extend((pattern, handler, {"services": services}) for pattern, handler in ROUTES)

    def begin(self) -> None:
        """Start to follow the store, on the running event loop; a second call does nothing."""
        self._loop = asyncio.get_running_loop()
        self.tailer.start()
        if self.keep_jobs:
            self.retention.start(self.requests)
        if self.standby:
            self.requests.submit(self._stand_by)
        self.requests.submit(self._wake_schedules)

    async def _start_jupyter_server_extension(self, serverapp: Any) -> None:
        self.garbage.begin()
        self.begin()

    async def stop_extension(self) -> None:
        """Close every socket, end the thread and the pools; a second call does nothing."""
        if self._ended:
            return
        self._ended = True
        self.garbage.end()
        for socket in list(self.sockets):
            socket.close(1001, "the server stops")
        await self.retention.stop()
        await asyncio.get_running_loop().run_in_executor(self.requests, self.tailer.stop)
        self._loop = None
        for pool in (self.requests, self.files, self.streams):
            pool.shutdown(wait=False, cancel_futures=True)

    # The start of a server does not wait for what is imported below.

    def metrics(self) -> Metrics:
        """What Prometheus asks for. Not for the event loop: the first call imports it."""
        from ..control.metrics import Metrics

        with self._first:
            self._metrics = self._metrics or Metrics(self.job_store)
        return self._metrics

    def run_table(self) -> RunTable:
        """The rows of all jobs. Not for the event loop: the first call imports it."""
        from ..control.runs.run_table import RunTable

        with self._first:
            self._run_table = self._run_table or RunTable(self.job_store)
        return self._run_table

    def sweep_pictures(self) -> SweepPictures:
        """Sweeps as browsers draw them. Not for the event loop: the first call imports it."""
        from ..control.sweeps.picture import SweepPictures

        with self._first:
            self._sweep_pictures = self._sweep_pictures or SweepPictures(self.job_store)
        return self._sweep_pictures

    def _stand_by(self) -> None:
        from ..control import cluster

        try:
            cluster.ensure_started(self.job_store, standby=True)
        except HyperpodError as error:
            self.log.warning("this host does not stand by for %s: %s", self.job_store.root, error)

    def _wake_schedules(self) -> None:
        """Start the supervisor again where schedules wait for it, as after a restart of the machine."""
        from ..control.schedules import waking

        try:
            if waking.wake_again(self.job_store):
                self.log.info("the cluster of %s is started again for its schedules", self.job_store.root)
        except HyperpodError as error:
            self.log.warning("the schedules of %s do not run: %s", self.job_store.root, error)

    def close_later(self, reader: AnyReader) -> None:
        """Close a reader in a thread, because another thread may be reading for it."""
        with suppress(RuntimeError):  # the pool and all readers have ended
            self.streams.submit(reader.close)

    def public_settings(self) -> dict[str, Any]:
        """The settings for the browser."""
        root = str(getattr(getattr(self.serverapp, "contents_manager", None), "root_dir", ""))
        store = str(self.job_store.root)
        return {"version": __version__, "store": store, "root": root, "allow_faults": self.allow_faults}

    def _changed(self, subject: str, name: str, event: Event) -> None:
        """Called by the tailer's thread for each change of state."""
        record = {"subject": subject, "name": name, "time_s": event.time_s}
        record |= {key: str(event.data[key]) for key in ("state", "reason")}
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has just been closed: the server is ending
                self._loop.call_soon_threadsafe(self._emit, record)

    def _emit(self, record: dict[str, Any]) -> None:
        assert self.serverapp is not None and self.serverapp.event_logger is not None
        self.serverapp.event_logger.emit(schema_id=STATE_CHANGED, data=record)
