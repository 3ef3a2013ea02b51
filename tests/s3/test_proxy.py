"""The proxy that misbehaves: each fault is what a client sees, and nothing else is disturbed."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.faulty_proxy import KINDS, WRONG_ETAG, FaultProxy, Faults
from tests.support.s3_servers import S3Server, ask, talking

pytestmark = [pytest.mark.s3]
BODY = os.urandom(1_000_000)
Make = Callable[..., tuple[FaultProxy, S3Server]]


@pytest.fixture
def behind(lean_s3: S3Server) -> S3Server:
    assert lean_s3.root
    (lean_s3.root / "object").write_bytes(BODY)
    return lean_s3


@contextmanager
def connection(proxy: FaultProxy, timeout_s: float = 50.0) -> Iterator[http.client.HTTPConnection]:
    found = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=timeout_s)
    try:
        yield found
    finally:
        found.close()


def get(client: http.client.HTTPConnection, method: str = "GET") -> tuple[http.client.HTTPResponse, bytes]:
    client.request(method, "/models/object")
    answer = client.getresponse()
    return answer, answer.read()


def test_without_faults_everything_passes(behind: S3Server, fault_proxy: Make) -> None:
    proxy, _ = fault_proxy(behind)
    with connection(proxy) as client:
        for method, expected in (("GET", BODY), ("HEAD", b""), ("GET", BODY)):
            answer, body = get(client, method)
            assert answer.status == 200 and body == expected and answer.headers["Content-Length"] == "1000000"
    assert proxy.counts == {"requests": 3}


@pytest.mark.parametrize("code", ["503", "429"])
def test_refusals_say_when_to_come_again_and_keep_the_connection(
    behind: S3Server, fault_proxy: Make, code: str
) -> None:
    proxy, _ = fault_proxy(behind, Faults((code,), at_most=2, retry_after_s=0.5))
    with connection(proxy) as client:
        for _ in range(2):
            answer, _ = get(client)
            assert answer.status == int(code) and answer.headers["Retry-After"] == "0.5"
        assert get(client)[1] == BODY
    assert proxy.counts == {"requests": 3, code: 2}


def test_bodies_that_end_too_early(behind: S3Server, fault_proxy: Make) -> None:
    proxy, _ = fault_proxy(behind, Faults(("truncate",), at_byte=1234))
    with connection(proxy) as client, pytest.raises(http.client.IncompleteRead) as caught:
        get(client)
    assert caught.value.partial == BODY[:1234]
    proxy.faults = Faults(("reset",), at_byte=0)
    with connection(proxy) as client, pytest.raises(ConnectionResetError):
        get(client)
    proxy.faults = Faults(("short",), at_byte=1234)
    with connection(proxy) as client:
        answer, body = get(client)
        assert answer.headers["Content-Length"] == "1234" and body == BODY[:1234]


def test_bodies_and_tags_that_are_wrong(behind: S3Server, fault_proxy: Make) -> None:
    proxy, _ = fault_proxy(behind, Faults(("corrupt",), at_byte=500))
    with connection(proxy) as client:
        _, body = get(client)
        assert [place for place, (one, other) in enumerate(zip(body, BODY, strict=True)) if one != other] == [500]
        proxy.faults = Faults(("etag",))
        answer, body = get(client)
        assert body == BODY and answer.headers.get_all("ETag") == [WRONG_ETAG.decode()]


def test_a_body_that_stands_still(behind: S3Server, fault_proxy: Make) -> None:
    proxy, _ = fault_proxy(behind, Faults(("stall",), at_byte=1000))
    with connection(proxy) as client:
        client.request("GET", "/models/object")
        answer = client.getresponse()
        assert answer.read(1000) == BODY[:1000] and client.sock is not None
        client.sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            answer.read(1)
    with connection(proxy) as client:  # the proxy is closed while somebody waits: that ends it
        client.request("GET", "/models/object")
        answer = client.getresponse()
        assert answer.read(1000) == BODY[:1000]
        proxy.close()
        with pytest.raises(http.client.IncompleteRead):
            answer.read()


def test_slowness(behind: S3Server, fault_proxy: Make) -> None:
    proxy, _ = fault_proxy(behind, Faults(latency_s=0.2))
    with connection(proxy) as client:
        started = time.monotonic()
        assert get(client)[1] == BODY
        assert time.monotonic() - started >= 0.2
        proxy.faults = Faults(bytes_per_s=4e6)
        started = time.monotonic()
        assert get(client)[1] == BODY
        assert time.monotonic() - started >= 0.2


def test_which_requests_are_hit_is_repeated_and_bounded() -> None:
    faults = Faults(("503", "reset"), probability=0.05, seed=7)
    fates = [faults.draw(number) for number in range(2000)]
    assert fates == [faults.draw(number) for number in range(2000)]
    hits = [fate for fate in fates if fate]
    assert 60 < len(hits) < 140 and {fate.kind for fate in hits} == {"503", "reset"}
    assert fates != [Faults(("503", "reset"), probability=0.05, seed=8).draw(number) for number in range(2000)]
    assert not any(Faults(("reset",), after=10).draw(number) for number in range(10))
    with pytest.raises(ValueError, match="no fault named fire; expected some of 503"):
        Faults(("fire",))
    with pytest.raises(ValueError, match="probability is 2"):
        Faults(probability=2.0)


@pytest.mark.parametrize("server", ["seaweedfs", "rclone_s3"])
def test_signed_requests_of_every_kind_pass(server: str, request: pytest.FixtureRequest, fault_proxy: Make) -> None:
    _, seen = fault_proxy(request.getfixturevalue(server))
    client = seen.client()
    client.put_object(Bucket=seen.bucket, Key="through", Body=BODY)
    assert client.get_object(Bucket=seen.bucket, Key="through")["Body"].read() == BODY
    assert "through" in [one["Key"] for one in client.list_objects_v2(Bucket=seen.bucket)["Contents"]]
    client.delete_object(Bucket=seen.bucket, Key="through")
    client.close()


def test_a_client_that_retries_gets_through(behind: S3Server, fault_proxy: Make) -> None:
    proxy, seen = fault_proxy(behind, Faults(("503",), at_most=1))
    client: Any = seen.client()
    assert client.get_object(Bucket=seen.bucket, Key="object")["Body"].read() == BODY
    client.close()
    assert proxy.counts["503"] == 1


def test_as_a_process_it_takes_faults_by_line(behind: S3Server) -> None:
    with talking(["tests.support.faulty_proxy", f"127.0.0.1:{behind.port}"]) as (process, told):
        client = http.client.HTTPConnection("127.0.0.1", told["port"], timeout=50.0)
        assert get(client)[1] == BODY
        assert ask(process, json.dumps({"kinds": ["503"], "at_most": 1})) == {"requests": 1}
        assert get(client)[0].status == 503
        assert get(client)[1] == BODY
        assert ask(process) == {"requests": 3, "503": 1}
        client.close()
    assert process.returncode is not None
    assert "503" in KINDS
