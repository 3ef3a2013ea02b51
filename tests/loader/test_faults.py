"""Object stores that misbehave: a load is byte-equal, or an error that says what is wrong; never a part of a model."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import LoaderError
from jupyter_hyperpod.loader.read.http_connection import Cancel, Connection, Head
from jupyter_hyperpod.loader.read.progress import LoadProgress
from jupyter_hyperpod.loader.read.source import PREFIX_BYTES, Options
from tests.loader.models import assert_same, encoded
from tests.loader.ranges import Answer, Misbehaviour, Request, serving
from tests.support.faulty_proxy import KINDS, WRONG_ETAG, FaultProxy, Faults
from tests.support.s3_servers import S3Server

pytestmark = [pytest.mark.s3]
Make = Callable[..., tuple[FaultProxy, S3Server]]
Environment = Callable[[S3Server], None]
SHARDS = 40
MENDED = sorted(KINDS.keys() - {"short", "corrupt", "etag"})  # asking again helps
QUICK = Options(timeout_s=0.5)
NOW_S = 1_700_000_000.0


def _shards() -> dict[str, dict[str, torch.Tensor]]:
    """One shard of three chunks and many small ones: some hundred requests, some of them long."""
    make = torch.Generator().manual_seed(5)
    sizes = {number: 2_000 + 977 * number for number in range(1, SHARDS)} | {0: 5_000_000}
    return {
        f"model-{number:05}.safetensors": {f"layers.{number}.w": torch.randn(size, generator=make)}
        for number, size in sizes.items()
    }


CONTENT = _shards()
STATE = {name: tensor for shard in CONTENT.values() for name, tensor in shard.items()}
LARGE = "model-00000.safetensors"
LARGE_STATE = CONTENT[LARGE]


class Holder(nn.Module):
    """Holds the large tensor, under its name."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.Module()
        block.w = nn.Parameter(torch.zeros_like(LARGE_STATE["layers.0.w"]))
        self.layers = nn.ModuleList([block])


def _files() -> Iterator[tuple[str, bytes]]:
    for file, shard in CONTENT.items():
        yield file, encoded(shard)
    weights = {name: file for file, shard in CONTENT.items() for name in shard}
    yield "model.safetensors.index.json", json.dumps({"weight_map": weights}).encode()


@pytest.fixture(scope="module")
def lean(lean_s3: S3Server) -> S3Server:
    """The lean server with the model under ``m/``."""
    assert lean_s3.root
    (lean_s3.root / "m").mkdir()
    for name, content in _files():
        (lean_s3.root / "m" / name).write_bytes(content)
    return lean_s3


@pytest.fixture(scope="module")
def weed(seaweedfs: S3Server) -> S3Server:
    """SeaweedFS with the same."""
    client = seaweedfs.client()
    with ThreadPoolExecutor(8) as threads:
        puts = [
            threads.submit(client.put_object, Bucket=seaweedfs.bucket, Key=f"m/{name}", Body=content)
            for name, content in _files()
        ]
        assert all(put.result() for put in puts)
    client.close()
    return seaweedfs


def fails(url: str, found: str, expected: str, **options: Any) -> LoaderError:
    """Load the large file into a module: an error that names the object, and the module is what it was."""
    model = Holder()
    with pytest.raises(LoaderError) as caught:
        hp.load_model(url, model=model, **options)
    error = caught.value
    assert error.source == url
    assert found in error.found, error
    assert expected in error.expected, error
    assert not model.get_parameter("layers.0.w").any()
    return error


@pytest.mark.parametrize("name", ["lean", "weed"])
def test_with_a_twentieth_of_all_requests_refused_or_cut(
    name: str, request: pytest.FixtureRequest, fault_proxy: Make, environment_of: Environment
) -> None:
    faults = Faults(tuple(MENDED), probability=0.05, seed=3)
    proxy, server = fault_proxy(request.getfixturevalue(name), faults)
    environment_of(server)
    told: list[LoadProgress] = []
    assert_same(hp.load_model(f"{server.url}/m", options=QUICK, progress=told.append), STATE)
    assert sum(proxy.counts[kind] for kind in MENDED) >= 3
    assert told[-1].retries >= 1


@pytest.mark.parametrize("kind", MENDED)
def test_every_fault_that_passes_when_asked_again(
    kind: str, lean: S3Server, fault_proxy: Make, environment_of: Environment
) -> None:
    proxy, server = fault_proxy(lean, Faults((kind,), probability=0.5, seed=1, after=1, at_most=4))
    environment_of(server)
    told: list[LoadProgress] = []
    found = hp.load_model(f"{server.url}/m/{LARGE}", options=QUICK, progress=told.append)
    assert_same(found, LARGE_STATE)
    assert proxy.counts[kind]
    assert told[-1].retries or kind == "stall"  # for a stalled body somebody else may have asked before it was given up


