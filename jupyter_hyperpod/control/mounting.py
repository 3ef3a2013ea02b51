"""The verbs ``mount``, ``umount``, ``ls``, ``cp`` and ``df``, shared by the command line and the magics."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import asdict
from typing import Any

from ..core.errors import Conflict, NotFound, SpecError
from ..core.mount_spec import ACCESS, DRIVERS, MountSpec
from ..core.units import format_bytes, plural
from ..mounts import copying, drivers, probe, remote, repository
from ..mounts import table as mounts
from ..mounts.table import Mounts, resolve_url
from ..storage.store import SHARED, Store
from . import attach
from .option_parser import byte_count
from .report import ago
from .text_tables import Answer, Cell, Table

VERBS = {
    "mount": "show and change the mounts of the cluster, and check what each really gives",
    "umount": "unmount a mount; it stays in the table",
    "ls": "list the files of a mount, or all mounts",
    "cp": "copy files between mounts, object stores and this machine",
    "df": "show the space of every mount",
}
ACTIONS = ("list", "add", "remove", "attach", "check", "drivers", "files", "import", "export", "release")
_ADD = ("driver", "source", "path", "node_path", "read_only", "option", "credentials", "repository", "quota", "access")
_TONES = {"ready": "good", "remote": "good", "detached": "quiet", "hangs": "bad", "broken": "bad"}
_RESULTS = {"pass": "good", "fail": "bad", "skipped": "quiet"}


def add_options(verb: str, parser: argparse.ArgumentParser) -> None:
    """Declare the options of one of `VERBS`."""
    if verb == "mount":
        _add_mount_options(parser)
    elif verb == "umount":
        parser.add_argument("mount", metavar="NAME", help="the mount")
        parser.add_argument("--force", action="store_true", help="even where it hangs or is in use: end its server")
    elif verb == "ls":
        parser.add_argument("url", nargs="?", metavar="URL", help="such as shared://NAME/dir; without it, all mounts")
    elif verb == "cp":
        parser.add_argument("source", metavar="SOURCE", help="a path, shared://NAME/path or s3://bucket/key")
        parser.add_argument("target", metavar="TARGET", help="the same; a directory keeps the file's name")
        parser.add_argument("--recursive", action="store_true", help="copy a directory with all its content")
    else:
        parser.add_argument("mount", nargs="?", metavar="NAME", help="only this mount")


def _add_mount_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS))
    parser.add_argument("mount", nargs="?", metavar="NAME", help="the mount: shared://NAME/… are its files")
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="import, export, release: files or directories of the mount"
    )
    add = parser.add_argument
    add("--driver", choices=DRIVERS, help="add: how it is reached (default: directory)")
    add("--source", metavar="ADDRESS", help="add: what is mounted; `mount drivers` shows the form for each driver")
    add("--path", metavar="DIR", help="add: its path on this machine (default: a directory of the store)")
    add("--node-path", metavar="DIR", help="add: its path on the nodes (default: as on this machine)")
    add("--read-only", action="store_true", help="add: nothing is written to it")
    add("--option", action="append", type=_option, metavar="NAME=VALUE", help="add: of the driver; may be repeated")
    add("--credentials", metavar="FILE", help="add: file of NAME=VALUE lines, mode 0600 (default: the environment)")
    add("--repository", metavar="URL", help="add: object store behind its files, such as s3://bucket/prefix")
    add("--quota", metavar="SIZE", type=byte_count, help="add: space that its files may take, for example 2TB")
    add("--access", choices=ACCESS, help="add: who may use new files there (default: private)")
    add("--force", action="store_true", help="export: even files that were changed in the repository meanwhile")
    add("--against", metavar="DIR", help="check: another mount point of the same files, to compare the two")


def _option(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def run(verb: str, options: argparse.Namespace, store: Store) -> Answer:
    """Carry out `verb`. Raises the errors of the request or the mount."""
    store.prepare()
    return {"mount": _mount, "umount": _umount, "ls": _ls, "cp": _cp, "df": _df}[verb](options, store)


def _umount(options: argparse.Namespace, store: Store) -> Answer:
    return _said(attach.detach(store, mounts.get(store, options.mount), options.force), options.mount)


def _mount(options: argparse.Namespace, store: Store) -> Answer:
    given = [f"--{name.replace('_', '-')}" for name in _ADD if getattr(options, name) not in (None, False)]
    if given and options.action != "add":
        raise SpecError(f"{', '.join(given)} belongs to `mount add`, not to `mount {options.action}`")
    if options.against is not None and options.action != "check":
        raise SpecError(f"--against belongs to `mount check`, not to `mount {options.action}`")
    if (options.paths or options.force) and options.action not in ("import", "export", "release"):
        raise SpecError(f"paths and --force belong to `mount import|export|release`, not to `mount {options.action}`")
    if options.action in ("list", "drivers"):
        return _list(store) if options.action == "list" else _drivers()
    if options.mount is None:
        raise SpecError(f"`mount {options.action}` needs the name of a mount")
    if options.action == "remove":
        return _said(attach.remove(store, options.mount), options.mount)
    if options.action == "attach":
        return _said(attach.attach(store, mounts.get(store, options.mount)), options.mount)
    actions = {"add": _add, "check": _check, "files": _files}
    actions |= {"import": _import, "export": _export, "release": _release}
    return actions[options.action](options, store)


def _said(sentence: str, name: str) -> Answer:
    return Answer({"mount": name, "said": sentence}, lines=[sentence])


def _add(options: argparse.Namespace, store: Store) -> Answer:
    driver = options.driver or "directory"
    path = ""
    if driver != "s3":
        path = os.path.abspath(options.path) if options.path else str(store.root / "mnt" / options.mount)
    if driver == "directory" and not options.path:
        raise SpecError("driver 'directory' needs --path: the directory that every side sees")
    spec = MountSpec(
        options.mount,
        path,
        options.node_path or path,
        options.read_only,
        driver,
        options.source or "",
        dict(options.option or ()),
        os.path.abspath(options.credentials) if options.credentials else "",
        options.repository or "",
        options.access or "private",
        options.quota,
    )
    mounts.add(store, spec)
    lines = [f"{spec.name} was added: shared://{spec.name}/ is {path or spec.source}"]
    if drivers.DRIVERS[driver].mounts:
        lines += [f"mount it with: jupyter hyperpod mount attach {spec.name}"]
    return Answer(asdict(spec), lines=lines)


def _list(store: Store) -> Answer:
    found = probe.survey(store)
    rows = []
    for one in found:
        driver = one["driver"] + (", read-only" if one["read_only"] else "")
        row = [one["name"], driver, (one["state"], _TONES[one["state"]]), _bytes(one["free_bytes"])]
        rows.append([*row, one["notebook_path"] or one["source"], one["node_path"] or one["source"]])
    lines = [f"{one['name']}: {one['reason']}" for one in found if one["reason"] and one["state"] != "remote"]
    headers = ("NAME", "DRIVER", "STATE", ">FREE", "HERE", "ON THE NODES")
    return Answer(found, Table(headers, rows), lines)


def _drivers() -> Answer:
    found, rows = [], []
    for driver in drivers.DRIVERS.values():
        problem = drivers.missing(driver)
        usable = Cell(problem, "warn") if problem else Cell("yes", "good")
        verified = Cell("yes") if driver.run else Cell("not verified", "warn")
        options = Cell(", ".join(sorted(driver.options)))
        rows.append([Cell(driver.name), Cell(driver.source), usable, verified, options])
        record = {"name": driver.name, "source": driver.source, "missing": problem, "verified": driver.run}
        found.append(record | {"summary": driver.summary, "options": sorted(driver.options)})
    return Answer(found, Table(("DRIVER", "SOURCE", "CAN BE USED HERE", "VERIFIED", "OPTIONS"), rows))


def _check(options: argparse.Namespace, store: Store) -> Answer:
    spec = _usable(store, options.mount)
    if spec.driver == "s3":
        raise SpecError(f"{spec.name} is read object by object; there is no file system to check")
    if spec.read_only:
        raise Conflict(f"{spec.name} is read-only; what it gives to writers cannot be checked")
    found = probe.check(store, spec, os.path.abspath(options.against) if options.against else "")
    rows = [(one["check"], (one["result"], _RESULTS[one["result"]]), one["detail"]) for one in found]
    ok = all(one["result"] != "fail" for one in found)
    return Answer(found, Table(("CHECK", "RESULT", "FOUND"), rows), ok=ok)


def _repository(store: Store, name: str) -> repository.Repository:
    spec = _usable(store, name)
    return repository.Repository(spec, spec.notebook_path, mounts.table(store))


def _files(options: argparse.Namespace, store: Store) -> Answer:
    found = _repository(store, options.mount).states()
    record = [{"path": name, "state": state, "bytes": size} for name, (state, size) in found.items()]
    rows = [(name, format_bytes(size), _state(state)) for name, (state, size) in found.items()]
    return Answer(record, Table(("PATH", ">SIZE", "STATE"), rows, "no files"))


def _state(state: str) -> Cell:
    return Cell(state, {"released": "quiet", "dirty": "warn", "changed": "warn", "conflict": "bad"}.get(state, "good"))


def _import(options: argparse.Namespace, store: Store) -> Answer:
    """Import the list of objects; with paths, their content, too."""
    found = _repository(store, options.mount)
    count = found.refresh()
    names = found.select(options.paths, ("released", "changed")) if options.paths else []
    for name in names:
        found.fetch(name)
    return _moved(options, names, f"{plural(count, 'object')} in the repository; imported {plural(len(names), 'file')}")


def _export(options: argparse.Namespace, store: Store) -> Answer:
    found = _repository(store, options.mount)
    names = found.select(options.paths, ("dirty", "conflict"))
    for name in names:
        found.export(name, force=options.force)
    return _moved(options, names, f"exported {plural(len(names), 'file')}")


def _release(options: argparse.Namespace, store: Store) -> Answer:
    if not options.paths:
        raise SpecError("`mount release` needs the files or directories whose content may go")
    found = _repository(store, options.mount)
    names = found.select(options.paths, ("imported", "exported"))
    for name in names:
        found.release(name)
    return _moved(options, names, f"released {plural(len(names), 'file')}; to be read again when asked for")


def _moved(options: argparse.Namespace, names: list[str], sentence: str) -> Answer:
    return Answer({"mount": options.mount, "files": names}, lines=[sentence])


def _usable(store: Store, name: str) -> MountSpec:
    """Return a mount that answers. Raises Conflict, within a time limit, where it does not."""
    spec = mounts.get(store, name)
    if spec.driver == "directory":
        mounts.make_root(spec, spec.notebook_path)
    health = probe.health(store, spec)
    if health.state not in ("ready", "remote"):
        how = f"; mount it with `jupyter hyperpod mount attach {name}`" if health.state == "detached" else ""
        raise Conflict(f"mount {name!r} is {health.state}{': ' * bool(health.reason)}{health.reason}{how}")
    return spec


def named_mount(url: str, specs: Mounts) -> str:
    """The name of the mount a URL names; empty for a path or a URL of another kind."""
    area, separator, rest = url.partition("://")
    first = rest.partition("/")[0]
    known = specs.specs.keys()
    if not separator or area not in known:
        return ""
    return first if area == SHARED and first in known else area


def _open(store: Store, url: str) -> tuple[str, MountSpec | None, Mounts]:
    """``(address, mount, all mounts)``; the mount has answered, and the user's own area exists."""
    table = mounts.roots(mounts.table(store).values(), "notebook")
    name = named_mount(url, table)
    spec = _usable(store, name) if name else None
    address = resolve_url(url, table)
    if spec is not None and spec.driver != "s3" and not spec.read_only:
        mounts.make_way(address, table)
    return address, spec, table


