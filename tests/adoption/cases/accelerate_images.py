"""accelerate's loop for images: BatchNorm, gradients accumulated over three batches, bf16, a bar, and an early end."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm

# ---- plain
from accelerate import Accelerator

# ---- hyperpod
from jupyter_hyperpod.integrations.accelerate import Accelerator
# ---- both

accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=3)
torch.manual_seed(4)
images = torch.randn(56, 1, 8, 8)
labels = (images.mean((1, 2, 3)) > 0).long()
loader = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(144, 2)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=14)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
completed_steps, losses, most = 0, [], 14
bar = tqdm(range(most), disable=not accelerator.is_local_main_process)
for epoch in range(6):
    model.train()
    for step, (image, label) in enumerate(loader):
        with accelerator.accumulate(model):
            with accelerator.autocast():
                scores = model((image - 0.1) / 1.1)
                loss = nn.functional.cross_entropy(scores, label)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_value_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if accelerator.sync_gradients:
            bar.update(1)
            completed_steps += 1
        if completed_steps >= most:
            break
    if completed_steps >= most:
        break
model = accelerator.unwrap_model(model)
total = sum(value.double().sum().item() for value in model.state_dict().values())
print("result", completed_steps, epoch, step, len(losses), sum(losses), schedule.get_last_lr(), total)
