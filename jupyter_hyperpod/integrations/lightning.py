"""The Trainer of Lightning, whose training step is a session's: one changed import, and members may come and go.

from jupyter_hyperpod.integrations.lightning import Trainer
"""

from __future__ import annotations

import inspect
import math
import os
from functools import partial
from typing import Any

import lightning.pytorch
import torch
from lightning.fabric.loggers.csv_logs import _ExperimentWriter
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities import rank_zero

from ..core.errors import SpecError, TrainingError
from ..runtime.checkpoint.store import Checkpoint
from ..runtime.program.own_files import is_own_class
from ..runtime.session.loop import Step
from ..runtime.session.session import Session
from .lightning_progress import TRAINING, LightningProgress, marked
from .lightning_refusals import refuse_arguments, refuse_module, refuse_partial_metrics
from .one_process import hide_torchrun, micro_batch_of

hide_torchrun()
REDUCED = (
    "self.log({name!r}, ...) in training_step() has a metric of torchmetrics, or a reduce_fx other than the mean; "
    "members share the mean over micro-batches. Log a number or a tensor, and compute the rest in validation_step()"
)
BATCHES = (
    "the loader has no batch_size (it has a batch sampler, or its items are batches), so the size of a step is not "
    "known; write DataLoader(data, batch_size=..., sampler=...)"
)


class _OneDevice(SingleDeviceStrategy):
    """One process, of which only rank 0 writes."""

    is_main = True

    @property
    def is_global_zero(self) -> bool:
        """Whether this process writes."""
        return self.is_main


