"""Reads from source code what a training loop writes into a temporary folder or file, and the program reads again.

Each process has a temporary folder of its own, so a member that joins later lacks what was written before.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from .cell_analysis import LOOPS
from .chance import Place
from .reads import OUTPUT, Flow, last_name, stored
from .syntax import nodes_of

MAKERS = frozenset("NamedTemporaryFile TemporaryDirectory getpid mkdtemp mkstemp mktemp".split())
PATHS = frozenset(
    "Path PurePath abspath expanduser fspath join joinpath realpath resolve str with_name with_suffix".split()
)
WRITERS = frozenset(
    "copy copy2 copyfile dump move rename replace save save_checkpoint save_file save_model save_pretrained savetxt "
    "savez savez_compressed to_csv to_json to_parquet to_pickle touch write_bytes write_text".split()
)
ASKS = frozenset("exists getmtime getsize glob is_dir is_file isdir isfile iterdir listdir rglob scandir stat".split())
LOADERS = frozenset("from_pretrained fromfile genfromtxt open_dataset safe_open".split())  # and load..., read_...
TIDIES = OUTPUT | frozenset("makedirs mkdir remove rmdir rmtree unlink".split())
FROM_LIBRARIES = frozenset("__call__ forward".split())  # methods that no code of the program calls by name
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
FlowOf = Callable[[ast.AST, str], Flow]


def read_back(tree: ast.Module, flow_of: FlowOf) -> Iterator[Place]:
    """Variables of temporary files or folders to which the training loop writes, and which it or code after it reads.

    ``flow_of(node, name)``: where the value of an expression flows.
    """
    outer = [node for node in nodes_of(tree) if isinstance(node, LOOPS) and _trains(node)]
    if not outer:
        return
    inside = _with_called(tree, outer)
    ids = {id(node) for node in inside}
    names = _private(tree, ids)
    writes = [(call, name) for call in _calls(inside) if _writes(call) and (name := _path_in(call, names))]
    if not writes:
        return
    called = {id(node) for node in _with_called(tree, [*outer, *_after(tree, outer)])}
    parents = {id(child): node for node in nodes_of(tree) for child in ast.iter_child_nodes(node)}
    for call in _calls(nodes_of(tree)):
        if id(call) in called | ids and _path_in(call, names) and _matters(call, flow_of, parents):
            yield writes[0][1], writes[0][0].lineno
            return


def _matters(call: ast.Call, flow_of: FlowOf, parents: dict[int, ast.AST]) -> bool:
    """Whether a call reads files, and what it gives flows into the training, or, if it loads them, into a result."""
    name = last_name(call.func)
    loads = name in LOADERS or name.startswith(("load", "read_"))
    if not loads and name not in ASKS and not (name == "open" and not _writes(call)):
        return False
    node: ast.AST | None = call
    while node is not None and not isinstance(node, ast.stmt):
        node = parents.get(id(node))
    if isinstance(node, (ast.If, ast.For)) and all(map(_tidies, (*node.body, *node.orelse))):
        return False
    return flow_of(call, "") >= (Flow.PRINTED if loads and not name.startswith("read_") else Flow.TRAINING)


def _tidies(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(call := statement.value, ast.Call)
        and last_name(call.func) in TIDIES
    )


def _trains(loop: ast.AST) -> bool:
    return any(isinstance(n, ast.Call) and last_name(n.func) == "steps" for n in ast.walk(loop))


def _with_called(tree: ast.Module, roots: Iterable[ast.AST]) -> list[ast.AST]:
    """The nodes of these, and of the functions that they mention or that only others than the program call."""
    functions: dict[str, list[ast.AST]] = {}
    for node in nodes_of(tree):
        if isinstance(node, _FUNCTIONS):
            functions.setdefault(node.name, []).append(node)
    called = {last_name(node.func) for node in nodes_of(tree) if isinstance(node, ast.Call)}
    uncalled = [n for n in functions if n not in called and (not n.startswith("__") or n in FROM_LIBRARIES)]
    waiting = [*roots, *(function for name in uncalled for function in functions[name] if not _trains(function))]
    found: dict[int, ast.AST] = {}
    while waiting:
        root = waiting.pop()
        if id(root) in found:
            continue
        for node in ast.walk(root):
            found[id(node)] = node
            if isinstance(node, (ast.Name, ast.Attribute)):
                waiting += [f for f in functions.get(last_name(node), ()) if id(f) not in found and not _trains(f)]
    return list(found.values())


def _after(tree: ast.Module, loops: Collection[ast.AST]) -> Iterator[ast.AST]:
    """The statements that follow training loops in their functions, or in those that call these."""
    for scope in nodes_of(tree):
        if isinstance(scope, (ast.Module, *_FUNCTIONS)):
            own = [loop for loop in loops if any(node is loop for node in ast.walk(scope))]
            line = min((getattr(loop, "end_lineno", 0) or 0 for loop in own), default=None)
            if line is not None:
                yield from (n for n in ast.walk(scope) if isinstance(n, ast.stmt) and n.lineno > line)


def _private(tree: ast.Module, inside: Collection[int]) -> set[str]:
    """Names of temporary paths, those left out that each turn of the loop makes anew."""
    names: set[str] = set()
    pairs = list(_bound(tree))
    for _ in pairs:
        before = len(names)
        for targets, value in pairs:
            makes = any(isinstance(n, ast.Call) and last_name(n.func) in MAKERS for n in ast.walk(value))
            if (makes and id(value) not in inside and _is_path(value, names)) or _is_path(value, names, False):
                names.update(name for target in targets for name in stored(target))
        if len(names) == before:
            break
    return names - {"self"}


def _bound(tree: ast.Module) -> Iterator[tuple[Sequence[ast.AST], ast.AST]]:
    """Targets and values of assignments, `with` statements, and calls of the file's functions."""
    functions = {node.name: node for node in nodes_of(tree) if isinstance(node, _FUNCTIONS)}
    classes = {n.name: f for n in nodes_of(tree) if isinstance(n, ast.ClassDef) for f in n.body if _is_constructor(f)}
    for node in nodes_of(tree):
        if isinstance(node, ast.Assign):
            yield [*node.targets], node.value
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            yield [node.target], node.value
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if item.optional_vars is not None:
                    yield [item.optional_vars], item.context_expr
        elif isinstance(node, ast.Call):
            function = functions.get(last_name(node.func)) or classes.get(last_name(node.func))
            if isinstance(function, _FUNCTIONS):
                given = [one.arg for one in (*function.args.posonlyargs, *function.args.args) if one.arg != "self"]
                for name, value in [
                    *zip(given, node.args, strict=False),
                    *((k.arg or "", k.value) for k in node.keywords),
                ]:
                    yield [ast.Name(name, ast.Store())], value


