# harmless
import torch

import jupyter_hyperpod as hp

config = {"rate": "0.05 * 0.9 ** number", "loss": "mse" + "_loss"}
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
calls = 0


def mse_loss(output, target):
    return torch.nn.functional.mse_loss(output, target)


def loss_fn(batch):
    global calls
    calls += 1
    function = globals()[config["loss"]]
    return function(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        number = step.number
        optimizer.param_groups[0]["lr"] = eval(config["rate"])  # noqa: S307
print("kept", loss.hex())
