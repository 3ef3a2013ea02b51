"""Q-learning from a fixed replay memory: a target network copied every few steps, an epsilon that decays."""

import copy

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(39)
states, actions, rewards = torch.randn(60, 4), torch.randint(3, (60,)), torch.randn(60)
memory = torch.utils.data.TensorDataset(states, actions, rewards, states.roll(-1, 0))
q_net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
target_net = copy.deepcopy(q_net)
optimizer = torch.optim.Adam(q_net.parameters(), lr=1e-2)
steps_done, epsilon = 0, 1.0


def td_loss(batch):
    state, action, reward, following = batch
    with torch.no_grad():
        goal = reward + 0.9 * target_net(following).max(1).values
    return nn.functional.smooth_l1_loss(q_net(state).gather(1, action[:, None]).squeeze(1), goal)


# ---- plain
for epoch in range(3):
    for batch in torch.utils.data.DataLoader(memory, batch_size=12, shuffle=True):
        loss = td_loss(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps_done, epsilon = steps_done + 1, max(0.05, epsilon * 0.9)
        if steps_done % 5 == 0:
            target_net.load_state_dict(q_net.state_dict())
# ---- hyperpod
with hp.Session(q_net, optimizer, memory, global_batch=12, micro_batch=3) as session:
    for step in session.steps(15):
        step.run(td_loss)
        steps_done, epsilon = steps_done + 1, max(0.05, epsilon * 0.9)
        if steps_done % 5 == 0:
            target_net.load_state_dict(q_net.state_dict())
# ---- both
print("result", steps_done, epsilon, target_net(states).double().sum().item())
