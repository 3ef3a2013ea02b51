"""What Lightning offers and a session cannot keep: refused before the first step, with what to write instead."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.utilities.model_helpers import is_overridden

from ..core.errors import SpecError

_HOOKS = {
    "backward": "the session calls backward()",
    "optimizer_step": "the session steps the optimizer",
    "optimizer_zero_grad": "the session zeroes the gradients",
    "configure_gradient_clipping": "write Trainer(gradient_clip_val=...)",
    "on_before_optimizer_step": "gradients are reduced among members; look at the weights in on_train_batch_end()",
    "on_before_backward": "the session calls backward(); do its work in training_step()",
    "on_before_zero_grad": "the session zeroes the gradients",
    "on_after_backward": "gradients are reduced among members; look at the weights in on_train_batch_end()",
}
_CALLBACKS = {
    "StochasticWeightAveraging": "keep an average in the module, torch.optim.swa_utils.AveragedModel",
    "WeightAveraging": "keep an average in the module, torch.optim.swa_utils.AveragedModel",
    "EMAWeightAveraging": "keep an average in the module, torch.optim.swa_utils.AveragedModel",
    "GradientAccumulationScheduler": "the batch must stay the same: write accumulate_grad_batches=...",
    "BackboneFinetuning": "give the optimizer all parameters first, and freeze some",
    "Timer": "members' clocks differ: write max_steps=... or max_epochs=...",
    "BatchSizeFinder": "the batch must not depend on the device",
    "LearningRateFinder": "call it before, with Lightning's own Trainer",
}


def refuse_arguments(arguments: dict[str, Any]) -> None:
    """Raise SpecError for the first argument that cannot be kept."""
    kept: dict[str, tuple[tuple[Any, ...], str]] = {
        "strategy": (("auto", None), "the session shares the work: leave it out"),
        "devices": (("auto", None, 1, "1"), "a member has one device: leave it out, and submit with --nodes"),
        "num_nodes": ((None, 1), "leave it out, and submit with --nodes"),
        "ckpt_path": ((None,), "write Trainer(..., checkpoint='shared://runs/name')"),
        "gradient_clip_algorithm": ((None, "norm", "value"), "write 'norm' or 'value'"),
        "val_check_interval": ((None, 1.0), "validate at the end of an epoch: leave it out"),
        "overfit_batches": ((None, 0, 0.0), "write limit_train_batches=..."),
        "reload_dataloaders_every_n_epochs": ((None, 0), "leave it out"),
        "precision": (
            (None, 32, "32", "32-true", "bf16-mixed", "bf16", "bf16-true", 64, "64-true"),
            "write 'bf16-mixed'",
        ),
        "max_time": ((None,), "members' clocks differ: write max_steps=... or max_epochs=..."),
    }
    for name, (values, remedy) in kept.items():
        if arguments.get(name) not in values:
            raise SpecError(f"{name}={arguments[name]!r} cannot be kept in a session: {remedy}")
    if arguments.get("accelerator", "auto") not in ("auto", "cpu", "gpu", "cuda"):
        raise SpecError(f"accelerator={arguments['accelerator']!r} is not supported; expected 'cpu' or 'gpu'")


def refuse_module(trainer: Any) -> None:
    """Raise SpecError for a module, a loader or a callback that cannot be kept."""
    module = trainer.lightning_module
    if not module.automatic_optimization:
        raise SpecError(
            "the module optimizes by hand (automatic_optimization=False): use hp.Session with a list of optimizers"
        )
    if len(trainer.optimizers) != 1:
        raise SpecError(f"configure_optimizers() gave {len(trainer.optimizers)} optimizers; expected one")
    for name, remedy in _HOOKS.items():
        if is_overridden(name, module):
            raise SpecError(f"the module has its own {name}(), which would not be called: {remedy}")
    for callback in trainer.callbacks:
        if instead := _CALLBACKS.get(type(callback).__name__):
            raise SpecError(f"the callback {type(callback).__name__} cannot be kept in a session: {instead}")
        for name, remedy in _HOOKS.items():
            if getattr(type(callback), name, None) is not getattr(Callback, name, None):
                raise SpecError(
                    f"the callback {type(callback).__name__} has {name}(), which would not be called: {remedy}"
                )


def refuse_partial_metrics(module: Any) -> None:
    """Raise SpecError for a metric of torchmetrics that the training step updated."""
    for name, one in module.named_modules():
        if getattr(one, "update_called", False):
            raise SpecError(
                f"training_step() updates the metric {name!r}, and each member has only a part of the samples: log a "
                "number, such as one of torchmetrics.functional; metrics may stay in validation_step()"
            )
