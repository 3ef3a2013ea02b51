"""Which model a replica has loaded: a digest of samples, by which two replicas are told apart that have different ones.

Samples are enough: training changes every element of a tensor that it changes. They are read evenly over each tensor or
file, so that a large model is not read twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a replica with an engine can do without
    import torch

SLICES, ELEMENTS, PIECE_BYTES = 8, 256, 4096
FILES = 1000


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
    """Of a file, or of the files of a folder: names, sizes and slices; "" where ``place`` is not on this node."""
    path = Path(place.removeprefix("file://"))
    if "://" in str(path) or not place or not path.exists():
        return ""
    digest = hashlib.blake2b(digest_size=8)
    files = [path] if path.is_file() else sorted(found for found in path.rglob("*") if found.is_file())
    for found in files[:FILES]:
        digest.update(f"{found.relative_to(path)}\n".encode())
        for piece in _pieces(found):
            digest.update(piece)
    return digest.hexdigest()


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
