"""The kinds of process groups: gloo for the CPU, NCCL for CUDA."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed

from ...core.errors import TrainingError

# longer than any transfer: members begin one together, and a lost one breaks its connections
TRANSFER = timedelta(minutes=30)
CHUNK = timedelta(seconds=30)  # of a transfer between two


@dataclass(frozen=True)
class Kind:
    """One way to make a process group. ``make(store, rank, world_size)`` returns a backend of torch.distributed.

    ``finish()`` waits until the device has done what was enqueued; ``abort(backend)`` releases whoever waits for it.
    ``joined``: whether one collective of all members moves slices faster than a send and a receive per pair.
    ``description``: equal on every member, or they do not belong together. ``place``: the device's own identity, ""
    where members may share one.
    """

    name: str
    device: torch.device
    make: Callable[[Any, int, int], Any]
    finish: Callable[[], None]
    abort: Callable[[Any], None]
    joined: bool
    description: str
    place: str = ""


def refuse_unequal(descriptions: Iterable[str]) -> None:
    """Raise TrainingError where members have devices whose arithmetic may differ."""
    described = sorted(set(descriptions))
    if len(described) > 1:
        raise TrainingError(
            f"members have different devices ({', '.join(described)}), whose arithmetic may differ; expected equal "
            "ones: choose the nodes, for example by --slurm constraint=, or train on the CPU"
        )


def gloo(host: str, timeout: timedelta = TRANSFER) -> Kind:
    """Process groups of CPU tensors; ``host``: the address of this member, or "" for what GLOO_SOCKET_IFNAME names.

    ``timeout``: after it a thread that was left behind in a collective ends.
    """

    def make(store: Any, rank: int, world_size: int) -> Any:
        group: Any = distributed.ProcessGroupGloo  # its options are not in the stubs
        options = group._Options()
        named = {"hostname": host} if host else {}
        options._devices = [group.create_device(**named)]
        options._timeout = timeout
        options._threads = 2
        return group(store, rank, world_size, options)

    # in pairs its members gather three times as fast as in its own ring, and copy nothing to themselves
    return Kind("gloo", torch.device("cpu"), make, _nothing, _nothing, joined=False, description="cpu")


def _nothing(*_: Any) -> None:
    """The CPU has done what a call returned from, and an abort of gloo releases nobody."""
