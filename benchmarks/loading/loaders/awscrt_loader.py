"""The AWS Common Runtime's S3 client: it splits one request into parts by itself; bodies are copied into place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

import torch
from awscrt.auth import AwsCredentialsProvider
from awscrt.http import HttpHeaders, HttpRequest
from awscrt.io import ClientBootstrap, DefaultHostResolver, EventLoopGroup
from awscrt.s3 import S3Client, S3RequestTlsMode, S3RequestType

from benchmarks.loading.loaders.process import CHUNK_BYTES, Facts, Load, Task, header_of, tensors_in


def prepare(task: Task) -> Load:
    """A client with parts of the common size."""
    group = EventLoopGroup(task.settings.get("threads", 2))
    bootstrap = ClientBootstrap(group, DefaultHostResolver(group))
    client = S3Client(
        bootstrap=bootstrap,
        region="us-east-1",
        credential_provider=AwsCredentialsProvider.new_static(
            os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
        ),
        tls_mode=S3RequestTlsMode.DISABLED,
        part_size=CHUNK_BYTES,
        throughput_target_gbps=float(task.settings.get("gbps", 100)),
    )
    host = urlsplit(task.endpoint).netloc

    def fetch(view: memoryview, offset: int, length: int) -> None:
        def on_body(chunk: bytes, offset: int, **_: object) -> None:
            place = offset - begin
            view[place : place + len(chunk)] = chunk

        begin = offset
        headers = HttpHeaders([("host", host), ("range", f"bytes={offset}-{offset + length - 1}")])
        request = HttpRequest("GET", f"/{task.bucket}/{task.key}", headers)
        client.make_request(type=S3RequestType.GET_OBJECT, request=request, on_body=on_body).finished_future.result()

    def get(offset: int, length: int) -> bytes:
        found = bytearray(length)
        fetch(memoryview(found), offset, length)
        return bytes(found)

    def load(facts: Facts) -> Mapping[str, torch.Tensor]:
        start, header, length = header_of(task, get)
        block = torch.empty(length, dtype=torch.uint8)
        fetch(block.numpy().data, start, length)
        return tensors_in(block, header)

    return load
