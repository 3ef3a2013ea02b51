"""The function of each verb, imported when it is run. A verb returns its exit status; `main` reports errors."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module

from ..storage.store import Store
from .terminal import Terminal
from .verb_parser import ALIASES

Verb = Callable[[argparse.Namespace, Store, Terminal], int]
_HOUSEKEEPING = "cluster_verbs:run_housekeeping"
_MOUNTING = "cluster_verbs:run_mounting"
_CONTEXTS = "context_verbs:run"

# verb -> the module of this package, and its function
VERBS = {
    "submit": "job_verbs:run_submit",
    "rerun": "job_verbs:run_rerun",
    "promote": "job_verbs:run_promote",
    "list": "job_verbs:run_list",
    "describe": "job_verbs:run_describe",
    "env": "cluster_verbs:run_env",
    "audit": "job_verbs:run_audit",
    "logs": "job_verbs:run_logs",
    "events": "job_verbs:run_events",
    "report": "runs:run_report",
    "notebook": "runs:run_notebook",
    "compare": "runs:run_compare",
    "tag": "runs:run_tag",
    "sweep": "sweep:run_sweep",
    "schedule": "schedule:run_schedule",
    "nodes": "cluster_verbs:run_nodes",
    "health": "cluster_verbs:run_health",
    "kept": "cluster_verbs:run_kept",
    "metrics": "cluster_verbs:run_metrics",
    "scale": "job_verbs:run_scale",
    "stop": "job_verbs:run_stop",
    "fault": "job_verbs:run_fault",
    "cluster": "cluster_verbs:run_cluster",
    "list-cluster": _CONTEXTS,
    "describe-cluster": _CONTEXTS,
    "set-cluster-context": _CONTEXTS,
    "get-cluster-context": _CONTEXTS,
    "delete": _HOUSEKEEPING,
    "prune": _HOUSEKEEPING,
    "share": _HOUSEKEEPING,
    "mount": _MOUNTING,
    "umount": _MOUNTING,
    "ls": _MOUNTING,
    "cp": _MOUNTING,
    "df": _MOUNTING,
    "doctor": "cluster_verbs:run_doctor",
    "validate": "cluster_verbs:run_validate",
    "setup": "kubernetes_setup:run_setup",
    "bench": "benchmark:run_bench",
    "recipe": "recipe:run_recipe",
    "serve": "serve:run_serve",
    "model": "model:run_model",
    "plan": "plan:run_plan",
}


def function_of(verb: str) -> Verb:
    """Return the function of a verb."""
    module, _, name = VERBS[verb].partition(":")
    found: Verb = getattr(import_module(f".{module}", __package__), name)
    return found


def run(options: argparse.Namespace, terminal: Terminal) -> int:
    """Run the verb that `options` name and return the exit status."""
    return function_of(ALIASES.get(options.verb, options.verb))(options, Store(options.store).refuse_file(), terminal)
