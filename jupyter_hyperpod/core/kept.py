"""Lists in views that keep only their newest records; `src/model/fold.ts` has their twins."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from .events import TERMINAL_STATES
from .units import plural

CAPACITY = "capacity"  # the policy of decisions about the nodes that a job lacks
# [step, Unix time, samples of all steps until then] of one commit
Commit = list[Any]

TAGS_KEPT = 20
OUTPUT_LINES = 400
OUTPUT_CHARACTERS = 1 << 18  # Unicode characters that long pieces of output take together; the newest is kept whole
COMMITS_KEPT = 16  # the last steps, from which the step time and the throughput are computed
GENERATION_NODES_KEPT = 4096  # names in all generations together; the newest generation is kept whole


def append(records: list[Any], record: Any, most: int) -> None:
    """Append a record, and keep only the newest."""
    records.append(record)
    del records[:-most]


def put(records: list[Any], record: dict[str, Any], keys: tuple[str, ...], most: int) -> None:
    """Replace the record that has the same values of `keys`, else append."""
    places = [[known[key] for key in keys] for known in records]
    place = [record[key] for key in keys]
    if place in places:
        records[places.index(place)] = record
    else:
        append(records, record, most)


def put_node(nodes: list[dict[str, Any]], record: dict[str, Any], time_s: float) -> None:
    """Replace the record of a node, or append the first one; it says since when the node has had its state."""
    names = [node["node"] for node in nodes]
    record["since_s"] = time_s
    if record["node"] not in names:
        nodes.append(record)
        return
    at = names.index(record["node"])
    if nodes[at]["state"] == record["state"]:
        record["since_s"] = nodes[at]["since_s"]
    nodes[at] = record


def bound_names(generations: list[dict[str, Any]]) -> None:
    """Forget the oldest generations where all together name too many nodes."""
    names = 0
    for kept, formed in enumerate(reversed(generations)):
        names += len(formed["nodes"]) + len(formed["spares"])
        if kept and names > GENERATION_NODES_KEPT:
            del generations[:-kept]
            return


def append_output(records: list[dict[str, Any]], record: dict[str, Any]) -> None:
    """Append a piece of output, and keep only the newest: `OUTPUT_LINES` of them, and of long ones fewer."""
    append(records, record, OUTPUT_LINES)
    if _characters(record) * OUTPUT_LINES <= OUTPUT_CHARACTERS:
        return  # pieces as short as this one cannot be too long together
    size = 0
    for kept, older in enumerate(reversed(records)):
        size += _characters(older)
        if kept and size > OUTPUT_CHARACTERS:
            del records[:-kept]
            return


def unpaced() -> dict[str, Any]:
    """What a view says of its pace before the first commit."""
    return {"step_time_s": None, "samples_per_s": None, "commits": []}


def put_commit(view: dict[str, Any], step: int, time_s: float) -> None:
    """Append a commit, and say how fast the last steps were; the view's samples are counted already."""
    commits = view["commits"]
    append(commits, [step, time_s, view["samples"]], COMMITS_KEPT)
    view["step_time_s"], view["samples_per_s"] = step_time(commits), rate(commits[0], commits[-1])


def explain(view: dict[str, Any], newest: str = "") -> None:
    """Say in the reason why a running job has fewer nodes than it wants; ``newest``: why its members changed."""
    if (newest and view["world_size"] >= view["target"]) or view["state"] in TERMINAL_STATES:
        view["waits"] = ""
    if view["state"] != "running":
        return
    missing = view["target"] - view["world_size"]
    if view["waits"] and view["world_size"] and missing > 0:
        nodes = plural(view["world_size"], "node")
        view["reason"] = f"runs on {nodes} and waits for {missing:,} more: {view['waits']}"
    elif newest:
        view["reason"] = newest


def put_decision(view: dict[str, Any], data: Mapping[str, Any], time_s: float, most: int) -> None:
    """Append a decision; one of the capacity says why a job gets no more nodes."""
    append(view["decisions"], {"time_s": time_s, "policy": data["policy"], "reason": data["reason"]}, most)
    if data["policy"] == CAPACITY and "waits" in view:
        view["waits"] = data["reason"]
        if view["state"] == "pending":
            view["reason"] = data["reason"]
        explain(view)


def rate(first: Commit, last: Commit) -> float | None:
    """Throughput: samples committed per second of wall time from one commit to another; None where no time passed."""
    seconds = last[1] - first[1]
    return (last[2] - first[2]) / seconds if seconds > 0 else None


def step_time(commits: list[Commit]) -> float | None:
    """Step time: the median of the wall time from commit to commit, in seconds; None before the second commit."""
    times = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(commits))
    return max(0.0, times[len(times) // 2]) if times else None


def labelled(labels: dict[str, Any], data: Mapping[str, Any], time_s: float) -> dict[str, Any]:
    """A job's labels after a person has changed them: the newest `TAGS_KEPT` tags, the note, whether it is archived."""
    kept = [tag for tag in labels["tags"] if tag not in data["remove"] and tag not in data["add"]]
    return {
        "tags": [*kept, *data["add"]][-TAGS_KEPT:],
        "note": data.get("note", labels["note"]),
        "archived": data.get("archived", labels["archived"]),
        "by": data["by"],
        "time_s": time_s,
    }


def _characters(record: dict[str, Any]) -> int:
    text = record["text"]
    return len(text) if isinstance(text, str) else 0
