"""Run:ai Model Streamer; its own variables say how many threads and which block size."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from runai_model_streamer import SafetensorsStreamer

from benchmarks.loading.loaders.process import Facts, Load, Task


def prepare(task: Task) -> Load:
    """From an object, or from the file where there is no endpoint."""
    url = f"s3://{task.bucket}/{task.key}" if task.endpoint else task.reference

    def load(facts: Facts) -> Mapping[str, torch.Tensor]:
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(url)
            return dict(streamer.get_tensors())

    return load
