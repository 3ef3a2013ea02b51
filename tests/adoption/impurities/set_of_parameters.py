# refused: chosen in line 14
import torch

import jupyter_hyperpod as hp

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
chosen = set(model.parameters())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    penalty = 0.0
    for p in chosen:
        penalty = penalty * 0.9 + p.norm()
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1]) + 0.01 * penalty


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
