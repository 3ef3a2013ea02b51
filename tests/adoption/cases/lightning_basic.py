"""Lightning's Trainer: a module that logs, a shuffled loader, clipping, a scheduler per step, an average per epoch."""

import logging
import warnings

import torch
from torch import nn

import lightning.pytorch as pl

# ---- plain
from lightning.pytorch import Trainer

# ---- hyperpod
from jupyter_hyperpod.integrations.lightning import Trainer
# ---- both

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
pl.seed_everything(5, verbose=False)


class Regression(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 1))
        self.epoch_means, self.seen = [], 0

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss, on_epoch=True)
        self.log_dict({"bias": (self.net(x) - y).mean()})
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen += 1

    def on_train_epoch_end(self):
        self.epoch_means.append(self.trainer.callback_metrics["train_loss"].item())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


x = torch.randn(40, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True).sin())
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
module = Regression()
trainer = Trainer(
    max_epochs=4, gradient_clip_val=1.0, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, accelerator="cpu",
)  # fmt: skip
trainer.fit(module, loader)
total = sum(value.double().sum().item() for value in module.state_dict().values())
print("result", trainer.global_step, trainer.current_epoch, module.seen, module.epoch_means, total)
