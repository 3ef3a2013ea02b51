"""A replay buffer class with push and a limited deque; a running normaliser of the observations."""

from collections import deque

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(70)


class ReplayBuffer(torch.utils.data.Dataset):
    def __init__(self, capacity):
        self.buffer = deque(maxlen=capacity)

    def push(self, *transition):
        self.buffer.append(transition)

    def __len__(self):
        return len(self.buffer)

    def __getitem__(self, index):
        return self.buffer[index]


class Normaliser:
    def __init__(self):
        self.count, self.mean, self.m2 = 0, torch.zeros(3), torch.ones(3)

    def update(self, value):
        self.count += 1
        delta = value - self.mean
        self.mean = self.mean + delta / self.count
        self.m2 = self.m2 + delta * (value - self.mean)

    def __call__(self, value):
        return (value - self.mean) / (self.m2 / max(1, self.count)).sqrt()


q_net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(q_net.parameters(), lr=1e-2)
replay, normalise = ReplayBuffer(24), Normaliser()
state = torch.zeros(3)


def act(steps):
    global state
    for _ in range(steps):
        normalise.update(state)
        with torch.no_grad():
            action = int(q_net(normalise(state)).argmax())
        following = 0.7 * state + torch.randn(3)
        replay.push(state, action, float(following.sum()), following)
        state = following


def td_loss(batch):
    before, action, reward, after = batch
    with torch.no_grad():
        goal = reward.float() + 0.9 * q_net(normalise(after)).max(1).values
    return nn.functional.smooth_l1_loss(q_net(normalise(before)).gather(1, action[:, None]).squeeze(1), goal)


act(16)

# ---- plain
for step in range(14):
    batch = torch.utils.data.default_collate([replay[i] for i in torch.randint(len(replay), (8,))])
    loss = td_loss(batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    act(2)
# ---- hyperpod
with hp.Session(q_net, optimizer, replay, global_batch=8, micro_batch=2) as session:
    for step in session.steps(14):
        step.run(td_loss)
        act(2)
# ---- both
print("result", len(replay), normalise.mean.tolist(), state.tolist())