def _ls(options: argparse.Namespace, store: Store) -> Answer:
    if options.url is None:
        return _list(store)
    address, spec, table = _open(store, options.url)
    states = _states_below(address, spec, table)
    if remote.is_remote(address):
        found: dict[str, Any] = {"entries": remote.listing(address, table.specs), "truncated": False}
    elif spec is not None:
        try:
            found = probe.listing(store, spec, address)
        except NotFound:
            if not states:
                raise
            found = {"entries": [], "truncated": False}
    else:
        raise SpecError(f"{options.url!r} is on no mount; `jupyter hyperpod ls` lists the mounts")
    entries = [one | {"state": states.pop(one["name"], {"state": ""})["state"]} for one in found["entries"]]
    entries = [one for one in (*entries, *states.values()) if one["name"] != repository.OWN]
    now_s = time.time()
    rows = []
    for one in sorted(entries, key=lambda one: str(one["name"])):
        name = Cell(f"{one['name']}/", "info") if one["kind"] == "directory" else Cell(one["name"])
        size = format_bytes(one["bytes"]) if one["kind"] == "file" else "-"
        changed = ago(one["changed_ns"] / 1e9 if one["changed_ns"] > 0 else None, now_s)
        rows.append([name, size, changed, one["mode"], _state(one["state"])])
    lines = [f"only the first {len(rows)} are shown"] if found["truncated"] else []
    return Answer(entries, Table(("NAME", ">SIZE", "CHANGED", "MODE", "STATE"), rows, "no files"), lines)


