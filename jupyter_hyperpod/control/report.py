"""What people read of a job or a cluster: views as tables and lines, for the CLI and the magics of this host."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..core.events import TERMINAL_STATES
from ..core.incidents import cause_text, way
from ..core.units import format_bytes, format_duration, format_rate, plural
from ..core.vocabulary import NODE_WORDS
from .cluster import ANSWERS
from .engines.reach import address, tunnel
from .text_tables import Cell, Paint, Table, clean, unpainted

View = Mapping[str, Any]
TONES = {
    "succeeded": "good", "running": "good", "idle": "good", "recovering": "warn", "pending": "warn", "starting": "warn",
    "busy": "info", "failed": "bad", "lost": "bad", "partitioned": "bad", "drained": "warn", "stopped": "quiet",
}  # fmt: skip
LOST = "its journal is lost"
SESSIONS_SHOWN = 5
JOBS_SHOWN = 50
_RULE_TONES = {"WAITING": "quiet", "HEALTHY": "good", "SLOW": "warn", "HANGING": "bad", "FAULTED": "bad"}


def state_cell(state: str) -> Cell:
    """Return a state in its tone."""
    return Cell(NODE_WORDS.get(state, state), TONES.get(state, ""))


def shown_state(view: View) -> str:
    """Return a job's state, "lost" where its journal is lost."""
    return "lost" if str(view["reason"]).startswith(LOST) else str(view["state"])


def ago(time_s: float | None, now_s: float) -> str:
    """Return ``12 s ago`` style text; '-' where unknown."""
    if time_s is None:
        return "-"
    seconds = round(now_s - time_s)
    return f"{format_duration(seconds)} ago" if seconds > 0 else "now"


def throughput(view: View) -> float | None:
    """Return samples committed per second of wall time over the last steps, None where unknown."""
    return cast("float | None", view["samples_per_s"])


def steps(view: View) -> str:
    """Return ``12/20``, ``12`` where the total is unknown or was passed, '-' before the first session."""
    if not view["session"]:
        return "-"
    total = view["session"]["total_steps"]
    return f"{view['step']}/{total}" if total and view["step"] <= total else str(view["step"])


def loss_text(view: View) -> str:
    """Return the newest loss with four significant digits; "nan" where it is not finite, '-' before the first step."""
    if view["loss"] is None:
        return "nan" if view["step"] else "-"  # JSON has no NaN
    return f"{view['loss']:.4g}"


def loading_text(view: View) -> str:
    """Return ``loading model 43 %, 1.2 GB/s, 3 s left``, over all members that load the same; empty for none."""
    active = [load for load in view["loads"] if load["state"] == "loading"]
    if not active or view["state"] in TERMINAL_STATES:
        return ""
    alike = [load for load in view["loads"] if load["url"] == active[-1]["url"] and load["state"] != "failed"]
    done = sum(load["bytes_done"] for load in alike) / max(1, sum(load["bytes_total"] for load in alike))
    rates = [load["bytes_done"] / load["elapsed_s"] if load["elapsed_s"] else 0.0 for load in active]
    parts = [f"loading model {int(100 * done)} %", f"{format_bytes(sum(rates))}/s"]
    if all(rates):
        missing = (load["bytes_total"] - load["bytes_done"] for load in active)
        left_s = max(count / rate for count, rate in zip(missing, rates, strict=True))
        parts.append(f"{format_duration(left_s)} left")
    return ", ".join(parts)


def step_texts(view: View) -> list[str]:
    """Return the step, the loss and the throughput in words; empty before the first session."""
    if not view["session"]:
        return []
    rate = throughput(view)
    session = [f"session {view['session_number']}"] if view["session_number"] > 1 else []
    return [
        *session,
        f"step {steps(view)}",
        f"loss {loss_text(view)}",
        *([] if rate is None else [format_rate(rate, "sample")]),
    ]


def progress_line(view: View) -> str:
    """Return one line about a job: model, step, loss, throughput, nodes, incidents."""
    parts = [view["name"] or view["id"], view["state"], loading_text(view), *step_texts(view)]
    if view["deployment"]:
        parts.append(_load(view["metrics"]))
    elif view["state"] not in TERMINAL_STATES and view["world_size"]:
        wanted = f" of {view['target']}" if view["target"] != view["world_size"] else ""
        short = view["waits"] and view["state"] == "running"
        parts.append(view["reason"] if short else plural(view["world_size"], "node") + wanted)
    if view["incidents"]:
        parts.append(plural(len(view["incidents"]), "incident"))
    if view["reason"] and view["state"] in ("pending", "failed", "stopped", "recovering"):
        parts.append(view["reason"])
    return clean(" · ".join(filter(None, parts)))


