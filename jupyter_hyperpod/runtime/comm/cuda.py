"""All that is CUDA's own in a process group: making it, waiting for the device, aborting. See docs/devices.md."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed

from ...system.variables import replaced
from .kinds import Kind

# of torch's own threads, which end a process some time after a collective has failed: here its members regroup
SETTINGS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1",
}
_MAKING = threading.Lock()  # several transfers make groups at once
TRANSFER = timedelta(minutes=30)
ABORT_S = 5.0  # after that only the end of this process releases the device


def nccl(device: torch.device) -> Kind:
    """Process groups of CUDA tensors on ``device``."""

    def make(store: Any, rank: int, world_size: int) -> Any:
        torch.cuda.set_device(device)  # of this thread
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = TRANSFER
        with _MAKING, replaced(SETTINGS):  # it reads them when it is made; those of the program's own groups stay
            return distributed.ProcessGroupNCCL(store, rank, world_size, options)

    def finish() -> None:
        torch.cuda.current_stream(device).synchronize()

    properties = torch.cuda.get_device_properties(device)
    place = f"{os.environ.get('NCCL_HOSTID', '')}/{properties.uuid}"  # NCCL takes other ids for other hosts
    description = f"{properties.name}, compute capability {properties.major}.{properties.minor}"
    return Kind("nccl", device, make, finish, _abort, joined=True, description=description, place=place)


def _abort(backend: Any) -> None:
    """Abort the communicator and what it has enqueued; a process whose device does not come back ends itself."""

    def release() -> None:
        _abandon(backend)
        torch.cuda.synchronize()

    thread = threading.Thread(target=release, name="hyperpod-abort", daemon=True)
    thread.start()
    thread.join(ABORT_S)
    if thread.is_alive():
        print(f"the device was not released within {ABORT_S:g} s of an abort: this process ends", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGKILL)


def _abandon(backend: Any) -> None:
    """Abort it, and never free it: freeing waits for a thread of torch, which may wait for this interpreter's lock."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(backend))
    backend.abort()


def nccl_pair(device: torch.device) -> Kind:
    """Process groups of two for one transfer: on a stream of their own, and an abort waits for nothing else."""
    kind = nccl(device)

    def make(store: Any, rank: int, world_size: int) -> Any:
        torch.cuda.set_stream(torch.cuda.Stream(device))  # of this thread
        return kind.make(store, rank, world_size)

    return replace(kind, make=make, abort=_abandon)
