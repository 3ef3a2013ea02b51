"""Lightning with validation, EarlyStopping, ModelCheckpoint, a rate that falls on a plateau, and an own callback."""

import logging
import warnings

import torch
from torch import nn

import lightning.pytorch as pl
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

# ---- plain
from lightning.pytorch import Trainer

# ---- hyperpod
from jupyter_hyperpod.integrations.lightning import Trainer
# ---- both

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
pl.seed_everything(6, verbose=False)


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        scores = self.net(batch[0])
        self.log("val_loss", nn.functional.cross_entropy(scores, batch[1]), prog_bar=True)
        self.log("val_accuracy", (scores.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


class Rates(pl.Callback):
    def __init__(self):
        self.rates = []

    def on_train_epoch_end(self, trainer, module):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


x = torch.randn(64, 4)
data = torch.utils.data.TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())
train, held_out = torch.utils.data.random_split(data, [48, 16])
rates = Rates()
best = ModelCheckpoint("runs", monitor="val_loss", save_top_k=2)
trainer = Trainer(
    max_epochs=8, callbacks=[rates, best, EarlyStopping("val_loss", patience=4)], logger=False, accelerator="cpu",
    gradient_clip_val=0.3, gradient_clip_algorithm="value",
    enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
)  # fmt: skip
module = Classifier()
loaders = [torch.utils.data.DataLoader(part, batch_size=8, shuffle=part is train) for part in (train, held_out)]
trainer.fit(module, *loaders)
total = sum(value.double().sum().item() for value in module.state_dict().values())
score = best.best_model_score.item()
print("result", trainer.global_step, trainer.current_epoch, rates.rates, score, total)