def _load(metrics: Mapping[str, Any]) -> str:
    """Return a deployment's load in a few words, or its progress of loading."""
    if metrics.get("loading_bytes") and not metrics["ready"]:
        return f"loading {format_bytes(metrics['loaded_bytes'])} of {format_bytes(metrics['loading_bytes'])}"
    if "ready" not in metrics:
        return ""
    parts = [f"{metrics['ready']} of {metrics['target']} replicas", format_rate(metrics["requests_per_s"], "request")]
    if "p50_s" in metrics:
        parts.append(f"p50 {latency_text(metrics, 'p50_s')}, p99 {latency_text(metrics, 'p99_s')}")
    return " · ".join([*parts, *([f"{metrics['queued']} wait"] if metrics["queued"] else [])])


def _engine(metrics: Mapping[str, Any]) -> str:
    """Return what the engines of a deployment say of their requests."""
    words = (("engine_running", "running"), ("engine_waiting", "waiting"))
    told = ", ".join(f"{metrics[name]:,.0f} {what}" for name, what in words if name in metrics)
    return f"requests in the engines: {told}" if told else ""


def latency_text(metrics: Mapping[str, Any], name: str) -> str:
    """Return a deployment's latency; '-' before its first answer."""
    return format_duration(metrics[name]) if metrics.get(name) is not None else "-"


def newest(views: Sequence[View], count: int) -> tuple[list[View], int]:
    """The ``count`` newest of the jobs, newest first, and all that have not ended; and how many are left out."""
    shown = [view for at, view in enumerate(views) if at < count or view["state"] not in TERMINAL_STATES]
    return shown, len(views) - len(shown)


def labels_text(view: View) -> str:
    """Return the tags of a job, and that it is archived."""
    return ", ".join([*view["labels"]["tags"], *(["(archived)"] if view["labels"]["archived"] else [])])


def unarchived(views: Sequence[View]) -> list[View]:
    """The jobs that are not in the archive, and those in it that have not ended."""
    return [view for view in views if not view["labels"]["archived"] or view["state"] not in TERMINAL_STATES]


def jobs_table(views: Sequence[View], now_s: float | None = None, trials: Mapping[str, str] | None = None) -> Table:
    """Return the table of jobs, in the order given. ``trials``: job -> its trial of a sweep, in a few words."""
    now_s = time.time() if now_s is None else now_s
    rows = []
    for view in views:
        ended_s = view["ended_s"] or now_s
        ran = "-" if view["started_s"] is None else format_duration(max(0.0, ended_s - view["started_s"]))
        wanted = f"{view['minimum']}:{view['maximum']}" if view["minimum"] != view["maximum"] else ""
        alive = view["state"] not in TERMINAL_STATES
        size = f"{view['world_size'] if alive and view['world_size'] else view['nodes_wanted']}"
        size += f" of {view['target']}" if view["waits"] else ""
        rows.append(
            [
                Cell(view["id"]),
                state_cell(shown_state(view)),
                Cell(size + (f" ({wanted})" if wanted else "")),
                Cell(steps(view)),
                Cell(loss_text(view)),
                Cell(str(len(view["incidents"])), "warn" if view["incidents"] else "quiet"),
                Cell(ran),
                Cell(ago(view["submitted_s"], now_s), "quiet"),
                Cell((trials or {}).get(view["id"], ""), "quiet"),
                Cell(labels_text(view), "info"),
            ]
        )
    names = ("ID", "STATE", ">NODES", ">STEP", ">LOSS", ">INCIDENTS", ">RAN", "SUBMITTED", "TRIAL", "TAGS")
    kept = [at for at, name in enumerate(names) if name not in ("TRIAL", "TAGS") or any(row[at].text for row in rows)]
    headers, rows = tuple(names[at] for at in kept), [[row[at] for at in kept] for row in rows]
    return Table(headers, rows, "no jobs yet; `jupyter hyperpod submit FILE` or a %%hyperpod cell starts one")


def cluster_line(cluster: View) -> str:
    """Return one line about the cluster."""
    working = [node for node in cluster["nodes"] if node["state"] in ("idle", "busy")]
    busy = sum(node["state"] == "busy" for node in working)
    text = f"cluster {cluster['state']}"
    if cluster["nodes"]:
        text += f" · {plural(len(working), 'node')} up, {busy} busy"
    if cluster["pid"] and cluster["state"] != "stopped":
        text += f" · supervisor pid {cluster['pid']}"
    told = cluster["reason"] not in ("", ANSWERS)
    return clean(text + (f" · {cluster['reason']}" if told else "") + _idle(cluster, time.time()))


