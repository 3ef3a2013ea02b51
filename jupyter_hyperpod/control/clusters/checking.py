"""Checks one node on request, here or by what its scheduler starts there, and has the findings judged."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from ...core.errors import ClusterError, SpecError
from ...core.health import ACTIONS, DEEP, IN_PROGRESS, Finding
from ...health import check as node_checks
from ...health.check import NodeCheck
from ...storage.store import Store, private_directory
from .scheduler_nodes import Elsewhere

MODULE = "jupyter_hyperpod.health.check"
CHECK_S = 4 * 3600.0
Say = Callable[[Finding], None]


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is checked: ``deep`` stresses and diagnoses, for minutes; ``level`` is DCGM's."""

    deep: bool = False
    level: int = 2


def check(
    store: Store, name: str, elsewhere: Elsewhere | None, extent: Extent, say: Say
) -> tuple[list[Finding], Mapping[str, Any]]:
    """The findings on a node, and what was decided about it. ``name``: "" is this machine, about which nothing is.

    ``say`` gets each finding at once, where the check runs here. Raises ClusterError, StoreError.
    """
    with _announced(store.prepare(), name, elsewhere) if name and extent.deep else nullcontext():
        if elsewhere is None:
            looked = node_checks.look(store, extent.deep, extent.level, say)
        else:
            looked = _look_elsewhere(store, elsewhere, extent)
        judged = _judge(store, name, elsewhere, looked, extent.deep) if name else {}
    if elsewhere is not None and extent.deep:
        elsewhere.remedies.show_check(name, judged["labels"][DEEP])
    return looked.findings, judged


def _judge(store: Store, name: str, elsewhere: Elsewhere | None, looked: NodeCheck, deep: bool) -> Mapping[str, Any]:
    if elsewhere is None:
        return node_checks.judge(store, name, looked, deep)
    remedies, shown = elsewhere.remedies, elsewhere.info.health

    def carry_out(node: str, action: str, why: str) -> None:
        if shown is None or ACTIONS.index(shown.action) < ACTIONS.index(action):  # else the node's agent does it
            remedies.carry_out(node, action, why)

    return node_checks.judge(store, name, looked, deep, carry_out, remedies.recovery())


@contextmanager
def _announced(store: Store, name: str, elsewhere: Elsewhere | None) -> Iterator[None]:
    """Label a node while its deep check is under way, where its scheduler can show that, too."""
    with node_checks.labelled(store, name):
        if elsewhere is None:
            yield
            return
        before = elsewhere.remedies.show_check(name, IN_PROGRESS)
        try:
            yield
        except BaseException:
            with suppress(ClusterError):
                elsewhere.remedies.show_check(name, "" if before == IN_PROGRESS else before)
            raise


def _look_elsewhere(store: Store, found: Elsewhere, extent: Extent) -> NodeCheck:
    name, directory = found.info.name, private_directory(store.cluster / "checks")
    words = [MODULE, *(["--deep"] if extent.deep else []), "--level", str(extent.level)]
    words += ["--store", str(store.root)] if found.remedies.shares_store else []
    try:
        said = found.remedies.run_on(name, words, f"health-check-{time.time_ns()}", directory, CHECK_S)
    except TimeoutError as error:
        raise ClusterError(f"the check of {name} did not end within {CHECK_S / 3600:g} h") from error
    try:
        return NodeCheck.from_json(json.loads(said))
    except (ValueError, KeyError, TypeError, SpecError) as error:
        raise ClusterError(f"the check of {name} brought no findings; it printed {said[:300]!r}") from error
