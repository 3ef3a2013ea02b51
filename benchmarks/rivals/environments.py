"""Environments of other systems: one each, with the torch that is installed here, kept between runs.

They live in ``$XDG_CACHE_HOME/jupyter_hyperpod/peers``; remove that directory to install them anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

from jupyter_hyperpod.bench.laboratory import progress
from jupyter_hyperpod.core.errors import HyperpodError, SpecError

REQUIREMENTS = {
    "torchft": "torchft==0.2.0",
    "torchft-nightly": "torchft-nightly==2026.10.26",
    "nvrx": "nvidia-resiliency-ext==0.4.1",
    "boto3": "boto3==1.43.117 safetensors==0.8.0",
    "runai": "runai-model-streamer[s3]==0.17.0",
    "s3torchconnector": "s3torchconnector==1.5.0 safetensors==0.8.0",
    "tensorizer": "tensorizer==2.12.1",
    "fastsafetensors": "fastsafetensors==0.5.0 boto3==1.43.117 safetensors==0.8.0",
    "obstore": "obstore==0.12.1",
    "awscrt": "awscrt==0.38.0",
}
READY = "ready"
INSTALL_TIMEOUT_S = 600.0


class NotInstalled(HyperpodError):
    """A system could not be installed here; the message says why."""


def python_of(system: str) -> str:
    """The interpreter that has ``system``, installing it on first use. Raises SpecError or NotInstalled."""
    if system not in REQUIREMENTS:
        raise SpecError(f"no system named {system!r}; expected one of {', '.join(REQUIREMENTS)}")
    directory = _cache() / f"{system}-{_fingerprint(REQUIREMENTS[system])}"
    if not (directory / READY).exists():
        progress(f"installing {REQUIREMENTS[system]} into {directory}")
        shutil.rmtree(directory, ignore_errors=True)
        _install(directory, REQUIREMENTS[system])
    return str(directory / "bin" / "python")


def _install(directory: Path, requirement: str) -> None:
    """An environment that sees the packages of this one behind its own, so that torch is neither copied nor another."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    _call([sys.executable, "-m", "venv", os.fspath(directory)], requirement)
    python = directory / "bin" / "python"
    found = sysconfig.get_path("purelib", vars={"base": str(directory), "platbase": str(directory)})
    (Path(found) / "shared.pth").write_text("\n".join(_shared()) + "\n")
    pin = directory / "constraints.txt"
    pin.write_text(f"torch=={version('torch').partition('+')[0]}\nnumpy=={version('numpy')}\n")
    _call([str(python), "-m", "pip", "install", "--quiet", "--constraint", str(pin), *requirement.split()], requirement)
    (directory / READY).touch()


def _call(command: list[str], requirement: str) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{requirement} could not be installed: {error}") from error
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise NotInstalled(f"{requirement} could not be installed: {words[-1] if words else 'pip failed'}")


def _shared() -> list[str]:
    return sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


def _fingerprint(requirement: str) -> str:
    """Another interpreter, another torch or another version of the system is another environment."""
    facts = [requirement, sys.version, version("torch"), *_shared()]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:12]


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(root) / "jupyter_hyperpod" / "peers"
