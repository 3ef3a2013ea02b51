"""Lightning's Trainer in a session, outside a job: what it refuses, logs, writes and continues from."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.runtime.program.copies.copier import Copier

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning.pytorch as pl
    from lightning.fabric.loggers.csv_logs import _ExperimentWriter
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, Timer
    from lightning.pytorch.loggers import CSVLogger
    from torchmetrics import MeanMetric

    from jupyter_hyperpod.integrations.lightning import Trainer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


class Line(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.steps = 0

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = ((batch[0] * self.weight - batch[1]) ** 2).mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", ((batch[0] * self.weight - batch[1]) ** 2).mean())

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.steps += 1

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loader(count: int = 12, **more: Any) -> torch.utils.data.DataLoader[Any]:
    x = torch.arange(float(count))[:, None] / count
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, 2 * x), batch_size=4, **more)


def trainer(**more: Any) -> Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return Trainer(**({"max_epochs": 2, "logger": False, "enable_checkpointing": False} | quiet | more))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"strategy": "ddp"}, "strategy='ddp'.*the session shares the work"),
        ({"devices": 2}, "devices=2.*submit with --nodes"),
        ({"precision": "16-mixed"}, "precision='16-mixed'.*'bf16-mixed'"),
        ({"val_check_interval": 0.5}, "val_check_interval=0.5"),
        ({"gradient_clip_algorithm": "median"}, "gradient_clip_algorithm=.median.*write .norm. or .value."),
        ({"accelerator": "tpu"}, "accelerator='tpu' is not supported"),
    ],
)
def test_arguments_that_cannot_be_kept_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        trainer(**arguments)


def test_modules_and_callbacks_that_cannot_be_kept_are_refused() -> None:
    class ByHand(Line):
        automatic_optimization = False

    class Stepping(Line):
        def optimizer_step(self, *given: Any, **named: Any) -> None: ...

    class Sampling(Line):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            self.log("highest", batch[0].max(), reduce_fx=torch.max)
            return super().training_step(batch, batch_idx)

    for module, callbacks, sentence in (
        (ByHand(), [], "optimizes by hand"),
        (Stepping(), [], r"its own optimizer_step\(\)"),
        (Sampling(), [], r"self.log\('highest', ...\)"),
        (Line(), [Timer("00:00:01:00")], "the callback Timer"),
    ):
        with pytest.raises(SpecError, match=sentence):
            trainer(callbacks=callbacks).fit(module, loader())

    class Measured(Line):
        def __init__(self) -> None:
            super().__init__()
            self.mean = MeanMetric()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            self.mean.update(batch[0])
            return super().training_step(batch, batch_idx)

    class Clipping(pl.Callback):
        def on_after_backward(self, *given: Any) -> None: ...

    class Skipping(Line):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int:
            return -1

    for module, callbacks, sentence in (
        (Measured(), [], "updates the metric 'mean'"),
        (Line(), [Clipping()], r"Clipping has on_after_backward\(\)"),
        (Skipping(), [], "returned -1"),
    ):
        with pytest.raises(SpecError, match=sentence):
            trainer(callbacks=callbacks).fit(module, loader())
    batches = torch.utils.data.BatchSampler(range(12), 4, drop_last=False)
    with pytest.raises(SpecError, match="the loader has no batch_size"):
        trainer().fit(Line(), torch.utils.data.DataLoader(loader().dataset, batch_sampler=batches))
    with pytest.raises(SpecError, match="ckpt_path='last'.*checkpoint="):
        trainer().fit(Line(), loader(), ckpt_path="last")
    with pytest.raises(SpecError, match="ckpt_path='last'.*checkpoint="):
        trainer().fit(Line(), loader(), None, None, "last")
    with pytest.raises(SpecError, match="2 loaders were given to train on"):
        trainer().fit(Line(), [loader(), loader()])


def test_what_is_logged_is_what_lightning_logs(tmp_path: Path) -> None:
    ours, theirs = Line(), Line()
    one = trainer(logger=CSVLogger(tmp_path / "ours"), log_every_n_steps=1)
    one.fit(ours, loader(), loader())
    other = pl.Trainer(
        max_epochs=2, logger=CSVLogger(tmp_path / "theirs"), log_every_n_steps=1, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", num_sanity_val_steps=0,
    )  # fmt: skip
    other.fit(theirs, loader(), loader())
    assert ours.weight.item() == pytest.approx(theirs.weight.item()) and ours.steps == theirs.steps == 6
    assert one.callback_metrics.keys() == other.callback_metrics.keys()
    for name, value in one.callback_metrics.items():
        assert value.item() == pytest.approx(other.callback_metrics[name].item()), name
    rows = [list(csv.DictReader(next(tmp_path.glob(f"{who}/**/metrics.csv")).open())) for who in ("ours", "theirs")]
    for mine, yours in zip(*rows, strict=True):
        assert {k: float(v or -1) for k, v in mine.items()} == pytest.approx(
            {k: float(v or -1) for k, v in yours.items()}
        )


def test_a_checkpoint_is_lightnings_own(tmp_path: Path) -> None:
    best = ModelCheckpoint(tmp_path, monitor="val_loss")
    one, module = trainer(callbacks=[best], enable_checkpointing=True), Line()
    one.fit(module, loader(), loader())
    assert best.best_model_path and best.best_model_score is not None
    assert Line.load_from_checkpoint(best.best_model_path).weight.item() == module.weight.item()


def test_it_stops_early() -> None:
    one = trainer(max_epochs=50, callbacks=[EarlyStopping("val_loss", min_delta=10.0, patience=2)])
    one.fit(Line(), loader(), loader())
    assert one.current_epoch == 3 and one.global_step == 9


def test_it_continues_from_a_checkpoint_of_the_session(tmp_path: Path) -> None:
    off = tmp_path / "off"

    class Breaking(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *given: Any) -> None:
            if off.exists() and trainer.global_step == 8:
                raise RuntimeError("the power is off")

    whole, again = Line(), Line()
    means = []
    for module in (whole, Line(), again):
        kept = None if module is whole else hp.Checkpoint(str(tmp_path / "kept"), every_steps=2)
        one = trainer(max_epochs=4, callbacks=[Breaking()], checkpoint=kept)
        if module not in (whole, again):
            off.touch()
            with pytest.raises(RuntimeError, match="the power is off"):
                one.fit(module, loader())
            off.unlink()
        else:
            one.fit(module, loader())
            means.append(one.callback_metrics["loss_epoch"].item())
            assert one.global_step == 12 and one.current_epoch == 4
    assert torch.equal(again.weight, whole.weight)
    assert means[0] == means[1]


def test_another_rank_0_keeps_the_rows_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ExperimentWriter, "NAME_METRICS_FILE", "metrics.csv")
    monkeypatch.setenv("HYPERPOD_JOB_ID", "job-1")
    monkeypatch.setenv("RANK", "0")
    trainer(logger=CSVLogger(tmp_path), log_every_n_steps=1).fit(Line(), loader())
    monkeypatch.setenv("RANK", "1")
    trainer(logger=CSVLogger(tmp_path), log_every_n_steps=1).fit(Line(), loader())  # outside a job it is rank 0 at once
    names = sorted(path.name for path in tmp_path.glob("**/job-1/metrics*"))
    assert names == ["metrics-after-step-0.csv", "metrics.csv"]


class Counting(pl.Callback):
    """Lightning's own class gives it a `state_dict`, which knows nothing of its attributes."""

    def __init__(self) -> None:
        self.seen = [1, 2]


def test_attributes_travel_beside_a_state_dict_that_a_library_gives() -> None:
    here, there = Counting(), Counting()
    there.seen = []
    assert here.state_dict() == {}
    Copier().merged(there, Copier().copied(here))
    assert there.seen == [1, 2]


def test_batches_go_through_the_hooks_of_the_module() -> None:
    class Doubling(Line):
        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return [2 * part for part in batch]

    found = []
    for kind in (Line, Doubling):
        one = trainer(max_epochs=1, max_steps=1)
        one.fit(kind(), loader())
        found.append(one.callback_metrics["loss_step"].item())
    assert found[1] == pytest.approx(4 * found[0])
