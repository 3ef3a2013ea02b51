"""Runs a loop of a person's own in its place, with the function of a micro-batch in it that a session calls.

``for batch in loader`` asks the loader for its iterator. At that moment the loop is compiled anew from its source, with
its body divided, and runs with the variables of the function that it is from; that function's own loop then finds an
empty loader. See docs/design/0035-a-loop-over-a-prepared-loader-runs-in-the-loader.md.
"""

from __future__ import annotations
import __future__

import ast
import copy
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

from ..core.errors import SpecError, TrainingError
from ..runtime.program.analysis.cell_analysis import exposed
from ..runtime.program.copies.copier import Copier
from ..runtime.program.frames import LOOP, LOSS, Cells, Locals
from ..runtime.program.value_kinds import Unfit
from .loop_source import Divided, bound_names, divided, loads, loop_at, loops_around

ITEM, HEAD, SEEN, FOUND, TURN = "__hp_item", "__hp_head", "__hp_seen", "__hp_found", "__hp_turn"
_FUTURE = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})
PART = (
    "line {line}: {name} belongs to one micro-batch, and no member has that of the whole batch. After "
    "accelerator.backward() only the loss, and what it is the sum of, can be read, as the mean of the batch: compute "
    "other metrics in the evaluation, or use hp.Session with metrics, see docs/losses.md"
)
INNER = (
    "line {line}: a function reads {name}, which the loop over the prepared loader binds: give it to the function as "
    "an argument"
)
LEFT = (
    "line {line} binds {name}, a {kind} that a member which joins later cannot be given, and the next epoch reads it: "
    "bind it anew before it is read, or keep its values as numbers, text or tensors"
)
CLASS = "line {line}: the loop over a prepared loader is in the body of a class; write it in a function"


class PartError(TrainingError, AttributeError):
    """A value was used that not all members have; where an attribute of it is only looked for, there is none."""


class Absent:
    """Stands for a value that not all members have: any use is an error, with these words."""

    def __init__(self, words: str) -> None:
        object.__setattr__(self, "_words", words)

    def __repr__(self) -> str:
        return "<a value that not all members have>"

    def _refuse(self, *_given: Any, **_named: Any) -> Any:
        raise PartError(object.__getattribute__(self, "_words"))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse()

    __call__ = __getitem__ = __iter__ = __len__ = __bool__ = __float__ = __int__ = __index__ = __str__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _refuse
    __hash__ = object.__hash__
    __eq__ = __ne__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __format__ = __setitem__ = __contains__ = __pow__ = __matmul__ = _refuse


class Turn:
    """What the compiled loop calls in each turn: how a loss is prepared, and how a step is run."""

    def __init__(
        self, run: Callable[[Callable[[Any], Any]], Mapping[str, float]], scale: float, index: Callable[[], int]
    ) -> None:
        self._run = run
        self._scale = scale
        self._index = index

    def counted(self, items: Iterable[Any], start: int = 0) -> Iterator[tuple[int, Any]]:
        """As enumerate, also on a member that joins in the middle of the loop."""
        for item in items:
            yield start + self._index(), item

    def returned(self, loss: Any, seen: Mapping[str, tuple[Any, bool, int]]) -> Any:
        """What the loss function returns. ``seen``: values, whether they are read later, and the lines that bind them.

        Raises TrainingError for a value that is read later and is no part of the loss.
        """
        metrics = {}
        for name, (value, is_read, line) in seen.items():
            if isinstance(value, torch.Tensor) and value.numel() == 1 and value.requires_grad:
                metrics[name] = value.detach()
            elif is_read:
                raise TrainingError(PART.format(name=name.partition("@")[0], line=line))
        loss = loss / self._scale if self._scale != 1 else loss
        return (loss, metrics) if metrics else loss

    def run(self, head: Callable[[Any], Any]) -> dict[str, torch.Tensor]:
        """Run the step; the means of what was seen, by name."""
        return {name: torch.tensor(value) for name, value in self._run(head).items()}

    @staticmethod
    def value(found: Mapping[str, torch.Tensor], name: str, line: int) -> Any:
        """The mean of a name's values over the batch, or what refuses any use."""
        return found[name] if name in found else Absent(PART.format(name=name, line=line))


@dataclass(frozen=True)
class Compiled:
    """A loop that can run in its place. ``names``: local variables that it shares with the function that it is from.

    ``bound`` are the names that it binds; ``made``, with their lines, those that a turn binds before it reads them;
    ``around`` those that loops around it bind.
    """

    code: CodeType
    names: frozenset[str]
    bound: frozenset[str]
    made: Mapping[str, int]
    around: Mapping[str, int]


