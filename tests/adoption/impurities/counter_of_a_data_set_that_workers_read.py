# refused: n in line 15
import torch

import jupyter_hyperpod as hp

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.randn(32, 4)


class Counting(torch.utils.data.Dataset):
    n = 0

    def __getitem__(self, index):
        self.n += 1
        return inputs[index] * (1 + 0.01 * self.n), inputs[index, :1]

    def __len__(self):
        return 32


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


loader = torch.utils.data.DataLoader(Counting(), batch_size=2, num_workers=2, shuffle=True)
with hp.Session(model, optimizer, loader, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        loss = step.run(loss_fn)
print("kept", loss.hex())
