"""A recommender: embeddings of users and items, Adagrad, biases, a history of epochs in a list of dictionaries."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(20)
users, items = torch.randint(12, (96,)), torch.randint(15, (96,))
ratings = ((users * items) % 5).float()
data = torch.utils.data.TensorDataset(users, items, ratings)


class Factors(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.user, self.item = nn.Embedding(12, width), nn.Embedding(15, width)
        self.user_bias, self.item_bias = nn.Embedding(12, 1), nn.Embedding(15, 1)

    def forward(self, user, item):
        dot = (self.user(user) * self.item(item)).sum(1)
        return dot + self.user_bias(user).squeeze(1) + self.item_bias(item).squeeze(1)


model = Factors()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(data, batch_size=24, shuffle=True)
history = []

# ---- plain
for epoch in range(3):
    losses = []
    for user, item, rating in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(user, item), rating)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    history.append({"epoch": epoch, "loss": sum(losses) / len(losses)})
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=24, micro_batch=6) as session:
    for epoch in session.epochs(3):
        losses = []
        for step in session.steps(4):
            losses.append(step.run(lambda batch: nn.functional.mse_loss(model(*batch[:2]), batch[2])))
        history.append({"epoch": epoch, "loss": sum(losses) / len(losses)})
# ---- both
print("result", history)
