"""The verbs about the cluster: start and stop it, nodes, health, metrics, mounts, validation; and environments.

Each imports what it needs alone: that is most of the time that a short command takes.
"""

from __future__ import annotations

import argparse
import signal
from typing import TYPE_CHECKING

from ..storage.store import Store
from .terminal import Terminal, leave_cleanly

if TYPE_CHECKING:
    from ..control import text_tables, validate


def run_cluster(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from ..control.clusters import foreground

    if not options.foreground:
        return _run_cluster(options, store, terminal)
    with foreground.told() as signals:
        return _run_cluster(options, store, terminal) or foreground.stay(store, signals, terminal.note, options.standby)


def _run_cluster(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from ..control import cluster, report, verb_options
    from ..control.clusters.node_table import nodes_table

    def wait(store: Store) -> None:
        terminal.status("waiting for the nodes to warm up")
        cluster.wait_ready(store)

    agrees = (lambda question: True) if options.json else terminal.agrees
    if said := verb_options.run_cluster(options, store, wait, agrees):
        terminal.note(said)
    view = cluster.status(store)
    if options.action == "start":
        view["idle"] = None  # the journal may still say what was going to be before
    lines = [report.cluster_line(view)]
    if options.action != "stop" and view["nodes"]:
        lines.append(nodes_table(view).render(terminal.paint))
    return terminal.answer(options, view, *lines)


def run_nodes(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from ..control import nodes

    return _show(nodes.run_nodes(options, store), options, terminal)


def run_health(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from ..control import nodes

    answer = nodes.run_health(options, store, lambda finding: terminal.status(f"{finding.probe}: {finding.outcome}"))
    terminal.clear()
    return _show(answer, options, terminal)


def run_kept(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from ..control.clusters import kept_pods

    return _show(kept_pods.run(options, store), options, terminal)


def run_metrics(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from ..control import metrics

    if options.port is None:
        terminal.line(metrics.Metrics(store).render().decode().rstrip())
        return 0
    with metrics.endpoint(store, options.port) as server:
        signal.signal(signal.SIGTERM, leave_cleanly)
        terminal.line(metrics.scrape_config(store, server.server_address[1]).rstrip())
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            terminal.note("ended")
    return 0


def run_housekeeping(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from ..control import housekeeping

    return _show(housekeeping.run(options.verb, options, store), options, terminal)


def run_env(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from ..control.parity import environment_verbs

    answer = environment_verbs.run(options, store, say=terminal.note)
    return _show(answer, options, terminal)


def run_mounting(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from ..control import mounting

    return _show(mounting.run(options.verb, options, store), options, terminal)


def _show(answer: text_tables.Answer, options: argparse.Namespace, terminal: Terminal) -> int:
    table = [] if answer.table is None else [answer.table.render(terminal.paint)]
    return terminal.answer(options, answer.record, *table, *answer.lines, ok=answer.ok)


def run_doctor(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from ..control import validate
    from ..control.doctor import checkup

    rows = []
    for row in checkup.checkup(store, terminal.status):
        _tell_row(row, options, terminal)
        rows.append(row)
    terminal.clear()
    fit, sentence = validate.fit(rows, strict=False), checkup.summary(rows)
    record = {"fit": fit, "sentence": sentence, "rows": [row.to_json() for row in rows]}
    return terminal.answer(options, record, terminal.paint(sentence, "good" if fit else "bad"), ok=fit)


def _tell_row(row: validate.Row, options: argparse.Namespace, terminal: Terminal) -> None:
    from ..control import validate

    if not options.json:
        terminal.clear()
        verdict = terminal.paint(f"{row.verdict:<8}", validate.TONES[row.verdict])
        terminal.line(f"{verdict} {row.name}: {row.sentence}")
        if row.remedy:
            terminal.line(terminal.paint(f"         → {row.remedy}", "quiet"))


def run_validate(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from ..control import device_check, validate

    def tell(row: validate.Row) -> None:
        _tell_row(row, options, terminal)

    rows = device_check.run(options, store, terminal.status, tell)
    fit, sentence = validate.fit(rows, options.strict), validate.verdict(rows)
    terminal.clear()
    record = {"fit": fit, "sentence": sentence, "rows": [row.to_json() for row in rows]}
    status = terminal.answer(options, record, terminal.paint(sentence, "good" if fit else "bad"), ok=fit)
    return device_check.NOTHING_VERIFIED if fit and device_check.nothing_verified(rows) and options.devices else status
