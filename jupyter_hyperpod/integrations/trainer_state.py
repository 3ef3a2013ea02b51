"""What a Trainer keeps beside its model: its progress, log and callbacks, as plain values that travel to newcomers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import TrainerControl, TrainerState
from transformers.trainer_callback import ExportableState

# which process logs is no part of the run; stateful callbacks are written out below
_LEFT_OUT = frozenset({"is_local_process_zero", "is_world_process_zero", "stateful_callbacks"})
_TIMES = ("_runtime", "_per_second", "_preparation_time")


class TrainerProgress:
    """The state of a Trainer and of its callbacks. ``loss_sum``: of the losses since the last line of the log."""

    def __init__(self, state: TrainerState, control: TrainerControl, callbacks: list[Any]) -> None:
        self.state = state
        self.control = control
        self.callbacks = [callback for callback in callbacks if isinstance(callback, ExportableState)]
        self.loss_sum = 0.0
        self.total_loss = 0.0
        self.logged_step = state.global_step

    def state_dict(self) -> dict[str, Any]:
        """Everything as numbers, text and containers; times are left out, because they differ among members."""
        return {
            "state": {name: value for name, value in vars(self.state).items() if name not in _LEFT_OUT}
            | {"log_history": [_without_times(line) for line in self.state.log_history]},
            "control": {name: bool(value) for name, value in vars(self.control).items()},
            "callbacks": [dict(callback.state()["attributes"]) for callback in self.callbacks],
            "sums": [self.loss_sum, self.total_loss, self.logged_step],
        }

    def load_state_dict(self, found: Mapping[str, Any]) -> None:
        """Put a state into the objects, which others hold, too."""
        own = len(self.state.log_history)
        log = self.state.log_history + [dict(line) for line in found["state"]["log_history"][own:]]
        _set(self.state, found["state"] | {"log_history": log[: len(found["state"]["log_history"])]})
        _set(self.control, found["control"])
        for callback, attributes in zip(self.callbacks, found["callbacks"], strict=True):
            _set(callback, attributes)
        self.loss_sum, self.total_loss, self.logged_step = found["sums"]


def _set(target: object, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(target, name, value)


def _without_times(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if not name.endswith(_TIMES)}