def _is_constructor(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "__init__"


def _is_path(node: ast.AST, names: Collection[str], makes: bool = True) -> bool:
    """Whether an expression is a path, or a part of one, below one of these or, if it ``makes`` one, a new one."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Attribute):
        return node.attr in names or _is_path(node.value, names, makes)
    if isinstance(node, (ast.Subscript, ast.FormattedValue)):
        return _is_path(node.value, names, makes)
    inner: list[ast.expr] = []
    if isinstance(node, ast.BinOp):
        inner = [node.left, node.right]
    elif isinstance(node, ast.JoinedStr):
        inner = node.values
    elif isinstance(node, ast.IfExp):
        inner = [node.body, node.orelse]
    elif isinstance(node, ast.Call) and (name := last_name(node.func)) in MAKERS | PATHS:
        if name in MAKERS:
            return makes
        inner = [*node.args, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
    return any(_is_path(one, names, makes) for one in inner)


def _calls(nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
    return (node for node in nodes if isinstance(node, ast.Call))


def _path_in(call: ast.Call, names: Collection[str]) -> str:
    """The name of a temporary path that a call is given, or whose method it is; "" for none."""
    given = [*call.args, *(k.value for k in call.keywords)]
    given += [call.func.value] if isinstance(call.func, ast.Attribute) else []
    for one in given:
        if _is_path(one, names, False):
            nodes = (n for n in ast.walk(one) if isinstance(n, (ast.Name, ast.Attribute)))
            return next((last_name(n) for n in nodes if last_name(n) in names), "")
    return ""


def _writes(call: ast.Call) -> bool:
    name = last_name(call.func)
    if name != "open":
        return name in WRITERS
    modes = [*call.args[0 if isinstance(call.func, ast.Attribute) else 1 :], *(k.value for k in call.keywords)]
    texts = [mode.value for mode in modes if isinstance(mode, ast.Constant) and isinstance(mode.value, str)]
    return any(set("awx+") & set(text) for text in texts[:1])
