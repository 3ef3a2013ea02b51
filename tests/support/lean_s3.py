"""A lean object store to measure clients against: plain HTTP ranges by ``sendfile``, at S3 paths.

    python -m tests.support.lean_s3 ROOT

serves the directories of ROOT as buckets on a port of the loopback interface, to anybody on this host: signatures are
not checked, so ROOT should hold nothing private. It prints one line of JSON, ``{"port": …}``, when it listens, answers
every line on its standard input with its counters, and ends with its standard input, hence with whoever started it.

GET and HEAD of objects (Range, If-Match, If-None-Match), HEAD of buckets, ListObjectsV2. Nothing can be written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from .loopback_server import LoopbackServer

LONGEST_HEAD = 64 * 1024
REASONS = {
    200: "OK",
    206: "Partial Content",
    304: "Not Modified",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    412: "Precondition Failed",
    416: "Range Not Satisfiable",
}
CODES = {
    400: "InvalidRequest",
    404: "NoSuchKey",
    405: "MethodNotAllowed",
    412: "PreconditionFailed",
    416: "InvalidRange",
}


class BadRequest(Exception):
    """What came is not a request that this server understands."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request without its body; header names are in lower case, values without surrounding space."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


def parse_request(head: bytes) -> Request:
    """Read a request line and its headers; raises BadRequest."""
    try:
        line, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = line.split(" ")
        headers = {}
        for one in lines:
            name, colon, value = one.partition(":")
            if not colon:
                raise BadRequest(f"a header without a colon: {one[:80]!r}")
            headers[name.lower()] = value.strip()
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    except ValueError as error:
        raise BadRequest(f"not a request line: {head[:80]!r}") from error
    return Request(method, unquote(parts.path), query, headers)


def parse_range(value: str, size: int) -> tuple[int, int] | None:
    """``bytes=A-B``, ``bytes=A-`` or ``bytes=-N`` as first byte and one past the last; None where nothing is in it.

    Raises BadRequest for several ranges or another unit.
    """
    unit, _, span = value.partition("=")
    first, dash, last = span.partition("-")
    if unit.strip() != "bytes" or not dash or not (first + last).replace(" ", "").isdecimal():
        raise BadRequest(f"range {value!r} is not of the form bytes=FIRST-LAST")
    if not first:
        start, stop = max(size - int(last), 0), size
    else:
        start, stop = int(first), min(int(last) + 1, size) if last else size
    return (start, stop) if start < stop else None


def etag_of(status: os.stat_result) -> str:
    """A tag that another content gets another of, without reading the file."""
    facts = f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"
    return f'"{hashlib.md5(facts.encode(), usedforsecurity=False).hexdigest()}"'


@dataclass(slots=True)
class Counters:
    """What was asked of the server and how many bytes of bodies it sent, since it was started."""

    requests: int = 0
    body_bytes: int = 0


class LeanServer(LoopbackServer):
    """Serves ``root`` until `close`; the kernel's ``sendfile`` keeps the content out of Python."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root.resolve()
        self.counters = Counters()

    def serve(self, connection: socket.socket) -> None:
        """Answer one request after another until the client leaves."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pending = b""
        while True:
            head, mark, rest = pending.partition(b"\r\n\r\n")
            if not mark:
                more = connection.recv(LONGEST_HEAD)
                if not more or len(pending) + len(more) > LONGEST_HEAD:
                    return
                pending += more
                continue
            pending = rest
            if not self._answer(connection, head):
                return

    def _answer(self, connection: socket.socket, head: bytes) -> bool:
        """Answer one request; false where the connection ends with it."""
        try:
            request = parse_request(head)
            if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
                raise BadRequest("requests with a body are not understood")
            self._dispatch(connection, request)
        except BadRequest as error:
            self._count(0)
            _send(connection, 400, {"Connection": "close"}, _problem(400, str(error)))
            return False
        return request.headers.get("connection", "").lower() != "close"

    def _dispatch(self, connection: socket.socket, request: Request) -> None:
        bucket, _, key = request.path.lstrip("/").partition("/")
        only_head = request.method == "HEAD"
        if request.method not in ("GET", "HEAD"):
            self._refuse(connection, 405, f"{request.method} is not offered, only GET and HEAD", only_head)
        elif not bucket or not self._directory(bucket):
            self._refuse(connection, 404, f"no bucket {bucket!r}", only_head)
        elif key:
            self._object(connection, request, bucket, key)
        else:
            body = b"" if only_head else _listing(self.root / bucket, bucket, request.query)
            self._count(len(body))
            _send(connection, 200, {"Content-Type": "application/xml"}, body)

    def _directory(self, bucket: str) -> bool:
        return bucket not in (".", "..") and (self.root / bucket).is_dir()

    def _object(self, connection: socket.socket, request: Request, bucket: str, key: str) -> None:
        only_head = request.method == "HEAD"
        try:
            path = (self.root / bucket / key).resolve()
            if not path.is_relative_to(self.root / bucket) or not path.is_file():
                raise FileNotFoundError(key)
            file = open(path, "rb")
        except (OSError, ValueError):
            self._refuse(connection, 404, f"no object {key!r} in bucket {bucket!r}", only_head)
            return
        with file:
            status = os.fstat(file.fileno())
            tag = etag_of(status)
            wanted, unwanted = request.headers.get("if-match"), request.headers.get("if-none-match")
            if wanted not in (None, "*", tag):
                self._refuse(connection, 412, f"the object's ETag is {tag}, not {wanted}", only_head)
                return
            if unwanted in ("*", tag):
                self._count(0)
                _send(connection, 304, {"ETag": tag}, b"", length=None)
                return
            start, stop, code = 0, status.st_size, 200
            headers = {
                "ETag": tag,
                "Last-Modified": formatdate(status.st_mtime, usegmt=True),
                "Accept-Ranges": "bytes",
                "Content-Type": "binary/octet-stream",
            }
            if "range" in request.headers:
                span = parse_range(request.headers["range"], status.st_size)
                if span is None:
                    self._refuse(connection, 416, f"the object has {status.st_size} bytes", only_head)
                    return
                (start, stop), code = span, 206
                headers["Content-Range"] = f"bytes {start}-{stop - 1}/{status.st_size}"
            self._count(0 if only_head else stop - start)
            _send(connection, code, headers, b"", length=stop - start, more=not only_head)
            if not only_head:
                _send_file(connection, file.fileno(), start, stop)

    def _refuse(self, connection: socket.socket, code: int, why: str, only_head: bool) -> None:
        body = b"" if only_head else _problem(code, why)
        self._count(len(body))
        _send(connection, code, {"Content-Type": "application/xml"}, body)

    def _count(self, body_bytes: int) -> None:
        with self._lock:
            self.counters.requests += 1
            self.counters.body_bytes += body_bytes


