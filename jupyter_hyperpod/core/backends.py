"""The table of backends, by name. A further backend is a folder and a line here; its options are in `backend_options`.

Names stand in specifications, journals and on command lines, so this table needs nothing of the backends themselves:
a module is imported when its backend is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from .errors import SpecError

BACKENDS: Mapping[str, str] = {
    "local": "jupyter_hyperpod.backends.local.backend:LocalBackend",
    "slurm": "jupyter_hyperpod.backends.slurm.backend:SlurmBackend",
    "kubernetes": "jupyter_hyperpod.backends.kubernetes.backend:KubernetesBackend",
}
DEFAULT_BACKEND = "local"  # its nodes are on this machine
CLUSTER_BACKEND = "slurm"  # for what is too large for this machine


def load(name: str) -> Any:
    """The backend of that name, a `backends.base.Backend`. Raises SpecError for a name that is not in the table."""
    if not isinstance(name, str) or name not in BACKENDS:
        raise SpecError(f"backend {str(name)[:80]!r} is not available; expected one of {', '.join(BACKENDS)}")
    module, _, attribute = BACKENDS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)()
