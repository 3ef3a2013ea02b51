"""Reads from source code what no member can repeat: chance that has no seed, and what is kept where none can see it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator

from .cell_analysis import LOOPS, MEASURES, SCOPES
from .read_index import base_of, stored
from .syntax import FUNCTIONS, last_name, nodes_of, opens_to_write, requests_steps

Place = tuple[str, int]  # a name and its line
UNSEEDED = frozenset(  # functions whose results no seed decides
    "SystemRandom getrandom id randbits token_bytes token_hex token_urlsafe urandom uuid1 uuid4".split()
)
SEEDERS = frozenset("PRNGKey Random RandomState default_rng manual_seed manual_seed_all seed seed_everything".split())
DRAWS = frozenset(
    "bernoulli beta choice choices dropout exponential gauss integers multinomial normal normal_ normalvariate "
    "permutation poisson rand rand_like randint randint_like randn randn_like random random_ random_sample randperm "
    "randrange sample shuffle standard_normal triangular uniform uniform_".split()
)
HOOKS = frozenset(
    "register_backward_hook register_forward_hook register_forward_pre_hook register_full_backward_hook "
    "register_full_backward_pre_hook register_hook register_post_accumulate_grad_hook".split()
)
ORDERED_BY = frozenset("enumerate iter list map next stack sum tuple zip".split())  # whose result has an order
IN_ORDER = ORDERED_BY - {"sum"} | {"extend", "join", "reversed"}
UNORDERED = frozenset("all any frozenset len max min set sorted sum".split())  # whose result has no order of theirs
KEYED = frozenset("add append get pop setdefault".split())
_READERS = ("read_text", "read_bytes")
_WRITERS = ("write_text", "write_bytes")


def unseeded(tree: ast.AST) -> Iterator[Place]:
    """Calls, in functions and loops, of what gives another result in each process or at each time."""
    for node in _often(tree):
        if isinstance(node, ast.Call) and (name := last_name(node.func)) in UNSEEDED | MEASURES:
            yield f"{name}()", node.lineno


def seeded_by_chance(tree: ast.AST, clocks: Collection[str]) -> Iterator[Place]:
    """Seeds that come from a clock or from another measurement. ``clocks`` are names that hold one."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and (name := last_name(node.func)) in SEEDERS:
            inner = [n for argument in (*node.args, *node.keywords) for n in ast.walk(argument)]
            calls = {last_name(n.func) for n in inner if isinstance(n, ast.Call)}
            names = {n.id for n in inner if isinstance(n, ast.Name)}
            if calls & (UNSEEDED | MEASURES) or names & set(clocks):
                yield f"{name}()", node.lineno


def hooks_added(tree: ast.AST) -> Iterator[Place]:
    """Hooks that the training loop adds and does not remove."""
    for loop in _training_loops(tree):
        calls = [node for node in _own(loop) if isinstance(node, ast.Call)]
        if not any(last_name(call.func) == "remove" for call in calls):
            yield from ((f"{base_of(c.func)}.{last_name(c.func)}()", c.lineno) for c in calls if _adds_hook(c))


def switched(tree: ast.AST) -> Iterator[Place]:
    """What the training loop, under a condition, binds to another function, and the program calls."""
    called = {last_name(node.func) for node in nodes_of(tree) if isinstance(node, ast.Call)} | {"forward"}
    for loop in _training_loops(tree):
        for node in _own(loop):
            if isinstance(node, ast.If):
                other = {name for inner in node.orelse for name, _ in _bound_to_functions(inner)}
                found = [pair for inner in node.body for pair in _bound_to_functions(inner)]
                yield from ((name, line) for name, line in found if name in called and name not in other)


def _bound_to_functions(statement: ast.AST) -> Iterator[Place]:
    for node in (statement, *_own(statement)):
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Lambda, ast.Name, ast.Attribute)):
            yield from ((last_name(t), node.lineno) for t in node.targets if last_name(t))


def files_read_back(tree: ast.AST) -> Iterator[Place]:
    """Variables of files that functions or loops both write and read."""
    written: dict[str, int] = {}
    read: set[str] = set()
    for node in _often(tree):
        if isinstance(node, ast.Call) and (name := _file_of(node)):
            if _is_write(node):
                written.setdefault(name, node.lineno)
            else:
                read.add(name)
    yield from ((name, line) for name, line in written.items() if name in read)


def keyed_by_address(tree: ast.AST) -> Iterator[Place]:
    """Containers that functions and loops ask or fill by ``id(...)``, also by way of a variable."""
    nodes = list(_often(tree))
    named = {last_name(t) for n in nodes if isinstance(n, ast.Assign) and _is_address(n.value, ()) for t in n.targets}
    for node in nodes:
        if isinstance(node, ast.Subscript) and _is_address(node.slice, named):
            yield from ((name, node.lineno) for name in stored(node))
        elif isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Attribute):
            if node.func.attr in KEYED and _is_address(node.args[0], named):
                yield base_of(node.func), node.lineno


