"""A plain torch.distributed script with a checkpoint of its own, as people run it under torchrun."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, PATH = 12, os.environ["CHECKPOINT"]
dist.init_process_group("gloo")
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
begin = 0
if os.path.exists(PATH):
    saved = torch.load(PATH, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    begin = saved["step"]
parallel = DistributedDataParallel(model)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} begins after step {begin}")
for step in range(begin, STEPS):
    inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
    loss = (parallel(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, PATH + ".new")
        os.replace(PATH + ".new", PATH)
    time.sleep(float(os.environ.get("PAUSE_S", "0")))
total = sum(parameter.double().sum().item() for parameter in model.parameters())
print(f"rank {dist.get_rank()} ends with {total.hex()}")
dist.destroy_process_group()
