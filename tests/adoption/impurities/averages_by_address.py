# refused: shadow in line 20
import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


shadow = {}
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        for p in model.parameters():
            shadow[id(p)] = 0.9 * shadow.get(id(p), 0.0) + 0.1 * p.detach()
print("kept", loss.hex(), sum(shadow[id(p)].sum().item() for p in model.parameters()))