def _is_address(node: ast.AST, named: Collection[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in named
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "id"


def walked_through(tree: ast.AST) -> Iterator[tuple[ast.AST, int]]:
    """Expressions whose items are taken one after the other, each with its line."""
    for node in nodes_of(tree):
        if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            yield node.iter, getattr(node, "lineno", node.iter.lineno)
        elif isinstance(node, ast.Call) and last_name(node.func) in ORDERED_BY:
            yield from ((argument, node.lineno) for argument in node.args)


def taken_in_order(tree: ast.AST) -> Iterator[tuple[ast.AST, int]]:
    """Expressions whose items have an order in what is made of them, each with its line."""
    inner = (node.args for node in nodes_of(tree) if isinstance(node, ast.Call) and last_name(node.func) in UNORDERED)
    sorted_later = {id(part) for arguments in inner for part in arguments}
    for node in nodes_of(tree):
        if isinstance(node, (ast.For, ast.AsyncFor)):
            yield node.iter, node.lineno
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.DictComp)) and id(node) not in sorted_later:
            yield from ((one.iter, node.lineno) for one in node.generators)
        elif isinstance(node, ast.Call) and id(node) not in sorted_later:
            if last_name(node.func) in IN_ORDER:
                yield from ((argument, node.lineno) for argument in node.args)
            if isinstance(node.func, ast.Attribute) and node.func.attr == "pop" and not node.args:
                yield node.func.value, node.lineno


def given(tree: ast.AST, names: Collection[str]) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Functions that are called with what has one of these names, and the parameter that stands for it there."""
    functions = {node.name: node for node in nodes_of(tree) if isinstance(node, ast.FunctionDef)}
    for call in nodes_of(tree):
        function = functions.get(last_name(call.func)) if isinstance(call, ast.Call) else None
        if function is not None and isinstance(call, ast.Call):
            parameters = [one.arg for one in (*function.args.posonlyargs, *function.args.args) if one.arg != "self"]
            pairs = [*zip(parameters, call.args, strict=False), *((k.arg, k.value) for k in call.keywords if k.arg)]
            bound = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            yield from ((function, name) for name, value in pairs if last_name(value) in names and name not in bound)


def toggles(tree: ast.AST) -> bool:
    """Whether functions or loops call ``eval()`` or ``train()`` of anything."""
    return any(isinstance(node, ast.Call) and last_name(node.func) in ("eval", "train") for node in _often(tree))


def kept(tree: ast.AST, name: str, trained: Callable[[str], bool]) -> int:
    """The line of a function that keeps in ``name``, and reads from there, what is drawn or a ``trained`` module gives.

    0 where there is none.
    """
    if not any(_looks_up(node, name) for node in nodes_of(tree)):
        return 0
    for function in nodes_of(tree):
        if isinstance(function, FUNCTIONS):
            changing = _changing(function, trained)
            for node in ast.walk(function):
                if (value := _stores(node, name)) is not None and changing(value):
                    return value.lineno
    return 0


def draws(names: Iterable[str]) -> bool:
    """Whether a function with these names draws random numbers."""
    return bool(DRAWS.intersection(names))


def _changing(function: ast.AST, trained: Callable[[str], bool]) -> Callable[[ast.AST], bool]:
    """Says of an expression whether it depends on what is drawn, or on a trained module, also by way of variables."""
    tainted: set[str] = set()

    def changes(value: ast.AST) -> bool:
        for node in ast.walk(value):
            if isinstance(node, ast.Call) and last_name(node.func) in DRAWS:
                return True
            if isinstance(node, ast.Name) and (node.id in tainted or trained(node.id)):
                return True
            if isinstance(node, ast.Attribute) and trained(node.attr):
                return True
        return False

    pairs = [node for node in ast.walk(function) if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign))]
    for _ in pairs:
        before = len(tainted)
        for node in pairs:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if node.value is not None and changes(node.value):
                tainted.update(*(_bound(target) for target in targets))
        if len(tainted) == before:
            break
    return changes


def _bound(target: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _stores(node: ast.AST, name: str) -> ast.expr | None:
    """What a statement or a call keeps under a key of ``name``."""
    if isinstance(node, ast.Assign):
        subscripts = [t for t in node.targets if isinstance(t, ast.Subscript)]
        return node.value if any(name in stored(t) for t in subscripts) else None
    if isinstance(node, ast.Call) and last_name(node.func) == "setdefault" and base_of(node.func) == name:
        return node.args[1] if len(node.args) > 1 else None
    return None


def _looks_up(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return name in stored(node)
    called = isinstance(node, ast.Call) and last_name(node.func) in ("get", "setdefault")
    return isinstance(node, ast.Call) and called and base_of(node.func) == name


def _file_of(call: ast.Call) -> str:
    """The variable of the file that a call reads or writes, or ""."""
    name = last_name(call.func)
    if name in _READERS + _WRITERS or (name == "open" and isinstance(call.func, ast.Attribute)):
        return base_of(call.func)
    if name == "open" and call.args and isinstance(call.args[0], ast.Name):
        return call.args[0].id
    return ""


def _is_write(call: ast.Call) -> bool:
    return last_name(call.func) in _WRITERS or opens_to_write(call)


def _adds_hook(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in HOOKS


def _training_loops(tree: ast.AST) -> Iterator[ast.AST]:
    for node in nodes_of(tree):
        if isinstance(node, LOOPS):
            head = node.test if isinstance(node, ast.While) else node.iter
            if requests_steps(head):
                yield node


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, SCOPES):
            yield from _own(node)


def _often(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of functions and loops, each once."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (*LOOPS, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from ast.walk(node)
        else:
            yield from _often(node)
