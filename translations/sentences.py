"""Takes the sentences that the cluster says out of the Python sources, as texts with a place for each value.

Only some modules are read: those whose sentences people meet most in the browser. A sentence there is a string of
three words or more. Its values are the braces of an f-string; what is known before the program runs is written out:
`plural(n, "node")` gives one text with "1 node" and one with "%1 nodes", a name that its function sets to a string
gives the text with that string in its place.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jupyter_hyperpod.core.units import plural
from jupyter_hyperpod.core.vocabulary import CHOICES

Piece = str | None  # None: a value that is known only when the program runs
Text = tuple[Piece, ...]

# In the order in which a person meets them.
MODULES = (
    "control/jobs.py",
    "policy/scaling.py",
    "policy/cluster/capacity.py",
    "supervisor/job_commands.py",
    "supervisor/process_ends.py",
    "supervisor/reconcile.py",
    "runtime/coordinator/incidents.py",
    "runtime/coordinator/failures.py",
    "runtime/coordinator/generations.py",
    "runtime/coordinator/draining.py",
    "runtime/coordinator/joining.py",
    "runtime/coordinator/adoption.py",
    "policy/membership.py",
    "policy/recovery.py",
    "policy/allocation.py",
    "policy/cluster/idle.py",
    "policy/cluster/gifts.py",
    "policy/serving.py",
    "policy/healing.py",
    "supervisor/healing.py",
    "supervisor/coordinator_watchdog.py",
    "storage/room.py",
    "server/handlers.py",
    "server/errors.py",
    "core/elastic.py",
    "control/cluster.py",
    "control/clusters/shape.py",
    "runtime/coordinator/session_lifecycle.py",
    "runtime/coordinator/stragglers.py",
    "runtime/coordinator/scripts.py",
    "policy/scripts.py",
    "backends/local/host.py",
    "backends/local/known_node.py",
    "supervisor/allocation/allocation.py",
    "serving/replica_manager.py",
    "serving/deployment.py",
    "core/events.py",
    "policy/scheduled_runs.py",
)
# Of these modules only some.
PARTLY = {
    "core/kept.py": (
        "runs on 1 node and waits for %1 more: %2",
        "runs on %1 nodes and waits for %2 more: %3",
    ),
    "core/incidents.py": ("drained by hand",),
    "policy/guard.py": ("non-finite gradient", "non-finite loss", "loss spike"),
    "runtime/coordinator/controller.py": (
        "a new coordinator took over: all members registered again",
        "%1 stands by",
        "step %1 committed",
    ),
    "runtime/coordinator/commands.py": (
        "target is 1 node",
        "target is 1 node, as %1 asked",
        "target is %1 nodes",
        "target is %1 nodes, as %2 asked",
    ),
    "runtime/comm/transfer.py": ("%1 MB from 1 peer in %2 ms", "%1 MB from %2 peers in %3 ms"),
    "supervisor/main.py": ("the supervisor starts", "its owner asks for a target of %1"),
    "serving/relay.py": (
        "request %1, %2 %3: %4 replicas ended or broke off while they answered this request, the last one while it "
        "answered nothing else (%5). It is not sent to another one, and the same request is refused for the next %6 s; "
        "the log of the deployment says how they ended",
    ),
    "cli/job_verbs.py": ("the command line",),
    "storage/output/output_choice.py": (
        "%1 has no unit: %2s, %3min or %4h? write 30s, 10min, 2h or 1d for so long ago, 15:00 for a time of today, or "
        "a date such as 2026-11-25T21:00",
        "%1 is no time: write 30s, 10min, 2h or 1d for so long ago, 15:00 for a time of today, or a date such as "
        "2026-11-25T21:00",
        "nothing is between since %1 and until %2: the end comes before the beginning",
        "%1 is no range of steps: write 100:200, 100:, :200 or 100",
        "%1 is no range of steps: %2 comes before %3",
        "step %1 is not there: the job has computed 1 step",
        "step %1 is not there: the job has computed %2 steps",
    ),
}
# Not shown in the browser, only parts of others, or with words for values that would stay English.
NOT_SHOWN = frozenset(
    {
        "in use",
        "leave out",
        "earlier time",
        "%1 or more times were",
        "%1 times were",
        "no more than %1 requests were outstanding for %2 s",
        "asked %1 to stop",
        "rank %1 on %2",
        "exit status %1",
        "starts on",
        "goes on",
        "give up",
        "queue name",
        "as queues",
        "spare nodes",
        "no node",
        "out of service",
        "unhealthy node",
        "was started",
        "was ready",
        "had its weights",
        "began to load its weights",
        "gave its first answer",
        "was lost with its host",
        "ended with status %1",
        "MIN:MAX where MIN is at most %1, or start a larger cluster",
        "serve with --replicas MIN:MAX where MIN is at most %1, or start a larger cluster",
        "submit with --nodes %1, with --elastic MIN:MAX where MIN is at most %2, or start a larger cluster",
        "its queues are %1",
        "it has none",
        "%1 is %2 after %3 s, expected %4: %5",
        "%1 is %2 after %3 s, expected %4",
        "%1 cannot be aimed at a %2; expected %3",
        "%1 sent to %2's %3 on %4",
        "%1 cannot do %2 to a node; it can %3",
        "asks %1 for %2, %3 in all",
        "rank %1: step %2, %3",
        "%1 %2 instead of %3",
        "rank %1 opened another session than rank 0: %2",
        "members ended with different steps or state (%1)",
        "the replica on %1 %2 %3 s after it was decided upon",
        "a cluster with %1 %2 runs already, %3 were asked for; stop it first: `jupyter hyperpod cluster stop`",
        "--standby waits until the other host is lost, and --take-over does not wait: give one of them",
        "each node has a network of its own",
        "the nodes share this machine's network",
        "the last lines of %1:",
        "%1 a replica are wanted",
        "%1 holds a value that JSON cannot: %2",
        "not a journal line: %1 in %2",
        "journal line has a malformed identity: %1",
        "journal line has a malformed kind or data: %1",
        "%1 is not JSON",
        "unknown kind %1; expected one of %2",
        "ready to fork, preloaded: %1",
        "not up: %1",
        "the reduced gradient",
        "the last %1 reduced gradients",
        "%1 has run on %2 for %3 s",
        "its %1 restarts are used up",
        "its %1 restart is used up",
        "script_restarts is 0",
        "nothing more can be recovered outside hp.Session; --script-restarts N allows more",
        "%1 on rank %2 at line %3 of code cell %4: %5",
        "%1 on rank %2 at line %3 of code cell %4",
        "%1 on rank %2 at line %3: %4",
        "%1 on rank %2 at line %3",
        "%1 on rank %2: %3",
        "%1 on rank %2",
    }
)
LEAST_WORDS = 2
# Said alone or beside a value, and yet a sentence.
OF_ONE_WORD = frozenset({"straggler", "preempted", "step %1: %2", "%1 joined", "%1 released", "takes %1"})
MOST_FORMS = 12
DEPTH = 4


@dataclass(frozen=True)
class Scope:
    """What is known of the names of a function: the strings they are set to, and functions that return one."""

    names: Mapping[str, list[ast.expr]] = field(default_factory=dict)
    functions: Mapping[str, ast.FunctionDef] = field(default_factory=dict)
    constants: Mapping[str, ast.expr] = field(default_factory=dict)


def sentences(package: Path) -> dict[str, list[str]]:
    """The sentences of all modules, each with the files that say it."""
    found: dict[str, list[str]] = {state: [f"{package.name}/core/vocabulary.py"] for state in CHOICES["JobState"]}
    for module in (*MODULES, *PARTLY):
        texts = dict.fromkeys(in_source((package / module).read_text(encoding="utf-8")))
        wanted = PARTLY.get(module, [text for text in texts if text not in NOT_SHOWN])
        for text in (text for text in wanted if text in texts):
            found.setdefault(text, []).append(f"{package.name}/{module}")
    return found


def stale(package: Path) -> list[str]:
    """The texts named above that no module says any more."""
    said = {module: {*in_source((package / module).read_text(encoding="utf-8"))} for module in (*MODULES, *PARTLY)}
    everywhere = {text for texts in said.values() for text in texts}
    partly = {text for module, texts in PARTLY.items() for text in texts if text not in said[module]}
    return sorted({*NOT_SHOWN, *OF_ONE_WORD} - everywhere | partly)


def in_source(source: str) -> Iterator[str]:
    """The sentences of a module, in the order of its lines."""
    tree = ast.parse(source)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    constants = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    yield from _in_block(tree, Scope({}, functions, constants))


def _in_block(block: ast.AST, outer: Scope) -> Iterator[str]:
    scope = Scope(_assigned(block), outer.functions, outer.constants)
    stack = [*reversed([*ast.iter_child_nodes(block)])]
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _in_block(node, outer)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        elif isinstance(node, (ast.JoinedStr, ast.BinOp)) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str)
        ):
            for text in _forms(node, scope, DEPTH) or ():
                if (told := _told(text)) is not None:
                    yield told
            if isinstance(node, ast.JoinedStr):  # a value may be a sentence, too
                stack += [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
            elif isinstance(node, ast.BinOp):
                stack += [node.left, node.right]
        else:
            stack += reversed([*ast.iter_child_nodes(node)])


def _assigned(block: ast.AST) -> dict[str, list[ast.expr]]:
    """What the names of a function are set to; without those that are set in a way that is not followed."""
    if not isinstance(block, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return {}
    found: dict[str, list[ast.expr]] = {}
    unknown = {argument.arg for argument in ast.walk(block.args) if isinstance(argument, ast.arg)}
    for node in ast.walk(block):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.setdefault(node.id, [])
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            unknown.add(node.target.id)
    stores = [node.id for node in ast.walk(block) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return {
        name: values
        for name, values in found.items()
        if values and name not in unknown and stores.count(name) == len(values)
    }


def _forms(node: ast.expr, scope: Scope, depth: int) -> list[Text] | None:
    """All texts that an expression may become; None where it is no string that is known before the program runs."""
    if isinstance(node, ast.Constant):
        return [(node.value,)] if isinstance(node.value, str) else None
    if isinstance(node, ast.IfExp):
        return _together([_forms(node.body, scope, depth), _forms(node.orelse, scope, depth)])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [_forms(side, scope, depth) or [(None,)] for side in (node.left, node.right)]
        known = any(text != (None,) for side in sides for text in side)
        return [(*left, *right) for left in sides[0] for right in sides[1]][:MOST_FORMS] if known else None
    if isinstance(node, ast.JoinedStr):
        texts: list[Text] = [()]
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                plain = part.format_spec is None and part.conversion == -1
                pieces = (_forms(part.value, scope, depth) if plain else None) or [(None,)]
            else:
                pieces = _forms(part, scope, depth) or [(None,)]
            texts = [(*text, *piece) for text in texts for piece in pieces]
            if len(texts) > MOST_FORMS:
                return None
        return texts
    if depth == 0:
        return None
    if isinstance(node, ast.Name):
        values = scope.names.get(node.id) or ([scope.constants[node.id]] if node.id in scope.constants else [])
        return _together([_forms(value, scope, depth - 1) for value in values]) if values else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _called(node, node.func.id, scope, depth)
    return None


def _called(node: ast.Call, name: str, scope: Scope, depth: int) -> list[Text] | None:
    """The texts of a call: of `plural`, or of a function of the module that only returns a string."""
    if name == "plural" and len(node.args) == 2 and isinstance(noun := node.args[1], ast.Constant):
        return [(plural(1, str(noun.value)),), (None, plural(2, str(noun.value))[1:])]
    function = scope.functions.get(name)
    body = [] if function is None else [one for one in function.body if not isinstance(one, ast.Expr)]
    if function is not None and len(body) == 1 and isinstance(body[0], ast.Return) and body[0].value is not None:
        return _forms(body[0].value, Scope({}, scope.functions, scope.constants), depth - 1)
    return None


def _together(parts: list[list[Text] | None]) -> list[Text] | None:
    if any(part is None for part in parts):
        return None
    texts = [text for part in parts for text in part or ()]
    return texts if 0 < len(texts) <= MOST_FORMS else None


def _told(text: Text) -> str | None:
    """A text with %1, %2… for its values; None where it is no sentence, or could not be told from others."""
    joined: list[Piece] = []
    for piece in text:
        if piece is None or not joined or joined[-1] is None:
            if piece is None and joined and joined[-1] is None:
                return None  # nobody could say where one value ends
            joined.append(piece)
        else:
            joined[-1] += piece
    number = 0
    told = ""
    for piece in joined:
        number += piece is None
        told += f"%{number}" if piece is None else piece
    words = re.findall(r"[A-Za-z'-]{2,}", re.sub(r"%\d", " ", told))
    if told not in OF_ONE_WORD and (len(words) < LEAST_WORDS or " " not in told or not re.search("[a-z]{3}", told)):
        return None
    odd = told[:1] in " ,;:.([" or re.search(r"%(?!\d)|[\n{]", told)
    return None if odd else told.strip()
