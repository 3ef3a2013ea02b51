"""Token files as data sets addressed by index.

Files are memory-mapped; pages that one process has read are cached for the next, so a newcomer gets its first batch at
once. Tokens in an object store are read through the node's block cache, which also outlives processes.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import torch

from ...core.errors import SpecError
from ...loader import hub
from ...mounts import remote, repository
from ...mounts.block_cache import BlockCache, CachedObject
from ...mounts.table import Mounts, known_mounts, resolve_url
from ..worker.main import switched_on

_TOKENS = {1: torch.uint8, 2: torch.uint16, 4: torch.int32}


class TokenDataset:
    """Windows of ``sequence_length`` tokens from a file of tokens only: bytes, or with ``token_bytes`` 2 or 4
    unsigned 16-bit or signed 32-bit numbers in this machine's byte order.

    ``batch(indices)`` returns ``(inputs, targets)``: int64 tensors ``(len(indices), sequence_length)``, targets one
    token ahead. ``path`` may be ``shared://corpus/text.bin``, a file of the Hugging Face Hub such as
    ``hf://datasets/organisation/name/text.bin``, or a URL such as ``s3://bucket/text.bin``, which is read through the
    block cache of the node. Raises SpecError when the file is missing or too short.
    """

    def __init__(self, path: str | os.PathLike[str], sequence_length: int, *, token_bytes: int = 1) -> None:
        if token_bytes not in _TOKENS:
            raise SpecError(f"token_bytes is {token_bytes}; expected 1, 2 or 4")
        if sequence_length < 1:
            raise SpecError(f"sequence_length is {sequence_length}; expected at least 1 token")
        self.sequence_length = sequence_length
        self.vocabulary_size = torch.iinfo(_TOKENS[token_bytes]).max + 1
        self._token_bytes = token_bytes
        mounts = known_mounts()
        path = hub.hub_path(os.fspath(path)) if hub.is_hub(path) else path
        self.path = repository.local(resolve_url(os.fspath(path), mounts), mounts)
        content = _cached(self.path, mounts) if remote.is_remote(self.path) else _mapped(self.path)
        size = content.size if isinstance(content, CachedObject) else len(content)
        needed = (sequence_length + 1) * token_bytes
        if size < needed:
            raise SpecError(f"{self.path} holds {size} bytes; one sample needs {needed}")
        if size % token_bytes:
            raise SpecError(f"{self.path} holds {size} bytes, which are no whole tokens of {token_bytes} bytes")
        self._content = content
        self._samples = (size // token_bytes - 1) // sequence_length

    def __len__(self) -> int:
        return self._samples

    def batch(self, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``(inputs, targets)``, each contiguous int64 ``(len(indices), sequence_length)``."""
        inputs, targets = torch.empty((2, len(indices), self.sequence_length), dtype=torch.int64)
        for place, index in enumerate(indices):
            window = self._window(index)
            inputs[place], targets[place] = window[:-1], window[1:]
        return inputs, targets

    def _window(self, index: int) -> torch.Tensor:
        """The tokens of a sample and the next one, as stored."""
        count = self.sequence_length + 1
        start = index * self.sequence_length * self._token_bytes
        dtype = _TOKENS[self._token_bytes]
        if isinstance(self._content, CachedObject):
            return torch.frombuffer(self._content.read(start, count * self._token_bytes), dtype=dtype)
        return torch.frombuffer(self._content, dtype=dtype, count=count, offset=start)


def _mapped(path: str) -> mmap.mmap | bytearray:
    """Map the file. A private mapping is writable, as torch requires, and never changes the file."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size and switched_on("data"):
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            return bytearray(file.read())
    except OSError as error:
        raise SpecError(f"cannot open the tokens at {path}: {error.strerror}") from error


def _cached(url: str, mounts: Mounts) -> CachedObject | bytearray:
    source = remote.RemoteSource(url, mounts.specs)
    if switched_on("data"):
        return BlockCache().open(source)
    content = bytearray(source.size)
    source.read_into(0, memoryview(content))
    return content
