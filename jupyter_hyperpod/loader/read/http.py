"""Reads ranges of an object over HTTP(S), retries, and checks that the object stays the same."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from urllib.parse import urljoin, urlsplit

from ...core.errors import LoaderError, SpecError
from ...core.names import public_name
from . import pace
from .http_connection import Cancel, Connection, ConnectionBroken, Connections, Head, Malformed
from .http_target import Target, quoted, target_of
from .source import PREFIX_BYTES, LoadResources, Source

AGAIN = {408, 425, 429, 500, 502, 503, 504}
RANGE = {200, 206}  # rclone answers a range with 200; Content-Range decides
MOVED = {301, 302, 303, 307, 308}
MAX_REDIRECTS = 5
ERROR_BODY_BYTES = 16_384
PIPELINED = 64  # short ranges requested before the first answer
PROGRESS_BYTES = 65_536  # an attempt that brought this much does not count as failed
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


class _Again(Exception):
    """The server asks to retry later."""

    def __init__(self, reason: str, after_s: float | None) -> None:
        super().__init__(reason)
        self.after_s = after_s


class HttpSource(Source):
    """An object at an http(s) URL. Opening it follows redirects; later ranges go to the final URL."""

    def __init__(self, url: str, resources: LoadResources, name: str = "") -> None:
        self.name = name or public_name(url)
        self.size = 0
        self.etag = ""
        self._resources = resources
        self._url = url
        self._own_headers = dict(resources.options.headers)
        self._origin = urlsplit(url).netloc
        self._target, self._path = self._resolve(url)
        self.prefix = self._open()

    # ---- what S3 overrides ------------------------------------------------------------------------------

    def headers(self) -> dict[str, str]:
        """Return the fields that every request carries."""
        return self._own_headers if urlsplit(self._url).netloc == self._origin else {}

    def trusted(self) -> str | None:
        """Return the file of trusted certificates, None for the system's."""
        return self._resources.options.ca_file

    def refuse(self, head: Head, body: bytes) -> LoaderError | None:
        """Return the error that an answer means, None where a retry may help."""
        status = head.status
        if status in (401, 403):
            return LoaderError(self.name, f"no permission to read it (status {status})", "a readable object")
        if status in (404, 410):
            return LoaderError(self.name, f"nothing (status {status})", "an object")
        return LoaderError(self.name, f"status {status}", "status 206, a range of the object")

    def follow(self, location: str) -> bool:
        """Follow a redirect; False where it is refused."""
        url = urljoin(self._url, quoted(location, "latin-1"))  # so heads are read
        if urlsplit(self._url).scheme == "https" and urlsplit(url).scheme != "https":
            return False
        self._url = url
        self._target, self._path = self._resolve(url)
        return True

    # ---- reading ---------------------------------------------------------------------------------------------

    def read_into(self, offset: int, view: memoryview, cancel: Cancel) -> None:
        done = 0

        def step(connection: Connection) -> None:
            nonlocal done
            connection.send(self._request(offset + done, offset + len(view)))
            self._expect(connection, offset + done, offset + len(view))
            try:
                connection.fill(view[done:])
            except ConnectionBroken as error:
                done += error.got
                raise
            done = len(view)

        self._persist(step, cancel, lambda: done, len(view))

    def read_rows(self, offset: int, length: int, rows: int, stride: int, view: memoryview, cancel: Cancel) -> None:
        """Requests are pipelined: a round trip for each short piece would cost more than the piece."""
        done = 0

        def step(connection: Connection) -> None:
            nonlocal done
            asked = done
            while done < rows:
                if asked - done <= PIPELINED // 2 and asked < rows:
                    until = min(rows, done + PIPELINED)
                    starts = range(offset + asked * stride, offset + until * stride, stride)
                    connection.send(b"".join(self._request(start, start + length) for start in starts))
                    asked = until
                start = offset + done * stride
                self._expect(connection, start, start + length)
                connection.fill(view[done * length : (done + 1) * length])
                done += 1

        self._persist(step, cancel, lambda: done * length, rows * length)

    def _persist(
        self, step: Callable[[Connection], None], cancel: Cancel, reached: Callable[[], int], total: int
    ) -> None:
        """Run `step` until it succeeds; bytes received before a failure are not requested again."""
        failures, before = 0, 0
        counters = self._resources.counters
        while reached() < total or total == 0:
            after_s: float | None = None
            try:
                with self._connections().borrow(cancel) as connection:
                    step(connection)
                counters.add(fetched=reached() - before)
                return
            except _Again as error:
                reason, after_s = str(error), error.after_s
                counters.add(throttled=1)
            except ConnectionBroken as error:
                reason = str(error)
                if not error.fresh:  # a kept connection that the server had closed meanwhile
                    self._connections().forget_idle()
                    continue
            except Malformed as error:
                raise LoaderError(self.name, str(error), "an answer in HTTP/1.1") from None
            counters.add(fetched=reached() - before, retries=1)
            failures = 1 if reached() - before >= PROGRESS_BYTES else failures + 1
            before = reached()
            if failures >= self._resources.options.attempts:
                raise LoaderError(self.name, f"{reason}, {failures} times", "an answer", "is the server up?")
            cancel.sleep(pace.delay_s(failures, after_s, random.random()))

    def _expect(self, connection: Connection, begin: int, end: int) -> None:
        """Receive a head and check that it announces exactly this range of this object."""
        head = connection.head()
        if head.status in RANGE:
            announced = _CONTENT_RANGE.fullmatch(head.fields.get("content-range", ""))
            found = announced.groups() if announced else None
            if found == (str(begin), str(end - 1), str(self.size)) and head.length == end - begin:
                self._same_object(head)
                return
        self._fail(connection, head, begin, end)

    def _fail(self, connection: Connection, head: Head, begin: int, end: int) -> None:
        body = b"" if head.status in (200, 206) else connection.rest(head, ERROR_BODY_BYTES)
        refused = self.refuse(head, body)
        if head.status in AGAIN or (head.status >= 400 and refused is None):
            raise _Again(f"status {head.status}", pace.asked_delay_s(head.fields, time.time()))
        self._same_object(head, head.status == 412)
        if head.status in (206, 416):
            found = head.fields.get("content-range") or f"status {head.status}"
            if head.status == 206 and head.length != end - begin:
                found += f" with {head.length} bytes"
            remedy = "the object was truncated or replaced while it was read"
            raise LoaderError(self.name, found, f"bytes {begin}-{end - 1}/{self.size}", remedy)
        if head.status == 200:
            raise LoaderError(self.name, "the whole object (status 200)", "a range of it", "the server ignores ranges")
        raise refused or LoaderError(self.name, f"status {head.status}", "status 206")

    def _same_object(self, head: Head, refused: bool = False) -> None:
        etag = head.fields.get("etag", "")
        if refused or (etag and self.etag and etag != self.etag and head.status in (200, 206)):
            found = f"ETag {etag}" if etag and etag != self.etag else "another ETag"
            raise LoaderError(self.name, found, self.etag, "the object was replaced while it was read: load it again")

    # ---- opening ---------------------------------------------------------------------------------------------

    def _open(self) -> bytes:
        content = b""

        def step(connection: Connection) -> None:
            nonlocal content
            connection.send(self._request(0, PREFIX_BYTES))
            head = connection.head()
            announced = _CONTENT_RANGE.fullmatch(head.fields.get("content-range", ""))
            if head.status in RANGE and announced and announced[1] == "0" and (announced[3] or "*") != "*":
                size, length = int(announced[3]), min(PREFIX_BYTES, int(announced[3]))
            elif head.status == 200 and head.length is not None and head.length <= PREFIX_BYTES:
                size = length = head.length
            elif head.status == 416:  # even the first byte is out of range: the object is empty
                size = length = 0
            else:
                self._open_failed(connection, head)
                return
            if head.status == 206 and head.length not in (None, length):
                self._fail(connection, head, 0, length)
            self.size, self.etag = size, head.fields.get("etag", "")
            if head.status == 416:
                connection.rest(head, ERROR_BODY_BYTES)
                return
            buffer = bytearray(length)
            connection.fill(memoryview(buffer))
            content = bytes(buffer)

        for _ in range(MAX_REDIRECTS):
            try:
                self._persist(step, Cancel(), lambda: len(content), 0)
            except _Moved as moved:
                if not self.follow(str(moved)):
                    raise LoaderError(self.name, f"a redirect to {public_name(str(moved))}", "the object") from None
                continue
            return content
        raise LoaderError(self.name, f"more than {MAX_REDIRECTS} redirects", "an object")

    def _open_failed(self, connection: Connection, head: Head) -> None:
        if head.status in MOVED and (location := head.fields.get("location")) and not self.signed:
            raise _Moved(location)
        self._fail(connection, head, 0, PREFIX_BYTES)

    signed = False  # never send a signed request to another host

    def _connections(self) -> Connections:
        made: Connections = self._resources.once(self._target, lambda: Connections(self._target, self._resources.early))
        return made

    def _request(self, begin: int, end: int) -> bytes:
        """The head of a request for bytes ``[begin, end)``; the signature does not cover range and condition."""
        lines = [f"GET {self._target.request_prefix}{self._path} HTTP/1.1", f"Host: {self._target.authority}"]
        lines += [f"{name}: {value}" for name, value in (self.headers() | self._target.proxy_fields).items()]
        if self.etag and not self.etag.startswith("W/"):
            lines.append(f"If-Match: {self.etag}")
        lines += ["Accept-Encoding: identity", f"Range: bytes={begin}-{end - 1}", "\r\n"]
        return "\r\n".join(lines).encode("latin-1")

    def _resolve(self, url: str) -> tuple[Target, str]:
        try:
            trusted = self.trusted() if urlsplit(url).scheme == "https" else None
            return target_of(url, self._resources.options.timeout_s, trusted)
        except (ValueError, OSError) as error:
            raise SpecError(f"{public_name(url)}: {error}") from None


class _Moved(Exception):
    """The object is at another URL, the argument."""
