"""Runs slow first uses of libraries once before forks, so that each of them saves a second of CPU time.

The zygote of a local cluster does that for all jobs, elsewhere an agent for its workers.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

from ...system.diagnostics import note

TRAINS = re.compile(r"\b(?:Session|\w*[Oo]ptim\w*|\w*Trainer|[Aa]ccelerat\w+)\b")
SESSION = "jupyter_hyperpod.runtime.session.session"


def before_forks(cell: Path) -> None:
    """Where the source of a cell trains with torch, let its workers, and those that replace them, find that warm."""
    torch = sys.modules.get("torch")
    if torch is None or "torch._dynamo" in sys.modules:
        return
    threads = torch.get_num_threads()
    try:
        if not TRAINS.search(cell.read_text(errors="replace")):
            return
        torch_first_use()
        importlib.import_module(SESSION)
    except Exception as error:  # whatever is missing here, the cell can do without it, or says so itself
        note(f"{cell.name} begins without torch being warm: {error!r}")
    finally:
        torch.set_num_threads(threads)


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
