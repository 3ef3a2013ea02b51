"""Which model a replica has loaded: a digest of samples, by which two replicas are told apart that have different ones.

Samples are enough: training changes every element of a tensor that it changes. They are read evenly over each tensor or
file, so that a large model is not read twice.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # a replica with an engine can do without
    import torch

SLICES, ELEMENTS, PIECE_BYTES = 8, 256, 4096
ENTRIES = 10_000  # of a folder that is looked through
SUFFIXES = frozenset(
    ".bin .ckpt .gguf .h5 .joblib .json .model .msgpack .npy .npz .onnx .pkl .pt .pth .safetensors".split()
)
NAMES = frozenset(("merges.txt", "vocab.txt"))
Loaded = TypeVar("Loaded")


def of_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """Of weights: their names, shapes and kinds, and `SLICES` slices of each."""
    import torch

    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().reshape(-1)
        for start in _starts(flat.numel(), ELEMENTS):
            digest.update(flat[start : start + ELEMENTS].contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()


def of_files(place: str) -> str:
    """Of a file, or of the files of a model in a folder: names, sizes and slices.

    "" where that is not known: ``place`` is not on this node, cannot be read, or holds more than `ENTRIES`.
    """
    path = Path(place.removeprefix("file://"))
    if not place or "://" in place.removeprefix("file://"):
        return ""
    digest = hashlib.blake2b(digest_size=8)
    with suppress(OSError):  # of what is replaced just now, or is not for this user: the model itself may do without
        if (files := [path] if path.is_file() else _of_model(path)) is None:
            return ""
        for found in files:
            digest.update(f"{found.relative_to(path)}\n".encode())
            for piece in _pieces(found):
                digest.update(piece)
        return digest.hexdigest() if files else ""
    return ""


def around(place: str, load: Callable[[], Loaded]) -> tuple[Loaded, str]:
    """What ``load`` returns, and which model that is: another one than any where the files changed meanwhile."""
    before = of_files(place)
    loaded = load()
    return loaded, joined(before, of_files(place))


def joined(before: str, after: str) -> str:
    """Which model was loaded between two looks at its files."""
    return before if before == after else f"{before}-{after}"


def _of_model(folder: Path) -> list[Path] | None:
    """The files of a folder that belong to a model, not what a program writes beside them; None for too many."""
    found, entries = [], 0
    for parent, folders, names in os.walk(folder):
        entries += len(folders) + len(names)
        if entries > ENTRIES:
            return None
        found += [Path(parent, name) for name in names if name in NAMES or os.path.splitext(name)[1] in SUFFIXES]
    return sorted(found)


def _pieces(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        yield f"{size}\n".encode()
        for start in _starts(size, PIECE_BYTES):
            file.seek(start)
            yield file.read(PIECE_BYTES)


def _starts(size: int, length: int) -> list[int]:
    """Where slices begin, from the first one to the last one."""
    last = max(0, size - length)
    return sorted({last * place // (SLICES - 1) for place in range(SLICES)})
