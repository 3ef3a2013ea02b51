"""Reads the source of a loop over a prepared loader, and divides its body around ``accelerator.backward(loss)``.

What leads from the batch to the loss becomes a function of the batch, which a session calls for each micro-batch. The
rest of the body runs once per batch: before it what does not depend on the batch, after it what reads the loss.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ..core.errors import SpecError
from ..runtime.program.analysis.cell_analysis import LOOPS, READERS, SCOPES, exposed

Bases = Callable[[ast.expr], bool]  # whether an expression is the Accelerator
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
BY_HAND = (
    "Write the loop with hp.Session: for step in session.steps(n): loss = step.run(lambda batch: ...), see "
    "docs/your-training.md"
)
TWICE = "line {line} is a further accelerator.backward() in the loop of line {loop}; expected one per batch. " + BY_HAND
DIRECT = "line {line} calls backward() of a tensor: write accelerator.backward(loss), which the session can share"
NESTED = (
    "line {line} calls accelerator.backward() under an if, in an inner loop or in an expression: call it in the body "
    "of the loop of line {loop} itself, or in a with block there. " + BY_HAND
)
ARGUMENTS = "line {line} gives accelerator.backward() more than the loss: write accelerator.backward(loss)"
LEAVES = (
    "line {line} leaves the turn before accelerator.backward(), so a batch would have no step: leave the loop with "
    "break after it, or leave samples out of the data set. " + BY_HAND
)
ENDS = "line {line}: {what} in the loop of line {loop} cannot be kept: leave the loop with break"
FORM = (
    "line {line}: the loop over a prepared loader is written in a way that is not known; write for batch in loader, or "
    "for step, batch in enumerate(loader)"
)
CARRIED = (
    "line {line} reads {name} from the batch before, and members compute parts of a batch at the same time: use "
    "hp.Session with lanes, see docs/losses.md"
)
BLOCK = "line {line}: the with block around accelerator.backward() depends on the batch; put it around the loss alone"
OTHER_ORDER = "line {line} binds or changes {name} between statements that compute the loss; do it before them"


@dataclass
class Divided:
    """A loop and its parts. ``levels``: what surrounds the step, outermost first: (before, with block, after).

    ``head`` are the statements from the batch to ``loss``; of a follower they hold the place. ``followers`` come after
    the step. ``made`` are the names that belong to one micro-batch. ``counted``: the call of enumerate, or None.
    """

    loop: ast.For
    loss: ast.expr
    target: ast.expr
    counted: ast.Call | None
    levels: list[tuple[list[ast.stmt], ast.With | None, list[ast.stmt]]]
    head: list[ast.stmt] = field(default_factory=list)
    followers: list[ast.stmt] = field(default_factory=list)
    made: dict[str, int] = field(default_factory=dict)


def loop_at(tree: ast.Module, line: int) -> tuple[ast.AST, ast.For] | None:
    """The scope and the loop whose head is at a line, or None."""
    scope: ast.AST = tree
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.lineno <= line <= (node.end_lineno or 0):
            scope = node
    found = [n for n in _own(scope) if isinstance(n, ast.For) and n.lineno <= line <= (n.iter.end_lineno or n.lineno)]
    return (scope, found[-1]) if found else None


def loops_around(scope: ast.AST, loop: ast.For) -> list[ast.AST]:
    """The loops of a scope that hold this one."""
    return [n for n in _own(scope) if isinstance(n, LOOPS) and n is not loop and any(m is loop for m in ast.walk(n))]


def divided(loop: ast.For, is_accelerator: Bases) -> Divided | None:
    """The parts of a loop; None where it has no backward. Raises SpecError for what cannot be divided."""
    inside = [node for statement in loop.body for node in (statement, *_own(statement))]
    calls = [n for n in inside if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    backward = [call for call in calls if getattr(call.func, "attr", "") == "backward"]
    if not backward:
        return None
    for call in backward:
        assert isinstance(call.func, ast.Attribute)
        if not is_accelerator(call.func.value):
            raise SpecError(DIRECT.format(line=call.lineno))
    if len(backward) > 1:
        raise SpecError(TWICE.format(line=backward[1].lineno, loop=loop.lineno))
    call = backward[0]
    if len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
        raise SpecError(ARGUMENTS.format(line=call.lineno))
    _refuse_ends(loop, inside)
    found = Divided(loop, call.args[0], *_target(loop), list(_levels(loop, loop.body, call)))
    _classify(found)
    return found


def _refuse_ends(loop: ast.For, inside: Sequence[ast.AST]) -> None:
    kinds = {ast.Return: "return", ast.Yield: "yield", ast.YieldFrom: "yield", ast.Await: "await"}
    for node in inside:
        if type(node) in kinds:
            line = getattr(node, "lineno", loop.lineno)
            raise SpecError(ENDS.format(line=line, what=kinds[type(node)], loop=loop.lineno))
    if loop.orelse:
        raise SpecError(ENDS.format(line=loop.orelse[0].lineno, what="else", loop=loop.lineno))


def _target(loop: ast.For) -> tuple[ast.expr, ast.Call | None]:
    """What the loop binds to a batch, and the call of enumerate, if there is one. Raises SpecError."""
    counted: ast.Call | None = None
    values: ast.expr = loop.iter
    while isinstance(values, ast.Call) and values.args:
        name = _name_of(values.func)
        if name == "enumerate" and counted is None:
            counted = values
        elif name != "tqdm":
            break
        values = values.args[0]
    pair = isinstance(loop.target, ast.Tuple | ast.List) and len(loop.target.elts) == 2
    if not isinstance(values, ast.Name | ast.Attribute | ast.Subscript) or (counted is not None and not pair):
        raise SpecError(FORM.format(line=loop.lineno))
    if counted is None:
        return loop.target, None
    assert isinstance(loop.target, ast.Tuple | ast.List)
    return loop.target.elts[1], counted


def _levels(
    loop: ast.For, body: list[ast.stmt], call: ast.Call
) -> Iterator[tuple[list[ast.stmt], ast.With | None, list[ast.stmt]]]:
    place = next(number for number, statement in enumerate(body) if any(n is call for n in ast.walk(statement)))
    holder, before, after = body[place], body[:place], body[place + 1 :]
    if isinstance(holder, ast.Expr) and holder.value is call:
        yield before, None, after
    elif isinstance(holder, ast.With) and not any(n is call for item in holder.items for n in ast.walk(item)):
        yield before, holder, after
        yield from _levels(loop, holder.body, call)
    else:
        raise SpecError(NESTED.format(line=call.lineno, loop=loop.lineno))


def _classify(found: Divided) -> None:
    """Say of each statement before the step whether it computes the loss, follows it, or comes before."""
    before = [statement for level in found.levels for statement in level[0]]
    chosen = _slice(before, found)
    names = _bound(found.target)
    following: set[str] = set()
    for statement in before:
        reads, binds = loads(statement), _bound(statement)
        if statement in chosen and (reads & names.keys() or _clashes(binds, found.head)):
            found.head.append(statement)
            names = binds | names
        elif statement not in chosen and reads & (names.keys() | following):
            found.head.append(statement)  # its place, where what it reads is taken
            found.followers.append(statement)
            following |= binds.keys()
        elif shared := (binds.keys() & following) | _disturbed(statement, found):
            raise SpecError(OTHER_ORDER.format(line=statement.lineno, name=min(shared)))
        _refuse_leaving(statement, bool(reads & names.keys()))
    for _, block, _ in found.levels:
        if block is not None and set[str]().union(*map(loads, block.items)) & names.keys():
            raise SpecError(BLOCK.format(line=block.lineno))
    found.made = names
    computing = [statement for statement in found.head if statement not in found.followers]
    turn = ast.For(target=found.target, iter=found.loop.iter, body=computing, orelse=[])
    for name in sorted(exposed(turn, names.keys())):
        raise SpecError(CARRIED.format(line=names[name], name=name))
    for level in found.levels:
        level[0][:] = [one for one in level[0] if one not in found.head]


def _slice(before: list[ast.stmt], found: Divided) -> list[ast.stmt]:
    """The statements that the loss depends on."""
    tainted = set(_bound(found.target))
    for statement in before:
        if loads(statement) & tainted:
            tainted |= _bound(statement).keys()
    needed, chosen = loads(found.loss), list[ast.stmt]()
    for statement in reversed(before):
        if (_bound(statement).keys() & needed) or (_changed(statement) & needed & tainted):
            needed |= loads(statement)
            chosen.append(statement)
    return chosen


def _clashes(binds: dict[str, int], head: list[ast.stmt]) -> bool:
    """Whether an earlier statement of the head reads what this one binds: it cannot come before all of them."""
    return any(binds.keys() & (loads(statement) | _bound(statement).keys()) for statement in head)


def _disturbed(statement: ast.stmt, found: Divided) -> set[str]:
    """What earlier statements of the head read and this one changes; gradients are dropped before the step anyway."""
    calls = (n.func for n in ast.walk(statement) if isinstance(n, ast.Call))
    if any(_name_of(function) == "zero_grad" for function in calls):
        return set()
    return _changed(statement) & set[str]().union(*map(loads, found.head))


def _refuse_leaving(statement: ast.stmt, by_batch: bool) -> None:
    for node in _with_own(statement, LOOPS):
        if isinstance(node, ast.Continue) or (isinstance(node, ast.Break) and by_batch):
            raise SpecError(LEAVES.format(line=node.lineno))


def _own(scope: ast.AST, closed: tuple[type[ast.AST], ...] = ()) -> Iterator[ast.AST]:
    """The nodes of a scope, without those of scopes inside, and without what is in ``closed`` nodes."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, (*SCOPES, *closed)):
            waiting += ast.iter_child_nodes(node)


