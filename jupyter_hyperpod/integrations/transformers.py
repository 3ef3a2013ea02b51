"""The Trainer of transformers, whose training step is a session's: one changed import, and members may come and go.

from jupyter_hyperpod.integrations.transformers import Trainer, TrainingArguments
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from typing import Any

import torch
import transformers
from torch.utils.data import DataLoader, IterableDataset
from transformers import TrainingArguments as TrainingArguments
from transformers.trainer_callback import ProgressCallback
from transformers.trainer_utils import TrainOutput, speed_metrics

from ..runtime.checkpoint.store import Checkpoint
from ..runtime.program.own_files import is_own_class
from ..runtime.session.loop import Step
from ..runtime.session.session import Session
from .best_checkpoint import BestCheckpoint, refuse_temporary
from .one_process import hide_torchrun, micro_batch_of
from .refusals import refuse_arguments
from .trainer_state import TrainerProgress

hide_torchrun()  # before the arguments are made


# what a Trainer is given, and what `TrainerProgress` carries: callbacks may hold them
ALIKE = ("state", "control", "callback_handler", "accelerator", "train_dataset", "eval_dataset", "processing_class")


class Progress(ProgressCallback):
    """The bar of the process that shows it, which may be another one after a loss."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Move the bar; begin one where this process has become rank 0."""
        bar: Any = self.training_bar
        if state.is_world_process_zero and bar is None:
            self.on_train_begin(args, state, control)
        super().on_step_end(args, state, control, **kwargs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the bar, where this process has one."""
        bar: Any = self.training_bar
        if bar is not None:
            super().on_train_end(args, state, control, **kwargs)


class Trainer(transformers.Trainer):
    """`transformers.Trainer` in an `hp.Session`: the same bits on any number of members.

    A step takes ``per_device_train_batch_size * gradient_accumulation_steps`` samples, whatever the number of members.
    ``micro_batch`` samples are computed together; by default as many as one device takes where gradients are
    accumulated, else the batch is cut into up to eight. ``checkpoint`` is that of `hp.Session`. All other arguments
    are those of `transformers.Trainer`. Raises SpecError in `train` for arguments that cannot be kept.
    """

    model: Any
    optimizer: Any
    lr_scheduler: Any
    train_dataset: Any

    def __init__(
        self, *args: Any, micro_batch: int | None = None, checkpoint: str | Checkpoint | None = None, **kwargs: Any
    ) -> None:
        self._micro_batch = micro_batch
        self._checkpoint = checkpoint
        self._session: Session | None = None
        self._is_main = True
        super().__init__(*args, **kwargs)
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(Progress())

    # ---- what transformers calls ------------------------------------------------------------------------------------

    def is_world_process_zero(self) -> bool:
        """Whether this is rank 0, which writes: it may be another process after a loss."""
        return self._is_main

    is_local_process_zero = is_world_process_zero

    def compute_loss_context_manager(self) -> ExitStack:
        """Mixed precision, which accelerate would otherwise put into the model."""
        stack: ExitStack = super().compute_loss_context_manager()
        stack.enter_context(self.accelerator.autocast())
        return stack

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model, on rank 0."""
        if self._is_main:
            super().save_model(output_dir, _internal_call)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Write a checkpoint on rank 0; the others note what it would say of the best one."""
        self._best.saved()
        if self._is_main:
            super()._save_checkpoint(model, trial)
        elif self.state.best_global_step == self.state.global_step:
            self.state.best_model_checkpoint = f"{self.args.output_dir}/checkpoint-{self.state.global_step}"

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: TrainingArguments | None = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        refuse_arguments(self, resume_from_checkpoint, trial)
        refuse_temporary(self.args)
        self._best = BestCheckpoint(self.args)
        loader = self._loader()
        epochs, per_epoch, _, samples, _, _, total = self.set_initial_training_values(self.args, loader)
        self._init_training_state(total, per_epoch, epochs, None, None)
        self.state.train_batch_size = self.args.per_device_train_batch_size
        if self._created_lr_scheduler:
            self.lr_scheduler, self._created_lr_scheduler = None, False
        self.create_optimizer()
        self.create_scheduler(num_training_steps=total)
        self.model_wrapped = self.model
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.callback_handler.train_dataloader = loader
        if self.model not in self.accelerator._models:
            self.accelerator._models.append(self.model)  # it is not to be wrapped for evaluation either
        began_s = time.time()
        with self._open(loader) as session:
            self._train(session, epochs, per_epoch, total, ignore_keys_for_eval)
            if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
                session.evaluate(lambda _: 0.0, [0], name="checkpoint_written")  # by rank 0, which all wait for
        self._session = None
        return self._finish(began_s, samples)

    # ---- the session ------------------------------------------------------------------------------------------------

    def _loader(self) -> DataLoader[Any]:
        """The data as the arguments describe it; nothing is read from this loader itself."""
        args, data, collate = self.args, self.train_dataset, self.data_collator
        if type(data).__module__.partition(".")[0] == "datasets":
            data = self._remove_unused_columns(data, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")
        settings: dict[str, Any] = {"num_workers": args.dataloader_num_workers, "collate_fn": collate}
        if args.dataloader_num_workers and args.dataloader_prefetch_factor:
            settings["prefetch_factor"] = args.dataloader_prefetch_factor
        if not isinstance(data, IterableDataset):
            settings |= {"sampler": self._get_train_sampler(data), "drop_last": args.dataloader_drop_last}
        return DataLoader(data, batch_size=args.per_device_train_batch_size, **settings)

    def _open(self, loader: DataLoader[Any]) -> Session:
        args = self.args
        batch = args.per_device_train_batch_size * args.gradient_accumulation_steps
        alone = args.gradient_accumulation_steps == 1
        by_metric = not isinstance(self.lr_scheduler, torch.optim.lr_scheduler.LRScheduler) or isinstance(
            self.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau
        )
        session = Session(
            self.model,
            self.optimizer,
            loader,
            global_batch=batch,
            micro_batch=self._micro_batch or (micro_batch_of(batch) if alone else args.per_device_train_batch_size),
            seed=args.seed if args.data_seed is None else args.data_seed,
            max_grad_norm=args.max_grad_norm or None,
            scheduler=None if by_metric else self.lr_scheduler,
            checkpoint=self._checkpoint,
        )
        if by_metric:
            session.register(lr_scheduler=self.lr_scheduler)
        self._progress = TrainerProgress(self.state, self.control, self.callback_handler.callbacks)
        session.register(trainer=self._progress)
        own = [one for one in self.callback_handler.callbacks if is_own_class(type(one)) and vars(one)]
        session.leave_out(self, self.args, *(getattr(self, name, None) for name in ALIKE))
        session.register(**{f"callback_{number}": one for number, one in enumerate(own)})
        self._session = session
        self._show_main()
        return session

    def _train(self, session: Session, epochs: int, per_epoch: int, total: int, ignored: list[str] | None) -> None:
        args, handler = self.args, self.callback_handler
        self.control = handler.on_train_begin(args, self.state, self.control)
        for epoch in session.epochs(epochs):
            self._show_main()
            self.control = handler.on_epoch_begin(args, self.state, self.control)
            for step in session.steps(min(per_epoch, total - epoch * per_epoch)):
                self._step(step, epoch, per_epoch)
                self._log_save_evaluate(ignored)
                if self.control.should_epoch_stop or self.control.should_training_stop:
                    break
            self.control = handler.on_epoch_end(args, self.state, self.control)
            self._log_save_evaluate(ignored)
            if self.control.should_training_stop:
                break

    def _step(self, step: Step, epoch: int, per_epoch: int) -> None:
        args, handler, progress = self.args, self.callback_handler, self._progress
        self._show_main()
        self.control = handler.on_step_begin(args, self.state, self.control)
        self.model.train()
        if callable(begin := getattr(self.optimizer, "train", None)):
            begin()
        self._rate = self._get_learning_rate()
        progress.loss_sum += step.run(self._loss)
        self._best.look()
        self.control = handler.on_optimizer_step(args, self.state, self.control)
        self.state.global_step += 1
        self.state.epoch = epoch + (self.state.global_step - epoch * per_epoch) / per_epoch
        self._show_main()
        self.control = handler.on_step_end(args, self.state, self.control)

    def _loss(self, batch: Any) -> Any:
        """The loss of a micro-batch, with the number of its labels where the Trainer weighs by them."""
        inputs = self._prepare_inputs(batch)
        items = self._get_num_items_in_batch([inputs], self.args.device)
        count = None if items is None else int(items)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(self.model, inputs, num_items_in_batch=None if count is None else max(1, count))
        return loss if count is None else (loss * count, count)

    def _log_save_evaluate(self, ignored: list[str] | None) -> None:
        """Log, evaluate and save where the callbacks want it. What is logged are losses of the global batch."""
        state, progress = self.state, self._progress
        if self.control.should_log and state.global_step > progress.logged_step:
            loss = progress.loss_sum / (state.global_step - progress.logged_step)
            progress.total_loss += progress.loss_sum
            progress.loss_sum, progress.logged_step = 0.0, state.global_step
            self.log({"loss": loss, "learning_rate": self._rate})
        if self.control.should_evaluate:
            best = self._determine_best_metric(metrics=self._evaluate(None, ignored), trial=None)
            if self.args.save_strategy == "best":
                self.control.should_save = best
        if self.control.should_save:
            self._save_checkpoint(self.model, None)
            self.control = self.callback_handler.on_save(self.args, state, self.control)

    def _show_main(self) -> None:
        """Say to the callbacks whether this process is rank 0 now; loggers may begin a run then."""
        assert self._session is not None
        before, self._is_main = self._is_main, self._session.is_main
        for callback in self.callback_handler.callbacks if self._is_main and not before else ():
            if getattr(callback, "_initialized", False) and callable(getattr(callback, "setup", None)):
                callback._initialized = False  # as of W&B and MLflow: they call setup() at the next line of the log
        self.state.is_world_process_zero = self.state.is_local_process_zero = self._is_main

    def _finish(self, began_s: float, samples: float) -> TrainOutput:
        progress, steps = self._progress, self.state.global_step
        loss = (progress.total_loss + progress.loss_sum) / max(steps, 1)
        metrics = speed_metrics("train", began_s, num_samples=math.ceil(samples), num_steps=steps)
        self.log(metrics | {"train_loss": loss})
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._best.wait_for(self.state.best_model_checkpoint)
            self._load_best_model()
        self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
        self.is_in_train = False
        return TrainOutput(steps, loss, metrics | {"train_loss": loss})
