"""``doctor``: all checks, one row each, with a remedy where something is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...core.units import plural
from ...policy.preflight import FAILED, SKIPPED, Row
from ...storage.store import Store
from . import jupyter_parts, machine_parts

HELP = "tell what is wrong with this installation, and how to mend it"
Say = Callable[[str], object]


def checkup(store: Store, say: Say = lambda text: None) -> Iterator[Row]:
    """Each row as soon as it is known; ``say`` gets what is looked at."""
    say("looking at the extension of the server")
    yield jupyter_parts.server_extension()
    yield jupyter_parts.lab_extension()
    yield jupyter_parts.versions()
    say("asking the kernels")
    yield from jupyter_parts.kernels()
    say("looking at the store")
    yield from machine_parts.store_parts(store)
    yield machine_parts.supervisor(store)
    yield machine_parts.addresses()
    say("asking the schedulers")
    yield from machine_parts.schedulers()
    say("importing torch")
    yield jupyter_parts.torch()
    yield machine_parts.descriptors()


def summary(rows: list[Row]) -> str:
    """What came out, in one sentence."""
    broken = [row.name for row in rows if row.verdict == FAILED]
    skipped = sum(row.verdict == SKIPPED for row in rows)
    if not broken:
        return f"nothing is broken; {plural(len(rows) - skipped, 'check')} passed, {skipped} skipped"
    return f"{plural(len(broken), 'thing')} {'is' if len(broken) == 1 else 'are'} broken: {', '.join(broken)}"
