"""The verbs ``nodes`` and ``health``: list and describe nodes, act on one, check it. Shared by CLI and magics."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from ..backends import load
from ..backends.types import NodeInfo
from ..core.backends import BACKENDS
from ..core.errors import ClusterError, NotFound, SpecError
from ..core.health import (
    BY_HAND,
    REASON_ACTIONS,
    RECOVERIES,
    SCHEDULABLE,
    STATUS,
    Finding,
    HealthRecord,
    from_json,
    reason_action,
)
from ..core.units import format_bytes, plural
from ..core.views import View
from ..core.vocabulary import NODE_WORDS
from ..storage.store import Store, private_directory, write_private
from ..system.users import own_name
from . import cluster, report, text_tables
from .clusters import scheduler_nodes
from .clusters.node_table import nodes_table
from .option_parser import add_action
from .text_tables import Answer, Cell, Table

NODE_ACTIONS = ("list", "describe", "drain", "reboot", "replace", "resume", "update")
NODES_HELP = "list the nodes of the cluster, describe one, or drain, reboot, replace or resume it"
HEALTH_HELP = "check a node, say whether nodes are repaired automatically, or rehearse a fault"
HEALTH_ACTIONS = ("check", "recovery", "inject", "agent")
_NODE_NAME = re.compile(r"\S*\d")
_TONES = {"pass": "good", "fail": "bad", "skipped": "quiet"}
Say = Callable[[Finding], None]


def offers() -> dict[str, Any]:
    """The backends, and what each has: how many nodes are in which state, or why it cannot be used from here.

    The nodes of a backend that owns them are those of `cluster.status`.
    """
    return {"backends": [_offer(name) for name in BACKENDS]}


def _offer(name: str) -> dict[str, Any]:
    backend, problem = load(name), ""
    states: Mapping[str, tuple[str, str]] = {}
    missing, owned = backend.missing(), backend.capabilities.owns_nodes
    if not missing and not owned:
        try:
            states = backend.node_states({})
        except ClusterError as error:
            problem = str(error)
    return {
        "name": name,
        "title": backend.title,
        "owns_nodes": owned,
        "missing": missing,
        "problem": problem,
        "states": Counter(state for state, _ in states.values()),
    }


def _action(word: str) -> str:
    """An action; argparse shows what is said of a node's name in its place, and refuses any other word."""
    if _NODE_NAME.fullmatch(word):
        raise argparse.ArgumentTypeError(f"{word!r} is no action; `nodes describe {word}` describes a node")
    return word


def add_node_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``nodes``."""
    add_action(parser, NODE_ACTIONS, _action, "describe, drain, reboot, replace, resume, or update with --reason")
    parser.add_argument("node", nargs="?", metavar="NODE", help="the node, for all but list")
    parser.add_argument(
        "--reason", metavar="TEXT", help='update: exactly "Action:Reboot" or "Action:Replace"; others: why, for people'
    )


def add_health_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``health``."""
    parser.add_argument("action", choices=HEALTH_ACTIONS, metavar="ACTION", help="check, recovery, inject or agent")
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="check [NODE]; recovery [Automatic|None]; inject NODE XID; agent NODE"
    )
    parser.add_argument("--deep", action="store_true", help="check: stress and diagnose, for minutes")
    parser.add_argument("--level", type=int, default=2, metavar="N", help="check --deep: DCGM's level (default: 2)")
    parser.add_argument("--kernel-log", default="", metavar="FILE", help="agent: read this instead of the kernel's log")


def run_nodes(options: argparse.Namespace, store: Store) -> Answer:
    """Carry out ``nodes``. Raises SpecError, NotFound, ClusterError, StoreError."""
    if options.action == "list":
        if options.node is not None:
            raise SpecError(f"`nodes list` lists all nodes; `nodes describe {options.node}` shows one")
        view = cluster.status(store)
        view["elsewhere"] = scheduler_nodes.in_use(store)
        return Answer(view, nodes_table(view))
    if options.node is None:
        raise SpecError(f"`nodes {options.action}` needs a NODE; `nodes` lists them")
    if options.action == "describe":
        return describe(cluster.status(store), options.node)
    action, reason = options.action, options.reason or f"asked for by {own_name()}"
    if options.action == "update":
        wanted = reason_action(options.reason or "")
        if wanted is None:
            raise SpecError(f"`nodes update` needs --reason {' or '.join(REASON_ACTIONS)}, not {options.reason!r}")
        action = wanted
    return Answer({"node": options.node, "action": action}, lines=[act(store, options.node, action, reason)])


