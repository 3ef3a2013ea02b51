"""Follows objects of the API as they change, through cuts, restarts and versions that the server has forgotten."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from ...core.errors import ClusterError
from .api_requests import FORGETFUL, ApiAnswer, ApiError, ApiRequest, ApiRequests

Change = tuple[str, dict[str, Any]]
ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"
SERVED_S, SILENT_S = 240, 270.0  # the server ends a watch after so long; later, nothing is at the other end
PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
LINE_BYTES = 16 << 20
GONE = 410
PASSING = (408, 429, 500, 502, 503, 504)
FORGETFUL_S = 60.0


class ChunkedLines:
    """Puts lines together from bytes as they come; pure. Raises ClusterError for a line without an end."""

    def __init__(self, limit_bytes: int = LINE_BYTES) -> None:
        self._limit, self._rest = limit_bytes, bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take more bytes, give the lines that are whole now, without their ends."""
        *whole, rest = data.split(b"\n")
        for line in whole:
            yield bytes(self._rest) + line
            self._rest.clear()
        self._rest += rest
        if len(self._rest) > self._limit:
            raise ClusterError(f"the API server sent a line of more than {self._limit} bytes; expected one object")

    def rest(self) -> bytes:
        """The line that has no end yet."""
        return bytes(self._rest)


def parse_change(line: bytes) -> Change | None:
    """A line of a watch; None where it is none, which only a cut leaves behind."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("object"), dict):
        return None
    return str(found.get("type")), found["object"]


def key(item: dict[str, Any]) -> tuple[str, str]:
    """What tells an object from others of its kind."""
    about = about_of(item)
    return str(about.get("namespace", "")), str(about.get("name", ""))


def about_of(item: dict[str, Any]) -> dict[str, Any]:
    """The metadata of an object."""
    about = item.get("metadata")
    return about if isinstance(about, dict) else {}


def differences(known: dict[tuple[str, str], dict[str, Any]], items: Iterable[dict[str, Any]]) -> Iterator[Change]:
    """What has changed between what was known and what is there now; one that was made anew was deleted, too."""
    left = dict(known)
    for item in items:
        before = left.pop(key(item), None)
        if before is not None and about_of(before).get("uid") != about_of(item).get("uid"):
            yield DELETED, before
            before = None
        if before is None:
            yield ADDED, item
        elif about_of(before).get("resourceVersion") != about_of(item).get("resourceVersion"):
            yield MODIFIED, item
    yield from ((DELETED, item) for item in left.values())


class ApiWatch(Iterator[Change]):
    """Gives (ADDED, MODIFIED or DELETED, object) without end, until `close`, which another thread may call.

    ``problem`` says why it hears nothing at the moment; "" while it is connected. Raises ApiError where the server
    refuses it for good.
    """

    def __init__(
        self,
        requests: ApiRequests,
        path: str,
        labels: str,
        since: str,
        list_all: Callable[[], tuple[list[dict[str, Any]], str]],
        known: Iterable[dict[str, Any]] = (),
    ) -> None:
        self.problem = ""
        self._requests, self._path, self._labels, self._list = requests, path, labels, list_all
        self._known = {key(item): item for item in known}
        self._since = since
        # whether a refusal may pass, because the server has allowed it before or was away; since when it refuses
        self._doubtful, self._refused_s = False, 0.0
        self._closed = threading.Event()
        self._answer: ApiAnswer | None = None
        self._changes = self._follow()

    def __next__(self) -> Change:
        return next(self._changes)

    @property
    def connected(self) -> bool:
        """Whether the server would tell of a change at this moment, as far as is known here."""
        return self._answer is not None

    def close(self) -> None:
        """End it; an iteration that waits in another thread ends, too."""
        self._closed.set()
        if (answer := self._answer) is not None:
            answer.interrupt()

    def _follow(self) -> Iterator[Change]:
        failures = 0
        while not self._closed.is_set():
            try:
                if not self._since:
                    items, since = self._list()
                    for change in list(differences(self._known, items)):
                        yield self._learnt(change)
                    self._since = since
                for change in self._watch_once():
                    failures = 0
                    yield change
                failures += 1  # a server that ends each watch at once is not asked without a pause
            except (ClusterError, OSError, http.client.HTTPException) as error:
                if isinstance(error, ApiError):
                    if error.status == GONE:
                        self._since = ""
                        continue
                    if error.status not in PASSING and not self._is_forgetful(error):
                        raise
                elif isinstance(error, ClusterError) and not isinstance(error.__cause__, OSError):
                    raise
                else:
                    self._doubtful, self._refused_s = True, 0.0
                self.problem = str(error) or type(error).__name__
                failures += 1
            self._closed.wait(min(PAUSE_S * 2 ** min(failures, 8), LONGEST_PAUSE_S) if failures else 0)

    def _is_forgetful(self, error: ApiError) -> bool:
        """Whether the server may have just begun; how long it was away before does not count."""
        if error.status not in FORGETFUL or not self._doubtful:
            return False
        self._refused_s = self._refused_s or time.monotonic()
        return time.monotonic() - self._refused_s < FORGETFUL_S

    def _watch_once(self) -> Iterator[Change]:
        query = {
            "watch": "true",
            "resourceVersion": self._since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(SERVED_S),
        }
        asked = ApiRequest("GET", self._path, query | ({"labelSelector": self._labels} if self._labels else {}))
        answer = self._requests.open(asked, SILENT_S)
        self._answer, self.problem, self._doubtful, self._refused_s = answer, "", True, 0.0
        try:
            if self._closed.is_set():
                return
            lines = ChunkedLines()
            while data := self._read(answer):
                for line in lines.feed(data):
                    change = parse_change(line)
                    if change is not None and (told := self._taken(*change)) is not None:
                        yield told
        finally:
            self._answer = None
            answer.close()

    def _read(self, answer: ApiAnswer) -> bytes:
        """What has come; b"" where the answer is at its end or was cut off."""
        with suppress(OSError, http.client.HTTPException, ValueError):
            return b"" if self._closed.is_set() else answer.read()
        return b""

    def _taken(self, kind: str, item: dict[str, Any]) -> Change | None:
        """The change that a line tells; None for a bookmark. Raises ApiError for an error in the stream."""
        if kind == "ERROR":
            code = item.get("code")
            message = f"the watch of {self._path} ended: {item.get('message') or 'no reason is given'}"
            raise ApiError(code if isinstance(code, int) else 500, str(item.get("reason") or ""), message)
        if version := about_of(item).get("resourceVersion"):
            self._since = str(version)
        return self._learnt((kind, item)) if kind in (ADDED, MODIFIED, DELETED) else None

    def _learnt(self, change: Change) -> Change:
        kind, item = change
        if kind == DELETED:
            self._known.pop(key(item), None)
        else:
            self._known[key(item)] = item
        return change
