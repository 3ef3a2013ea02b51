"""The kinds of process groups: gloo for the CPU, NCCL for CUDA."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed

from .process_group import Kind

# longer than any transfer: members begin one together, and a lost one breaks its connections
TRANSFER = timedelta(minutes=30)


def gloo(host: str) -> Kind:
    """Process groups of CPU tensors; ``host``: the address of this member, or "" for what GLOO_SOCKET_IFNAME names."""

    def make(store: Any, rank: int, world_size: int) -> Any:
        group: Any = distributed.ProcessGroupGloo  # its options are not in the stubs
        options = group._Options()
        named = {"hostname": host} if host else {}
        options._devices = [group.create_device(**named)]
        options._timeout = TRANSFER
        options._threads = 2
        return group(store, rank, world_size, options)

    # in pairs its members gather three times as fast as in its own ring, and copy nothing to themselves
    return Kind("gloo", torch.device("cpu"), make, _nothing, _nothing, joined=False, description="cpu")


def _nothing(*_: Any) -> None:
    """The CPU has done what a call returned from, and an abort of gloo releases nobody."""
