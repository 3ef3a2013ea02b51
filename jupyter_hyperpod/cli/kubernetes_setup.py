"""The command ``jupyter hyperpod setup …``: images, and what a Kubernetes cluster has, lacks and needs for jobs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from ..control.setup import node_groups, verbs
from ..control.text_tables import Answer
from ..core.errors import SpecError
from ..core.units import plural
from ..policy.preflight import FAILED, PASSED, SKIPPED, Row
from ..storage.store import Store
from .terminal import Terminal

if TYPE_CHECKING:
    from ..backends.kubernetes.kubeconfig import Access
    from ..backends.kubernetes.shortages import ClusterFacts, JobNeeds

HELP = "prepare a Kubernetes cluster: check it, print the Role that jobs need, write the image of an environment"
ACTIONS = {
    "check": "ask the cluster",
    "role": "print YAML for kubectl apply",
    "image": "write a Dockerfile",
    "eks": "write what makes a cluster",
    "cluster": "the same as eks",
    "apply": "make what is ours in the cluster",
    "remove": "take it away",
    "chart": "write it as a chart for helm",
}
# which action an option belongs to; what is not here belongs to all
OWNERS = {
    **dict.fromkeys(("account", "user", "group", "remedies"), ("role", "apply", "chart")),
    **dict.fromkeys(
        ("health", "health_python", "health_path", "health_recovery", "health_kernel_log"), ("apply", "chart")
    ),
    **dict.fromkeys(("here", "device", "base", "uid", "hashes"), ("image",)),
    **dict.fromkeys(("region", "zones", "volume"), ("eks",)),
    "name": ("image", "eks"),
    "output": ("image", "eks", "chart"),
    "dry_run": ("apply", "remove"),
    "nodes": ("check", "eks", "apply", "chart"),
    "namespace": ("check", "role", "eks", "apply", "remove", "chart"),
    "context": ("check", "role", "apply", "remove"),
}
TONES = {PASSED: "good", FAILED: "bad", SKIPPED: "warn"}


def add_setup_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``setup``."""
    add = parser.add_argument
    add(
        "action", choices=ACTIONS, metavar="ACTION", help="; ".join(f"{name}: {what}" for name, what in ACTIONS.items())
    )
    add("name", nargs="?", metavar="NAME", help="image: a job's id or name; eks: the name of the cluster")
    add("--context", metavar="NAME", default="", help="a context of the kubeconfig (default: the current one)")
    add(
        "--namespace",
        metavar="NAME",
        default="",
        help="where jobs are to run (default: the context's; eks, chart: hyperpod)",
    )
    told = (
        f"check: how many nodes a job is to have (default: 1); eks, and queues of apply and chart: {node_groups.FORM}"
    )
    add("--nodes", action="extend", nargs="+", metavar="N", help=told)
    whom = parser.add_mutually_exclusive_group()
    whom.add_argument(
        "--account",
        metavar="NAME",
        help="role, apply, chart: for a service account of the namespace (default: default)",
    )
    whom.add_argument("--user", metavar="NAME", help="role, apply, chart: for a user")
    whom.add_argument("--group", metavar="NAME", help="role, apply, chart: for a group")
    add("--remedies", action="store_true", help="role, apply, chart: also allow it to take broken nodes out of service")
    add("--dry-run", action="store_true", help="apply, remove: show what would change, and change nothing")
    verbs.add_health_options(parser)
    verbs.add_image_options(parser)
    verbs.add_eks_options(parser)