class Running:
    """A compiled loop with the variables of a frame."""

    def __init__(self, compiled: Compiled, frame: FrameType) -> None:
        names: dict[str, Any] = {}
        exec(compiled.code, frame.f_globals, names)
        self._function: FunctionType = names["__hp_make"]()
        self._compiled = compiled
        self._frame = frame

    def __call__(self, turn: Turn) -> None:
        self._clear()
        self.pull()
        try:
            self._function(turn)
        finally:
            self.push()

    def _clear(self) -> None:
        """Replace what an evaluation has left, and what members could not be given."""
        before = Locals(self._frame)
        for name, line in self._compiled.made.items():
            if name in before:
                before[name] = Absent(PART.format(name=name, line=line))
        for name, line in self._compiled.around.items():
            try:
                Copier().copied(before.get(name))
            except Unfit as unfit:
                if not unfit.is_iterator and not unfit.is_harmless and not unfit.path:
                    before[name] = Absent(LEFT.format(name=name, line=line, kind=unfit.kind))

    def pull(self) -> None:
        """Give the loop the variables that its function has."""
        held = self._frame.f_locals
        cells = dict(zip(self._function.__code__.co_freevars, self._function.__closure__ or (), strict=True))
        for name in self._compiled.names & cells.keys():
            if name in held:
                cells[name].cell_contents = held[name]
            elif name not in Cells(self._function):
                continue
            else:
                del cells[name].cell_contents

    def push(self) -> None:
        """Give the function the variables that the loop binds."""
        inside, outside = Cells(self._function), Locals(self._frame)
        for name in sorted(self._compiled.names & self._compiled.bound):
            if name in inside:
                outside[name] = inside[name]


_KNOWN: dict[tuple[CodeType, int], Compiled | None] = {}


def compiled_loop(frame: FrameType, accelerator: Any) -> Compiled | None:
    """The loop at which a frame is; None where it is none that calls backward. Raises SpecError."""
    key = frame.f_code, frame.f_lineno
    if key not in _KNOWN:
        _KNOWN[key] = _compiled(frame, accelerator)
    return _KNOWN[key]


def _compiled(frame: FrameType, accelerator: Any) -> Compiled | None:
    code = frame.f_code
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename, frame.f_globals)))
    except (SyntaxError, ValueError):
        return None
    found = loop_at(tree, frame.f_lineno)
    if found is None:
        return None
    scope, loop = found
    parts = divided(loop, lambda base: _evaluated(base, frame) is accelerator)
    if parts is None:
        return None
    bound = frozenset(bound_names([loop]))
    inside = {id(node) for node in ast.walk(loop)}
    local = frozenset[str]()
    if frame.f_locals is not frame.f_globals:
        if isinstance(scope, ast.Module):
            raise SpecError(CLASS.format(line=loop.lineno))
        local = frozenset((*code.co_varnames, *code.co_cellvars, *code.co_freevars)) & (bound | loads(loop))
        _refuse_shared(scope, inside, bound & {*code.co_cellvars, *code.co_freevars})
    later = {n.id for n in ast.walk(tree) if id(n) not in inside and isinstance(n, ast.Name)}
    module = _written(parts, local, bound, later)
    flags = code.co_flags & _FUTURE
    around = {name: at for name, at in bound_names(loops_around(scope, loop)).items() if name not in bound}
    made = compile(module, code.co_filename, "exec", flags, dont_inherit=True)
    return Compiled(made, local, bound, parts.made, around)


def _refuse_shared(scope: ast.AST, inside: set[int], names: frozenset[str]) -> None:
    """Raise SpecError where a function beside the loop reads what the loop binds: it would see it a turn later."""
    for node in ast.walk(scope):
        if node is not scope and id(node) not in inside and isinstance(node, (ast.FunctionDef, ast.Lambda)):
            if shared := loads(node) & names:
                raise SpecError(INNER.format(line=node.lineno, name=min(shared)))


