"""A Trainer in a session, outside a job: what it refuses, and that it is the Trainer of transformers in all else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import SpecError, TrainingError
from jupyter_hyperpod.system.addresses import SOCKETS_ONLY_VARIABLE

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import TrainerCallback

    from jupyter_hyperpod.integrations.best_checkpoint import BestCheckpoint, refuse_temporary
    from jupyter_hyperpod.integrations.transformers import Trainer, TrainingArguments
from jupyter_hyperpod.integrations.one_process import micro_batch_of


class Line(torch.nn.Module):
    """A model as people write it for the Trainer: it returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": ((x * self.weight - labels) ** 2).mean(), "logits": x * self.weight}


SAMPLES = [{"x": float(number), "labels": 2.0 * number} for number in range(12)]


def trainer(directory: Path, settings: dict[str, Any] | None = None, **more: Any) -> Trainer:
    given: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "learning_rate": 1e-2,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": 1,
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
    }
    arguments = TrainingArguments(output_dir=str(directory), **(given | (settings or {})))
    return Trainer(model=Line(), args=arguments, train_dataset=SAMPLES, **more)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"torch_compile": True}, r"torch_compile=True.*model = torch.compile\(model\)"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size=True"),
        ({"eval_on_start": True, "eval_strategy": "no"}, "eval_on_start=True"),
        ({"include_num_input_tokens_seen": True}, "include_num_input_tokens_seen"),
        ({"train_sampling_strategy": "batch_rebalance"}, "'group_by_length' or 'random'"),
    ],
)
def test_arguments_that_cannot_be_kept_are_refused(tmp_path: Path, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        trainer(tmp_path, settings).train()


def test_methods_and_hooks_that_would_not_be_called_are_refused(tmp_path: Path) -> None:
    class Stepping(Trainer):
        def training_step(self, *given: Any, **named: Any) -> torch.Tensor:
            return super().training_step(*given, **named)

    class Looking(TrainerCallback):
        def on_pre_optimizer_step(self, *given: Any, **named: Any) -> None: ...

    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    with pytest.raises(SpecError, match=r"Stepping has its own training_step\(\).*compute_loss"):
        Stepping(model=Line(), args=arguments, train_dataset=SAMPLES).train()
    with pytest.raises(SpecError, match=r"the callback Looking has on_pre_optimizer_step\(\)"):
        trainer(tmp_path, callbacks=[Looking()]).train()


def test_its_own_checkpoints_are_refused_with_what_to_write(tmp_path: Path) -> None:
    first = trainer(tmp_path, {"save_strategy": "epoch"})
    first.train()
    with pytest.raises(SpecError, match=r"Trainer\(\.\.\., checkpoint="):
        trainer(tmp_path).train(resume_from_checkpoint=True)


BEST = {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"}


def test_the_best_model_is_not_loaded_from_a_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each member of a job would have another one; outside a job there is one member."""
    with tempfile.TemporaryDirectory() as private:
        refuse_temporary(TrainingArguments(output_dir=private, **BEST))
        monkeypatch.setattr("jupyter_hyperpod.integrations.best_checkpoint.members_join", lambda: True)
        for folder in (private, f"{private}/model"):
            with pytest.raises(SpecError, match=f"{folder}.*is a temporary folder, which each member has for itself"):
                refuse_temporary(TrainingArguments(output_dir=folder, **BEST))
        refuse_temporary(TrainingArguments(output_dir=private))
    shared = TrainingArguments(output_dir="/tmp/tmp_trainer", **BEST)
    refuse_temporary(shared)
    monkeypatch.setenv(SOCKETS_ONLY_VARIABLE, "1")  # nodes are machines, and each has a folder for temporary files
    with pytest.raises(SpecError, match="is a temporary folder"):
        refuse_temporary(shared)


def test_a_member_that_does_not_see_what_rank_0_writes_says_so(tmp_path: Path) -> None:
    best = BestCheckpoint(TrainingArguments(output_dir=str(tmp_path / "runs"), **BEST), patience_s=0.0)
    best.look()
    best.saved()
    with pytest.raises(TrainingError, match=f"sees none there after 0 s.*{re.escape('output_dir=...')}"):
        best.look()
    with pytest.raises(TrainingError, match="checkpoint-3"):
        best.wait_for(str(tmp_path / "runs" / "checkpoint-3"))
    (tmp_path / "runs" / "checkpoint-3").mkdir(parents=True)
    best.look()
    best.wait_for(str(tmp_path / "runs" / "checkpoint-3"))


def test_it_continues_from_a_checkpoint_of_the_session(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "a", {"num_train_epochs": 4})
    whole.train()
    broken = trainer(
        tmp_path / "b", {"num_train_epochs": 4}, checkpoint=hp.Checkpoint(str(tmp_path / "kept"), every_steps=2)
    )
    broken.add_callback(_broken_at(8))
    with pytest.raises(RuntimeError, match="the power is off"):
        broken.train()
    again = trainer(tmp_path / "c", {"num_train_epochs": 4}, checkpoint=str(tmp_path / "kept"))
    again.train()
    assert again.state.global_step == whole.state.global_step == 12
    assert torch.equal(again.model.weight, whole.model.weight)
    losses = [line["loss"] for line in again.state.log_history if "loss" in line]
    assert losses == [line["loss"] for line in whole.state.log_history if "loss" in line]


def test_the_result_does_not_depend_on_how_a_step_is_cut(tmp_path: Path) -> None:
    """Weighted by labels, as the Trainer weighs them."""
    found = []
    for micro_batch in (1, 2, 4):
        one = trainer(tmp_path, micro_batch=micro_batch)
        one.train()
        found.append(one.model.weight.item())
    assert found == pytest.approx([found[0]] * 3, rel=1e-6)


def test_tensorboard_gets_the_losses_once(tmp_path: Path) -> None:
    one = trainer(tmp_path, {"report_to": "tensorboard"})
    one.train()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(next(tmp_path.glob("**/events.out.*")).parent))
    events.Reload()
    shown = [scalar.value for scalar in events.Scalars("train/loss")]
    assert shown == pytest.approx([line["loss"] for line in one.state.log_history if "loss" in line])


def test_loggers_begin_a_run_where_another_process_becomes_rank_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of W&B and MLflow, which open their run in setup(), on rank 0 alone."""
    seen: list[str] = []

    class Tracker(TrainerCallback):
        _initialized = False

        def setup(self, args: Any, state: Any, model: Any) -> None:
            self._initialized = True
            seen.append(f"begun at {state.global_step}" if state.is_world_process_zero else "not begun")

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.on_log(args, state, control)

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if not self._initialized:
                self.setup(args, state, None)

    one = trainer(tmp_path, callbacks=[Tracker()])
    monkeypatch.setattr(hp.Session, "is_main", property(lambda session: one.state.global_step >= 3))
    one.train()
    assert seen == ["not begun", "begun at 3"]


def test_a_micro_batch_depends_on_the_batch_alone() -> None:
    assert [micro_batch_of(batch) for batch in (1, 4, 8, 12, 13, 32, 48)] == [1, 2, 2, 2, 13, 4, 6]


def test_the_package_imports_no_framework() -> None:
    code = "import jupyter_hyperpod as hp, sys; hp.integrations; print({'torch', 'transformers'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert found.stdout.strip() == "set()"


def test_a_run_that_was_stopped_early_is_over(tmp_path: Path) -> None:
    for _ in range(2):
        one = trainer(tmp_path, checkpoint=str(tmp_path / "kept"))
        one.add_callback(_stopped_at(5))
        one.train()
        assert one.state.global_step == 5


def _broken_at(step: int) -> Any:
    class Break(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == step:
                raise RuntimeError("the power is off")

    return Break()


def _stopped_at(step: int) -> Any:
    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = state.global_step >= step

    return Stop()
