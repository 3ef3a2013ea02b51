# carried
import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
critic = torch.nn.Linear(1, 1)
critics = [critic]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(lambda batch: loss_fn(batch) * (1 + critic.weight.detach().item() ** 2))
        critic(torch.full((1,), loss)).pow(2).sum().backward()
        if step.number % 3 == 0:
            with torch.no_grad():
                critic.weight -= 0.01 * critic.weight.grad
            critic.zero_grad()
print("kept", loss.hex(), critic.weight.item())
