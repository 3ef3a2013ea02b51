"""Runs slow first uses of libraries once in the zygote, so that its forks save a second of CPU time each."""

from __future__ import annotations


def torch_first_use() -> None:
    """One forward, backward and AdamW step on two numbers, on one thread. No random number is drawn."""
    import torch
    import torch.distributed.checkpoint
    import torch.nn.functional as functional

    torch.set_num_threads(1)
    weight = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    loss = functional.layer_norm(functional.linear(torch.ones(1, 2), weight), (2,)).sum()
    torch.autograd.backward([loss])
    optimizer.step()
    optimizer.zero_grad()
