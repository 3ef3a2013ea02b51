# refused: calls in line 11
import torch

import jupyter_hyperpod as hp


class Net(torch.nn.Linear):
    calls = 0

    def forward(self, x):
        Net.calls += 1
        return super().forward(x) * (1 if Net.calls < 900 else 2)


model = Net(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
