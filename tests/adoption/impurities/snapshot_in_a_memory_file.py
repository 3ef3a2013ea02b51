# carried
import io

import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


saved = None
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        if step.number == 4:
            saved = io.BytesIO()
            torch.save(model.state_dict(), saved)
        if step.number == 8 and saved is not None:
            saved.seek(0)
            model.load_state_dict(torch.load(saved))
print("kept", loss.hex())
