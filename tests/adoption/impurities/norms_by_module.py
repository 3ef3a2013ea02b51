# carried

import torch
import jupyter_hyperpod as hp

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


norms = {m: 1.0 for m in model if isinstance(m, torch.nn.Linear)}
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        for m in norms:
            norms[m] = 0.9 * norms[m] + 0.1 * m.weight.norm().item()
        optimizer.param_groups[0]["lr"] = 0.05 / (1 + sum(norms.values()))
print("kept", loss.hex())
