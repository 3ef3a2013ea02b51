"""Writes models to S3: files in parallel parts, invisible until all parts have arrived."""

from __future__ import annotations

import hashlib
import random
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import quote, urlencode
from xml.sax.saxutils import escape, unescape

from ...core.errors import HyperpodError, LoaderError, SpecError
from ..read import pace
from ..read.http import AGAIN, ERROR_BODY_BYTES
from ..read.http_connection import Cancel, ConnectionBroken, Connections, Head, Malformed
from ..read.http_target import target_of
from ..read.model_files import is_absent, is_refused
from ..read.s3 import Account, account_of, has_expired, refusal
from ..read.sources import Opener
from .destination import Destination, MaybeDone, Upload, Views

THROTTLED = ("status 429", "status 503")
# a server may need minutes to assemble the parts of a large object, without sending anything
PATIENCE = 30  # times the usual timeout
WRITABLE = "a bucket that can be written to"
_UPLOAD_ID = re.compile(rb"<UploadId>([^<]+)</UploadId>")


class Bucket(Destination):
    """A prefix of a bucket, ``s3://bucket/prefix`` or the bucket itself."""

    def __init__(self, url: str, opener: Opener) -> None:
        self.opener = opener
        self._url = url
        self._account: Account = account_of(opener, url)
        self._bucket, _, self._prefix = url.removeprefix("s3://").partition("/")
        if not self._bucket:
            raise SpecError(f"{url!r} is not s3://bucket/key")

    def url(self, name: str) -> str:
        return f"{self._url}/{name}"

    def begin(self, name: str, size: int) -> PartsUpload:
        return PartsUpload(self, name, size)

    def put(self, name: str, content: bytes) -> None:
        self.ask("PUT", name, {}, [memoryview(content)])

    def has(self, name: str) -> bool | None:
        try:
            self.opener.open(self.url(name)).close()
        except LoaderError as error:
            if is_refused(error):
                return None
            if is_absent(error):
                return False
            raise
        return True

    def remove(self, name: str) -> None:
        self.ask("DELETE", name, {})

    def ask(
        self,
        method: str,
        name: str,
        query: Mapping[str, str],
        body: Views = (),
        cancel: Cancel | None = None,
        patience: int = 1,
    ) -> tuple[Head, bytes]:
        """Make one request, with retries where they may help, and return the answer. Raises LoaderError and Cancelled.

        The server may take `patience` times as long as usual. MaybeDone: it may have acted without an answer.
        """
        cancel, failures, options = cancel or Cancel(), 0, self.opener.options
        refused_as: type[LoaderError] = LoaderError
        while True:
            after_s: float | None = None
            generation = self._account.generation
            try:
                connections, request = self._request(method, name, query, body, patience)
                head, content = _exchange(connections, request, body, cancel)
            except LoaderError as error:  # no signature; an earlier attempt may have succeeded
                raise refused_as(error.source, error.found, error.expected, error.remedy) from None
            except ConnectionBroken as error:
                refused_as = MaybeDone
                if not error.fresh:  # a kept connection that the server had closed meanwhile
                    connections.forget_idle()
                    continue
                reason = str(error)
            except Malformed as error:
                raise MaybeDone(self.url(name), str(error), "an answer in HTTP/1.1") from None
            else:
                failed = head.status not in (200, 204) or b"<Error>" in content
                if not failed or (method == "DELETE" and head.status == 404):
                    return head, content
                refused = refusal(self._account, self.url(name), head, content, WRITABLE)
                if has_expired(content) and self._account.renew(generation):
                    refused = None
                if refused is not None and head.status not in AGAIN:
                    raise refused_as(refused.source, refused.found, refused.expected, refused.remedy)
                refused_as = MaybeDone
                reason = f"status {head.status}"
                after_s = pace.asked_delay_s(head.fields, time.time())
            failures += 1
            self.opener.counters.add(retries=1, throttled=reason in THROTTLED)
            if failures >= options.attempts:
                raise MaybeDone(self.url(name), f"{reason}, {failures} times", "an answer", "is the server up?")
            cancel.sleep(pace.delay_s(failures, after_s, random.random()))

    def _request(
        self, method: str, name: str, query: Mapping[str, str], body: Views, patience: int
    ) -> tuple[Connections, bytes]:
        options = self.opener.options
        url = self._account.locate(self._bucket, f"{self._prefix}/{name}" if self._prefix else name)
        if query:
            url += "?" + urlencode(query, quote_via=quote)
        digest = hashlib.sha256()  # the signature covers it, so that the server refuses a damaged body
        for view in body:
            digest.update(view)
        signed = self._account.sign(method, url, digest.hexdigest())
        try:
            target, path = target_of(
                url, patience * options.timeout_s, self._account.ca_file if "https:" in url else None
            )
        except (ValueError, OSError) as error:
            raise SpecError(f"{self._url}: {error}") from None
        connections: Connections = self.opener.once(target, lambda: Connections(target))
        length = sum(map(len, body))
        fields = signed | {"Host": target.authority, **target.proxy_fields}
        if method != "DELETE":
            fields["Content-Length"] = str(length)
        lines = [f"{method} {target.request_prefix}{path} HTTP/1.1", *(f"{key}: {fields[key]}" for key in fields)]
        return connections, "\r\n".join([*lines, "\r\n"]).encode("latin-1")


