# harmless
import torch

import jupyter_hyperpod as hp

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
decayed = {p for p in model.parameters() if p.dim() > 1}
names = {"0.weight", "2.weight"}
groups = [
    {"params": [p for p in model.parameters() if p in decayed], "weight_decay": 0.1},
    {"params": [p for p in model.parameters() if p not in decayed], "weight_decay": 0.0},
]
optimizer = torch.optim.SGD(groups, lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    penalty = sum(dict(model.named_parameters())[name].norm() for name in names)
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1]) + 0.01 * penalty


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
