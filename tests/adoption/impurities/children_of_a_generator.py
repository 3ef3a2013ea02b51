# carried
import numpy as np
import torch

import jupyter_hyperpod as hp

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
generator = np.random.default_rng(7)


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0] + noise), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        noise = torch.tensor(generator.spawn(1)[0].normal(size=4), dtype=torch.float32)
        loss = step.run(loss_fn)
print("kept", loss.hex())