def _with_own(node: ast.stmt, closed: tuple[type[ast.AST], ...]) -> Iterator[ast.AST]:
    yield node
    if not isinstance(node, (*SCOPES, *closed)):
        yield from _own(node, closed)


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def loads(node: ast.AST) -> set[str]:
    """Names that are read, also those that ``+=`` reads."""
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    added = (n.target for n in ast.walk(node) if isinstance(n, ast.AugAssign))
    return found | {target.id for target in added if isinstance(target, ast.Name)}


def bound_names(nodes: Sequence[ast.AST]) -> dict[str, int]:
    """Names that statements bind in their own scope, each with its line."""
    return {name: line for node in reversed(nodes) for name, line in _bound(node).items()}


def _bound(node: ast.AST) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in (node, *(() if isinstance(node, SCOPES) else _own(node, _COMPREHENSIONS))):
        line = getattr(one, "lineno", 0)
        if isinstance(one, ast.Name) and isinstance(one.ctx, (ast.Store, ast.Del)):
            found.setdefault(one.id, line)
        elif isinstance(one, (ast.FunctionDef, ast.ClassDef)):
            found.setdefault(one.name, line)
        elif isinstance(one, (ast.Import, ast.ImportFrom)):
            found |= {(n.asname or n.name).partition(".")[0]: line for n in one.names}
        elif isinstance(one, ast.ExceptHandler) and one.name:
            found.setdefault(one.name, line)
    return found


def _base(node: ast.AST) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _changed(statement: ast.stmt) -> set[str]:
    """Names whose objects a statement changes in place."""
    found = set[str]()
    for node in ast.walk(statement):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            found.add(_base(node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr not in READERS:
            found.add(_base(node.func))
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):  # a result that is dropped
        found.add(_base(statement.value.func))
    return found
