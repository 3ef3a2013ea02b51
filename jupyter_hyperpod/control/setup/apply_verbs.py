"""``setup apply`` and ``setup remove``: what they did or would do, for people and for scripts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ...backends.kubernetes import rights
from ...backends.kubernetes.client import Api
from ...core.units import plural
from ..text_tables import Answer
from . import applying, node_groups
from .applying import CHANGE, CREATE, DELETE, FOREIGN, RELEASE, SAME, STAYS, Change
from .own_objects import own_objects
from .verbs import agents_of

DONE = {CREATE: "made", CHANGE: "changed", DELETE: "deleted", RELEASE: "let go of"}


def run_apply(options: argparse.Namespace, api: Api, namespace: str) -> Answer:
    """Make what is ours, or say with ``--dry-run`` what would change. Raises SpecError or ClusterError."""
    groups, agents = node_groups.parse(options.nodes or ()), agents_of(options)
    version = applying.kueue_version(api) if groups else ""
    whom = rights.subject(namespace, options.account or "", options.user or "", options.group or "")
    objects = own_objects(namespace, whom, options.remedies, groups, version, agents)
    changes = applying.plan(api, objects, namespace)
    if not options.dry_run:
        applying.carry_out(api, changes, namespace)
    return _answer(changes, namespace, options.dry_run, f"all of it is there in {namespace}")


def run_remove(options: argparse.Namespace, api: Api, namespace: str) -> Answer:
    """Take away what ``apply`` made, or say what would go. Raises ClusterError."""
    changes = applying.plan_removal(api, namespace)
    if not options.dry_run:
        applying.remove(api, changes, namespace)
    return _answer(changes, namespace, options.dry_run, f"nothing in the cluster is ours for {namespace}")


def _answer(changes: Sequence[Change], namespace: str, dry_run: bool, nothing: str) -> Answer:
    lines = []
    for one in changes:
        if one.action == SAME:
            continue
        why = f": {one.why}" if one.why else ""
        word = one.action if dry_run or one.action in (FOREIGN, STAYS) else DONE[one.action]
        lines.append(f"{word:<9} {one.kind} {one.name}{why}")
        lines += [f"    {line}" for line in one.diff.splitlines()] if dry_run and one.action in (CREATE, CHANGE) else []
    done = sum(one.action in DONE for one in changes)
    if not done:
        lines.append(nothing)
    elif dry_run:
        lines.append(f"{plural(done, 'object')} would change, nothing was changed")
    answer = {"namespace": namespace, "dry_run": dry_run, "changed": 0 if dry_run else done}
    return Answer({**answer, "objects": [one.to_json() for one in changes]}, lines=lines)
