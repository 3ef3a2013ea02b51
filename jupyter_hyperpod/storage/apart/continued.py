"""What the pod of a node has to know of the output that earlier pods of this node have left with the head."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace

from ..mirror.mirror_frames import Frame
from ..output.output_cap import DROPPED, DroppedOutput, output_directory, parts
from ..output.step_index import SUFFIX
from ..store import JobStore


def continued(job: JobStore, node: str) -> Iterator[Frame]:
    """Files with which the numbers of its parts, what was dropped, and its index go on.

    A part more is counted than there is: an earlier pod may still bring one.
    """
    directory = output_directory(job)
    dropped = DroppedOutput.of(directory, node)
    if there := parts(directory).get(node):
        size = 0
        with suppress(OSError):
            size = there[-1].path.stat().st_size
        dropped = replace(dropped, number=there[-1].number + 2, before=there[-1].before + size)
    if dropped != DroppedOutput():
        yield Frame({"path": f"output/{node}{DROPPED}", "whole": 1}, json.dumps(asdict(dropped)).encode())
    with suppress(OSError):
        yield Frame({"path": f"output/{node}{SUFFIX}", "whole": 1}, (directory / f"{node}{SUFFIX}").read_bytes())
