"""What most people do: boto3 downloads the file, safetensors loads it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

import boto3
import torch
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from safetensors.torch import load_file

from benchmarks.loading.loaders.process import CHUNK_BYTES, Facts, Load, Task


def client(task: Task) -> Any:
    """A boto3 client that keeps enough connections."""
    config = Config(
        s3={"addressing_style": "path"},
        max_pool_connections=task.connections,
        response_checksum_validation="when_required",
    )
    return boto3.client("s3", endpoint_url=task.endpoint, config=config)


def prepare(task: Task) -> Load:
    """``settings["directory"]`` is where the file goes."""
    s3 = client(task)
    config = TransferConfig(max_concurrency=task.connections, multipart_chunksize=CHUNK_BYTES)
    handle, path = tempfile.mkstemp(dir=task.settings["directory"], suffix=".safetensors")
    os.close(handle)

    def load(facts: Facts) -> Mapping[str, torch.Tensor]:
        s3.download_file(task.bucket, task.key, path, Config=config)
        tensors: Mapping[str, torch.Tensor] = load_file(path)
        os.unlink(path)
        return tensors

    return load
