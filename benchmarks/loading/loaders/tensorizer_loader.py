"""tensorizer, from a file in its own format that was made of the same tensors before."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import torch
from tensorizer import TensorDeserializer, TensorSerializer, stream_io

from benchmarks.loading.loaders.process import Facts, Load, Task


def prepare(task: Task) -> Load:
    """Several readers of one object, keys from the environment."""

    def load(facts: Facts) -> Mapping[str, torch.Tensor]:
        def open_stream(begin: int | None = None, end: int | None = None) -> object:
            return stream_io.open_stream(
                f"s3://{task.bucket}/{task.key}.tensors",
                "rb",
                s3_access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
                s3_secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
                s3_endpoint=task.endpoint.partition("//")[2],
                force_http=True,
                begin=begin,
                end=end,
            )

        loaded = TensorDeserializer(
            open_stream(), device="cpu", num_readers=task.connections, verify_hash=False, lazy_load=False
        )
        return dict(loaded.items())

    return load


def main(source: str, target: str) -> None:
    """Write a safetensors file in tensorizer's format."""
    from safetensors.torch import load_file

    serializer = TensorSerializer(target)
    serializer.write_state_dict(load_file(source))
    serializer.close()


if __name__ == "__main__":
    main(*sys.argv[1:3])
