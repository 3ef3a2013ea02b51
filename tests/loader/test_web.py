"""Models on web servers: addresses with queries and odd characters, proxies, error pages of any length."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import LoaderError, SpecError
from jupyter_hyperpod.loader.header import INDEX_SUFFIX
from jupyter_hyperpod.loader.manifest import manifest_url
from jupyter_hyperpod.loader.read.http_connection import Cancel, Connections
from jupyter_hyperpod.loader.read.http_target import target_of
from jupyter_hyperpod.loader.read.source import Options
from jupyter_hyperpod.loader.read.sources import Opener
from jupyter_hyperpod.loader.write.bucket import Bucket
from jupyter_hyperpod.loader.write.sharding import verify_model
from tests.loader.models import assert_same, decoder, encoded
from tests.loader.ranges import Answer, RangeServer, serving

STATE = decoder()
CONTENT = encoded(STATE)
SIGNED = "X-Amz-Signature=secret"
QUERY = f"?download=true&{SIGNED}"
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")


def page(content: bytes) -> tuple[bytes, dict[str, str]]:
    """A body in one chunk, and the fields that say so."""
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(content), content), {"Content-Length": "", "Transfer-Encoding": "chunked"}


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with serving({}) as server:
        yield server


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Name a proxy for every scheme."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    def set_all(proxy: str) -> None:
        for scheme in ("http", "https"):
            monkeypatch.setenv(f"{scheme}_proxy", proxy)

    return set_all


# ---- addresses ---------------------------------------------------------------------------------------------------


def test_an_address_with_a_query(server: RangeServer) -> None:
    """A file, an index with its shards, a directory: whatever is read carries the query."""
    shards = {f"{i} of 2.safetensors": {name: STATE[name] for name in sorted(STATE)[i::2]} for i in range(2)}
    weights = {name: file for file, shard in shards.items() for name in shard}
    index = json.dumps({"weight_map": weights}).encode()
    server.objects |= {f"/m/{file.replace(' ', '%20')}{QUERY}": encoded(shard) for file, shard in shards.items()}
    server.objects |= {f"/m/model.safetensors{INDEX_SUFFIX}{QUERY}": index, f"/one.safetensors{QUERY}": CONTENT}
    for path in ("/one.safetensors", "/m", "/m/", f"/m/model.safetensors{INDEX_SUFFIX}"):
        assert_same(hp.load_model(f"{server.url}{path}{QUERY}"), STATE)
    with pytest.raises(LoaderError, match="neither") as failed:
        hp.load_model(f"{server.url}/nowhere{QUERY}")
    assert SIGNED not in str(failed.value) and failed.value.source == f"{server.url}/nowhere"


def test_checksums_beside_an_address_with_a_query(server: RangeServer, tmp_path: Path) -> None:
    hp.save_model(STATE, f"{tmp_path}/a b.safetensors", checksum=True)
    for path in tmp_path.iterdir():
        server.objects[f"/{path.name.replace(' ', '%20')}{QUERY}"] = path.read_bytes()
    url = f"{server.url}/a%20b.safetensors{QUERY}"
    assert manifest_url(url) == f"{server.url}/a%20b.safetensors.manifest.json{QUERY}"
    assert_same(hp.load_model(url, checksum=True), STATE)
    assert verify_model(url).checked == "checksums"
    server.objects[f"/c.safetensors{QUERY}"] = CONTENT
    with pytest.raises(LoaderError, match="nothing about c") as failed:
        hp.load_model(f"{server.url}/c.safetensors{QUERY}", checksum=manifest_url(url))
    assert SIGNED not in str(failed.value)


def test_a_file_that_is_signed_for_does_without_its_neighbours(server: RangeServer) -> None:
    server.objects[f"/one.safetensors{QUERY}"] = CONTENT
    server.misbehave = lambda request, answer: Answer(403) if answer.status == 404 else answer
    url = f"{server.url}/one.safetensors{QUERY}"
    assert_same(hp.load_model(url), STATE)
    assert verify_model(url).checked == "structure"


def test_a_redirect_elsewhere_shows_no_query(server: RangeServer) -> None:
    server.misbehave = lambda request, answer: Answer(302, b"", {"Location": f"ftp://host/x?{SIGNED}"})
    with pytest.raises(SpecError, match="is not an http or https URL") as failed:
        hp.load_model(f"{server.url}/m.safetensors")
    assert SIGNED not in str(failed.value)


def test_characters_that_no_request_may_hold(server: RangeServer) -> None:
    quoted = "/m%20%C3%B6/a%2Fb%20(1).safetensors?who=%C3%BC&a=b%20c"
    server.objects[quoted] = CONTENT
    for path in ("/m ö/a%2Fb (1).safetensors?who=ü&a=b c", quoted):
        assert_same(hp.load_model(f"{server.url}{path}"), STATE)
    moved = Answer(302, b"", {"Location": "/m ö/a%2Fb (1).safetensors?who=ü&a=b c"})
    server.misbehave = lambda request, answer: moved if request.path == "/moved.safetensors" else answer
    assert_same(hp.load_model(f"{server.url}/moved.safetensors"), STATE)


def test_keys_of_objects_stay_as_they_are_signed() -> None:
    for path in ("/bucket/a%2B%20%25/~-._", "/bucket/k?partNumber=1&uploadId=a%2Fb%3D%3D"):
        assert target_of(f"http://host{path}", 1.0, None)[1] == path


# ---- error pages -------------------------------------------------------------------------------------------------


def test_a_long_error_page_in_chunks_does_not_hide_the_status(server: RangeServer) -> None:
    server.objects["/m/model.safetensors"] = CONTENT
    long = Answer(404, *page(bytes(50_000)))
    server.misbehave = lambda request, answer: long if answer.status == 404 else answer
    assert_same(hp.load_model(f"{server.url}/m"), STATE)
    busy = Answer(503, *page(bytes(50_000)))
    server.misbehave = lambda request, answer: busy if request.number == 3 else answer
    assert_same(hp.load_model(f"{server.url}/m/model.safetensors", connections=1), STATE)
    assert len(server.requests) > 3


@pytest.mark.parametrize("size", [100, 101, 50_000])
@pytest.mark.parametrize("chunked", [True, False])
def test_a_connection_with_the_rest_of_a_page_is_not_used_again(server: RangeServer, chunked: bool, size: int) -> None:
    body, fields = page(bytes(size)) if chunked else (bytes(size), {})
    server.misbehave = lambda request, answer: Answer(404, body, fields)
    target, path = target_of(f"{server.url}/x", 10.0, None)
    connections, used = Connections(target), []
    for _ in range(2):
        with connections.borrow(Cancel()) as connection:
            connection.send(f"GET {path} HTTP/1.1\r\nHost: {target.authority}\r\n\r\n".encode())
            head = connection.head()
            assert head.status == 404 and connection.rest(head, 100) == bytes(100)
            used.append(connection)
    assert (used[0] is used[1]) == (size == 100)
    connections.close()


# ---- proxies -----------------------------------------------------------------------------------------------------


def test_proxies_as_people_name_them(proxied: Callable[[str], None]) -> None:
    for named, where in {
        "proxy.corp:3128": ("proxy.corp", 3128),
        "http://proxy.corp": ("proxy.corp", 80),
        "http://me:pw@[::1]:3128/": ("::1", 3128),
    }.items():
        proxied(named)
        proxy = target_of("https://host/x", 1.0, None)[0].proxy
        assert proxy is not None and (proxy.host, proxy.port) == where


@pytest.mark.parametrize("wrong", ["http://me:secret#1@proxy:1", "http://me:secret@", "socks5://me:secret@proxy:1"])
def test_what_is_no_proxy(wrong: str, proxied: Callable[[str], None]) -> None:
    proxied(wrong)
    with pytest.raises(SpecError, match="the proxy that https_proxy names is not http://host:port") as failed:
        hp.load_model("https://host/m.safetensors")
    assert "secret" not in str(failed.value)


def test_a_proxy_is_told_who_asks(server: RangeServer, proxied: Callable[[str], None]) -> None:
    proxied(server.url.replace("//", "//me:p%40w%C3%B6@"))
    told = "Proxy-Authorization: Basic " + base64.b64encode("me:p@wö".encode()).decode()
    server.objects["http://host.invalid/m.safetensors"] = CONTENT
    assert_same(hp.load_model("http://host.invalid/m.safetensors"), STATE)
    assert all(told.encode() in request.head for request in server.requests)
    assert "p@w" not in repr(target_of("http://host.invalid/", 1.0, None))


def test_a_tunnel(server: RangeServer, proxied: Callable[[str], None]) -> None:
    """The proxy alone hears the password, and an address of IPv6 is one that it can read."""
    proxied(server.url.replace("//", "//me:secret@"))
    server.misbehave = lambda request, answer: Answer(407)
    with pytest.raises(LoaderError, match=r"status 407 of the proxy for a tunnel to \[2001:db8::1\]:443") as failed:
        hp.load_model("https://[2001:db8::1]/m.safetensors")
    assert "secret" not in str(failed.value)
    head = server.requests[0].head
    assert head.startswith(b"CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n")
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"me:secret") in head


def test_a_bucket_behind_a_proxy(server: RangeServer, proxied: Callable[[str], None]) -> None:
    proxied(server.url.replace("//", "//me:secret@"))
    server.misbehave = lambda request, answer: Answer(200)
    opener = Opener(Options(anonymous=True, endpoint_url="http://host.invalid"))
    Bucket("s3://bucket", opener).remove("x")
    opener.close()
    assert b"Proxy-Authorization: Basic" in server.requests[0].head
