"""The cell of `bench data`: JPEG pictures, decoded and augmented by workers. Imported, it gives DDP the same task."""

import io
import os
import random
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

import jupyter_hyperpod as hp
from jupyter_hyperpod.bench.language_model import wait_for_turn

PICTURES, SIDE, CROP, CLASSES = 512, 112, 96, 8
GLOBAL_BATCH, MICRO_BATCH = 32, int(os.environ.get("IMAGES_MICRO_BATCH", "16"))
WORKERS = int(os.environ.get("IMAGES_WORKERS", "2"))  # per member
TRAINS = os.environ.get("IMAGES_TRAIN", "1") == "1"  # else the model does next to nothing, and reading is all


class Pictures(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Random pictures as JPEG files in memory. A sample is a crop, maybe mirrored, with another brightness."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.files = []
        for _ in range(PICTURES):
            coarse = Image.fromarray(rng.integers(0, 255, (14, 14, 3), dtype=np.uint8))
            file = io.BytesIO()
            coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(file, "JPEG")
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return PICTURES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = Image.open(io.BytesIO(self.files[index])).convert("RGB")
        left, top = random.randrange(SIDE - CROP), random.randrange(SIDE - CROP)
        picture = picture.crop((left, top, left + CROP, top + CROP))
        if random.random() < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255
        return (pixels - 0.5) * random.uniform(1.5, 2.5) + random.uniform(-0.2, 0.2), index % CLASSES


def network() -> nn.Module:
    """A small convolutional network, or one of a single weight."""
    if not TRAINS:
        return nn.Linear(1, 1)
    return nn.Sequential(
        nn.Conv2d(3, 12, 5, 4), nn.ReLU(), nn.Conv2d(12, 24, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(24 * 16, CLASSES),
    )  # fmt: skip


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Mean cross-entropy; without training, one that reads a single pixel per picture."""
    pictures, labels = batch
    if not TRAINS:
        loss: torch.Tensor = model(pictures[:, :1, 0, 0]).mean()
        return loss
    return nn.functional.cross_entropy(model(pictures), labels)


def main() -> None:
    """Train in a session."""
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sizes: dict[str, Any] = {"global_batch": GLOBAL_BATCH, "micro_batch": MICRO_BATCH, "workers": WORKERS}
    with hp.Session(model, optimizer, Pictures(), **sizes) as session:
        for step in session.steps(1_000_000):
            wait_for_turn(step.index)
            before_s, stalls = session.data_waited_s, session.data_stalls
            step.run(lambda batch: loss_of(model, batch))
            session.log(waited_s=(session.data_waited_s - before_s) / max(1, session.data_stalls - stalls))


if __name__ == "__main__":
    main()
