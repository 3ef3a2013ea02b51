"""Makes a micro-batch a pure function of (seed, step, index): seeds generators, and refuses impure models."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from ...core.errors import SpecError, TrainingError
from ...core.units import plural
from .turns import AnyOptimizer

CPU = torch.device("cpu")


@cache
def _has_accelerator() -> bool:
    return torch.cuda.is_available() or torch.accelerator.is_available()


def _seed_torch(seed: int) -> None:
    """As `torch.manual_seed`, which without an accelerator spends 0.1 ms on noting where it was called."""
    if _has_accelerator():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@contextmanager
def seeded(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """Seed the generators of torch, Python and (where it is loaded) numpy; restore all of them afterwards.

    ``device``: the model's device besides the CPU.
    """
    numpy: Any = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]):
        _seed_torch(seed)
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed & 0xFFFFFFFF)
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)


class Buffers:
    """The model's persistent buffers: part of its state, so a micro-batch must not change them."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._any = bool(self._found())

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Raise TrainingError if what runs inside changes a buffer: which members see it would depend on the plan."""
        if not self._any:
            yield
            return
        before = self._found()
        yield
        for name, seen in self._found().items():
            if before.get(name) != seen:
                raise TrainingError(
                    f"the model's buffer {name!r} was changed by a micro-batch, so it would depend on who computes "
                    "which: keep what a micro-batch leaves in a lane, lanes = session.lanes(...), and change the "
                    "buffer after step.run(), from lanes[0], lanes[1] and so on; or register it with persistent=False "
                    "if it is only a cache"
                )

    def _found(self) -> dict[str, tuple[int, int]]:
        buffers = dict(self._model.named_buffers())
        kept = self._model.state_dict(keep_vars=True).keys() & buffers.keys()
        return {name: (id(buffers[name]), buffers[name]._version) for name in sorted(kept)}


def fit_buffers(model: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Let the model take the buffers of a state: the program may set one that was None, or give it another shape."""
    own = model.state_dict(keep_vars=True)
    other = [name for name in {**own, **state} if not _is_like(own.get(name), state.get(name))]
    modules = dict(model.named_modules()) if other else {}
    for name in other:
        place, _, leaf = name.rpartition(".")
        if place in modules and leaf in (buffers := modules[place]._buffers):
            there = state.get(name)
            device = next((p.device for p in model.parameters()), CPU)  # a loss function may have none
            buffers[leaf] = torch.empty_like(there, device=device) if isinstance(there, torch.Tensor) else None


def _is_like(one: Any, other: Any) -> bool:
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return False
    return one.shape == other.shape and one.dtype == other.dtype


def refuse_unfit_layers(model: torch.nn.Module) -> None:
    """Raise TrainingError for layers whose result or whose weights depend on more than a micro-batch."""
    for name, module in model.named_modules():
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.max_norm is not None:
            raise TrainingError(
                f"{name or 'the model'} is an {type(module).__name__} with max_norm={module.max_norm}, which scales "
                "weights in forward(), those of the samples that a member computes: leave max_norm out, and scale them "
                f"after step.run(): `with torch.no_grad(): embedding.weight.renorm_({module.norm_type:g}, 0, "
                f"{module.max_norm})`"
            )
        if isinstance(module, torch.nn.SyncBatchNorm):
            raise TrainingError(
                f"{name or 'the model'} is a SyncBatchNorm, which normalises over all processes, and the micro-batches "
                "of a step are computed one after the other: use BatchNorm, which normalises over its micro-batch, "
                "with a micro_batch of enough samples, or GroupNorm or LayerNorm"
            )


def trained_parameters(
    model: torch.nn.Module, optimizer: AnyOptimizer, unfreezes: bool = False
) -> list[torch.nn.Parameter]:
    """The parameters whose gradients are reduced, in the model's order: those that are frozen, too, where the cell
    ``unfreezes`` some.

    Raises SpecError where there is none, or where the optimizer holds a parameter outside the model: its gradient would
    come from this member's micro-batches alone. Raises TrainingError for unsupported devices.
    """
    held = [p for group in optimizer.param_groups for p in group["params"]]
    chosen = {id(p) for p in held if p.requires_grad or unfreezes}
    parameters = [p for p in model.parameters() if id(p) in chosen]
    if not any(p.requires_grad for p in parameters):
        raise SpecError("the optimizer holds no parameter of the model that requires a gradient")
    if foreign := len(chosen) - len(parameters):
        raise SpecError(
            f"the optimizer holds {plural(foreign, 'parameter')} of another module; put everything that is "
            "trained into one module, for example torch.nn.ModuleList([model, head])"
        )
    devices = {str(p.device) for p in parameters}
    if len(devices) > 1 or parameters[0].device.type not in ("cpu", "cuda"):
        raise TrainingError(
            f"the parameters are on {', '.join(sorted(devices))}; expected all on the CPU, or all on one CUDA device"
        )
    return parameters
