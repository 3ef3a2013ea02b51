"""A Trainer class of one's own, as minGPT has it: callbacks, counters and the loss in attributes."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(25)
x = torch.randn(40, 4)
data = torch.utils.data.TensorDataset(x, x.roll(1, 1))
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))


class Trainer:
    def __init__(self, model, dataset):
        self.model, self.dataset = model, dataset
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
        self.callbacks = []
        self.iter_num, self.loss, self.seen = 0, 0.0, []

    def batch_end(self, loss):
        self.iter_num, self.loss = self.iter_num + 1, loss
        for callback in self.callbacks:
            callback(self)

    def loss_of(self, batch):
        return nn.functional.mse_loss(self.model(batch[0]), batch[1])


def remember(trainer):
    if trainer.iter_num % 3 == 0:
        trainer.seen.append((trainer.iter_num, trainer.loss))


trainer = Trainer(model, data)
trainer.callbacks.append(remember)

# ---- plain
for epoch in range(3):
    for batch in torch.utils.data.DataLoader(trainer.dataset, batch_size=8, shuffle=True):
        loss = trainer.loss_of(batch)
        trainer.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.batch_end(loss.item())
# ---- hyperpod
with hp.Session(model, trainer.optimizer, data, global_batch=8, micro_batch=2, max_grad_norm=1.0) as session:
    for step in session.steps(15):
        trainer.batch_end(step.run(trainer.loss_of))
# ---- both
print("result", trainer.iter_num, trainer.seen)
