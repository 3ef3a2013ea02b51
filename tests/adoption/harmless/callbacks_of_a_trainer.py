# harmless
import torch

import jupyter_hyperpod as hp


class Reduce:
    def __init__(self, factor):
        self.factor, self.best, self.reduced = factor, float("inf"), 0

    def on_epoch_end(self, trainer):
        if trainer.loss > self.best - 0.05:
            trainer.optimizer.param_groups[0]["lr"] *= self.factor
            self.reduced += 1
        self.best = min(self.best, trainer.loss)


class Trainer:
    def __init__(self, model, data, hooks):
        self.model, self.data, self.hooks, self.loss = model, data, hooks, 0.0
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def loss_of(self, batch):
        return torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])

    def fit(self, epochs):
        with hp.Session(self.model, self.optimizer, self.data, global_batch=16, micro_batch=4) as session:
            for _ in session.epochs(epochs):
                for step in session.steps(4):
                    self.loss = step.run(self.loss_of)
                for h in self.hooks:
                    h.on_epoch_end(self)


torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(64)]
trainer = Trainer(torch.nn.Linear(4, 1), data, [Reduce(0.5)])
trainer.fit(5)
print("result", trainer.loss.hex(), trainer.hooks[0].reduced)
