"""Linear layers in float8: scaled by the largest number, multiplied by torch._scaled_mm, straight-through rounding."""

import torch
from torch import nn

import jupyter_hyperpod as hp

torch.manual_seed(15)
x = torch.randn(96, 16)
data = torch.utils.data.TensorDataset(x, x.cumsum(1).tanh())
LARGEST = 448.0


def to_float8(values, kind=torch.float8_e4m3fn):
    scale = values.abs().amax().clamp(min=1e-12) / LARGEST
    return (values / scale).to(kind), scale


class Matmul8(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs, weight):
        ctx.save_for_backward(inputs, weight)
        (a, scale_a), (b, scale_b) = to_float8(inputs), to_float8(weight)
        return torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=torch.float32)

    @staticmethod
    def backward(ctx, gradient):
        inputs, weight = ctx.saved_tensors
        rounded, scale = to_float8(gradient, torch.float8_e5m2)
        gradient = rounded.float() * scale
        return gradient @ weight, gradient.t() @ inputs


class Linear8(nn.Linear):
    def forward(self, inputs):
        return Matmul8.apply(inputs, self.weight) + self.bias


class FakeQuantised(nn.Linear):
    def forward(self, inputs):
        rounded, scale = to_float8(self.weight.detach())
        weight = self.weight + (rounded.float() * scale - self.weight).detach()
        return nn.functional.linear(inputs, weight, self.bias)


model = nn.Sequential(Linear8(16, 32), nn.GELU(), FakeQuantised(32, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)


def loss_of(batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


# ---- plain
for epoch in range(4):
    for batch in loader:
        loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("result", loss.item())
# ---- hyperpod
with hp.Session(model, optimizer, loader, global_batch=32, micro_batch=8) as session:
    for step in session.steps(12):
        loss = step.run(loss_of)
print("result", loss)
