"""`hp.load_model`; run as a program, it writes the manifest of a file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import botocore.auth
import botocore.awsrequest
import botocore.credentials  # noqa: F401
import torch

import jupyter_hyperpod as hp
from jupyter_hyperpod.loader import local, model, s3, verify  # noqa: F401
from jupyter_hyperpod.loader.manifest import FileSums, Manifest, digest

from .loading import CHUNK_BYTES, Facts, Load, Task, ranges, read_header


def prepare(task: Task) -> Load:
    """From an object, or from the file itself where there is no endpoint."""
    digest(b"")  # imports xxhash
    url = f"s3://{task.bucket}/{task.key}" if task.endpoint else task.reference
    call = partial(hp.load_model, url, **({"endpoint_url": task.endpoint} if task.endpoint else {}), **task.settings)

    def load(facts: Facts) -> Mapping[str, torch.Tensor]:
        last: list[Any] = []
        tensors: Mapping[str, torch.Tensor] = call(progress=last.append)
        facts["first_layer_s"] = last[-1].first_layer_s
        facts["elapsed_s"] = last[-1].elapsed_s
        return tensors

    return load


def main(source: str, target: str) -> None:
    """Write the checksums of a safetensors file."""
    content = Path(source).read_bytes()
    start, _ = read_header(content)
    chunks = tuple(digest(content[begin : begin + size]) for begin, size in ranges(start, len(content) - start))
    sums = FileSums(len(content), digest(content[:start]), chunks)
    Path(target).write_bytes(Manifest(CHUNK_BYTES, {Path(source).name: sums}).encode())


if __name__ == "__main__":
    main(*sys.argv[1:3])
