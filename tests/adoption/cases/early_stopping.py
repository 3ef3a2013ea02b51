"""Early stopping with patience, a copy of the best weights, and break."""

import copy

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(5)
x = torch.randn(40, 4)
data = torch.utils.data.TensorDataset(x[:32], x[:32].prod(1, keepdim=True))
held_out = x[32:], x[32:].prod(1, keepdim=True)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-2)
best, patience, waited, best_state = float("inf"), 4, 0, None


def validate():
    with torch.no_grad():
        return nn.functional.mse_loss(model(held_out[0]), held_out[1]).item()


# ---- plain
for step in range(40):
    loss = nn.functional.mse_loss(model(data.tensors[0]), data.tensors[1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    score = validate()
    if score < best:
        best, waited, best_state = score, 0, copy.deepcopy(model.state_dict())
    else:
        waited += 1
    if waited >= patience:
        break
# ---- hyperpod
with hp.Session(model, optimizer, data, global_batch=32, micro_batch=8) as session:
    for step in session.steps(40):
        step.run(lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]))
        score = validate()
        if score < best:
            best, waited, best_state = score, 0, copy.deepcopy(model.state_dict())
        else:
            waited += 1
        if waited >= patience:
            break
# ---- both
model.load_state_dict(best_state)
print("result", best, validate())