def act(store: Store, node: str, action: str, reason: str) -> str:
    """Request a remedy for ``node`` by hand, on any backend; return a sentence.

    Raises NotFound, ClusterError, StoreError.
    """
    from ..health import check

    found = scheduler_nodes.find(cluster.status(store), node)
    if action == "resume":
        done = f"{node} is returned to service"
        if found is not None:
            found.remedies.put_back(node)
        check.tell(store, node, "watch", "", done)
        return done
    done = "" if found is None else f": {found.remedies.carry_out(node, action, reason)}"
    check.tell(store, node, action, BY_HAND, reason)
    words = {"drain": "gets no new work", "reboot": "is to be rebooted", "replace": "is to be replaced"}
    return f"{node} {words[action]}{done}"


def describe(view: View, name: str) -> Answer:
    """Everything known about a node: type, expected and found devices, load, findings."""
    node = next((known for known in view["nodes"] if known["node"] == name), None)
    health = view["health"].get(name)
    seen = dict.fromkeys(scheduler_nodes.names(), None) | (_look(name) if node is None else {})
    info = next((one for one in seen.values() if one is not None), None)
    if info is not None and info.health is not None and not (health and health["fault"] == BY_HAND):
        health = _shown(info.health, health)
    if node is None and health is None and info is None:
        raise NotFound(f"nothing is known of a node {name!r}; `jupyter hyperpod nodes` lists them")
    incidents = [incident for incident in view["incidents"] if incident["node"] == name]
    record = {"node": name, "state": node}
    record |= {backend: None if one is None else _record(one) for backend, one in seen.items()}
    record |= {"health": health, "incidents": incidents}
    lines = [*_facts(node, info, health), *(_history(health) if health else ["no health agent has reported it yet"])]
    if incidents:
        lines += ["", "incidents", *report.incidents_table({"incidents": incidents}).render().splitlines()]
    found = [from_json(finding) for finding in health["findings"]] if health else []
    return Answer(record, _findings_table(found) if found else None, lines)


def _shown(record: HealthRecord, health: View | None) -> View:
    """What a node's agent shows at the node, newer than what a journal may have of it."""
    remedies = [{"time_s": at_s, "action": action, "fault": fault} for action, fault, at_s in record.past]
    found = [finding.to_json() for finding in dict.fromkeys((*record.causes, *record.findings))]
    known = {name: (health or {}).get(name, []) for name in ("history", "remedies")}
    shown = {name: getattr(record, name) for name in ("action", "fault", "reason", "recovery", "devices", "boot")}
    return {
        "remedies": remedies,
        "history": [],
        **{name: records for name, records in known.items() if records},
        **shown,
        "labels": record.labels(),
        "findings": found,
    }


def _look(node: str) -> dict[str, NodeInfo | None]:
    """What each scheduler shows of a node, by backend; None where it does not know the node or does not answer."""
    found: dict[str, NodeInfo | None] = {}
    for name, _, remedies in scheduler_nodes.schedulers():
        with suppress(ClusterError):
            found[name] = remedies.node_info(node)
    return found


def _facts(node: View | None, info: NodeInfo | None, health: View | None) -> list[str]:
    devices = health["devices"] if health else {}
    facts = []
    if node is not None:
        word = NODE_WORDS.get(str(node["state"]), str(node["state"]))
        facts.append(("state", word + (f": {node['reason']}" if node["reason"] else "")))
        busy = ", ".join(node["jobs"]) or "no job"
        facts.append(("allocated", f"{node['used']} of {plural(node['slots'], 'slot')}: {busy}"))
    if info is not None:
        facts.append(("state", "+".join(sorted(info.states)).lower() + (f": {info.reason}" if info.reason else "")))
        gres = f", {info.gres_allocated or 'none'} of {info.gres}" if info.gres else ""
        facts.append(("allocated", f"{info.cpus_allocated} of {info.cpus} cores{gres}"))
    if info is not None and info.load is not None:
        facts.append(("load", f"{info.load:g}"))
    if devices:
        memory = format_bytes(devices.get("memory_bytes") or 0)
        kind = devices.get("type") or "no instance type that is known"
        facts.append(("instance", f"{kind}: {devices.get('cpus')} cores, {memory}"))
        unseen = "neither nvidia-smi nor neuron-ls is installed"
        facts.append(("devices", _against(devices, "expected", "found", unseen)))
        if devices.get("busy") is not None:
            facts.append(("busy", f"{devices['busy']} of them compute"))
        facts.append(("EFA", _against(devices, "efa_expected", "efa_found", "the kernel shows no fabric")))
    if health is not None:
        facts.append(("health", f"{health['labels'].get(STATUS, SCHEDULABLE)}: {health['reason']}"))
        facts += [(name.rpartition("/")[2], text) for name, text in health["labels"].items() if name != STATUS]
    if devices.get("kind") in ("nvidia", "neuron") or devices.get("efa_expected"):
        facts.append(("note", "probes of GPUs, Neuron and EFA are not verified on such hardware"))
    return [f"{label:<22} {text}" for label, text in facts]


