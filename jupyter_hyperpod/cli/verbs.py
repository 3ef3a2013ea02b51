"""The function of each verb. A verb returns its exit status; `main` reports errors."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ..control import housekeeping, mounting
from ..storage.store import Store
from . import benchmark, cluster_verbs, job_verbs, kubernetes_setup, model, plan, recipe, runs, serve, sweep
from .parser import ALIASES
from .terminal import Terminal

Verb = Callable[[argparse.Namespace, Store, Terminal], int]


def run(options: argparse.Namespace, terminal: Terminal) -> int:
    """Run the verb that `options` name and return the exit status."""
    return VERBS[ALIASES.get(options.verb, options.verb)](options, Store(options.store), terminal)


VERBS: dict[str, Verb] = {
    "submit": job_verbs.run_submit,
    "rerun": job_verbs.run_rerun,
    "promote": job_verbs.run_promote,
    "list": job_verbs.run_list,
    "describe": job_verbs.run_describe,
    "env": cluster_verbs.run_env,
    "audit": job_verbs.run_audit,
    "logs": job_verbs.run_logs,
    "events": job_verbs.run_events,
    "report": runs.run_report,
    "compare": runs.run_compare,
    "tag": runs.run_tag,
    "sweep": sweep.run_sweep,
    "nodes": cluster_verbs.run_nodes,
    "health": cluster_verbs.run_health,
    "metrics": cluster_verbs.run_metrics,
    "scale": job_verbs.run_scale,
    "stop": job_verbs.run_stop,
    "fault": job_verbs.run_fault,
    "cluster": cluster_verbs.run_cluster,
    **dict.fromkeys(housekeeping.VERBS, cluster_verbs.run_housekeeping),
    **dict.fromkeys(mounting.VERBS, cluster_verbs.run_mounting),
    "doctor": cluster_verbs.run_doctor,
    "validate": cluster_verbs.run_validate,
    "setup": kubernetes_setup.run_setup,
    "bench": benchmark.run_bench,
    "recipe": recipe.run_recipe,
    "serve": serve.run_serve,
    "model": model.run_model,
    "plan": plan.run_plan,
}
