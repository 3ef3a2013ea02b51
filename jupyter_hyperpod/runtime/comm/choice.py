"""Chooses how the members of a session exchange gradients: by the device of the parameters, or as a person asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...core.errors import SpecError
from ...core.spec import COLLECTIVES
from .collectives import Collectives, Links
from .device_collectives import DeviceCollectives
from .host_collectives import HostCollectives
from .reduction import Layout, Memory

NEURON = ("xla", "neuron", "privateuseone")


def chosen(asked: str, device_type: str, nccl: bool) -> str:
    """ "host", "gloo" or "nccl" for parameters on a device; ``nccl``: whether this torch has it. Raises SpecError."""
    if asked not in COLLECTIVES:
        raise SpecError(f"collectives is {asked!r}; expected one of {', '.join(COLLECTIVES)}")
    if device_type in NEURON:
        raise SpecError(
            f"the parameters are on a Neuron device ({device_type}), for which this version has no exchange of "
            "gradients; expected the CPU or CUDA: build the model on one of them"
        )
    if device_type not in ("cpu", "cuda"):
        raise SpecError(f"the parameters are on {device_type}; expected the CPU or a CUDA device")
    if asked == "auto":
        return "nccl" if device_type == "cuda" and nccl else "host"
    if asked == "nccl" and device_type != "cuda":
        raise SpecError(
            "collectives is nccl and the parameters are on the CPU, whose tensors NCCL cannot exchange: move the model "
            "to a CUDA device, or choose gloo or host"
        )
    if asked == "nccl" and not nccl:
        raise SpecError("collectives is nccl, and this torch was built without NCCL: choose gloo or host")
    return asked


def collectives_for(links: Links, parameters: Sequence[torch.Tensor], numbers: int, words: int) -> Collectives:
    """The implementation for `parameters`, with ``numbers`` and ``words`` more per buffer: see `Layout`.

    Raises SpecError where there is none.
    """
    device = parameters[0].device
    name = chosen(links.collectives, device.type, torch.distributed.is_nccl_available())

    def lay_out(allocate: Callable[[int], Memory]) -> Layout:
        return Layout(parameters, numbers, words, allocate)

    if name == "host":
        return HostCollectives(links, Layout(parameters, numbers, words))
    if name == "gloo":
        from .kinds import CHUNK, gloo

        pair = gloo(links.host, CHUNK)
        return DeviceCollectives(links, gloo(links.host), lay_out, pair)
    from .cuda import nccl, nccl_pair

    return DeviceCollectives(links, nccl(device), lay_out, nccl_pair(device))
