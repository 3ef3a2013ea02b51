"""Looks at what Jupyter knows of this package: the server's extension, the lab's, kernels, and versions that fit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ... import __version__
from ...core.units import few
from ...policy.preflight import FAILED, PASSED, SKIPPED, Row
from ...storage.fingerprint.distributions import normal
from . import config_files

NAME = "jupyter_hyperpod"
ANSWER_S = 60.0
REINSTALL = f"{sys.executable} -m pip install --force-reinstall --no-deps {NAME}"
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(;.*)?")
_BOUND = re.compile(r"(>=|<=|==|!=|~=|<|>)\s*([\w.*]+)")


def _config() -> list[Path]:
    """Where Jupyter looks for its configuration, what counts most first."""
    from jupyter_core.paths import jupyter_config_path

    return [Path(folder) for folder in jupyter_config_path()]


def _data() -> list[Path]:
    from jupyter_core.paths import jupyter_path

    return [Path(folder) for folder in jupyter_path()]


def server_extension() -> Row:
    """Whether Jupyter's server loads the extension, by its files of configuration, and whether it can be imported."""
    name = "server extension"
    problems: list[str] = []
    above = config_files.said_of(NAME, _config())
    said = None if above.path is None else (above.wanted, above.path)
    for folder in _config():  # a file beside the folder counts more than those in it
        files = sorted((folder / "jupyter_server_config.d").glob("*.json"), reverse=True)
        for path in (folder / "jupyter_server_config.json", *files):
            content = _read(path, problems)
            wanted = _inside(content, "ServerApp", "jpserver_extensions", NAME)
            if said is None and isinstance(wanted, bool):
                said = wanted, path
    if ignored := list(dict.fromkeys((*above.problems, *problems))):
        return Row(name, FAILED, f"Jupyter's server ignores {few(ignored)}", "correct the file, or remove it")
    if said is None:
        return Row(name, FAILED, "no file of configuration names it: the panel finds no server", REINSTALL)
    if not said[0] and said[1] == above.path:  # Jupyter's own command writes what counts less
        remedy = f"write True for {NAME} in jpserver_extensions of that file, or remove what the file says of it"
        return Row(name, FAILED, f"it is switched off in {said[1]}, by jpserver_extensions of ServerApp", remedy)
    if not said[0]:
        flag = {"user": " --user", "system": " --system"}.get(_level(said[1]), "")
        enable = f"{sys.executable} -m jupyter server extension enable{flag} {NAME}"
        return Row(name, FAILED, f"it is switched off in {said[1]}", enable)
    if why := _run(sys.executable, f"import {NAME}.server.extension")[1]:
        return Row(name, FAILED, f"it cannot be imported: {why}", REINSTALL)
    return Row(name, PASSED, f"enabled in {said[1]}, and it can be imported")


def lab_extension() -> Row:
    """Whether JupyterLab finds the built extension, complete, of this version, and not switched off."""
    name = "lab extension"
    folders = [folder / "labextensions" / NAME for folder in _data()]
    place = next((folder for folder in folders if os.path.lexists(folder)), None)
    if place is None:
        return Row(name, FAILED, f"it is in none of {few([str(one.parent) for one in folders])}", REINSTALL)
    problems: list[str] = []
    about = _read(place / "package.json", problems)
    entry = _inside(about, "jupyterlab", "_build", "load")
    if problems or not isinstance(entry, str) or not (place / entry).is_file():
        return Row(name, FAILED, f"{place} is not complete", f"{REINSTALL}; in a checkout: make build")
    if (found := about.get("version")) != __version__:
        said = f"{place} is of version {found}, the package is {__version__}"
        return Row(name, FAILED, said, f"{REINSTALL}; then reload the page")
    for folder in _config():
        path = folder / "labconfig" / "page_config.json"
        disabled = _inside(_read(path, problems), "disabledExtensions")
        off = disabled if isinstance(disabled, list) else [key for key, value in _mapping(disabled).items() if value]
        if any(str(one).split(":")[0] == NAME for one in off):
            enable = f"{sys.executable} -m jupyter labextension enable --level={_level(path)} {NAME}"
            return Row(name, FAILED, f"it is switched off in {path}", enable)
    if problems:
        said = f"JupyterLab ignores {few(problems)}; expected is an object of JSON"
        return Row(name, FAILED, said, "correct the file, or remove it")
    return Row(name, PASSED, f"version {__version__} in {place}")


def _level(path: Path) -> str:
    """For whom a file of configuration is, in the words of Jupyter's own commands."""
    from jupyter_core.paths import jupyter_config_dir

    if path.is_relative_to(jupyter_config_dir()):
        return "user"
    return "sys_prefix" if path.is_relative_to(sys.prefix) else "system"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _read(path: Path, problems: list[str]) -> dict[str, Any]:
    """The object in a file of JSON; empty where there is no file. Names one that cannot be read."""
    try:
        return dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        problems.append(f"{path}: {error}")
        return {}


def _inside(content: Any, *names: str) -> Any:
    for name in names:
        content = _mapping(content).get(name)
    return content


