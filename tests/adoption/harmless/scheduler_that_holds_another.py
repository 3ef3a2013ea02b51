# harmless
import torch

import jupyter_hyperpod as hp


class WarmUp(torch.optim.lr_scheduler.LRScheduler):
    def __init__(self, optimizer, after):
        self.after = after
        super().__init__(optimizer)

    def get_lr(self):
        if self.last_epoch < 5:
            return [rate * (1 + self.last_epoch) / 6 for rate in self.base_lrs]
        return self.after.get_last_lr()

    def step(self):
        super().step()
        if self.last_epoch >= 5:
            self.after.step()


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
schedule = WarmUp(optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5))
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2, scheduler=schedule) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
