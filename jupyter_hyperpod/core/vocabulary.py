"""The fields of every kind of event and their types: one table, from which Python and TypeScript read journals.

A type is written as ``str``, ``int``, ``float`` (an int will do), ``bool``, ``null``, ``any``, ``map`` (an object with
any values), or a name of `RECORDS` or of `CHOICES`; ``T[]`` is a list, ``A|B`` is either. A field whose name ends in
``?`` may be missing. An event may have more fields than these. `typescript` writes `src/model/facts.ts` from the same
table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Fields = dict[str, str]


def _fields(text: str) -> Fields:
    """``"step: int, loss: float|null"`` as a mapping of names to types."""
    return {name.strip(): kind.strip() for name, _, kind in (part.partition(":") for part in text.split(","))}


# texts with a closed set of values
CHOICES: dict[str, tuple[str, ...]] = {
    "JobState": ("pending", "running", "recovering", "succeeded", "failed", "stopped"),
    # as `runtime/coordinator/phase.py` documents them
    "Phase": (
        "gathering",
        "running script",
        "forming",
        "training",
        "reforming",
        "waiting",
        "adopting",
        "closing",
        "ended",
    ),  # fmt: skip
    "NodeState": ("starting", "idle", "busy", "drained", "partitioned", "lost", "stopped"),
    "RuleState": ("WAITING", "HEALTHY", "SLOW", "HANGING", "FAULTED"),
    "Outcome": ("pass", "fail", "skipped"),
    "LoadState": ("loading", "loaded", "failed"),
}

# states of nodes that people read in other words; `src/nodes.ts` has the same
NODE_WORDS = {"idle": "free", "partitioned": "cut off"}

RECORDS: dict[str, Fields] = {
    "Member": _fields("member: str, node: str, rank: int|null, pid?: int"),
    "Range": _fields("minimum: int, maximum: int"),
    "Served": _fields("minimum: int"),
    "Spec": _fields(
        "name: str, cell_digest: str, nodes: int, elastic: Range|null, backend: str, spares?: int, priority?: int, "
        "queue?: str, origin?: map, serve?: Served|null"
    ),
    "Order": _fields("writer: str, seq: int"),
    "Finding": _fields("probe: str, outcome: Outcome, severity: str, fault: str, text: str, device: str"),
}

# kind -> fields of `data` and their types
EVENTS: dict[str, Fields] = {
    kind: _fields(text)
    for kind, text in {
        # written by control, when a job is submitted
        "job.submitted": "id: str, spec: Spec",
        # written by control for a person, who may do so after the job's end, too; what is missing stays as it is
        "job.labelled": "add: str[], remove: str[], by: str, note?: str, archived?: bool",
        # written by the coordinator (pending -> running <-> recovering -> succeeded | failed | stopped)
        "job.state": "state: JobState, reason: str",
        "phase.changed": "phase: Phase, reason: str",
        "member.joined": "member: str, node: str, pid: int, host: str",
        "member.ready": "member: str, node: str",
        "member.lost": "member: str, node: str, rank: int|null, cause: str, detail: str",
        "generation.formed": "generation: int, members: Member[], spares: Member[], target: int, reason: str",
        "session.opened": (
            "total_steps: int|null, global_batch: int, micro_batch: int, micro_batches: int, parameters: int, "
            "state_bytes: int, number?: int"
        ),
        "incident.stage": (
            "incident: int|str, stage: str, cause: str, node: str|null, rank: int|null, rung: int|null, text: str, "
            "since_s?: float|null"
        ),
        "decision.made": "policy: str, value: any, reason: str",
        "fault.injected": "fault: str, node: str|null, rank: int|null, member: str|null",
        # `by`: the person, in words; a part of the product asked where it is missing
        "command.done": "command: Order, kind: str, ok: bool, reason: str, by?: str",
        "session.closed": "step: int, digest: str",
        # `asked`: the cell has gone back to it
        "checkpoint.loaded": "step: int, path: str, took_s: float, session?: int, generation?: int, asked?: bool",
        "checkpoint.refused": "path: str, reason: str",
        # written by workers; `step_time_s`: inside the step alone, which is less than the step time of a view
        # (`core/kept.py`); the assignment where it changes; `steps`: this record also stands for those before it
        # that were left out when old samples were thinned; micro-batches and the factor of learning rates where the
        # global batch may change
        "step.committed": (
            "step: int, generation: int, loss: float|null, loss_hex: str, step_time_s: float, samples: int, "
            "world_size: int, redone: int, assignment?: any, steps?: int, micro_batches?: int, "
            "rate_factor?: float, session?: int"
        ),
        "metric.logged": "step: int, values: map",
        "checkpoint.saved": "step: int, path: str, bytes: int, took_s: float, paused_s: float",
        "model.loading": (
            "member: str, node: str, state: LoadState, url: str, bytes_done: int, bytes_total: int, elapsed_s: float, "
            "first_layer_s: float|null"
        ),
        # written by agents
        # `shown`: the text stands for a display; action (display, update, clear, or "" where another rank shows it),
        # id, place (session, step, number), and the MIME bundle: data, metadata; `result`: a cell's value. `step`,
        # `cell`: it was printed in that one. `begins`: that cell of the notebook begins; 0: the last one has ended
        "output.written": (
            "member: str, node: str, rank: int|null, stream: str, text: str, shown?: map, session?: int, step?: int, "
            "cell?: int, begins?: int"
        ),
        # `line` is the line of the cell as the notebook numbers it; `cell`: of which of several cells
        "user.error": (
            "member: str, node: str, rank: int|null, type: str, message: str, traceback: str[], line?: int|null, "
            "cell?: int|null"
        ),
        # written by the gateway of a deployment
        # `host`: whose loopback `url` names; `loopback`: what `system.addresses.this_loopback` says there
        "deployment.opened": "url: str, model: str, task: str, host?: str, loopback?: str",
        "replica.stage": "replica: str, node: str, stage: str, took_s: float, text: str",
        # written by the process that notices the fault
        "warning.raised": "text: str",
        # the scheduler's state of one requested node, written by the supervisor
        "allocation.changed": "scheduler: str, element: str, part: int, state: str, node: str, reason: str",
        # in the journal `resources` of a job, written by the coordinator: what the job's processes on some nodes used.
        # `values`: name -> the value of each node, or one that all have (`storage/resources`); `every_s`: between two
        "nodes.sampled": "nodes: str[], values: map, every_s: float",
        # cluster journal, written by the supervisor
        # `queues`: how many nodes each is guaranteed; `idle`: it ended by itself, since nobody used it
        "cluster.state": "state: str, reason: str, nodes: str[], pid: int|null, queues?: map, idle?: bool",
        # nobody uses it, or somebody does again (null): since when, and when it ends because of that
        "cluster.idle": "since_s: float|null, ends_s: float|null, reason: str",
        "node.state": (
            "node: str, state: NodeState, reason: str, spare: bool, slots: int, used: int, jobs: str[], pid: int|null, "
            "incarnation: int"
        ),
        # cluster journal, written by the health agent of a machine, and by the process that carries out remedies
        "node.findings": "nodes: str[], findings: Finding[]",
        "node.health": (
            "node: str, action: str, fault: str, reason: str, labels: map, recovery: str, devices: map, boot: str"
        ),
        # job's journal, written by its log watcher
        "rule.state": "rule: str, state: RuleState, member: str, rank: int|null, value: float|null, text: str",
    }.items()
}


def violations(kind: str, data: Mapping[str, Any]) -> list[str]:
    """Return, in words, how an event's ``data`` differs from the table; empty where it matches."""
    if kind not in EVENTS:
        return [f"unknown kind {kind!r}"]
    return [f"{kind}: {problem}" for problem in _record_violations("data", EVENTS[kind], data)]