def _states_below(address: str, spec: MountSpec | None, table: Mounts) -> dict[str, dict[str, Any]]:
    """Name -> entry of everything directly in a directory whose mount has a repository, fetched or not."""
    if spec is None or not spec.repository:
        return {}
    base = os.path.relpath(address, spec.notebook_path)
    found: dict[str, dict[str, Any]] = {}
    for path, (state, size) in repository.Repository(spec, spec.notebook_path, table.specs).states().items():
        if (inner := repository.child(path, "" if base == "." else base)) is None:
            continue
        name, below = inner
        found[name] = {"name": name, "changed_ns": 0, "mode": "-", "kind": "file", "bytes": size, "state": state}
        if below:
            found[name] |= {"kind": "directory", "bytes": 0, "state": ""}
    return found


def _cp(options: argparse.Namespace, store: Store) -> Answer:
    copied: list[dict[str, Any]] = []
    source, _, table = _open(store, options.source)
    source = repository.local(source, table)
    target, spec, table = _open(store, options.target)
    if spec is not None and spec.quota_bytes is not None and spec.driver != "s3":
        _keep_quota(store, spec, source)
    slash = "/" if options.target.endswith("/") else ""
    total = copying.copy(
        source, target + slash, table, recursive=options.recursive,
        told=lambda path, size: copied.append({"path": path, "bytes": size}),
    )  # fmt: skip
    for one in copied:  # export on write
        if (found := repository.behind(one["path"], table)) is not None:
            found[0].export(found[1])
    names = copied[0]["path"] if len(copied) == 1 else f"{len(copied)} files"
    return Answer(copied, lines=[f"copied {names}, {format_bytes(total)}"])


