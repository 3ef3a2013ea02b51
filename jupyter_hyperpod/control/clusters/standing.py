"""The clusters that jobs can be sent to from here, side by side, and what stands at each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...backends import load
from ...backends.base import Backend
from ...core.backends import BACKENDS
from ...core.errors import ClusterError, NoCluster, NotFound

MOST_AT_ONCE = 4
ANSWER_S = 2.0


def standing(context: str = "") -> dict[str, Any]:
    """All clusters; those without a context are asked how many nodes are in which state.

    ``context``: only the cluster that is called so, and that one is asked. Nobody asks the clusters of a kubeconfig
    unless a person wants it, since that may begin a login. What this machine lacks is left out. Raises NotFound.
    """
    found = [one for name in BACKENDS for one in _clusters(name)]
    if context:
        found = [one for one in found if one["context"] == context]
        if not found:
            raise NotFound(f"there is no context {context[:80]!r} in the kubeconfig of this server")
    asked = [one for one in found if not one["owns_nodes"] and one["context"] == context]
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        for one, answer in zip(asked, pool.map(_ask, asked), strict=True):
            if answer is None:
                found.remove(one)
            else:
                one |= answer
    return {"clusters": found}


def _clusters(name: str) -> list[dict[str, Any]]:
    backend = load(name)
    if backend.missing():
        return []
    known = {"backend": name, "title": backend.title, "owns_nodes": backend.capabilities.owns_nodes}
    known |= {"asked": False, "problem": "", "states": {}}
    contexts = backend.contexts()
    return [{**known, "context": one, "usual": one == contexts[0]} for one in contexts]


def _ask(cluster: Mapping[str, Any]) -> dict[str, Any] | None:
    """What its scheduler shows; None where programs are here and no cluster is configured."""
    options = {} if cluster["usual"] else {"context": cluster["context"]}
    backend = load(cluster["backend"])
    try:
        states = backend.node_states(options)
    except ClusterError as error:
        return {"asked": True, "problem": str(error)} if configured(backend) else None
    return {"asked": True, "states": Counter(state for state, _ in states.values())}


def configured(backend: Backend) -> bool:
    """False where a scheduler's programs are here, and no cluster of it is configured."""
    try:
        backend.answer(ANSWER_S)
    except NoCluster:
        return False
    except ClusterError:
        pass
    return True
