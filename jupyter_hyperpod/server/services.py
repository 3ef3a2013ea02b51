"""The services shared by all handlers: settings, the job store, its follower and the thread pools."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from tornado.websocket import WebSocketHandler

from ..storage.store import Store
from .contents import MountContents
from .contract import Contract
from .garbage import ShortCollections
from .tailer import AnyReader, Tailer

if TYPE_CHECKING:
    from ..control.metrics import Metrics
    from ..control.runs.run_table import RunTable
    from ..control.sweeps.picture import SweepPictures

# what an authorizer of the Jupyter server is asked about, with the action "read" or "write"
SETTINGS, JOBS, FAULTS, CLUSTER, FILES, RUNS = (
    f"jupyter_hyperpod.{kind}" for kind in ("settings", "jobs", "faults", "cluster", "files", "runs")
)


class Services(Protocol):
    """One per server; the extension provides it, and explains its settings."""

    job_store: Store
    contract: Contract
    contents: MountContents
    tailer: Tailer
    sockets: set[WebSocketHandler]
    garbage: ShortCollections
    requests: ThreadPoolExecutor  # answer requests
    streams: ThreadPoolExecutor  # read for sockets
    allow_faults: bool
    heartbeat_s: float  # 0: no pings
    socket_lifetime_s: float  # 0: no end
    max_body_bytes: int
    max_file_bytes: int
    max_message_bytes: int

    def metrics(self) -> Metrics: ...

    def run_table(self) -> RunTable: ...

    def sweep_pictures(self) -> SweepPictures: ...

    def begin(self) -> None: ...

    def close_later(self, reader: AnyReader) -> None: ...

    def public_settings(self) -> dict[str, Any]: ...
