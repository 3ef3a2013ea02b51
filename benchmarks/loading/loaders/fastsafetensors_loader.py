"""fastsafetensors, which reads local files: the object is downloaded first where it is not one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping

import torch
from boto3.s3.transfer import TransferConfig
from fastsafetensors import SafeTensorsFileLoader, SingleGroup

from benchmarks.loading.loaders.conventional_loader import client
from benchmarks.loading.loaders.process import CHUNK_BYTES, Facts, Load, Task


def prepare(task: Task) -> Load:
    """``settings["directory"]`` is where a download goes."""
    s3, path = (client(task), "") if task.endpoint else (None, task.reference)
    if s3:
        handle, path = tempfile.mkstemp(dir=task.settings["directory"], suffix=".safetensors")
        os.close(handle)
    config = TransferConfig(max_concurrency=task.connections, multipart_chunksize=CHUNK_BYTES)

    def load(facts: Facts) -> Mapping[str, torch.Tensor]:
        if s3:
            s3.download_file(task.bucket, task.key, path, Config=config)
        loader = SafeTensorsFileLoader(SingleGroup(), torch.device("cpu"), nogds=True)
        loader.add_filenames({0: [path]})
        files = loader.copy_files_to_device()
        tensors = {name: files.get_tensor(name) for name in loader.get_keys()}
        if s3:
            os.unlink(path)
        return tensors

    return load