class Trainer(lightning.pytorch.Trainer):
    """`lightning.pytorch.Trainer`, whose `fit` is an `hp.Session`: the same bits on any number of members.

    A step takes the loader's batch, times ``accumulate_grad_batches``, whatever the number of members. ``micro_batch``
    samples are computed together: by default the loader's batch where batches are accumulated, else the batch is cut
    into up to eight. ``seed`` is that of the session, ``checkpoint``, too. All other arguments are those of Lightning.
    Raises SpecError in `fit` for what cannot be kept.
    """

    callbacks: list[Any]

    def __init__(
        self,
        *,
        micro_batch: int | None = None,
        seed: int = 0,
        checkpoint: str | Checkpoint | None = None,
        **arguments: Any,
    ) -> None:
        refuse_arguments(arguments)
        accelerator = arguments.pop("accelerator", "auto")
        on_gpu = accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
        self._one_device = _OneDevice("cuda:0" if on_gpu else "cpu")
        arguments |= {"accelerator": "gpu" if on_gpu else "cpu", "devices": 1, "strategy": self._one_device}
        arguments["plugins"] = arguments.get("plugins") or [LightningEnvironment()]
        arguments["num_sanity_val_steps"] = 0
        super().__init__(**arguments)
        self._micro_batch, self._seed, self._checkpoint = micro_batch, seed, checkpoint
        self._found: dict[str, Any] | None = None  # what the training step logs for one micro-batch
        self._show_main(int(os.environ.get("RANK", "0")) == 0)
        self._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
        for logger in self.loggers:  # Lightning would number what it finds on the disk, and members would differ
            if getattr(logger, "_version", "") is None and (job := os.environ.get("HYPERPOD_JOB_ID")):
                logger._version = job  # type: ignore[attr-defined]

    def save_checkpoint(self, filepath: Any, *arguments: Any, **named: Any) -> None:
        """Write a checkpoint of Lightning's, on rank 0."""
        self._progress.saved.append(str(filepath))
        if self.is_global_zero:
            super().save_checkpoint(filepath, *arguments, **named)

    # ---- fit -------------------------------------------------------------------------------------------------------

    def fit(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        ckpt_path: Any = None,
        weights_only: bool | None = None,
    ) -> None:
        """Train, as Lightning's `fit` does."""
        refuse_arguments({"ckpt_path": ckpt_path, "precision": self.precision})
        self._progress = LightningProgress(self)
        for callback in self.callbacks:
            if isinstance(callback, ModelCheckpoint):
                callback.file_exists = partial(_was_saved, self._progress)  # type: ignore[method-assign]
        super().fit(model, train_dataloaders, val_dataloaders, datamodule, weights_only=weights_only)

    def _run_stage(self) -> Any:
        if not self.training:
            return super()._run_stage()
        module: Any = self.lightning_module
        refuse_module(self)
        module.zero_grad()
        self.fit_loop.setup_data()
        assert self.fit_loop._combined_loader is not None and self.fit_loop._data_fetcher is not None
        loader, *others = self.fit_loop._combined_loader.flattened
        if others:
            raise SpecError(f"{1 + len(others)} loaders were given to train on; put their data sets into one loader")
        together, self.accumulate_grad_batches = self.accumulate_grad_batches, 1
        self.fit_loop.max_batches = per_epoch = math.ceil(self.fit_loop.max_batches / together)
        self.fit_loop._data_fetcher.teardown()  # nothing is read from the loader itself
        self.fit_loop._data_fetcher = None
        module.log = self._collected_or(module.log)
        try:
            with self._open(loader, together) as session:
                self._fit(session, per_epoch)
        finally:
            del module.log
            self.accumulate_grad_batches = together
        return None

    def _open(self, loader: Any, together: int) -> Session:
        module: Any = self.lightning_module
        if loader.batch_size is None:
            raise SpecError(BATCHES)
        batch = loader.batch_size * together
        alone = loader.batch_size if together > 1 else micro_batch_of(batch)
        by_value = self.gradient_clip_algorithm == "value"
        session = Session(
            module,
            self.optimizers[0],
            loader,
            global_batch=batch,
            micro_batch=self._micro_batch or alone,
            seed=self._seed,
            max_grad_norm=None if by_value else self.gradient_clip_val or None,
            max_grad_value=self.gradient_clip_val or None if by_value else None,
            checkpoint=self._checkpoint,
        )
        session.register(lightning=self._progress)
        session.register(**{f"scheduler_{n}": one.scheduler for n, one in enumerate(self.lr_scheduler_configs)})
        own = [one for one in self.callbacks if is_own_class(type(one)) and vars(one)]
        session.register(**{f"callback_{number}": one for number, one in enumerate(own)})
        return session

    def _fit(self, session: Session, per_epoch: int) -> None:
        loop = self.fit_loop
        steps, epochs, most = loop.epoch_loop, self._epochs(per_epoch), self.max_steps
        self._show_main(session.is_main)
        loop.reset()
        loop.on_run_start()
        for epoch in session.epochs(epochs):
            loop.on_advance_start()
            steps.reset()
            for step in session.steps(per_epoch if most < 0 else min(per_epoch, most - epoch * per_epoch)):
                self._show_main(session.is_main)
                self._step(step, per_epoch)
                if self.should_stop and loop._can_stop_early:
                    break
            loop.on_advance_end()
            if self.should_stop and loop._can_stop_early:
                break
        loop.on_run_end()

    def _epochs(self, per_epoch: int) -> int:
        """Epochs to run: the fewer of ``max_epochs`` and of what holds ``max_steps``."""
        given = self.fit_loop.max_epochs
        limits = [given] if given is not None and given >= 0 else []
        if self.max_steps >= 0:
            limits.append(math.ceil(self.max_steps / per_epoch))
        if not limits:
            raise SpecError("max_epochs=-1 and max_steps=-1 were given, training without an end; give one of them")
        return min(limits)

    # ---- a step ----------------------------------------------------------------------------------------------------

    def _step(self, step: Step, per_epoch: int) -> None:
        loop, connector = self.fit_loop.epoch_loop, self._logger_connector
        number = loop.batch_progress.current.ready
        loop.batch_progress.is_last_batch = number + 1 >= per_epoch
        loop.batch_progress.increment_ready()
        connector.on_batch_start(None)
        call._call_callback_hooks(self, "on_train_batch_start", None, number)
        if call._call_lightning_module_hook(self, "on_train_batch_start", None, number) == -1:
            raise SpecError(
                "on_train_batch_start() returned -1, to skip an epoch: set trainer.should_stop = True instead"
            )
        loop.batch_progress.increment_started()
        self.lightning_module.train()
        loss = step.run(partial(self._loss, number))
        refuse_partial_metrics(self.lightning_module)
        done = loop.automatic_optimization.optim_progress.optimizer.step
        done.increment_ready()
        done.increment_completed()
        self._progress.log(step.metrics)
        loop.batch_progress.increment_processed()
        loop.update_lr_schedulers("step", update_plateau_schedulers=False)
        if loop._num_ready_batches_reached():
            loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        output = {"loss": torch.tensor(loss)}
        call._call_callback_hooks(self, "on_train_batch_end", output, None, number)
        call._call_lightning_module_hook(self, "on_train_batch_end", output, None, number)
        connector.on_batch_end()
        loop.batch_progress.increment_completed()
        connector.update_train_step_metrics()
        self._validate()
        loop.update_lr_schedulers("step", update_plateau_schedulers=True)
        loop._batches_that_stepped += 1

    def _validate(self) -> None:
        """Validate at the end of an epoch, on every member, with the same result."""
        loop = self.fit_loop.epoch_loop
        over = loop._num_ready_batches_reached() or (self.should_stop and self.fit_loop._can_stop_early)
        if not over or not loop._should_check_val_epoch():
            return
        self.validating = True
        before = self._logger_connector._first_loop_iter
        loop.val_loop.run()
        self.training = True
        self._logger_connector._first_loop_iter = before

    def _loss(self, number: int, batch: Any) -> Any:
        """The loss of a micro-batch, and what the module logs for it."""
        module: Any = self.lightning_module
        batch = module._on_before_batch_transfer(self.precision_plugin.convert_input(batch), dataloader_idx=0)
        batch = self._one_device.batch_to_device(batch, dataloader_idx=0)
        arguments = (batch, number) if len(inspect.signature(module.training_step).parameters) > 1 else (batch,)
        before, module._current_fx_name = module._current_fx_name, TRAINING
        self._found = {}
        try:
            with self.precision_plugin.train_step_context():
                returned = module.training_step(*arguments)
            found = self._found
        finally:
            self._found, module._current_fx_name = None, before
        loss = returned["loss"] if isinstance(returned, dict) else returned
        if loss is None:
            raise TrainingError("training_step() returned no loss; a micro-batch cannot be skipped: return 0 * loss")
        return (loss, found) if found else loss

    def _collected_or(self, log: Any) -> Any:
        """`module.log`, which in a training step keeps the value for all members' mean."""

        def collected(name: str, value: Any, *arguments: Any, **flags: Any) -> None:
            if self._found is None:
                log(name, value, *arguments, **flags)
                return
            if arguments:
                flags["prog_bar"] = arguments[0]
            if flags.get("reduce_fx", "mean") != "mean" or not isinstance(value, (int, float, torch.Tensor)):
                raise SpecError(REDUCED.format(name=name))
            self._found[marked(name, flags)] = value

        return collected

    def _show_main(self, is_main: bool) -> None:
        if is_main and not self._one_device.is_main:  # CSVLogger deletes what it finds
            _ExperimentWriter.NAME_METRICS_FILE = f"metrics-after-step-{self.global_step}.csv"
        self._one_device.is_main = is_main
        shown: Any = rank_zero
        shown.rank_zero_only.rank = 0 if is_main else 1  # where Lightning's loggers look


def _was_saved(progress: LightningProgress, filepath: Any, trainer: Any) -> bool:
    """Whether rank 0 has written a checkpoint: every member has to say the same."""
    return str(filepath) in progress.saved