def run_setup(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    """Run ``setup`` and return the exit status: 1 where `check` finds that jobs cannot run. Raises ClusterError."""
    from ..backends.kubernetes.kubeconfig import NAMESPACE, read_access

    action = "eks" if options.action == "cluster" else options.action
    for option, actions in OWNERS.items():
        if getattr(options, option) not in (None, "", False) and action not in actions:
            shown = repr(options.name) if option == "name" else f"--{option.replace('_', '-')}"
            raise SpecError(f"{shown} belongs to `setup {'` and `setup '.join(actions)}`")
    if action == "image":
        return _show(verbs.run_image(options, store, terminal.note), options, terminal)
    if options.namespace and not NAMESPACE.fullmatch(options.namespace):
        raise SpecError(f"--namespace is {options.namespace[:80]!r}; expected small letters, digits and -")
    if action in ("eks", "chart"):
        run = verbs.run_eks if action == "eks" else verbs.run_chart
        return _show(run(options), options, terminal)
    if action == "role":
        return _role(options, terminal)
    if action in ("apply", "remove"):
        return _change(options, terminal)
    nodes = " ".join(options.nodes or ["1"])
    if not nodes.isdecimal() or not 1 <= int(nodes[:9]):
        raise SpecError(f"--nodes is {nodes[:40]}, expected a number, at least 1")
    access = read_access(options.context)
    access = replace(access, namespace=options.namespace or access.namespace)
    return _check(access, int(nodes[:9]), options, terminal)


def _show(answer: Answer, options: argparse.Namespace, terminal: Terminal) -> int:
    return terminal.answer(options, answer.record, *answer.lines, ok=answer.ok)


def _role(options: argparse.Namespace, terminal: Terminal) -> int:
    from ..backends.kubernetes import rights
    from ..backends.kubernetes.kubeconfig import read_access

    namespace = options.namespace or read_access(options.context).namespace
    subject = rights.subject(namespace, options.account or "", options.user or "", options.group or "")
    made = rights.manifests(namespace, subject, options.remedies)
    return terminal.answer(options, made, rights.as_yaml(made).rstrip())


def _change(options: argparse.Namespace, terminal: Terminal) -> int:
    from ..backends.kubernetes.client import Api
    from ..backends.kubernetes.kubeconfig import read_access
    from ..control.setup import apply_verbs

    access = read_access(options.context)
    with Api(access) as api:
        terminal.status(f"asking {access.server}")
        act = apply_verbs.run_apply if options.action == "apply" else apply_verbs.run_remove
        answer = act(options, api, options.namespace or access.namespace)
    terminal.clear()
    return _show(answer, options, terminal)


def _check(access: Access, nodes: int, options: argparse.Namespace, terminal: Terminal) -> int:
    from ..backends.kubernetes.client import Api
    from ..backends.kubernetes.inquiry import inquire
    from ..backends.kubernetes.shortages import JobNeeds

    wanted = JobNeeds(access.namespace, nodes)
    with Api(access) as api:
        terminal.status(f"asking {access.server}")
        facts = inquire(api, wanted, nodes=True)
    rows = list(rows_of(access.server, wanted, facts))
    terminal.clear()
    fit = all(row.verdict != FAILED for row in rows)
    sentence = f"jobs can run in {wanted.namespace}" if fit else f"jobs cannot run in {wanted.namespace} yet"
    lines = []
    for row in rows:
        lines.append(f"{terminal.paint(f'{row.verdict:<8}', TONES[row.verdict])} {row.name}: {row.sentence}")
        lines += [terminal.paint(f"         → {row.remedy}", "quiet")] if row.remedy else []
    record = {"fit": fit, "sentence": sentence, "rows": [asdict(row) for row in rows]}
    return terminal.answer(options, record, *lines, terminal.paint(sentence, "good" if fit else "bad"), ok=fit)


def rows_of(server: str, wanted: JobNeeds, facts: ClusterFacts) -> Iterator[Row]:
    """One row for each thing that was asked about; what a job could do without is skipped, not failed. Pure."""
    from ..backends.kubernetes.components import PRESENT, components
    from ..backends.kubernetes.shortages import shortages

    found = shortages(wanted, facts)
    wrong = {shortage.name for shortage in found}
    if "version" not in wrong:
        yield Row("cluster", PASSED, f"Kubernetes {facts.version} at {server}, namespace {wanted.namespace}")
    needed = [right for right, _ in facts.rights if right.needed]
    if not any(right.what in wrong for right in needed):
        yield Row("rights", PASSED, f"all {len(needed)} that jobs need")
    for shortage in found:
        yield Row(shortage.name, FAILED if shortage.fatal else SKIPPED, shortage.sentence, shortage.remedy)
    for name, items in (("quotas", facts.quotas), ("limits", facts.limits)):
        if items is not None and not any(each.startswith(name.removesuffix("s")) for each in wrong):
            yield Row(name, PASSED, f"{plural(len(items), 'object')}, with room for {plural(wanted.nodes, 'node')}")
    for component in components(facts.groups, facts.nodes, facts.drivers, facts.own_classes):
        verdict = PASSED if component.state == PRESENT else SKIPPED
        yield Row(component.name, verdict, f"{component.state}: {component.sentence}", component.remedy)
