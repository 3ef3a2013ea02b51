# carried

import pandas as pd
import torch
import jupyter_hyperpod as hp

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


table = pd.DataFrame(
    {
        "step": pd.Series(dtype=int),
        "a": pd.Series(dtype=float),
        "b": pd.Series(dtype=float),
        "note": pd.Series(dtype=str),
        "ok": pd.Series(dtype="boolean"),
    }
)
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(12):
        loss = step.run(loss_fn)
        table.loc[len(table)] = [
            step.number,
            loss,
            1 / 3 * loss,
            "x" * step.number,
            pd.NA if step.number == 2 else loss > 1,
        ]
        optimizer.param_groups[0]["lr"] = 0.01 * float(table[["a", "b"]].mean().sum())
print("kept", loss.hex(), table.to_json(), [str(t) for t in table.dtypes])
