"""Chooses how the members of a session exchange gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .collectives import Collectives, Links
from .host_collectives import HostCollectives
from .reduction import Layout


def collectives_for(
    links: Links, parameters: Sequence[torch.Tensor], numbers: int, words: int, micro_batches: int
) -> Collectives:
    """The implementation for `parameters`, with ``numbers`` and ``words`` more per buffer: see `Layout`."""
    return HostCollectives(links, Layout(parameters, numbers, words), micro_batches)