def _record_violations(where: str, fields: Fields, value: Any) -> list[str]:
    if not isinstance(value, Mapping):
        return [f"{where} is {value!r:.60}, expected an object"]
    found = []
    for name, kind in fields.items():
        key = name.removesuffix("?")
        if key in value:
            found += _violations(f"{where}.{key}", kind, value[key])
        elif key == name:
            found.append(f"{where}.{key} is missing")
    return found


def _violations(where: str, kind: str, value: Any) -> list[str]:
    problems = [_one_violation(where, one, value) for one in kind.split("|")]
    return [] if [] in problems else problems[0]


_CLASSES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "null": (type(None),),
    "map": (Mapping,),
    "any": (object,),
}


def _one_violation(where: str, kind: str, value: Any) -> list[str]:
    if kind.endswith("[]"):
        if not isinstance(value, list):
            return [f"{where} is {value!r:.60}, expected {kind}"]
        return [problem for at, one in enumerate(value) for problem in _one_violation(f"{where}[{at}]", kind[:-2], one)]
    if kind in RECORDS:
        return _record_violations(where, RECORDS[kind], value)
    if kind in CHOICES:
        known = CHOICES[kind]
        return [] if value in known else [f"{where} is {value!r:.60}, expected one of {', '.join(known)}"]
    fits = isinstance(value, _CLASSES[kind]) and (kind in ("bool", "any") or not isinstance(value, bool))
    return [] if fits else [f"{where} is {value!r:.60}, expected {kind}"]


_TYPESCRIPT = {
    "str": "string",
    "int": "number",
    "float": "number",
    "bool": "boolean",
    "null": "null",
    "map": "Record<string, any>",
    "any": "any",
}


def typescript() -> str:
    """Return `src/model/facts.ts`: the same table as interfaces, and the names of the fields that must be there."""
    lines = [
        "/** Written by `python tests/journals/regenerate.py` from `core/vocabulary.py`: change that table instead. */",
        "",
    ]
    for name, words in CHOICES.items():
        lines += [f"export type {name} = {' | '.join(repr(word) for word in words)};", ""]
    for name, fields in RECORDS.items():
        lines += [f"export interface I{name} {{", *_members(fields, 1), "}", ""]
    lines += ["/** The data of every kind of event. */", "export interface IFacts {"]
    for kind, fields in EVENTS.items():
        lines += [f"  '{kind}': {{", *_members(fields, 2), "  };"]
    lines += ["}", "", "/** The fields that every kind of event must have. */", "export const EVENT_FIELDS = {"]
    for number, (kind, fields) in enumerate(EVENTS.items(), 1):
        names = [f"    '{name}'" for name in fields if not name.endswith("?")]
        lines += [f"  '{kind}': [", ",\n".join(names), "  ]" + "," * (number < len(EVENTS))]
    lines += ["} as const satisfies { [K in keyof IFacts]: readonly (keyof IFacts[K])[] };", ""]
    return "\n".join(lines)


def _members(fields: Fields, depth: int) -> list[str]:
    return [f"{'  ' * depth}{name}: {_typescript(kind)};" for name, kind in fields.items()]


def _typescript(kind: str) -> str:
    return " | ".join(_one_typescript(one) for one in kind.split("|"))


def _one_typescript(kind: str) -> str:
    if kind.endswith("[]"):
        return f"{_one_typescript(kind[:-2])}[]"
    return f"I{kind}" if kind in RECORDS else _TYPESCRIPT.get(kind, kind)
