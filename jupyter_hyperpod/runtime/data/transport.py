"""Carries a batch from one process to its parent: in a memory file, whose pages the tensors use where they arrive.

Tensors keep their strides and their place within a cache line, so that they give the same bits as those read here.
Objects are encoded by `multiprocessing`, which is safe: only the process's own child, its fork, writes to the socket.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import socket
import struct
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from ...core.errors import TrainingError
from ...system.memory_files import create_memory_file

BATCH, ERROR = 0, 1
LINE = 64  # bytes of a cache line
AT_ONCE = 1000  # parts per call; Linux takes up to 1024
_HEADER = struct.Struct("!BQQQ")  # kind, bytes of the file, of the encoded object, number of buffers
_PLACE = struct.Struct("!QQ")  # where a buffer is, and its bytes


def send(connection: socket.socket, value: Any, kind: int = BATCH) -> None:
    """Send a value. Raises TrainingError for tensors that cannot leave their process, OSError if the peer is gone."""
    encoded, buffers = _encode(value)
    places, end = [], len(encoded.getbuffer()) + len(buffers) * _PLACE.size
    parts = [encoded.getbuffer(), memoryview(b"")]
    for buffer in buffers:
        begin = -(-end // LINE) * LINE + _address(buffer) % LINE
        parts += [memoryview(bytes(begin - end)), buffer]
        places.append((begin, len(buffer)))
        end = begin + len(buffer)
    parts[1] = memoryview(b"".join(_PLACE.pack(*place) for place in places))
    descriptor = create_memory_file("hyperpod-batch", end)
    try:
        _write(descriptor, parts)
        header = _HEADER.pack(kind, end, len(encoded.getbuffer()), len(buffers))
        socket.send_fds(connection, [header], [descriptor])
    finally:
        os.close(descriptor)


def _write(descriptor: int, parts: list[memoryview]) -> None:
    """Write everything into an empty file: pages that are written whole are neither mapped nor cleared before."""
    parts = [part for part in parts if len(part)]
    while parts:
        count = os.writev(descriptor, parts[:AT_ONCE])
        while parts and count >= len(parts[0]):
            count -= len(parts.pop(0))
        if count:
            parts[0] = parts[0][count:]


def receive(connection: socket.socket) -> tuple[int, Any]:
    """The kind and the value of the next message. Raises EOFError where the peer is gone."""
    try:
        header, descriptors, _, _ = socket.recv_fds(connection, _HEADER.size, 1)
    except ConnectionError as error:
        raise EOFError from error
    if len(header) < _HEADER.size or not descriptors:
        raise EOFError
    kind, size, encoded, count = _HEADER.unpack(header)
    try:
        memory = mmap.mmap(descriptors[0], size)
    finally:
        os.close(descriptors[0])
    places = _PLACE.iter_unpack(memory[encoded : encoded + count * _PLACE.size])
    whole = memoryview(memory)
    buffers = [whole[begin : begin + length] for begin, length in places]
    return kind, ForkingPickler.loads(whole[:encoded], buffers=buffers)


def fingerprint(value: Any) -> str:
    """A short digest of a value's content, "" where it cannot be encoded."""
    try:
        encoded, buffers = _encode(value)
    except Exception:
        return ""
    sha = hashlib.sha256(encoded.getbuffer())
    for buffer in buffers:
        sha.update(buffer)
    return sha.hexdigest()[:16]


def _encode(value: Any) -> tuple[io.BytesIO, list[memoryview]]:
    buffers: list[memoryview] = []
    encoded = io.BytesIO()
    _Encoder(encoded, 5, True, lambda buffer: buffers.append(buffer.raw())).dump(value)
    return encoded, buffers


class _Encoder(ForkingPickler):
    """Encodes tensors as arrays, whose bytes go beside the encoded object."""

    def reducer_override(self, value: Any) -> Any:
        """How a value is made again; NotImplemented: as usual."""
        if type(value) is torch.Tensor and value.layout is torch.strided and not value.is_quantized:
            return _reduced(value)
        if isinstance(value, (torch.Tensor, torch.UntypedStorage, torch.storage.TypedStorage)):
            return value.__reduce_ex__(5)  # not by a shared file, as torch.multiprocessing does
        return NotImplemented


def _reduced(tensor: torch.Tensor) -> Any:
    if tensor.grad_fn is not None:
        raise TrainingError(
            "a batch has a tensor that is the result of a differentiable function, which cannot leave its process; "
            "return tensor.detach(), or write workers=0"
        )
    if tensor.device.type != "cpu":
        raise TrainingError(
            f"a batch has a tensor on {tensor.device}, which cannot leave its process; return it on the CPU and move "
            "it in the loss function, or write workers=0"
        )
    plain = tensor.detach().resolve_conj().resolve_neg()
    length = 1 + sum((size - 1) * stride for size, stride in zip(plain.shape, plain.stride(), strict=True))
    flat = plain.as_strided((length if plain.numel() else 0,), (1,)).view(torch.uint8).numpy()
    return _tensor, (flat, plain.dtype, plain.shape, plain.stride(), tensor.requires_grad)


def _tensor(
    flat: Any, dtype: torch.dtype, shape: torch.Size, stride: tuple[int, ...], requires_grad: bool
) -> torch.Tensor:
    if not flat.size:
        return torch.empty_strided(shape, stride, dtype=dtype, requires_grad=requires_grad)
    return torch.from_numpy(flat).view(dtype).as_strided(shape, stride).requires_grad_(requires_grad)


def _address(buffer: memoryview) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data) if len(buffer) else 0
