# harmless
import torch

import jupyter_hyperpod as hp


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 1)
        self.outputs = []
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls % 10 == 0:
            print("calls", self.calls)
        found = self.inner(x)
        self.outputs.append(found.detach())
        return found


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        if step.number % 3 == 0:
            print(torch.cat(model.outputs).mean())
            model.outputs.clear()
print("kept", loss.hex())
