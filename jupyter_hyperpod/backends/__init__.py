"""Backends: each starts the processes of a LaunchPlan on its nodes and reports their state. They know no training."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ..core import backends as table

if TYPE_CHECKING:
    from .base import Backend, Host
    from .types import Surroundings


def load(name: str) -> Backend:
    """The backend of that name. Raises SpecError for a name that is not in the table, `core.backends`."""
    backend: Backend = table.load(name)
    return backend


def host(surroundings: Surroundings) -> Host:
    """The runner that owns this machine's nodes, at work for a supervisor."""
    return cast("Host", load(table.DEFAULT_BACKEND).open(surroundings))
