# harmless
import torch

import jupyter_hyperpod as hp

torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(64)]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
means = []
with hp.Session(model, optimizer, data, global_batch=16, micro_batch=4) as session:
    for epoch in range(4):
        losses, count, total = [], 0, 0
        for step in session.steps(4):
            loss = step.run(lambda batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1]))
            losses.append(loss)
            count += 1
            total = total + torch.tensor(loss)
        means.append((epoch, sum(losses) / count, total.item() / len(losses)))
print("result", means)