def _idle(cluster: View, now_s: float) -> str:
    """When an idle cluster ends by itself, or how long ago it did."""
    if not (idle := cluster["idle"]) or cluster["state"] == "stopping":
        return ""
    if cluster["state"] == "stopped":
        return f" ({ago(idle['ends_s'], now_s)})"
    left_s = idle["ends_s"] - now_s
    return f" · idle, ends in {format_duration(max(1.0, left_s if left_s < 60 else 60 * round(left_s / 60)))}"


def describe_lines(
    view: View, paint: Paint = unpainted, references: Mapping[str, str] | None = None, trial: str = ""
) -> str:
    """Return the description of one job, in paragraphs, with the ``references`` of its environment variables, and with
    its ``trial`` of a sweep in words."""
    now_s, state = time.time(), shown_state(view)
    lines = [f"{paint(view['id'], 'title')}  {paint(state, TONES.get(state, ''))}"]
    facts = [("trial", trial), *_facts(view, now_s)]
    lines += [f"  {paint(f'{label:<12}', 'quiet')}{clean(text)}" for label, text in facts if text]
    variables = [f"{name}={reference}" for name, reference in (references or {}).items()]
    lines += [f"  {paint('environment ', 'quiet')}{clean(text)}" for text in variables]
    blocks = (("members", _members(view)), ("incidents", incidents_table(view)), ("rules", rules_table(view)))
    for title, block in blocks:
        if block.rows:
            lines += ["", paint(title, "title"), *("  " + line for line in block.render(paint).splitlines())]
    if view["decisions"]:
        lines += ["", paint("newest decisions", "title")]
        lines += [f"  {paint(d['policy'], 'quiet')}  {clean(d['reason'])}" for d in view["decisions"][-5:]]
    lines += [paint(f"warning: {clean(warning['text'])}", "warn") for warning in view["warnings"][-5:]]
    if view["error"]:
        lines += ["", paint("error", "bad"), *traceback_lines(view["error"])]
    return "\n".join(lines)


def traceback_lines(error: View) -> list[str]:
    """Return the lines of a user's error, control characters replaced; never empty."""
    lines = [clean(line.expandtabs(4)) for text in error["traceback"] for line in str(text).splitlines()]
    return lines or [clean(f"{error['type']}: {error['message']}")]


def _facts(view: View, now_s: float) -> list[tuple[str, str]]:
    session = view["session"] or {}
    rate = throughput(view)
    ended_s = view["ended_s"] or now_s
    return [
        ("reason", view["reason"]),
        ("phase", "" if view["state"] in TERMINAL_STATES else view["phase"]),
        ("url", address(view["deployment"]) if view["deployment"] else ""),
        ("from here", "" if view["state"] in TERMINAL_STATES else tunnel(view["deployment"])),
        _size(view),
        ("backend", f"{view['backend']}, priority {view['priority']}, {view['spares_wanted']} spare"),
        ("submitted", ago(view["submitted_s"], now_s)),
        ("ran", "" if view["started_s"] is None else format_duration(max(0.0, ended_s - view["started_s"]))),
        ("model", loading_text(view) or _loaded(view["loads"])),
        ("earlier", _sessions(view["sessions"])),
        ("session", str(view["session_number"]) if view["session_number"] > 1 else ""),
        ("step", steps(view) if session else ""),
        ("loss", loss_text(view) if session else ""),
        ("throughput", format_rate(rate, "sample") if rate else ""),
        ("batch", f"{session['global_batch']} in {plural(session['micro_batches'], 'micro-batch')}" if session else ""),
        ("state", f"{session['parameters']:,} parameters, {format_bytes(session['state_bytes'])}" if session else ""),
        ("samples", f"{view['samples']:,}, {plural(view['redone'], 'micro-batch')} computed again" if session else ""),
        ("data", _data(view["metrics"])),
        ("engine", _engine(view["metrics"])),
        ("checkpoint", _checkpoint(view["checkpoint"], now_s)),
        ("generation", str(view["generation"] or "")),
        ("digest", str(view["digest"] or "")),
        ("notebook", view["origin"].get("notebook", "")),
        ("tags", labels_text(view)),
        ("note", view["labels"]["note"]),
        ("labelled", f"by {view['labels']['by']}" if view["labels"]["by"] else ""),
    ]


