"""`hp.load_model`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from .loading import Facts, Load, Task


def prepare(task: Task) -> Load:
    """From an object, or from the file itself where there is no endpoint."""
    from botocore.session import Session  # noqa: F401  imported before the clock starts, as by every other arm

    import jupyter_hyperpod as hp

    url = f"s3://{task.bucket}/{task.key}" if task.endpoint else task.reference
    call = partial(hp.load_model, url, **({"endpoint_url": task.endpoint} if task.endpoint else {}), **task.settings)

    def load(facts: Facts) -> Mapping[str, torch.Tensor]:
        last: list[Any] = []
        tensors: Mapping[str, torch.Tensor] = call(progress=last.append)
        facts["first_layer_s"] = last[-1].first_layer_s
        facts["elapsed_s"] = last[-1].elapsed_s
        return tensors

    return load
