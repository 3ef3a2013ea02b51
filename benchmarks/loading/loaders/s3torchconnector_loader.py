"""Amazon S3 Connector for PyTorch: range-based readers in threads, or its sequential reader."""

from __future__ import annotations

from collections.abc import Mapping
from threading import local
from typing import Any

import torch
from s3torchconnector import S3ClientConfig, S3ReaderConstructor
from s3torchconnector._s3client import S3Client
from safetensors.torch import load as load_bytes

from benchmarks.loading.loaders.process import CHUNK_BYTES, Facts, Load, Task, into_place


def prepare(task: Task) -> Load:
    """``settings["sequential"]`` reads the object from its beginning to its end, which the library makes parallel."""
    config = S3ClientConfig(throughput_target_gbps=100.0, part_size=CHUNK_BYTES, force_path_style=True)
    client = S3Client(region="us-east-1", endpoint=task.endpoint, s3client_config=config)
    if task.settings.get("sequential"):

        def load(facts: Facts) -> Mapping[str, torch.Tensor]:
            tensors: Mapping[str, torch.Tensor] = load_bytes(client.get_object(task.bucket, task.key).read())
            return tensors

        return load
    mine = local()

    def reader() -> Any:
        if not hasattr(mine, "reader"):
            make = S3ReaderConstructor.range_based(buffer_size=0)
            mine.reader = client.get_object(task.bucket, task.key, reader_constructor=make)
        return mine.reader

    def get(offset: int, length: int) -> bytes:
        reader().seek(offset)
        return bytes(reader().read(length))

    def fill(offset: int, view: memoryview) -> None:
        reader().seek(offset)
        done = 0
        while done < len(view):
            done += reader().readinto(view[done:])

    return lambda facts: into_place(task, get, fill)