def _size(view: View) -> tuple[str, str]:
    """Return how many nodes a job has, or how many replicas of a deployment answer, and how many it may have."""
    allowed = f"{view['minimum']} to {view['maximum']} allowed"
    ended = view["state"] in TERMINAL_STATES
    if not view["deployment"]:
        when = "at the end" if ended else f"now, {view['target']} wanted"
        return "nodes", f"{view['world_size']} {when}, {allowed}"
    ready = 0 if ended else view["world_size"]
    if view["minimum"] != view["maximum"]:
        allowed += ": the load decides, also after `scale`"
    return "replicas", f"{ready} ready, {view['metrics'].get('target', view['target'])} wanted, {allowed}"


def _sessions(ended: Sequence[Mapping[str, Any]]) -> str:
    """Return how the earlier sessions of the cell ended: all of a few, else the newest."""
    shown = [f"session {one['number']}: step {one['step']}, loss {loss_text(one)}" for one in ended[-SESSIONS_SHOWN:]]
    return "; ".join([*(["…"] if len(shown) < len(ended) else []), *shown])


def _data(metrics: Mapping[str, Any]) -> str:
    """Return how the workers that read the data keep up with rank 0, where there are any."""
    if "data_stalls" not in metrics:
        return ""
    waited = plural(int(metrics["data_stalls"]), "micro-batch")
    return f"{int(metrics['data_read_ahead'])} read ahead on rank 0, which has waited for {waited}"


def _loaded(loads: Sequence[View]) -> str:
    """Return the last finished load, by its slowest member."""
    if not loads or loads[-1]["state"] != "loaded":
        return ""
    slowest = max((load for load in loads if load["url"] == loads[-1]["url"]), key=lambda load: load["elapsed_s"])
    return load_sentence(slowest)


def load_sentence(data: Mapping[str, Any]) -> str:
    """Return a member's progress with a model, as a sentence."""
    size = format_bytes(data["bytes_total"])
    if data["state"] != "loaded":
        percent = int(100 * data["bytes_done"] / max(1, data["bytes_total"]))
        return f"{data['node']} {data['state']} at {percent} % of {size} from {data['url']}"
    layer = "" if data["first_layer_s"] is None else f", first layer after {format_duration(data['first_layer_s'])}"
    return f"{size} loaded by {data['node']} in {format_duration(data['elapsed_s'])}{layer}, from {data['url']}"


def _checkpoint(saved: View | None, now_s: float) -> str:
    """Return the newest checkpoint, from which training could restart."""
    if saved is None:
        return ""
    size = format_bytes(saved["bytes"])
    return f"step {saved['step']}, {ago(saved['time_s'], now_s)}, {size} in {saved['path']}"


def _members(view: View) -> Table:
    members = [] if view["state"] in TERMINAL_STATES else view["members"]
    rows = [(str(member.get("rank", at)), str(member.get("node", ""))) for at, member in enumerate(members)]
    return Table((">RANK", "NODE"), rows)


def incident_duration(incident: View) -> str:
    """Return the time from the fault to the next commit, '-' before that commit."""
    if incident["recovery_s"] is None:
        return "-"
    took = format_duration(incident["recovery_s"])
    return took if incident["detection_s"] is not None else f"{took} after detection"


def incidents_table(view: View) -> Table:
    """Return the table of a job's incidents with the time of every stage, detection first."""
    rows = []
    for incident in view["incidents"]:
        stages = ", ".join(map(_stage, incident["stages"]))
        rank = "-" if incident["rank"] is None else str(incident["rank"])
        rows.append(
            [incident["node"] or "-", rank, (cause_text(incident["cause"]), "warn"), way(incident["rung"])]
            + [incident_duration(incident), (stages, "quiet")]
        )
    return Table(("NODE", ">RANK", "CAUSE", "HOW", ">RESUMED IN", "STAGES"), rows, "no incidents")


def _stage(stage: View) -> str:
    took = " (time not known)" if stage["took_s"] is None else f" +{format_duration(stage['took_s'])}"
    return f"{stage['stage']}{took}"


def rules_table(view: View) -> Table:
    """Return the table of a job's log rules and their states by rank."""
    rows = []
    for rule in view["rules"]:
        rank = "all" if rule["rank"] is None else str(rule["rank"])
        value = "-" if rule["value"] is None else f"{rule['value']:g}"
        state = (rule["state"], _RULE_TONES[rule["state"]])
        rows.append([rule["rule"], rank, state, value, (rule["text"], "quiet")])
    return Table(("RULE", ">RANK", "STATE", ">VALUE", "WHY"), rows, "no rules")
