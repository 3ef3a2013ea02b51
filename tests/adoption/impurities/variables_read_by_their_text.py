# carried
import torch

import jupyter_hyperpod as hp

torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
first, second, third = 1.0, 1.0, 1.0


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1]) * (
        globals()["first"] * globals().get("second") * eval("third * 1.0")  # noqa: S307
    )


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        if step.number == 3:
            first = 0.5
            globals()["second"], third = 0.25, 0.75
print("kept", loss.hex())
