"""The interpreter, the processor, and what belongs to GPUs: the driver, CUDA, NCCL. Read from files alone.

Nothing is imported or started: a submission cannot wait for torch or for ``nvidia-smi``.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .distributions import Distribution

_FIELD = re.compile(r"^(?:cuda|hip)\b[^=\n]*=\s*['\"]([\w.+-]+)['\"]", re.MULTILINE)
_MODEL = re.compile(r"^(?:model name|CPU part)\s*:\s*(.+)$", re.MULTILINE)
_FLAGS = re.compile(r"^(?:flags|Features)\s*:\s*(.+)$", re.MULTILINE)
_GPU = re.compile(r"^Model:\s*(.+)$", re.MULTILINE)
_VECTORS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "sve2")  # these decide the order of sums
_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")


def interpreter() -> dict[str, str]:
    """The Python of this process and the kind of environment that it is in."""
    return {
        "version": sys.version.split()[0],
        "implementation": sys.implementation.name,
        "executable": sys.executable,
        "prefix": sys.prefix,
        "kind": _kind(sys.prefix, sys.base_prefix),
    }


def _kind(prefix: str, base: str) -> str:
    if os.path.isdir(os.path.join(prefix, "conda-meta")):
        return "conda"
    return "venv" if prefix != base else "system"


def processor(root: Path = Path("/")) -> dict[str, str]:
    """The architecture, the C library and the processor, with its vector instructions."""
    text = _begin(root / "proc/cpuinfo")
    model, flags = _MODEL.search(text), _FLAGS.search(text)
    has = set(flags[1].split()) if flags else set()
    libc = ""
    with suppress(OSError, ValueError, AttributeError):
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    return {
        "architecture": platform.machine(),
        "libc": libc,
        "processor": model[1].strip()[:100] if model else "",
        "vectors": " ".join(name for name in _VECTORS if name in has),
    }


def devices(path: Sequence[str], packages: Mapping[str, Distribution], root: Path = Path("/")) -> dict[str, Any]:
    """GPUs, driver, CUDA, NCCL and cuDNN; what is not there has no entry."""
    found = {
        "driver": _begin(root / "sys/module/nvidia/version").strip()
        or _begin(root / "sys/module/neuron/version").strip(),
        "cuda": _torch_cuda(path),
        "toolkit": _toolkit(root / "usr/local/cuda"),
        "nccl": _version(packages, "nvidia-nccl-") or _library("libnccl.so.2", root),
        "cudnn": _version(packages, "nvidia-cudnn-") or _library("libcudnn.so.9", root),
        "gpus": ", ".join(_gpus(root / "proc/driver/nvidia/gpus")),
    }
    return {name: value for name, value in found.items() if value}


def _toolkit(link: Path) -> str:
    """The version in the name of the folder of CUDA's compilers."""
    return os.path.basename(os.path.realpath(link)).partition("cuda-")[2] if link.is_dir() else ""


def _torch_cuda(path: Sequence[str]) -> str:
    """The version of CUDA for which torch was built."""
    for folder in path:
        if text := _begin(Path(folder or ".") / "torch" / "version.py"):
            found = _FIELD.search(text)
            return found[1] if found else ""
    return ""


def _version(packages: Mapping[str, Distribution], prefix: str) -> str:
    return next((one.version for name, one in packages.items() if name.startswith(prefix)), "")


def _library(name: str, root: Path) -> str:
    """The version in the name of the file to which a library's link leads."""
    for folder in _LIBRARIES:
        with suppress(OSError):
            target = os.path.basename(os.readlink(root / folder.lstrip("/") / name))
            return target.partition(".so.")[2]
    return ""


def _gpus(folder: Path) -> list[str]:
    """The models of GPUs, such as ``8 x NVIDIA H100``, by the driver's own files."""
    counts: dict[str, int] = {}
    with suppress(OSError):
        for name in sorted(os.listdir(folder)):
            if model := _GPU.search(_begin(folder / name / "information")):
                counts[model[1].strip()] = counts.get(model[1].strip(), 0) + 1
    return [f"{count} x {model}" for model, count in counts.items()]


def _begin(path: Path) -> str:
    """The first page of a file: all of /proc/cpuinfo takes long where there are hundreds of cores."""
    try:
        with open(path, "rb") as file:
            return file.read(8192).decode(errors="replace")
    except OSError:
        return ""
