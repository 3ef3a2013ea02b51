"""Arguments of a Trainer that a session cannot keep: refused before the first step, with what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers

from ..core.errors import SpecError

RESUME = (
    "resume_from_checkpoint was given: a session continues from checkpoints of its own, which hold the place in the "
    "data, too. Write Trainer(..., checkpoint='shared://runs/name') and train() without resume_from_checkpoint"
)
TRIAL = "hyperparameter_search() trains several models in one process; submit one job per trial instead"
# the argument, whether its value is refused, and what to do
_REFUSED: tuple[tuple[str, Callable[[Any], Any], str], ...] = (
    ("deepspeed", bool, "leave it out: the session shares the work"),
    ("fsdp", bool, "leave it out: the session shares the work, and --replica shards a model"),
    ("fp16", bool, "write bf16=True, which needs no scaled loss"),
    ("torch_compile", bool, "write model = torch.compile(model), and give that to the Trainer"),
    ("auto_find_batch_size", bool, "leave it out; Trainer(..., micro_batch=1) saves memory"),
    ("push_to_hub", bool, "leave it out, and call trainer.push_to_hub() after training"),
    ("neftune_noise_alpha", bool, "leave it out, and add the noise in the model's forward()"),
    ("include_num_input_tokens_seen", lambda value: value not in (False, "no"), "leave it out"),
    ("eval_on_start", bool, "leave it out, and call trainer.evaluate() before train()"),
    ("train_sampling_strategy", lambda value: value == "batch_rebalance", "write 'group_by_length' or 'random'"),
)
_METHODS = {
    "training_step": "write compute_loss(), which the session calls for each micro-batch",
    "get_train_dataloader": "give the Trainer the data set, a data_collator, and _get_train_sampler()",
    "get_batch_samples": "give the Trainer the data set and a data_collator",
    "optimizer_step": "the session steps the optimizer",
}
_HOOKS = {
    "on_pre_optimizer_step": "gradients are reduced among members; look at the weights in on_step_end()",
    "on_substep_end": "members compute micro-batches apart; write on_step_end()",
}


def refuse_arguments(trainer: Any, resume_from_checkpoint: str | None, trial: Any) -> None:
    """Raise SpecError for the first argument that cannot be kept."""
    if resume_from_checkpoint is not None:
        raise SpecError(RESUME)
    if trial is not None:
        raise SpecError(TRIAL)
    if trainer.args.world_size > 1:
        raise SpecError(
            f"accelerate has begun a process group of {trainer.args.world_size}: import "
            "jupyter_hyperpod.integrations.transformers before TrainingArguments are made"
        )
    for name, is_refused, remedy in _REFUSED:
        value = getattr(trainer.args, name, None)
        if is_refused(value):
            raise SpecError(f"TrainingArguments({name}={value!r}) cannot be kept in a session: {remedy}")
    _refuse_overridden(trainer)


def _refuse_overridden(trainer: Any) -> None:
    for name, remedy in _METHODS.items():
        if getattr(type(trainer), name, None) is not getattr(transformers.Trainer, name, None):
            raise SpecError(f"{type(trainer).__name__} has its own {name}(), which would not be called: {remedy}")
    for callback in trainer.callback_handler.callbacks:
        for name, remedy in _HOOKS.items():
            if getattr(type(callback), name) is not getattr(transformers.TrainerCallback, name):
                raise SpecError(f"the callback {type(callback).__name__} has {name}(), which is not called: {remedy}")