def _send(
    connection: socket.socket,
    code: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    length: int | None = -1,
    more: bool = False,
) -> None:
    """Send the head and the body; ``length`` is that of a body sent later, ``more`` says that it follows at once."""
    lines = [f"HTTP/1.1 {code} {REASONS[code]}", *(f"{name}: {value}" for name, value in headers.items())]
    if length is not None:
        lines.append(f"Content-Length: {len(body) if length < 0 else length}")
    connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body, socket.MSG_MORE if more else 0)


def _send_file(connection: socket.socket, file: int, start: int, stop: int) -> None:
    """Let the kernel send these bytes; a file that ends before them ends the connection (OSError)."""
    while start < stop:
        sent = os.sendfile(connection.fileno(), file, start, stop - start)
        if not sent:
            raise OSError("the file became shorter while it was sent")
        start += sent


def _problem(code: int, why: str) -> bytes:
    text = f"<Error><Code>{CODES[code]}</Code><Message>{escape(why)}</Message></Error>"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()


def _listing(directory: Path, bucket: str, query: Mapping[str, str]) -> bytes:
    """The objects of a bucket as ListObjectsV2 has it: prefix, delimiter, max-keys, start-after, continuation-token."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    limit = min(int(query.get("max-keys", "1000") or 0), 1000)
    after = query.get("continuation-token") or query.get("start-after", "")
    keys = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    entries: dict[str, str] = {}  # in order: what is listed -> its XML
    truncated = False
    for key in keys:
        if not key.startswith(prefix):
            continue
        rest = key[len(prefix) :]
        cut = rest.find(delimiter) if delimiter else -1
        name = prefix + rest[: cut + len(delimiter)] if cut >= 0 else key
        if name <= after or name in entries:
            continue
        if len(entries) == limit:
            truncated = True
            break
        if cut >= 0:
            entries[name] = f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
        else:
            entries[name] = _entry(directory / key, key)
    parts = [
        f"<Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix>",
        f"<KeyCount>{len(entries)}</KeyCount><MaxKeys>{limit}</MaxKeys>",
        f"<IsTruncated>{str(truncated).lower()}</IsTruncated>",
        f"<NextContinuationToken>{escape(list(entries)[-1])}</NextContinuationToken>" if truncated and entries else "",
        *entries.values(),
    ]
    text = f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{"".join(parts)}</ListBucketResult>'
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()


def _entry(path: Path, key: str) -> str:
    status = path.stat()
    modified = formatdate(status.st_mtime, usegmt=True)
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified>"
        f"<ETag>{escape(etag_of(status))}</ETag><Size>{status.st_size}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.lean_s3", description="A lean object store.")
    parser.add_argument("root", type=Path, help="its directories are served as buckets")
    server = LeanServer(parser.parse_args(arguments).root)
    server.start()
    print(json.dumps({"port": server.port}), flush=True)
    for _ in sys.stdin:
        counters = server.counters
        print(json.dumps({"requests": counters.requests, "body_bytes": counters.body_bytes}), flush=True)
    server.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
