"""Deep Q-learning with a replay memory that grows while the agent explores between the steps."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(50)
q_net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(q_net.parameters(), lr=1e-2)
memory = []
state = torch.zeros(3)


def explore(steps):
    global state
    for _ in range(steps):
        with torch.no_grad():
            action = int(q_net(state).argmax()) if torch.rand(()) > 0.2 else int(torch.rand(()) > 0.5)
        following = 0.8 * state + torch.tensor([0.1, -0.1])[action] + 0.05 * torch.randn(3)
        memory.append((state, action, float(-following.abs().sum()), following))
        state = following


def td_loss(batch):
    before, action, reward, after = batch
    with torch.no_grad():
        goal = reward.float() + 0.9 * q_net(after).max(1).values
    return nn.functional.mse_loss(q_net(before).gather(1, action[:, None]).squeeze(1), goal)


explore(16)

# ---- plain
for step in range(14):
    batch = torch.utils.data.default_collate([memory[i] for i in torch.randint(len(memory), (8,))])
    loss = td_loss(batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    explore(2)
# ---- hyperpod
with hp.Session(q_net, optimizer, memory, global_batch=8, micro_batch=2) as session:
    for step in session.steps(14):
        step.run(td_loss)
        explore(2)
# ---- both
print("result", len(memory), sum(entry[2] for entry in memory))