def _keep_quota(store: Store, spec: MountSpec, source: str) -> None:
    used = probe.usage(store, spec, spec.notebook_path)["used_bytes"]
    more = os.path.getsize(source) if os.path.isfile(source) else 0
    if used + more > (spec.quota_bytes or 0):
        raise Conflict(
            f"mount {spec.name!r} holds {format_bytes(used)}; {format_bytes(more)} more would pass its quota of "
            f"{format_bytes(spec.quota_bytes or 0)}"
        )


def _df(options: argparse.Namespace, store: Store) -> Answer:
    found = [one for one in probe.survey(store) if options.mount in (None, one["name"])]
    if not found:
        mounts.get(store, options.mount)
    rows = []
    for one in found:
        used = None
        if one["quota_bytes"] and one["state"] == "ready":
            spec = MountSpec.from_json(one)
            about = probe.usage(store, spec, spec.notebook_path)
            used = ("" if about["whole"] else "at least ") + format_bytes(about["used_bytes"])
            one |= about
        quota = f"{used or '?'} of {format_bytes(one['quota_bytes'])}" if one["quota_bytes"] else "-"
        row = [one["name"], (one["state"], _TONES[one["state"]]), _bytes(one["total_bytes"])]
        rows.append([*row, _bytes(one["free_bytes"]), quota, one["notebook_path"] or one["source"]])
    return Answer(found, Table(("MOUNT", "STATE", ">SIZE", ">FREE", "QUOTA", "HERE"), rows))


def _bytes(count: int | None) -> str:
    return "-" if count is None else format_bytes(count)