def versions() -> Row:
    """Whether installed packages are within what this package asks for."""
    name = "versions"
    try:
        requirements = metadata.requires(NAME) or []
    except metadata.PackageNotFoundError:
        return Row(name, SKIPPED, f"{NAME} is not installed as a package: what it needs is not written down")
    wrong, needed = [], []
    for text in requirements:
        found = _REQUIREMENT.fullmatch(text)
        if found is None or found[3]:  # an extra, or another system
            continue
        needed.append(found[1])
        try:
            there = metadata.version(found[1])
        except metadata.PackageNotFoundError:
            wrong.append(f"{normal(found[1])} is not installed")
            continue
        if not fits(there, found[2]):
            wrong.append(f"{normal(found[1])} is {there}, needed is {found[2].strip()}")
    if wrong:
        return Row(name, FAILED, "; ".join(wrong), f"{sys.executable} -m pip install --upgrade {NAME}")
    return Row(name, PASSED, f"{len(needed)} packages are within what {NAME} {__version__} asks for")


def fits(version: str, wanted: str) -> bool:
    """Whether a version is within bounds such as ``>=4.6,<5``; bounds of an unknown kind are met."""
    have = _release(version)
    for operator, bound in _BOUND.findall(wanted):
        limit = _release(bound.removesuffix(".*"))
        size = max(len(have), len(limit))
        one, other = (parts + (0,) * (size - len(parts)) for parts in (have, limit))
        start = one[: len(limit)] == limit
        met = {
            ">=": one >= other,
            "<=": one <= other,
            ">": one > other,
            "<": one < other,
            "==": start if bound.endswith(".*") else one == other,
            "!=": not (start if bound.endswith(".*") else one == other),
            "~=": one >= other and one[: max(1, len(limit) - 1)] == limit[: max(1, len(limit) - 1)],
        }
        if not met[operator]:
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(?:\d+!)?(\d+(?:\.\d+)*)", version)
    return tuple(map(int, found[1].split("."))) if found else ()


def kernels() -> Iterator[Row]:
    """Each Python kernel: whether it can load the magics, in this version."""
    seen: dict[str, Path] = {}
    for folder in _data():
        for path in sorted((folder / "kernels").glob("*/kernel.json")):
            seen.setdefault(path.parent.name, path)
    if not seen:
        install = f"{sys.executable} -m ipykernel install --sys-prefix"
        yield Row("kernel", FAILED, "there is no kernel: a notebook has nothing to run in", install)
    for kernel, path in seen.items():
        problems: list[str] = []
        about = _read(path, problems)
        if problems:
            yield Row(f"kernel {kernel}", FAILED, f"its file cannot be read: {problems[0]}", "install the kernel again")
        elif str(about.get("language", "")).lower() == "python":
            yield _kernel(kernel, [str(word) for word in about.get("argv") or ["python"]], path)


def _kernel(kernel: str, command: list[str], path: Path) -> Row:
    name, python = f"kernel {kernel}", command[0]
    if os.path.basename(python) == python and python.startswith("python"):
        python = sys.executable  # Jupyter replaces the bare name by its own
    elif "ipykernel_launcher" not in command and "ipykernel" not in command:
        return Row(name, SKIPPED, f"{path} starts {python}, which is no Python itself")
    said, why = _run(python, f"import {NAME}; print({NAME}.__version__)")
    if why:
        install = f"{python} -m pip install {NAME}=={__version__}"
        return Row(name, FAILED, f"{python} does not have the magics: {why}", install)
    if said != __version__:
        return Row(
            name,
            FAILED,
            f"{python} has version {said}, here is {__version__}",
            f"{python} -m pip install {NAME}=={__version__}",
        )
    return Row(name, PASSED, f"{python} has version {said}")


def torch() -> Row:
    """Whether torch can be imported, and sees the devices that this machine has."""
    code = (
        "import json, torch; print(json.dumps([torch.__version__, torch.version.cuda or torch.version.hip or '', "
        "torch.cuda.device_count() if torch.cuda.is_available() else 0]))"
    )
    said, why = _run(sys.executable, code)
    if why:
        missing = "No module named 'torch'" in why
        remedy = f"{sys.executable} -m pip install '{NAME}[train]'"
        return Row("torch", FAILED, "it is not installed" if missing else f"it cannot be imported: {why}", remedy)
    version, built_for, count = json.loads(said.splitlines()[-1])
    there = sum(1 for one in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", one))
    if there and not count:
        how = f"built for CUDA {built_for}" if built_for else "built for the processor alone"
        remedy = "install the torch that belongs to the driver (`nvidia-smi` names its CUDA): https://pytorch.org"
        return Row("torch", FAILED, f"torch {version}, {how}, sees none of {there} GPUs", remedy)
    sees = f"sees {count} of {there} GPUs" if there else "there is no GPU, it trains on the processor"
    return Row("torch", PASSED, f"torch {version}{f', CUDA {built_for}' if built_for else ''}; {sees}")


def _run(python: str, code: str) -> tuple[str, str]:
    """What a line of Python prints elsewhere, and why it failed: the last line of its error."""
    try:
        done = subprocess.run(
            [python, "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            cwd="/",  # a checkout in the present directory is not what a kernel imports
        )
    except (OSError, subprocess.SubprocessError) as error:
        return "", str(error.strerror if isinstance(error, OSError) else f"no answer in {ANSWER_S:g} s")
    if done.returncode == 0:
        return done.stdout.strip(), ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return "", (lines or [f"exit status {done.returncode}"])[-1][:300]
