"""The cell that the benchmarks train: a byte-level transformer. Settings come from the environment.

Imported instead of run, it gives the systems we are compared with the same model and the same data.
"""

import os
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import jupyter_hyperpod as hp

WIDTH, HEADS, LAYERS, CONTEXT = (int(os.environ.get(f"LM_{k}", v)) for k, v in
                                 (("WIDTH", 320), ("HEADS", 5), ("LAYERS", 7), ("CONTEXT", 64)))  # fmt: skip
MICRO_BATCH, GLOBAL_BATCH, STEPS = (int(os.environ.get(f"LM_{k}", v)) for k, v in
                                    (("MICRO_BATCH", 1), ("GLOBAL_BATCH", 8), ("STEPS", 1000)))  # fmt: skip
PAUSE_S = float(os.environ.get("LM_PAUSE_S", "0"))
AUDIT = os.environ.get("LM_AUDIT", "state") or None
TURN_FILE = os.environ.get("LM_TURN", "")


class PreNormBlock(nn.Module):
    """Pre-norm attention and feed-forward, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.feed_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(batch, context, width)`` to the same."""
        batch, context, width = x.shape
        heads = self.qkv(self.attention_norm(x)).view(batch, context, 3, HEADS, width // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + F.dropout(self.out(mixed.transpose(1, 2).reshape(batch, context, width)), 0.1, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.feed_norm(x)))), 0.1, self.training)


class LanguageModel(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(PreNormBlock() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """``(batch, context)`` int64 to ``(batch, context, 256)``."""
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Mean cross-entropy of the next byte."""
    inputs, targets = batch
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def tokens() -> hp.TokenDataset:
    """The corpus, one byte a token."""
    return hp.TokenDataset(os.environ["LM_CORPUS"], CONTEXT)


def wait_for_turn(step: int) -> None:
    """Where runs alternate on one machine, the file LM_TURN holds how many steps this one may take so far."""
    while TURN_FILE and step >= _allowed():
        time.sleep(0.01)


def _allowed() -> int:
    with open(TURN_FILE) as file:
        return int(file.read())


def main() -> None:
    """Train in a session, on whatever members there are."""
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    settings: dict[str, Any] = {}
    if place := os.environ.get("LM_CHECKPOINT"):
        settings["checkpoint"] = hp.Checkpoint(place, every_steps=int(os.environ["LM_CHECKPOINT_EVERY"]))
    settings |= {"global_batch": GLOBAL_BATCH, "micro_batch": MICRO_BATCH, "audit": AUDIT}
    with hp.Session(model, optimizer, tokens(), **settings) as session:
        for step in session.steps(STEPS):
            wait_for_turn(step.index)
            step.run(lambda batch: loss_of(model, batch))
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