def test_what_had_arrived_before_a_connection_broke_is_not_read_again(
    lean: S3Server, fault_proxy: Make, environment_of: Environment
) -> None:
    proxy, server = fault_proxy(lean, Faults(("truncate",), after=1, at_most=2, at_byte=4_000_000))
    environment_of(server)
    told: list[LoadProgress] = []
    found = hp.load_model(f"{server.url}/m/{LARGE}", progress=told.append, connections=1)
    assert_same(found, LARGE_STATE)
    assert told[-1].retries == proxy.counts["truncate"] == 2
    assert told[-1].bytes_fetched == told[-1].bytes_total + PREFIX_BYTES


def test_a_server_that_names_a_time_is_not_asked_before(
    lean: S3Server, fault_proxy: Make, environment_of: Environment
) -> None:
    _, server = fault_proxy(lean, Faults(("503",), after=1, at_most=1, retry_after_s=1))
    environment_of(server)
    began_s = time.monotonic()
    assert_same(hp.load_model(f"{server.url}/m/{LARGE}", connections=1), LARGE_STATE)
    assert time.monotonic() - began_s >= 1


@pytest.mark.parametrize("how", ["load", "save"])
def test_a_server_that_names_a_date_is_not_asked_before(
    how: str, weed: S3Server, environment_of: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment_of(weed)
    slept: list[float] = []
    refusals = [{"retry-after": formatdate(NOW_S + 9, usegmt=True), "date": formatdate(NOW_S, usegmt=True)}]

    def head(connection: Connection) -> Head:
        found = real(connection)
        return Head(503, found.fields | refusals.pop()) if refusals and slept == [] else found

    real = Connection.head
    monkeypatch.setattr(Connection, "head", head)
    monkeypatch.setattr(Cancel, "sleep", lambda cancel, seconds: slept.append(seconds))
    if how == "load":
        assert_same(hp.load_model(f"{weed.url}/m/{LARGE}", connections=1), LARGE_STATE)
    else:
        hp.save_model(LARGE_STATE, f"{weed.url}/dated.safetensors", connections=1)
    assert [9 <= seconds <= 9 * 1.25 for seconds in slept] == [True]


@pytest.mark.parametrize("kind", ["503", "reset", "truncate"])
def test_a_server_that_never_recovers_is_given_up(
    kind: str, lean: S3Server, fault_proxy: Make, environment_of: Environment
) -> None:
    _, server = fault_proxy(lean, Faults((kind,), after=1, at_byte=100))
    environment_of(server)
    error = fails(f"{server.url}/m/{LARGE}", "3 times", "an answer", options=Options(attempts=3))
    assert "status 503" in error.found or "connection" in error.found


def test_nobody_listens(lean: S3Server, fault_proxy: Make, environment_of: Environment) -> None:
    proxy, server = fault_proxy(lean)
    environment_of(server)
    proxy.close()
    fails(f"{server.url}/m/{LARGE}", "cannot connect to 127.0.0.1", "an answer", options=Options(attempts=2))


def test_the_server_dies_in_the_middle(lean: S3Server, fault_proxy: Make, environment_of: Environment) -> None:
    proxy, server = fault_proxy(lean, Faults(bytes_per_s=20e6))
    environment_of(server)
    options = Options(attempts=2)
    fails(f"{server.url}/m/{LARGE}", "2 times", "an answer", options=options, progress=lambda _: proxy.close())


@pytest.mark.parametrize("after", [0, 1])
def test_fewer_bytes_than_were_asked_for(
    after: int, lean: S3Server, fault_proxy: Make, environment_of: Environment
) -> None:
    _, server = fault_proxy(lean, Faults(("short",), after=after, at_byte=20_000))
    environment_of(server)
    fails(f"{server.url}/m/{LARGE}", "with 20000 bytes", "bytes ")


@pytest.mark.parametrize("after", [0, 1])
def test_another_etag_is_another_object(
    after: int, lean: S3Server, fault_proxy: Make, environment_of: Environment
) -> None:
    _, server = fault_proxy(lean, Faults(("etag",), after=after, at_most=1))
    environment_of(server)
    found = f"ETag {WRONG_ETAG.decode()}" if after else "another ETag"
    fails(f"{server.url}/m/{LARGE}", found, '"', connections=1)


def test_an_object_that_is_replaced_while_it_is_read(
    weed: S3Server, fault_proxy: Make, environment_of: Environment
) -> None:
    client = weed.client()
    named: dict[str, Any] = {"Bucket": weed.bucket, "Key": "changing/model.safetensors"}
    client.put_object(**named, Body=encoded(LARGE_STATE))
    _, server = fault_proxy(weed, Faults(bytes_per_s=20e6))
    environment_of(server)

    def replace(progress: LoadProgress) -> None:
        if progress.bytes_done < progress.bytes_total:
            client.put_object(**named, Body=b"another")

    fails(f"{server.url}/changing/model.safetensors", "ETag", '"', connections=1, progress=replace)
    client.close()


def test_objects_that_were_never_whole(lean: S3Server, environment_of: Environment) -> None:
    assert lean.root
    environment_of(lean)
    path = lean.root / "broken.safetensors"
    url = f"{lean.url}/broken.safetensors"
    content = encoded(LARGE_STATE)
    for cut in (0, 1, 7, 8, 60, len(content) - 1):
        path.write_bytes(content[:cut])
        fails(url, f"{cut} bytes", "")
    path.write_bytes(content + b"\0")
    fails(url, f"{len(content) + 1} bytes", str(len(content)))
    path.write_bytes(content[:8] + b"[" + content[9:])
    fails(url, "not JSON", "JSON")


def test_what_is_not_there(weed: S3Server, environment_of: Environment) -> None:
    environment_of(weed)
    fails(f"{weed.url}/m/no.safetensors", "nothing: NoSuchKey (status 404)", "an object")
    fails("s3://no-such-bucket/model.safetensors", "NoSuchBucket (status 404)", "an object")
    fails(f"{weed.url}/nowhere", "neither", "model.safetensors")


def test_no_permission(
    weed: S3Server, rclone_s3: S3Server, environment_of: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    for server in (weed, rclone_s3):
        environment_of(server)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
        fails(f"{server.url}/m/{LARGE}", "no permission: SignatureDoesNotMatch (status 403)", "readable")
    environment_of(weed)
    error = fails(f"{weed.url}/m/{LARGE}", "no permission", "readable", options=Options(anonymous=True))
    assert "keys and policy" in error.remedy


ELSEWHERE: Mapping[str, Answer] = {
    "moved": Answer(301, b"<Error><Code>PermanentRedirect</Code></Error>", {"x-amz-bucket-region": "eu-west-1"}),
    "told": Answer(
        400,
        b"<Error><Code>AuthorizationHeaderMalformed</Code><Message>The authorization header is malformed; the region"
        b" 'us-east-1' is wrong; expecting 'eu-west-1'</Message><Region>eu-west-1</Region></Error>",
    ),
    "temporarily": Answer(
        307, b"<Error><Code>TemporaryRedirect</Code></Error>", {"x-amz-bucket-region": "eu-west-1", "Location": "/x"}
    ),
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_a_bucket_in_another_region(case: str) -> None:
    with serving({}) as server:
        server.misbehave = lambda request, answer: ELSEWHERE[case]
        options = Options(anonymous=True, endpoint_url=server.url)
        error = fails("s3://bucket/m.safetensors", "region eu-west-1", "us-east-1", options=options)
    assert error.remedy == "set AWS_REGION=eu-west-1"


def _other_range(request: Request, answer: Answer) -> Answer:
    return Answer(206, answer.body, answer.fields | {"Content-Range": f"bytes 0-{len(answer.body) - 1}/999999999"})


def _whole(request: Request, answer: Answer) -> Answer:
    return Answer(200, answer.body, {"ETag": '"one"'})


STRANGE: Mapping[str, tuple[Misbehaviour, str, str]] = {
    "another range": (_other_range, "/999999999", "bytes "),
    "no ranges": (_whole, "the whole object", "a range"),
    "gone since": (lambda request, answer: Answer(404), "nothing", "an object"),
    "shorter since": (lambda request, answer: Answer(416, b"", {"Content-Range": "bytes */100"}), "*/100", "bytes "),
    "no header": (lambda request, answer: Answer(206, b"", {"no colon\r\nx": "y"}), "a header field", "HTTP/1.1"),
    "teapot": (lambda request, answer: Answer(418), "status 418", "status 206"),
    "length missing": (
        lambda request, answer: Answer(206, answer.body, answer.fields | {"Content-Length": ""}),
        "bytes",
        "bytes ",
    ),
}


@pytest.mark.parametrize("case", STRANGE)
def test_answers_that_no_correct_server_gives(case: str) -> None:
    misbehave, found, expected = STRANGE[case]
    with serving({"/m.safetensors": encoded(LARGE_STATE)}) as server:
        server.misbehave = lambda request, answer: misbehave(request, answer) if request.number else answer
        fails(f"{server.url}/m.safetensors", found, expected)


def test_a_local_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(encoded(LARGE_STATE))

    def shrink(_: LoadProgress) -> None:
        os.truncate(path, 1000)

    fails(str(path), "1000 bytes", "bytes", connections=1, progress=shrink)
