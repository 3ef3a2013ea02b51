# harmless
import importlib
import types

import torch

import jupyter_hyperpod as hp


class Lazy(types.ModuleType):
    """As mlflow and wandb import other libraries: at the first look for an attribute."""

    def __getattr__(self, name):
        return getattr(importlib.import_module(self.__name__), name)


class Unbegun:
    """As wandb's objects are before init()."""

    def __getattr__(self, name):
        raise RuntimeError("call init() first")


missing, unbegun = Lazy("a_library_that_is_not_installed"), Unbegun()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(4), torch.randn(1)) for _ in range(32)]


def loss_fn(batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(10):
        if step.number > 100:
            missing.log(unbegun.config, step.number)
        loss = step.run(loss_fn)
print("kept", loss.hex())
