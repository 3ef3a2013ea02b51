"""`hp.load_model`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import botocore.auth
import botocore.awsrequest
import botocore.credentials  # noqa: F401
import torch

import jupyter_hyperpod as hp
from benchmarks.loading.loaders.process import Facts, Load, Task
from jupyter_hyperpod.loader import model  # noqa: F401
from jupyter_hyperpod.loader.manifest import digest


def prepare(task: Task) -> Load:
    """From an object, or from the file itself where there is no endpoint."""
    digest(b"")  # imports xxhash
    url = f"s3://{task.bucket}/{task.key}" if task.endpoint else task.reference
    call = partial(hp.load_model, url, **({"endpoint_url": task.endpoint} if task.endpoint else {}), **task.settings)

    def load(facts: Facts) -> Mapping[str, torch.Tensor]:
        last: list[Any] = []
        began_s = time.perf_counter()
        tensors: Mapping[str, torch.Tensor] = call(progress=last.append)
        facts["call_s"] = time.perf_counter() - began_s
        facts["first_layer_s"] = last[-1].first_layer_s
        facts["fetched_bytes"] = last[-1].bytes_fetched
        return tensors

    return load
