"""What Lightning's Trainer keeps beside its module: counters, metrics and callbacks, as plain values that travel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback

# of Lightning's callbacks: times, and what differs among members without a consequence
_LEFT_OUT = frozenset({"_last_time_checked", "_log_rank_zero_only", "verbose"})
_METRICS = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
_FLAGS = ("prog_bar", "logger", "on_step", "on_epoch", "reduce_fx")
TRAINING = "training_step"  # the hook that logs
WEIGHT = "cumulated_batch_size"
FOLDER = "\0folder"


class LightningProgress:
    """The place of a run in Lightning's loops. ``flags``: how each metric of a training step is logged, by its name.

    ``saved``: the paths of the checkpoints that rank 0 has written.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.flags: dict[str, dict[str, Any]] = {}
        self.saved: list[str] = []
        self._callbacks = [one for one in trainer.callbacks if type(one).state_dict is not Callback.state_dict]

    def state_dict(self) -> dict[str, Any]:
        """Everything as numbers, text, tensors and containers."""
        trainer, connector = self._trainer, self._trainer._logger_connector
        return {
            "counters": {name: _plain(one.state_dict()) for name, one in self._counters().items()},
            "stepped": trainer.fit_loop.epoch_loop._batches_that_stepped,
            "should_stop": bool(trainer.should_stop),
            "metrics": {name: _plain(getattr(connector, name)) for name in _METRICS},
            "flags": {name: dict(flags) for name, flags in self.flags.items()},
            "sums": self._sums(),
            "saved": self._moved(self.saved, out=True),
            "callbacks": [self._moved(_of_callback(one), out=True) for one in self._callbacks],
        }

    def load_state_dict(self, found: Mapping[str, Any]) -> None:
        """Put a state into Lightning's loops, metrics and callbacks."""
        trainer, connector = self._trainer, self._trainer._logger_connector
        for name, one in self._counters().items():
            one.load_state_dict(found["counters"][name])
        trainer.fit_loop.epoch_loop._batches_that_stepped = found["stepped"]
        trainer.should_stop = found["should_stop"]
        for name in _METRICS:
            setattr(connector, name, dict(found["metrics"][name]))
        self.flags = {name: dict(flags) for name, flags in found["flags"].items()}
        self.saved[:] = self._moved(found["saved"], out=False)
        for callback, attributes in zip(self._callbacks, found["callbacks"], strict=True):
            for name, value in self._moved(attributes, out=False).items():
                setattr(callback, name, value)
        self._load_sums(found["sums"])

    def log(self, values: Mapping[str, Any]) -> None:
        """Log the metrics of a training step as the module asked for them."""
        module = self._trainer.lightning_module
        before, module._current_fx_name = module._current_fx_name, TRAINING
        try:
            for key, value in values.items():
                name, flags = _read(key)
                self.flags.setdefault(name, flags)
                module.log(name, value, **(self.flags[name] | {"batch_size": 1}))
        finally:
            module._current_fx_name = before

    def _moved(self, value: Any, out: bool) -> Any:
        """The value, with the folders of checkpoints taken ``out`` of its paths or put in: each member has its own."""
        if isinstance(value, dict):
            return {self._moved(name, out): self._moved(one, out) for name, one in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._moved(one, out) for one in value)
        if not isinstance(value, str):
            return value
        for number, callback in enumerate(self._callbacks):
            if folder := getattr(callback, "dirpath", None):
                mark = f"{FOLDER}{number}"
                value = value.replace(str(folder), mark) if out else value.replace(mark, str(folder))
        return value

    def _counters(self) -> dict[str, Any]:
        loop = self._trainer.fit_loop
        steps = loop.epoch_loop
        return {
            "epoch": loop.epoch_progress,
            "batch": steps.batch_progress,
            "scheduler": steps.scheduler_progress,
            "optimizer": steps.automatic_optimization.optim_progress,
            "validation": steps.val_loop.batch_progress,
        }

    def _sums(self) -> dict[str, list[Any]]:
        """The metrics of the present epoch so far: value, weight and the last step's value, by Lightning's key."""
        results = self._trainer.fit_loop.epoch_loop._results
        return {
            key: [_plain(one.value), _plain(getattr(one, WEIGHT, None)), _plain(one._forward_cache)]
            for key, one in results.items()
            if key.startswith(f"{TRAINING}.") and not one.has_reset
        }

    def _load_sums(self, sums: Mapping[str, list[Any]]) -> None:
        """Begin the metrics of an epoch where the other members are."""
        trainer = self._trainer
        results, connector = trainer.fit_loop.epoch_loop._results, trainer._logger_connector
        results.clear()
        if not sums or not trainer.fit_loop.epoch_loop.batch_progress.current.ready:
            connector._first_loop_iter = None
            return
        self.log({marked(name, flags): 0.0 for name, flags in self.flags.items()})
        for key, (value, weight, last) in sums.items():
            one = results[key]
            one.value, one._forward_cache, one._computed = value, last, None
            if weight is not None:
                setattr(one, WEIGHT, weight)
        connector._first_loop_iter, connector._current_fx = False, TRAINING


def marked(name: str, flags: Mapping[str, Any]) -> str:
    """The name of a metric and how it is logged: a member without a micro-batch learns both from the others."""
    kept = {flag: flags[flag] for flag in _FLAGS if flags.get(flag) is not None}
    return f"{name} {json.dumps(kept)}" if kept else name


def _read(key: str) -> tuple[str, dict[str, Any]]:
    name, found, flags = key.partition(" {")
    return name, json.loads("{" + flags) if found else {}


def _of_callback(callback: Any) -> dict[str, Any]:
    return {name: _plain(value) for name, value in vars(callback).items() if name not in _LEFT_OUT and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(one) for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, torch.Tensor))


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return value