def _evaluated(node: ast.expr, frame: FrameType) -> Any:
    """The value of a name, or of an attribute of an attribute of a name."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        return getattr(_evaluated(node.value, frame), node.attr, None)
    return None


# ---- the loop, written anew ------------------------------------------------------------------------------------------


class _Taken(ast.NodeTransformer):
    """Replaces what is read of a micro-batch by its mean, under the key that ``note`` returns for an expression."""

    def __init__(self, names: set[str], note: Callable[[ast.expr], str], whole: bool) -> None:
        self._names = names
        self._note = note
        self._whole = whole  # also plain names

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Attribute):
            node.func.value = self.visit(node.func.value)
        else:
            node.func = self.visit(node.func)
        node.args = [self.visit(argument) for argument in node.args]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute):
            inner = inner.value
        if isinstance(node.ctx, ast.Load) and isinstance(inner, ast.Name) and inner.id in self._names:
            return self._read(node)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if self._whole and isinstance(node.ctx, ast.Load) and node.id in self._names:
            return self._read(node)
        return node

    def _read(self, node: ast.expr) -> ast.AST:
        key = ast.Constant(self._note(node))
        return ast.copy_location(ast.Subscript(ast.Name(FOUND, ast.Load()), key, ast.Load()), node)


def _written(parts: Divided, local: frozenset[str], bound: frozenset[str], later: set[str]) -> ast.Module:
    """A module with ``__hp_make``, which returns the loop as a function of a `Turn`."""
    names, line = set(parts.made), parts.loss.lineno
    first = ast.Assign([copy.deepcopy(parts.target)], ast.Name(ITEM, ast.Load()))
    head: list[ast.stmt] = [ast.copy_location(first, parts.target), *_parsed(f"{SEEN} = {{}}", line)]
    follow: list[ast.stmt] = []
    for statement in parts.head:
        if statement not in parts.followers:
            head.append(statement)
            continue
        noted: dict[str, ast.expr] = {}
        follow.append(_Taken(names, _noting(noted, statement.lineno), True).visit(copy.deepcopy(statement)))
        head += [_seen(key, read, statement.lineno, True) for key, read in noted.items()]
    ends: dict[str, ast.expr] = {}
    behind = [statement for _, _, after in reversed(parts.levels) for statement in after]
    read = exposed(ast.For(ast.Tuple([], ast.Store()), ast.Constant(None), behind, []), names)
    tails = [
        [_Taken(read, _noting(ends, 0), False).visit(statement) for statement in after] for _, _, after in parts.levels
    ]
    read &= set[str]().union(*(loads(statement) for tail in tails for statement in tail))
    head += [_seen(key, read_, read_.lineno, True) for key, read_ in ends.items()]
    for name in sorted(names & (read | later) - bound_names([ast.Expr(parts.target)]).keys()):
        entry = f"({name}, {name in read}, {parts.made[name]})"
        head += _parsed(f"if {name!r} in locals(): {SEEN}[{name!r}] = {entry}", line)
    batch = bound_names([parts.target]).keys()
    if gone := sorted(batch & read):
        reading = min(n.lineno for line in behind for n in ast.walk(line) if isinstance(n, ast.Name) and n.id in gone)
        raise SpecError(PART.format(line=reading, name=gone[0]))
    returned = ast.Return(_call("returned", parts.loss, ast.Name(SEEN, ast.Load())))
    head.append(ast.copy_location(returned, parts.loss))
    function = _parsed(f"def {HEAD}({ITEM}): pass", line)[0]
    assert isinstance(function, ast.FunctionDef)
    function.name, function.body = LOSS, head
    given = ast.Assign([ast.Name(HEAD, ast.Store())], ast.Name(LOSS, ast.Load()))
    step: list[ast.stmt] = [function, ast.copy_location(given, parts.loss)]
    step += _parsed(f"{FOUND} = {TURN}.run({HEAD})", line)
    for name, at in sorted(parts.made.items()):
        step += _parsed(f"{name} = {TURN}.value({FOUND}, {name!r}, {at})", line)
    body = [*step, *follow]
    for (before, block, _), tail in zip(reversed(parts.levels), reversed(tails), strict=True):
        if block is not None:
            body = [ast.copy_location(ast.With(block.items, body, None), block)]
        body = [*before, *body, *tail]
    return _module(parts, body, local, bound)


def _module(parts: Divided, body: list[ast.stmt], local: frozenset[str], bound: frozenset[str]) -> ast.Module:
    loop = parts.loop
    target: ast.expr = ast.Name(ITEM, ast.Store())
    if parts.counted is not None:
        assert isinstance(loop.target, ast.Tuple | ast.List)
        target = ast.Tuple([loop.target.elts[0], target], ast.Store())
        parts.counted.func = ast.Attribute(ast.Name(TURN, ast.Load()), "counted", ast.Load())
    turns = ast.copy_location(ast.For(target, loop.iter, body, [], None), loop)
    shared = sorted(local)
    outside = sorted(bound - local)
    lines = ["def __hp_make():", f"    if False: {' = '.join([*shared, '_'])} = None", f"    def __hp_loop({TURN}):"]
    lines += [f"        nonlocal {', '.join(shared)}"] if shared else []
    lines += [f"        global {', '.join(outside)}"] if outside else []
    lines += ["        pass", "    return __hp_loop"]
    module = ast.parse("\n".join(lines))
    make = module.body[0]
    assert isinstance(make, ast.FunctionDef)
    inner = make.body[1]
    assert isinstance(inner, ast.FunctionDef) and isinstance(make.body[2], ast.Return)
    inner.name, inner.body[-1] = LOOP, turns
    make.body[2].value = ast.Name(LOOP, ast.Load())
    ast.fix_missing_locations(module)
    return module


def _noting(noted: dict[str, ast.expr], line: int) -> Callable[[ast.expr], str]:
    def note(node: ast.expr) -> str:
        key = f"{ast.unparse(node)}@{line}" if line else ast.unparse(node)
        noted[key] = copy.deepcopy(node)
        return key

    return note


def _seen(key: str, value: ast.expr, line: int, is_read: bool) -> ast.stmt:
    entry = ast.Tuple([value, ast.Constant(is_read), ast.Constant(line)], ast.Load())
    place = ast.Subscript(ast.Name(SEEN, ast.Load()), ast.Constant(key), ast.Store())
    return ast.copy_location(ast.Assign([place], entry), value)


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name(TURN, ast.Load()), name, ast.Load()), list(arguments), [])


def _parsed(source: str, line: int) -> list[ast.stmt]:
    """Statements that an error shows at a line of the person's own."""
    found = ast.parse(source).body
    for node in (inner for statement in found for inner in ast.walk(statement)):
        if isinstance(node, (ast.expr, ast.stmt, ast.arg)):
            node.lineno = node.end_lineno = line
    return found
