"""The verb ``kept``: list the pods that ``--keep-warm`` keeps for the next job, or let them go."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict

from ...backends import load
from ...core.backend_options import keeps_warm
from ...core.units import format_duration, plural
from ...storage.store import Store
from ..option_parser import add_action, one_of
from ..text_tables import Answer, Table

HELP = "list the pods that --keep-warm keeps for your next job, or let them go"
LET_GO = "let-go"
ACTIONS = ("list", LET_GO)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``kept``."""
    add_action(parser, ACTIONS, one_of("kept", ACTIONS, {}), "or let-go: end those that no job has taken meanwhile")
    for name in ("context", "namespace"):
        parser.add_argument(f"--{name}", metavar="NAME", help="where the pods run (default: that of your kubeconfig)")


def run(options: argparse.Namespace, store: Store) -> Answer:
    """Carry out ``kept``. Raises ClusterError."""
    backend = load(keeps_warm())
    where = {name: value for name in ("context", "namespace") if (value := getattr(options, name))}
    if options.action == LET_GO:
        gone = list(backend.let_go(where, str(store.root)))
        return Answer({"let_go": gone}, lines=[f"{plural(len(gone), 'pod')} let go"])
    kept = sorted(backend.kept(where, str(store.root)), key=lambda place: place.until_s)
    rows = [
        (
            place.name,
            place.node,
            f"until {time.strftime('%H:%M:%S', time.localtime(place.until_s))}",
            _left(place.until_s),
        )
        for place in kept
    ]
    table = Table(("pod", "node", "kept warm", "left"), rows, "no pod is kept for your next job")
    return Answer({"kept": [asdict(place) for place in kept]}, table)


def _left(until_s: float) -> str:
    return format_duration(max(0.0, until_s - time.time()))
