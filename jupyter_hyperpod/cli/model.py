"""The command ``jupyter hyperpod model …``: shards, merges, checks and loads models."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..control.option_parser import byte_count
from ..core.errors import SpecError
from ..core.units import few, format_bytes, format_duration, plural
from ..mounts.table import roots, table
from ..storage.store import Store
from .terminal import Terminal

if TYPE_CHECKING:
    from ..loader.read.progress import LoadProgress

ACTIONS = ("shard", "merge", "verify", "manifest", "load")
_ONLY = {"shard_size": ("shard",), "checksum": ("shard", "merge", "load"), "manifest": ("verify", "load")}
_ONLY |= {"tp": ("load",)}
_SHOWN = 10


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``model``."""
    add = parser.add_argument
    add("action", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS))
    add("url", metavar="URL", help="a .safetensors file, an index or a directory: a path, shared://, s3:// or https://")
    add(
        "target", nargs="?", metavar="TARGET", help="shard, merge, manifest: where to write, a path, shared:// or s3://"
    )
    add("--shard-size", type=byte_count, metavar="SIZE", help="shard: most bytes of tensors per file (default: 5GB)")
    add("--checksum", action="store_true", help="shard, merge: write a manifest too; load: verify with it")
    add("--manifest", metavar="URL", help="verify, load: the manifest (default: the one beside the model)")
    add("--tp", type=_tp, metavar="RANK/SIZE", help="load: only this tensor-parallel rank's part, for example 0/4")
    add("--connections", type=int, metavar="N", help="parallel reads and writes (default: as many as raise the speed)")
    add("--endpoint-url", metavar="URL", help="endpoint of s3:// (default: $AWS_ENDPOINT_URL, else AWS)")


def run_model(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    """Run ``model`` and return the exit status: 1 where `verify` finds damage. Raises LoaderError and SpecError."""
    for name, actions in _ONLY.items():
        if getattr(options, name) not in (None, False) and options.action not in actions:
            raise SpecError(f"--{name.replace('_', '-')} belongs to `model {'|'.join(actions)}`")
    if options.target is None and options.action in ("shard", "merge"):
        raise SpecError(f"`model {options.action}` needs a TARGET: where to write")
    if options.target is not None and options.action in ("verify", "load"):
        raise SpecError(f"`model {options.action}` takes one URL, not {options.target!r} as well")
    if options.connections is not None and options.connections < 1:
        raise SpecError(f"--connections is {options.connections}, expected at least 1")
    run = {"shard": _rewrite, "merge": _rewrite, "verify": _verify, "manifest": _manifest, "load": _load}
    return run[options.action](options, terminal)


def _tp(text: str) -> tuple[int, int]:
    rank, slash, size = text.partition("/")
    if not (slash and rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
        raise argparse.ArgumentTypeError(f"{text!r} is not RANK/SIZE with RANK < SIZE, for example 0/4")
    return int(rank), int(size)


def _common(options: argparse.Namespace, terminal: Terminal) -> dict[str, Any]:
    from ..loader.read.source import Options

    def tell(progress: LoadProgress) -> None:
        terminal.status(progress_line(progress))

    mounts = None if options.store is None else roots(table(Store(options.store)).values(), "notebook")
    reached = Options(endpoint_url=options.endpoint_url, mounts=mounts)
    return {"progress": tell, "connections": options.connections, "options": reached}


def progress_line(progress: LoadProgress) -> str:
    """One line about the progress of a load or a save."""
    share = 100 * progress.bytes_done / progress.bytes_total if progress.bytes_total else 100
    parts = [f"{share:3.0f} %", f"{format_bytes(progress.bytes_done)} of {format_bytes(progress.bytes_total)}"]
    parts.append(f"{format_bytes(progress.bytes_per_s)}/s")
    if progress.remaining_s and not progress.done:
        parts.append(f"{format_duration(progress.remaining_s)} left")
    if progress.retries:
        parts.append(f"{progress.retries} requests repeated")
    return " · ".join(parts)


def _rewrite(options: argparse.Namespace, terminal: Terminal) -> int:
    from ..loader.write import sharding
    from ..loader.write.save import SHARD_BYTES

    common = _common(options, terminal) | {"checksum": options.checksum}
    if options.action == "shard":
        size = SHARD_BYTES if options.shard_size is None else options.shard_size
        saved = sharding.shard_model(options.url, options.target, size, **common)
    else:
        saved = sharding.merge_model(options.url, options.target, **common)
    amount = _amount(saved.tensors, saved.bytes, saved.elapsed_s)
    return terminal.answer(options, asdict(saved), f"{saved.url}: {plural(len(saved.files), 'file')}, {amount}")


def _verify(options: argparse.Namespace, terminal: Terminal) -> int:
    from ..loader.write import sharding

    found = sharding.verify_model(options.url, options.manifest, **_common(options, terminal))
    lines = []
    for one in found.damaged[:_SHOWN]:
        names = few(one.tensors)
        where = f"{one.file}, bytes {one.begin}-{one.end - 1}" + (f": {names}" if names else ": its header")
        lines.append(f"  {terminal.paint('differs', 'bad')}  {where}")
    if len(found.damaged) > _SHOWN:
        lines.append(f"  and {len(found.damaged) - _SHOWN} more")
    amount = _amount(found.tensors, found.bytes, found.elapsed_s)
    if found.damaged:
        lines.append(terminal.paint(f"{found.url} is damaged: {len(found.damaged)} places ({amount})", "bad"))
    elif found.checked == "checksums":
        lines.append(terminal.paint(f"{found.url} matches its manifest: {amount}", "good"))
    else:
        lines.append(f"{found.url} is well formed; there is no manifest to compare its bytes with: {amount}")
    return terminal.answer(options, {"sound": not found.damaged} | asdict(found), *lines, ok=not found.damaged)


def _manifest(options: argparse.Namespace, terminal: Terminal) -> int:
    from ..loader.write import sharding

    where = sharding.write_manifest(options.url, options.target, **_common(options, terminal))
    return terminal.answer(options, {"url": options.url, "manifest": where}, where)


def _load(options: argparse.Namespace, terminal: Terminal) -> int:
    from ..loader.model import load_model

    common = _common(options, terminal)
    tell = common.pop("progress")
    last: list[LoadProgress] = []

    def keep(progress: LoadProgress) -> None:
        last[:] = [progress]
        tell(progress)

    began_s = time.monotonic()
    checksum = options.manifest or options.checksum
    state = load_model(options.url, tp=options.tp or (0, 1), checksum=checksum, progress=keep, **common)
    elapsed_s = time.monotonic() - began_s
    size, progress = sum(tensor.nbytes for tensor in state.values()), last[0]
    record = {"url": options.url, "tensors": len(state), "bytes": size, "elapsed_s": elapsed_s}
    record |= {name: getattr(progress, name) for name in ("first_layer_s", "bytes_fetched", "retries")}
    first = "" if progress.first_layer_s is None else f", first layer after {format_duration(progress.first_layer_s)}"
    return terminal.answer(options, record, f"{options.url}: {_amount(len(state), size, elapsed_s)}{first}")


def _amount(tensors: int, size: int, elapsed_s: float) -> str:
    rate = f" ({format_bytes(size / elapsed_s)}/s)" if elapsed_s > 0 else ""
    return f"{tensors} tensors, {format_bytes(size)} in {format_duration(elapsed_s)}{rate}"