def _exchange(connections: Connections, request: bytes, body: Views, cancel: Cancel) -> tuple[Head, bytes]:
    with connections.borrow(cancel) as connection:
        connection.send(request)
        for view in body:
            cancel.check()
            connection.send(view)
        head = connection.head()
        content = b"" if head.status == 204 else connection.rest(head, ERROR_BODY_BYTES)
    return head, content


class PartsUpload(Upload):
    """An object that is uploaded in parts."""

    def __init__(self, bucket: Bucket, name: str, size: int) -> None:
        self._bucket = bucket
        self._name = name
        self._size = size
        self._tags: dict[int, str] = {}
        self._published = False
        _, content = bucket.ask("POST", name, {"uploads": ""})
        if (found := _UPLOAD_ID.search(content)) is None:
            raise LoaderError(bucket.url(name), "an answer without UploadId", "a multipart upload that has begun")
        self._id = unescape(found[1].decode())

    def write(self, number: int, offset: int, views: Views, cancel: Cancel) -> None:
        named = {"partNumber": str(number + 1), "uploadId": self._id}
        head, _ = self._bucket.ask("PUT", self._name, named, views, cancel)
        if not (tag := head.fields.get("etag")):
            raise LoaderError(self._bucket.url(self._name), f"no ETag for part {number + 1}", "an ETag")
        self._tags[number] = tag
        self._bucket.opener.counters.add(fetched=sum(map(len, views)))

    def finish(self) -> None:
        """Bytes accepted by a bucket are durable."""

    def publish(self) -> None:
        parts = (
            f"<Part><PartNumber>{number + 1}</PartNumber><ETag>{escape(tag)}</ETag></Part>"
            for number, tag in sorted(self._tags.items())
        )
        body = f"<CompleteMultipartUpload>{''.join(parts)}</CompleteMultipartUpload>".encode()
        try:
            named = {"uploadId": self._id}
            self._bucket.ask("POST", self._name, named, [memoryview(body)], patience=PATIENCE)
        except LoaderError as error:
            # a retry after a lost answer: the first attempt may have succeeded
            if "NoSuchUpload" not in error.found or not self._is_there():
                raise
        self._published = True

    def abort(self) -> None:
        with suppress(HyperpodError):
            if not self._published:
                self._bucket.ask("DELETE", self._name, {"uploadId": self._id})

    def _is_there(self) -> bool:
        """True if the object consists of exactly these parts."""
        source = self._bucket.opener.open(self._bucket.url(self._name))
        parts = [tag.strip('"') for _, tag in sorted(self._tags.items())]
        with suppress(ValueError):
            whole = hashlib.md5(b"".join(map(bytes.fromhex, parts)), usedforsecurity=False).hexdigest()
            return source.size == self._size and source.etag == f'"{whole}-{len(parts)}"'
        return False
