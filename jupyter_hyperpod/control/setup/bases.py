"""Chooses the images that an environment is built on, by its device: what was recorded decides. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...core.errors import SpecError
from ...storage.fingerprint.distributions import Distribution
from .versions import table

CPU, NVIDIA, NEURON = DEVICES = ("cpu", "nvidia", "neuron")
_NEURON = re.compile(r"torch-neuronx?|libneuronxla|neuronx-.*|nki|aws-neuronx-.*")
_BROUGHT = re.compile(rf"{_NEURON.pattern}|torch|torch-xla|torchvision")  # what AWS's container has itself
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)((?:a|b|rc)\d+)?\+?")
_REFERENCE = re.compile(r"[a-z0-9][a-z0-9._:/-]*?[a-z0-9](:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?")
INSTEAD = "name an image that has it with --base IMAGE"


@dataclass(frozen=True, slots=True)
class Base:
    """What an image begins with. ``build``: where the environment is made, where that is another one.

    ``python``: the version that has to be installed, "" where the base has one. ``unverified``: why it may not build.
    """

    device: str
    image: str
    build: str = ""
    python: str = ""
    unverified: str = ""

    @property
    def brings_environment(self) -> bool:
        """Packages go into the Python of the base itself."""
        return self.device == NEURON and not self.build


def device_of(packages: Mapping[str, Distribution], devices: Mapping[str, Any]) -> str:
    """The device that an environment is for: by its packages, because who submits may have no such device."""
    if any(_NEURON.fullmatch(name) for name in packages):
        return NEURON
    return NVIDIA if devices.get("cuda") or devices.get("gpus") else CPU


def is_brought(name: str) -> bool:
    """Whether AWS's container for Neuron has this package itself."""
    return bool(_BROUGHT.fullmatch(name))


def choose(
    device: str,
    python: Mapping[str, Any],
    packages: Mapping[str, Distribution],
    devices: Mapping[str, Any],
    wanted: str = "",
) -> Base:
    """The base for a device. ``wanted``: an image that a person names. Raises SpecError where there is none."""
    if wanted:
        return Base(device, _checked(wanted), _checked(wanted))
    said, kind = str(python.get("version") or ""), str(python.get("implementation") or "cpython")
    version = _VERSION.fullmatch(said)
    if version is None or kind != "cpython":
        raise SpecError(f"the environment has Python {said or 'unknown'} ({kind}), expected a CPython; {INSTEAD}")
    if device == NEURON:
        return _neuron(f"{version[1]}.{version[2]}", packages)
    if device == NVIDIA:
        return _nvidia(said.rstrip("+"), packages, str(devices.get("cuda") or devices.get("toolkit") or ""))
    known = table("python")
    since = known["first_on_bookworm"].get(f"{version[1]}.{version[2]}", 0)
    debian = "bookworm" if int(version[3]) >= since else "bullseye"
    at = f"{known['image']}:{said.rstrip('+')}"
    return Base(CPU, f"{at}-slim-{debian}", f"{at}-{debian}")


def _nvidia(python: str, packages: Mapping[str, Distribution], cuda: str) -> Base:
    known = table("cuda")
    minor = ".".join(cuda.split(".")[:2])
    if minor not in known["versions"]:
        raise SpecError(
            f"no image is known for CUDA {cuda or 'of unknown version'}, only for {', '.join(known['versions'])}; "
            f"{INSTEAD}, or leave the GPU out with --device cpu"
        )
    version, cudnn = known["versions"][minor]
    flavour = "runtime" if any(name.startswith("nvidia-cudnn-") for name in packages) else f"{cudnn}-runtime"
    image = f"{known['image']}:{version}-{flavour}-{known['system']}"
    return Base(NVIDIA, image, python=python, unverified="no image with CUDA was built or run on a GPU")


def _neuron(python: str, packages: Mapping[str, Distribution]) -> Base:
    known = table("neuron")
    torch = packages.get("torch") or packages.get("torch-neuronx")
    minor = ".".join(torch.version.split(".")[:2]) if torch else "unknown"
    tag = known["tags"].get(f"{minor} {python}")
    if tag is None:
        pairs = ", ".join("torch {} with Python {}".format(*name.split()) for name in known["tags"])
        raise SpecError(
            f"AWS has no known container for torch {minor} with Python {python}, only for {pairs}; {INSTEAD}"
        )
    return Base(NEURON, f"{known['image']}:{tag}", unverified="no image for Neuron was built or run on such a device")


def _checked(image: str) -> str:
    """An image by a tag that does not move by its name alone, or by its digest. Raises SpecError."""
    found = _REFERENCE.fullmatch(image)
    if found is None or not (found[1] or found[2]) or found[1] == ":latest":
        raise SpecError(f"--base is {image[:120]!r}, expected NAME:TAG or NAME@sha256:DIGEST, and no tag `latest`")
    return image
