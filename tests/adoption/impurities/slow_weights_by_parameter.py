# carried

import torch
import jupyter_hyperpod as hp

model = torch.nn.Sequential(
    torch.nn.Linear(4, 400), torch.nn.Tanh(), torch.nn.Linear(400, 400), torch.nn.Linear(400, 1)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


class Lookahead:
    def __init__(self, params, k=3, alpha=0.5):
        self.params, self.k, self.alpha, self.count = list(params), k, alpha, 0
        self.slow = {p: p.detach().clone() for p in self.params}

    def step(self):
        self.count += 1
        if self.count % self.k == 0:
            with torch.no_grad():
                for p in self.params:
                    self.slow[p].add_(p - self.slow[p], alpha=self.alpha)
                    p.copy_(self.slow[p])


look = Lookahead(model.parameters())
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        look.step()
print("kept", loss.hex())
