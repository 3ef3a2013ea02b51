"""accelerate's loop with early stopping: an evaluation by a nested function, whose result ends the loop over epochs."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# ---- plain
from accelerate import Accelerator


def epochs(accelerator, loader):
    return range(12)


# ---- hyperpod
from jupyter_hyperpod.integrations.accelerate import Accelerator  # noqa: E402


def epochs(accelerator, loader):
    return accelerator.epochs(12, loader)


# ---- both


def main():
    torch.manual_seed(1)
    inputs = torch.randn(56, 3)
    targets = inputs.sum(1, keepdim=True)
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    model, optimizer, loader, held_out = accelerator.prepare(
        model,
        optimizer,
        DataLoader(TensorDataset(inputs[16:], targets[16:]), batch_size=8, shuffle=True),
        DataLoader(TensorDataset(inputs[:16], targets[:16]), batch_size=8),
    )

    def evaluate():
        model.eval()
        with torch.no_grad():
            return sum(nn.functional.mse_loss(model(x), y).item() for x, y in held_out) / len(held_out)

    best, patience = float("inf"), 0
    for epoch in epochs(accelerator, loader):
        model.train()
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        score = evaluate()
        accelerator.print(f"epoch {epoch}: {score:.4f}")
        patience = 0 if score < best - 0.1 else patience + 1
        best = min(best, score)
        if patience == 2:
            break
    accelerator.end_training()
    print("result", loss.item(), best, epoch)


main()