def _against(devices: View, expected: str, found: str, otherwise: str) -> str:
    if devices.get(expected) is None and devices.get(found) is None:
        return f"none known: {otherwise}"
    counts = ["not known" if devices.get(name) is None else str(devices[name]) for name in (expected, found)]
    return f"{counts[0]} expected, {counts[1]} found"


def _history(health: View) -> list[str]:
    lines = []
    for title, records in (("findings before", health["history"]), ("remedies before", health["remedies"])):
        lines += ["", title] if records else []
        for one in records[-10:]:
            text = f"{one['fault'] or one['action']}: {one.get('text') or one.get('reason')}"
            lines.append(text_tables.clean(f"  {report.ago(one['time_s'], time.time()):<12} {text}"))
    return lines


def _findings_table(found: list[Finding]) -> Table:
    rows = [
        [Cell(f.probe), Cell(f.outcome, _TONES[f.outcome]), Cell(f.severity if f.failed else "-"), Cell(f.text)]
        for f in found
    ]
    return Table(("PROBE", "OUTCOME", "SEVERITY", "WHAT IT SAYS"), rows, "no probe has run")


def _record(info: NodeInfo) -> dict[str, Any]:
    record = asdict(info) | {"states": sorted(info.states)}
    del record["name"], record["out"], record["health"]
    return record


def run_health(options: argparse.Namespace, store: Store, say: Say = lambda finding: None) -> Answer:
    """Carry out ``health``. Raises SpecError, NotFound, ClusterError, StoreError."""
    words = list(options.words)
    if words or options.action != "check":  # a check without a node looks at this machine only
        store.refuse_foreign()
    if options.action in ("recovery", "inject"):
        return (_recovery if options.action == "recovery" else _inject)(store, words)
    if options.action == "agent":
        return _agent(options, store, words)
    if len(words) > 1:
        raise SpecError(f"`health check` takes one NODE, not {' '.join(words)!r}")
    return _check(options, store, words[0] if words else "", say)


def _check(options: argparse.Namespace, store: Store, name: str, say: Say) -> Answer:
    from .clusters import checking  # late: listing nodes needs no probes

    elsewhere = scheduler_nodes.find(cluster.status(store), name) if name else None
    found, judged = checking.check(store, name, elsewhere, checking.Extent(options.deep, options.level), say)
    record = {"node": name, "findings": [finding.to_json() for finding in found], **judged}
    failing = any(finding.failed and finding.severity != "monitor" for finding in found)
    lines = [judged["reason"]] if judged else []
    return Answer(record, _findings_table(found), lines, ok=not failing)


def _recovery(store: Store, words: list[str]) -> Answer:
    from ..health import agent  # late, as with `checking`

    if len(words) > 1 or (words and words[0] not in RECOVERIES):
        raise SpecError(f"NodeRecovery is {' '.join(words)!r}; expected {' or '.join(RECOVERIES)}")
    if words:
        write_private(store.prepare().cluster / agent.SETTINGS, json.dumps({"recovery": words[0]}).encode())
    now = agent.recovery(store)
    meaning = "nodes are drained, rebooted and replaced" if now == "Automatic" else "nodes are labelled only"
    return Answer({"recovery": now}, lines=[f"NodeRecovery is {now}: {meaning}"])


def _inject(store: Store, words: list[str]) -> Answer:
    from ..health import agent

    if len(words) != 2 or not words[1].isdecimal():
        raise SpecError("`health inject` needs a NODE of the local cluster and the number of an Xid, for example 74")
    node, code = words
    names = [one["node"] for one in cluster.status(store)["nodes"]]
    if node not in names:
        known = ", ".join(names) or "none: no cluster is running"
        raise NotFound(f"there is no local node {node!r}; expected one of {known}")
    path = agent.stand_in(store, node)
    private_directory(path.parent)
    with path.open("a") as file:
        file.write(f"NVRM: Xid (PCI:0000:00:1e.0): {int(code)}, pid=0, name=injected, this line was injected\n")
    return Answer({"node": node, "xid": int(code)}, lines=[f"a line of Xid {code} is in the kernel log of {node}"])


def _agent(options: argparse.Namespace, store: Store, words: list[str]) -> Answer:
    """Run the health agent of a scheduler's node until it is ended. Nodes start it when they boot."""
    from ..health import agent

    if len(words) != 1:
        raise SpecError("`health agent` needs the NODE's name, as SLURM knows it")
    here = next((name for name, _, _ in scheduler_nodes.schedulers()), scheduler_nodes.names()[0])
    arguments = ["--store", str(store.root), "--node", words[0], "--backend", here]
    status = agent.main([*arguments, "--kernel-log", options.kernel_log] if options.kernel_log else arguments)
    return Answer({"status": status}, ok=status == 0)
