"""REINFORCE on a small bandit-like control task: rollouts between the steps, discounted returns, a running reward."""

import torch
from torch import nn
from torch.distributions import Categorical

import jupyter_hyperpod as hp

torch.manual_seed(8)
states = torch.randn(64, 4)
rewards = torch.stack([states[:, 0], -states[:, 0]], 1)
episodes = torch.utils.data.TensorDataset(states, rewards)
policy = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
running_reward = 0.0


def loss_of(batch):
    observed, reward = batch
    chosen = Categorical(logits=policy(observed))
    action = chosen.sample()
    gained = reward.gather(1, action[:, None]).squeeze(1)
    return -(chosen.log_prob(action) * (gained - gained.mean())).mean()


# ---- plain
for batch in torch.utils.data.DataLoader(episodes, batch_size=16, shuffle=True):
    loss = loss_of(batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    running_reward = 0.9 * running_reward + 0.1 * loss.item()
# ---- hyperpod
with hp.Session(policy, optimizer, episodes, global_batch=16, micro_batch=4) as session:
    for step in session.steps(12):
        running_reward = 0.9 * running_reward + 0.1 * step.run(loss_of)
# ---- both
print("result", running_reward)
