"""From `submit` to the first line of a cell in a pod, and from the creation of a bare pod to its line, in turn; and in
pods that were kept."""

from __future__ import annotations

import statistics
import sys
import time

from benchmarks.kubernetes.rig import OURS, PODS, Part, Rig
from jupyter_hyperpod.backends.kubernetes.manifests import JOB, SELECTOR
from jupyter_hyperpod.backends.kubernetes.warm.keeper import READY
from jupyter_hyperpod.bench.laboratory import Observer, progress
from jupyter_hyperpod.bench.report import bar, row

HELLO = "print('here', flush=True)\n"
HELLO_TORCH = f"import torch\n{HELLO}"
FIRST_LINE_LIMIT_S, OURS_LIMIT_S, KEPT_LIMIT_S = 5.0, 0.5, 0.5
KEEP = "10min"
IMPORT = f"{sys.executable} -c 'import torch' && "
UNTIL_S = 120.0
LOOK_S = 0.01


def measure_starts(rig: Rig, runs: int) -> Part:
    """``runs`` of each by turns: cells and pods with and without torch. Of several, one more before, which does not
    count."""
    rows, bars = [], []
    turns: dict[str, list[tuple[float, float, float]]] = {"": [], " that imports torch": []}
    unsettled = int(runs > 1)
    for number in range(runs + unsettled):
        for kind, found in turns.items():
            pod_s = _bare(rig, f"bare-{number}-{len(kind)}", IMPORT if kind else "")
            found.append((pod_s, *_ours(rig, HELLO_TORCH if kind else HELLO)))
            times = "pod {:.2f} s, cell {:.2f} s, of it submit {:.2f} s".format(*found[-1])
            progress(f"start {number}{kind}: {times}")
    for kind, found in turns.items():
        pods, cells, accepted = (list(times) for times in zip(*found[unsettled:], strict=True))
        beyond = [cell - pod for pod, cell, _ in found[unsettled:]]
        case = f"a cell{kind}; image and Python are there"
        rows += [
            row(f"a bare pod{kind}", case, "created to its first line", "s", pods),
            row(OURS, case, "submit to the cell's first line", "s", cells),
            row(OURS, case, "of it until the job is accepted", "s", accepted),
            row(OURS, case, "the same beyond the bare pod of its turn", "s", beyond),
        ]
        name = "_with_torch" if kind else ""
        bars += [
            bar(f"submit_to_first_line{name}_s", statistics.median(cells), FIRST_LINE_LIMIT_S),
            bar(f"first_line_beyond_a_bare_pod{name}_s", statistics.median(beyond), OURS_LIMIT_S),
        ]
    return rows, bars


def _bare(rig: Rig, name: str, before: str = "") -> float:
    """A pod of the same image and directories whose program writes a line where ours writes its output, too."""
    path = rig.store.root / f"line-{name}"
    began_s, deadline = time.time(), time.monotonic() + UNTIL_S
    rig.pod(name, f"{before}echo here > {path}")
    while not path.exists() or not path.stat().st_size:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} wrote nothing in {UNTIL_S:g} s: {rig.bed.situation()}")
        time.sleep(LOOK_S)
    took_s = time.time() - began_s
    rig.delete(name)
    return took_s


def _ours(rig: Rig, cell: str) -> tuple[float, float]:
    began_s = time.time()
    watch = rig.submit(cell, name="hello", nodes=1)
    accepted_s = time.time() - began_s
    watch.until(lambda: bool(watch.view["output"]), UNTIL_S)
    took_s = time.time() - began_s
    watch.until_ended(UNTIL_S)
    stages(watch, began_s)
    rig.bed.until(lambda: not rig.pods(watch.job_id), "the job's pods are gone")
    return took_s, accepted_s


def measure_kept(rig: Rig, runs: int) -> Part:
    """Jobs on one node and on two, in pods that the job before has left; the first of each kind has new ones."""
    rows, bars = [], []
    for nodes, name in ((1, "one_node"), (2, "two_nodes")):
        took = []
        for number in range(runs + 1):
            began_s = time.time()
            watch = rig.submit(HELLO, name="kept", nodes=nodes, kubernetes={"keep-warm": KEEP})
            watch.until(lambda watch=watch: bool(watch.view["output"]), UNTIL_S)  # type: ignore[misc]
            took.append(time.time() - began_s)
            watch.until_ended(UNTIL_S)
            stages(watch, began_s)
            rig.bed.until(lambda nodes=nodes: _ready(rig) >= nodes, "the pods wait for the next job")  # type: ignore[misc]
            progress(f"{nodes} kept, start {number}: {took[-1]:.2f} s")
        case = f"in pods that were kept, {nodes} of them"
        rows.append(row(OURS, case, "submit to the cell's first line", "s", took[1:]))
        bars.append(bar(f"kept_{name}_first_line_s", statistics.median(took[1:]), KEPT_LIMIT_S))
    rig.on("kept", "let-go", "--namespace", rig.api.namespace)
    rig.bed.until(lambda: not _kept(rig), "no pod is kept any more")
    return rows, bars


def _kept(rig: Rig) -> list[str]:
    """The names of pods that a job has left."""
    with rig.bed.network():
        found, _ = rig.api.list(PODS, f"{SELECTOR},!{JOB}")
    live = [one for one in found if one["status"].get("phase") == "Running"]
    return [one["metadata"]["name"] for one in live if not one["metadata"].get("deletionTimestamp")]


def _ready(rig: Rig) -> int:
    """How many of them have been cleaned, and wait."""
    last = ("--tail=1", "-n", rig.api.namespace)
    return sum(READY in rig.bed.kubectl("logs", pod, *last, check=False).stdout for pod in _kept(rig))


def stages(watch: Observer, began_s: float) -> None:
    """Say on standard error what happened when: where the time has gone."""
    for event in watch.events:
        told = " ".join(f"{name}={event.data[name]}" for name in ("state", "node", "phase") if name in event.data)
        progress(f"  {event.time_s - began_s:7.3f} s {event.writer.split('.')[0]:12} {event.kind} {told}")
