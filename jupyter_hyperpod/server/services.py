"""The services shared by all handlers: settings, the job store, its follower and the thread pools."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any, Protocol

from tornado.websocket import WebSocketHandler

from ..control.metrics import Metrics
from ..storage.store import Store
from .contents import MountContents
from .contract import Contract
from .tailer import AnyReader, Tailer

AUTH_RESOURCE = "jupyter_hyperpod"


class Services(Protocol):
    """One per server; the extension provides it."""

    job_store: Store
    contract: Contract
    contents: MountContents
    metrics: Metrics
    tailer: Tailer
    sockets: set[WebSocketHandler]

    @property
    def requests(self) -> Executor:
        """The threads that answer requests."""

    @property
    def streams(self) -> Executor:
        """The threads that read for sockets."""

    @property
    def allow_faults(self) -> bool:
        """Whether people may break jobs on purpose."""

    @property
    def heartbeat_s(self) -> float:
        """Seconds between two pings of a websocket; 0 for none."""

    @property
    def max_body_bytes(self) -> int:
        """The largest body of a request."""

    @property
    def max_file_bytes(self) -> int:
        """The largest file that the browser opens or saves in one piece."""

    @property
    def max_message_bytes(self) -> int:
        """The largest message on the websocket."""

    def begin(self) -> None:
        """Start to follow the store; a second call does nothing."""

    def close_later(self, reader: AnyReader) -> None:
        """Close a reader away from the event loop."""

    def public_settings(self) -> dict[str, Any]:
        """The settings for the browser."""
