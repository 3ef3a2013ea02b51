"""What accelerate offers and a session cannot keep: refused before the first step, with what to write instead."""

from __future__ import annotations

from typing import Any

from ..core.errors import SpecError

OUTSIDE = (
    "accelerator.backward() was called outside the body of a loop over a prepared loader, so what computes the loss of "
    "a batch is not known: write it in the body of for batch in loader, or use hp.Session with step.run(...)"
)
_REFUSED = {
    "deepspeed_plugin": "leave it out: the session shares the work",
    "deepspeed_plugins": "leave it out: the session shares the work",
    "fsdp_plugin": "leave it out: the session shares the work, and --replica shards a model",
    "torch_tp_plugin": "leave it out, and see --replica",
    "megatron_lm_plugin": "leave it out, and see --replica",
    "parallelism_config": "leave it out, and see --replica",
    "dynamo_backend": "write model = torch.compile(model), and prepare that",
    "dynamo_plugin": "write model = torch.compile(model), and prepare that",
}


def refuse_arguments(arguments: dict[str, Any]) -> None:
    """Raise SpecError for the first argument that cannot be kept."""
    for name, remedy in _REFUSED.items():
        if arguments.get(name) not in (None, "no"):
            raise SpecError(f"Accelerator({name}=...) cannot be kept in a session: {remedy}")
    _refuse_precision(arguments.get("mixed_precision"))


def refuse_accelerator(accelerator: Any) -> None:
    """Raise SpecError for what the environment has chosen and cannot be kept."""
    _refuse_precision(accelerator.mixed_precision)
    if accelerator.num_processes > 1:
        raise SpecError(
            f"accelerate has begun a process group of {accelerator.num_processes}: import "
            "jupyter_hyperpod.integrations.accelerate before it"
        )


def _refuse_precision(value: Any) -> None:
    if value is not None and str(value) not in ("no", "bf16"):
        raise SpecError(
            f"mixed_precision={str(value)!r} cannot be kept in a session: write mixed_precision='bf16', which needs no "
            "scaled loss"
        )


def batch_of(loader: Any) -> int:
    """The size of a loader's batches. Raises SpecError where it is not known, or the number of batches is not."""
    if loader.given.batch_size is None:
        raise SpecError(
            "the loader has no batch_size (it has a batch sampler, or its items are batches), so the size of a step is "
            "not known; write DataLoader(data, batch_size=..., sampler=...)"
        )
    try:
        len(loader)
    except TypeError:
        raise SpecError(
            "the number of batches of the loader is not known, because its data is a stream without a length: use "
            "hp.Session, whose session.steps(n) says it"
        ) from None
    return int(loader.given.batch_size)


def refuse_prepared(accelerator: Any) -> None:
    """Raise SpecError where not a model and one optimizer were prepared."""
    if not accelerator._models:
        raise SpecError("no model was prepared: write model, optimizer, loader = accelerator.prepare(...)")
    if (count := len(accelerator._optimizers)) != 1:
        raise SpecError(
            f"{count} optimizers were prepared, and a loop over a loader steps one: use hp.Session with a list of "
            "optimizers"
        )
