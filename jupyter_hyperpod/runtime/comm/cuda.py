"""All that is CUDA's own in a process group: making it, waiting for the device, aborting. Not verified on a GPU."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed

from .kinds import Kind

TRANSFER = timedelta(minutes=30)
ABORT_S = 5.0  # after that only the end of this process releases the device


def nccl(device: torch.device) -> Kind:
    """Process groups of CUDA tensors on ``device``."""

    def make(store: Any, rank: int, world_size: int) -> Any:
        torch.cuda.set_device(device)  # of this thread
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = TRANSFER
        return distributed.ProcessGroupNCCL(store, rank, world_size, options)

    def finish() -> None:
        torch.cuda.current_stream(device).synchronize()

    properties = torch.cuda.get_device_properties(device)
    description = f"{properties.name}, compute capability {properties.major}.{properties.minor}"
    return Kind("nccl", device, make, finish, _abort, joined=True, description=description, place=str(properties.uuid))


def _abort(backend: Any) -> None:
    """Abort the communicator and what it has enqueued; a process whose device does not come back ends itself."""

    def release() -> None:
        backend.abort()
        torch.cuda.synchronize()

    thread = threading.Thread(target=release, name="hyperpod-abort", daemon=True)
    thread.start()
    thread.join(ABORT_S)
    if thread.is_alive():
        print(f"the device was not released within {ABORT_S:g} s of an abort: this process ends", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGKILL)


def nccl_pair(device: torch.device) -> Kind:
    """Process groups of two for one transfer: on a stream of their own, and an abort waits for nothing else."""
    kind = nccl(device)

    def make(store: Any, rank: int, world_size: int) -> Any:
        torch.cuda.set_stream(torch.cuda.Stream(device))  # of this thread
        return kind.make(store, rank, world_size)

    return replace(kind, make=make, abort=lambda backend: backend.abort())
