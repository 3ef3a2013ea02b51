"""The engines that `serve --engine` knows, which `engines.toml` describes, and commands of other engines."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...core.errors import SpecError
from ...core.spec import EngineSpec
from ...mounts.table import REMOTE

_TABLE: dict[str, dict[str, Any]] = tomllib.loads(files(__package__).joinpath("engines.toml").read_text())
_SPEC = ("command", "ready", "metrics", "running", "waiting", "model_name")
REQUEST_TIMEOUT_S = 600.0  # OpenAI's clients wait as long
NOT_VERIFIED = "not verified"


@dataclass(frozen=True, slots=True)
class Preset:
    """One table of `engines.toml`, which explains the fields."""

    spec: EngineSpec
    remedy: str
    modules: tuple[str, ...] = ()
    slots: int | None = None
    outstanding: float | None = None
    verified: str = ""

    @classmethod
    def read(cls, name: str) -> Preset:
        """The preset of that name."""
        table = _TABLE[name]
        found: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in table.items()
        }
        spec = EngineSpec(name, **{key: found[key] for key in _SPEC if key in found})
        return cls(spec, **{key: value for key, value in found.items() if key not in _SPEC})


PRESETS = {name: Preset.read(name) for name in _TABLE}


def help_text() -> str:
    """The engines, for the help of ``--engine``."""
    named = [name if preset.verified else f"{name} ({NOT_VERIFIED})" for name, preset in PRESETS.items()]
    return f"{', '.join(named)}, or a command with {{model}} and {{port}}"


def engine_of(
    engine: str, arguments: str | None = None, start_timeout_s: float | None = None
) -> tuple[EngineSpec, dict[str, Any]]:
    """The engine of a preset's name or of a command, and limits of the deployment that suit it.

    Its program is looked for here, and its absolute path is in the command. Raises SpecError.
    """
    preset = PRESETS.get(engine)
    spec = _of_command(engine) if preset is None else preset.spec
    command = (*spec.command, *_split(arguments or "", "--engine-args"))
    remedy = "" if preset is None else preset.remedy
    program = _program(command[0], remedy, () if preset is None else preset.modules)
    spec = replace(spec, command=(program, *command[1:]), start_timeout_s=start_timeout_s or spec.start_timeout_s)
    limits: dict[str, Any] = {"request_timeout_s": REQUEST_TIMEOUT_S}
    if preset is not None and preset.slots is not None:
        limits |= {"slots": preset.slots, "outstanding": preset.outstanding}
    return spec, limits


def notes(engine: str | None, model: str) -> list[str]:
    """What a person should know before the engine starts."""
    found: list[str] = []
    if engine is None:
        return found
    if engine in PRESETS and not PRESETS[engine].verified:
        found.append(f"{engine} is {NOT_VERIFIED}: nobody has run it with this project yet")
    if model.partition("://")[0] in REMOTE and "://" in model:
        found.append("the model is copied into a directory of each node before the engine starts")
    return found


def _of_command(text: str) -> EngineSpec:
    """An engine that no preset describes: what is known of the others is tried."""
    command = _split(text, "--engine")
    if "{port}" not in text and len(command) < 2:
        raise SpecError(
            f"{text[:80]!r} is no engine; expected one of {', '.join(PRESETS)}, or a command with {{model}} and "
            "{port}, for example --engine 'python server.py {model} --port {port}'"
        )
    known = [preset.spec for preset in PRESETS.values()]
    running, waiting = (
        tuple(name for spec in known for name in getattr(spec, which)) for which in ("running", "waiting")
    )
    name = os.path.basename(command[0]) if command else ""
    return EngineSpec(name, command, metrics="/metrics", running=running, waiting=waiting)


def _split(text: str, option: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise SpecError(f"{option} {text[:80]!r} cannot be split into words: {error}") from None


def _program(name: str, remedy: str, modules: Sequence[str]) -> str:
    """The absolute path of a program: of this environment, else of $PATH. Raises SpecError where it is missing."""
    own = os.path.dirname(sys.executable)
    found = shutil.which(name, path=own) or shutil.which(name)
    advice = f"install it with {remedy}" if remedy else "give its path, or install it"
    if found is None:
        raise SpecError(f"the engine's program {name} is neither in {own} nor in $PATH; {advice}")
    path = os.path.abspath(found)
    if Path(path).parent == Path(own):
        missing = [module for module in modules if find_spec(module) is None]
        if missing:
            raise SpecError(f"the engine {name} needs {', '.join(missing)}, which this environment lacks; {advice}")
    return path
