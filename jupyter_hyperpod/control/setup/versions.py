"""The versions that `setup` writes into files, from one table that names their sources."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def table(name: str) -> dict[str, Any]:
    """One part of the table."""
    found: dict[str, Any] = tomllib.loads(files(__package__).joinpath("versions.toml").read_text())[name]
    return found
