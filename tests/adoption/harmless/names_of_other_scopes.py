# harmless
import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]
correct = total = i = 0
best = 0.0
weights = [1.0 + i % 3 for i in range(32)]
truth, guesses = [], []


def evaluate():
    correct = total = 0
    with torch.no_grad():
        for x, y in data[:8]:
            total += 1
            correct += int(model(x) > y)
    return correct / total


def report(best):
    print("best", best)


def loss_fn(b):
    global correct, total, i
    x, y = b
    correct += int((model(x) > y).sum())
    total += len(x)
    i += 1
    truth.append(1)
    guesses.append(int(x.sum() > 0))
    return torch.nn.functional.mse_loss(model(x), y) * weights[0]


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
        print(correct / total, i, sum(a == b for a, b in zip(truth, guesses)))
        report(total)
        if (share := evaluate()) > best:
            best = share
            optimizer.param_groups[0]["lr"] *= 0.9
print("kept", loss.hex())
