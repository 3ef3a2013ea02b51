"""``setup image``, ``setup eks``, ``setup chart``: from a job, from here, or from what a person names, to a folder.

Also the options by which ``setup apply`` and ``setup chart`` are told of health agents.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from ... import __version__
from ...core.errors import SpecError
from ...core.health import RECOVERIES
from ...core.units import plural
from ...storage.store import Store
from ..parity import environment_verbs, requirements
from ..text_tables import Answer
from . import chart, eks, image, node_groups, volumes
from .bases import CPU, DEVICES
from .folder import write_folder
from .health_objects import HealthAgents

Say = Callable[[str], object]
UIDS = range(1000, 60_001)  # people's; those below are the system's own


def add_image_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``setup image``."""
    add = parser.add_argument
    add("--here", action="store_true", help="image: of the environment here, not of a job")
    add(
        "-o",
        "--output",
        metavar="DIR",
        help="image, eks, chart: the folder that is written (default: image-JOB, eks-NAME, chart)",
    )
    add("--device", choices=DEVICES, help="image: for what it is (default: by the packages and GPUs)")
    add("--base", metavar="IMAGE", help="image: begin with this image, which has the right Python and pip")
    add("--uid", type=int, metavar="N", help=f"image: the user that it runs as (default: {image.UID})")
    add("--hashes", action="store_true", help="image: ask the package index for hashes, which pip then insists on")


def add_eks_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``setup eks``."""
    add = parser.add_argument
    add("--region", metavar="R", help="eks: the region of AWS, such as us-west-2")
    add("--zones", metavar="A,B", help="eks: zones of the region; nodes with EFA or a reservation are in the first")
    add("--volume", action="append", metavar="KIND=ID", help=f"eks: shared storage: {volumes.FORM}; may be repeated")


def add_health_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the health agents that ``setup apply`` makes."""
    add = parser.add_argument
    add(
        "--health",
        metavar="IMAGE",
        help="apply, chart: a health agent on every node, of an image that has this package",
    )
    add(
        "--health-python", metavar="PATH", help="apply, chart: the Python of that image (default: the path of this one)"
    )
    add(
        "--health-path",
        action="append",
        metavar="DIR",
        help="apply, chart: a directory of the nodes that agents need, too",
    )
    recovery = f"apply, chart: NodeRecovery of the agents (default: {RECOVERIES[0]})"
    add("--health-recovery", choices=RECOVERIES, help=recovery)
    log = (
        "apply, chart: agents read the kernel's log itself, not only /var/log, for which their pods get all privileges"
    )
    add("--health-kernel-log", action="store_true", help=log)


def agents_of(options: argparse.Namespace) -> HealthAgents | None:
    """The health agents that a person asks for, None where none are. Raises SpecError."""
    if not options.health:
        chosen = ("health_python", "health_path", "health_recovery", "health_kernel_log")
        if given := [name for name in chosen if getattr(options, name)]:
            raise SpecError(f"--{given[0].replace('_', '-')} is about health agents, which --health IMAGE asks for")
        return None
    agents = HealthAgents(
        options.health,
        options.health_python or sys.executable,
        tuple(options.health_path or ()),
        options.health_recovery or RECOVERIES[0],
        options.health_kernel_log,
    )
    agents.check()
    return agents


def run_eks(options: argparse.Namespace) -> Answer:
    """Write the files of an EKS cluster. Raises SpecError or StoreError."""
    if not options.name or not options.region:
        raise SpecError("expected `setup eks NAME --region R --nodes TYPE:COUNT`")
    wish = eks.ClusterWish(
        options.name,
        options.region,
        node_groups.parse(options.nodes or ()),
        tuple(options.zones.split(",")) if options.zones else (),
        volumes.parse(options.volume or ()),
        options.namespace or eks.NAMESPACE,
    )
    files = eks.render(wish)
    folder = Path(options.output or f"eks-{wish.name}")
    written = write_folder(folder, files)
    lines = [f"{folder}: {plural(len(files), 'file')} for a cluster of {_nodes(wish.groups)}"]
    lines += [] if written else ["all of them were there already, the same"]
    lines += [
        "not verified on AWS: no cluster was ever made of such files",
        f"the commands in order: {folder}/{eks.GUIDE}",
    ]
    answer = {"name": wish.name, "folder": str(folder.absolute()), "files": list(files), "written": written}
    groups = [{"type": one.type, "count": one.count, "market": one.market, **one.amounts()} for one in wish.groups]
    return Answer({**answer, "nodes": groups, "unverified": eks.UNVERIFIED}, lines=lines)


