# refused: turns in line 16
import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


class Warm:
    def __set_name__(self, owner, name):
        self.turns = 0

    def __get__(self, instance, owner):
        self.turns += 1
        return min(1.0, self.turns / 60)


class Settings:
    warm = Warm()


settings = Settings()


def loss_fn(batch):
    return settings.warm * torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
