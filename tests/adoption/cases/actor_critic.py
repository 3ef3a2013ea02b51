"""An actor and a critic: the critic is stepped twice per step, rates decay, the target follows slowly."""

import copy

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(81)
states = torch.randn(48, 3)
memory = torch.utils.data.TensorDataset(states, torch.rand(48, 1) * 2 - 1, states.sum(1), states.roll(-1, 0))
actor = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 1), nn.Tanh())
critic = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1), nn.Flatten(0))
target = copy.deepcopy(critic)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-3)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
values, noise = [], 0.3


def critic_loss(batch):
    state, action, reward, following = batch
    with torch.no_grad():
        wanted = (actor(following) + noise * torch.randn(len(state), 1)).clamp(-1, 1)
        goal = reward + 0.9 * target(torch.cat([following, wanted], 1))
    return nn.functional.mse_loss(critic(torch.cat([state, action], 1)), goal)


def actor_loss(batch):
    return -critic(torch.cat([batch[0], actor(batch[0])], 1)).mean()


def follow(tau=0.1):
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), critic.parameters()):
            slow.lerp_(fast, tau)


# ---- plain
for epoch in range(2):
    for batch in torch.utils.data.DataLoader(memory, batch_size=8, shuffle=True):
        for _ in range(2):
            critic_optimizer.zero_grad()
            loss = critic_loss(batch)
            loss.backward()
            critic_optimizer.step()
            noise *= 0.97
        actor_optimizer.zero_grad()
        value = actor_loss(batch)
        value.backward()
        actor_optimizer.step()
        values.append(value.item())
        follow()
# ---- hyperpod
both = nn.ModuleList([actor, critic])
turns = [critic_optimizer, critic_optimizer, actor_optimizer]
with hp.Session(both, turns, memory, global_batch=8, micro_batch=2) as session:
    for step in session.steps(12):
        for _ in range(2):
            step.run(critic_loss)
            noise *= 0.97
        values.append(step.run(actor_loss))
        follow()
# ---- both
print("result", sum(values), noise, sum(p.double().sum().item() for p in target.parameters()))