def run_chart(options: argparse.Namespace) -> Answer:
    """Write a chart for helm. Raises SpecError or StoreError."""
    wish = chart.ChartWish(
        options.namespace or eks.NAMESPACE,
        {kind: getattr(options, kind) or "" for kind in ("account", "user", "group")},
        options.remedies,
        node_groups.parse(options.nodes or ()),
        agents_of(options),
    )
    files = chart.render(wish, __version__)
    folder = Path(options.output or "chart")
    written = write_folder(folder, files)
    count = len(wish.objects())
    lines = [f"{folder}: a chart of {plural(count, 'object')} for the namespace {wish.namespace}"]
    lines += [] if written else ["all of its files were there already, the same"]
    lines += [
        "not verified with helm: tests show only that it is what `setup apply` makes, filled in with its values",
        f"install it: helm install {chart.NAME} {folder}; use either this or `setup apply`, not both",
    ]
    answer = {"namespace": wish.namespace, "folder": str(folder.absolute()), "files": list(files), "written": written}
    return Answer({**answer, "objects": count, "unverified": chart.UNVERIFIED}, lines=lines)


def _nodes(groups: Sequence[node_groups.NodeGroup]) -> str:
    return ", ".join(f"{one.count} x {one.type}{f' ({one.market})' if one.market else ''}" for one in groups)


def run_image(options: argparse.Namespace, store: Store, say: Say = lambda text: None) -> Answer:
    """Write the files of an image. Raises SpecError, NotFound or StoreError."""
    if bool(options.name) == options.here:
        raise SpecError("expected a job, `setup image JOB`, or the environment here, `setup image --here`")
    uid = image.UID if options.uid is None else options.uid
    if uid not in UIDS:
        raise SpecError(f"--uid is {uid}, expected {UIDS.start} to {UIDS.stop - 1}: the image is not to run as root")
    wish = image.Wish(options.device or "", options.base or "", uid)
    source = _source(store, options.name or environment_verbs.HERE)
    if options.hashes:
        made = image.locked(source.fingerprint, image.device_for(source.fingerprint, wish) if not wish.base else CPU)
        source = replace(source, hashes=requirements.from_index(made, say))
    rendered = image.render(source, wish)
    folder = Path(options.output or f"image-{source.title}")
    written = write_folder(folder, rendered.files)
    return _told(source.title, folder, rendered, written)


def _source(store: Store, name: str) -> image.ImageSource:
    title, found = environment_verbs.recorded(store, name)
    if title == "here":
        return image.ImageSource(title, found)
    spec = store.job(title).spec()
    filename = PurePosixPath(spec.filename).name if spec.script else ""
    return image.ImageSource(title, found, store.cell(spec.cell_digest), filename)


def _told(title: str, folder: Path, rendered: image.ImageFiles, written: list[str]) -> Answer:
    base = rendered.base
    state = "written" if written else "there already, the same"
    lines = [
        f"{folder}/{image.DOCKERFILE}: {plural(rendered.packages, 'package')} of {title} on {base.image}, {state}",
        *(f"not in it: {one}" for one in rendered.missing),
        *([f"not verified: {base.unverified}"] if base.unverified else []),
        f"build it: docker build --tag NAME:TAG {folder}",
    ]
    answer: dict[str, Any] = {
        "environment": title,
        "folder": str(folder.absolute()),
        "files": list(rendered.files),
        "written": written,
    }
    answer |= {"base": base.image, "device": base.device, "packages": rendered.packages}
    return Answer({**answer, "missing": list(rendered.missing), "unverified": base.unverified}, lines=lines)
