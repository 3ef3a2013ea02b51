# refused: bar.n in line 22
import tqdm

import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


bar = tqdm.tqdm(total=10, disable=True)
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        bar.update(1)
        if bar.n > 6:
            optimizer.param_groups[0]["lr"] = 0.01
print("kept", loss.hex())
