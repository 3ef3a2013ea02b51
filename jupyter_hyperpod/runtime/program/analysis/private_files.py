"""Reads from source code what a training loop writes into a temporary folder or file, and the program reads again.

Each process has a temporary folder of its own, so a member that joins later lacks what was written before.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator

from .cell_analysis import LOOPS
from .chance import Place
from .known_functions import OUTPUT
from .reads import Flow, Reads
from .syntax import FUNCTIONS, last_name, nodes_of, opens_to_write, requests_steps
from .temporary_paths import MAKERS, Paths, meet

COPIES = frozenset("copy copy2 copyfile move rename replace".split())  # from their first argument to their second
WRITERS = COPIES | frozenset(
    "dump save save_checkpoint save_file save_model save_pretrained savetxt savez savez_compressed to_csv to_json "
    "to_parquet to_pickle touch write_bytes write_text".split()
)
ASKS = frozenset("exists getmtime getsize glob is_dir is_file isdir isfile iterdir listdir rglob scandir stat".split())
LOADERS = frozenset("from_pretrained fromfile genfromtxt open_dataset safe_open".split())  # and load..., read_...
TIDIES = OUTPUT | frozenset("makedirs mkdir remove reverse rmdir rmtree sort unlink".split())
FROM_LIBRARIES = frozenset("__call__ forward".split())  # methods that no code of the program calls by name


def read_back(tree: ast.AST, reads: Reads, apart: bool) -> Iterator[Place]:
    """Variables of temporary files or folders to which the training loop writes, and which it or later code reads.

    ``apart``: each node is a machine with folders such as /tmp of its own.
    """
    if not apart and not any(last_name(call.func) in MAKERS for call in _calls(nodes_of(tree))):
        return
    outer = [node for node in nodes_of(tree) if isinstance(node, LOOPS) and requests_steps(node)]
    inside = _with_called(tree, outer)
    ids = {id(node) for node in inside}
    paths = Paths(tree, ids, apart)
    writes = [(call, paths.named(_written(call))) for call in _calls(inside)]
    writes = [(call, found) for call, found in writes if found]
    if not writes:
        return
    called = ids.union(id(node) for node in _with_called(tree, [*outer, *_after(tree, outer)]))
    for call in _calls(nodes_of(tree)):
        if id(call) in called and (read := paths.named(_given(call))) and _matters(call, tree, reads):
            for write, found in writes:
                if names := [name for name, place in found.items() if meet(place, read.values())]:
                    yield names[0], write.lineno
                    return


def _matters(call: ast.Call, tree: ast.AST, reads: Reads) -> bool:
    """Whether a call reads files, and what it gives flows into the training, or, if it loads them, into a result."""
    name = last_name(call.func)
    loads = name in LOADERS or name.startswith(("load", "read_"))
    if not loads and name not in ASKS and not (name == "open" and not _written(call)):
        return False
    if _tidies(reads.statement_of(call), tree, reads, set()):
        return False
    return reads.flow_of(call, "") >= (Flow.PRINTED if loads and not name.startswith("read_") else Flow.TRAINING)


def _tidies(node: ast.AST | None, tree: ast.AST, reads: Reads, seen: set[str]) -> bool:
    """Whether a statement only removes files, makes folders or shows something, or names what such statements take."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and last_name(node.value.func) in TIDIES
    if isinstance(node, (ast.If, ast.For, ast.While)):
        return all(_tidies(one, tree, reads, seen) for one in (*node.body, *node.orelse))
    if not isinstance(node, ast.Assign) or not all(isinstance(target, ast.Name) for target in node.targets):
        return False
    for name in {last_name(target) for target in node.targets} - seen:
        seen.add(name)
        loads = (n for n in nodes_of(tree) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load))
        if not all(_tidies(reads.statement_of(load), tree, reads, seen) for load in loads):
            return False
    return True


def _with_called(tree: ast.AST, roots: Iterable[ast.AST]) -> list[ast.AST]:
    """The nodes of these, and of the functions that they mention or that only others than the program call."""
    functions: dict[str, list[ast.AST]] = {}
    for node in nodes_of(tree):
        if isinstance(node, FUNCTIONS):
            functions.setdefault(node.name, []).append(node)
    called = {last_name(node.func) for node in nodes_of(tree) if isinstance(node, ast.Call)}
    uncalled = [n for n in functions if n not in called and (not n.startswith("__") or n in FROM_LIBRARIES)]
    waiting = [*roots, *(function for name in uncalled for function in functions[name] if not requests_steps(function))]
    found: dict[int, ast.AST] = {}
    while waiting:
        root = waiting.pop()
        if id(root) in found:
            continue
        for node in ast.walk(root):
            found[id(node)] = node
            if isinstance(node, (ast.Name, ast.Attribute)):
                waiting += [
                    f for f in functions.get(last_name(node), ()) if id(f) not in found and not requests_steps(f)
                ]
    return list(found.values())


def _after(tree: ast.AST, loops: Collection[ast.AST]) -> Iterator[ast.AST]:
    """The statements that follow training loops in their functions, or in those that call these."""
    for scope in nodes_of(tree):
        if isinstance(scope, (ast.Module, *FUNCTIONS)):
            own = [loop for loop in loops if any(node is loop for node in ast.walk(scope))]
            line = min((getattr(loop, "end_lineno", 0) or 0 for loop in own), default=None)
            if line is not None:
                yield from (n for n in ast.walk(scope) if isinstance(n, ast.stmt) and n.lineno > line)


def _calls(nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
    return (node for node in nodes if isinstance(node, ast.Call))


def _given(call: ast.Call) -> list[ast.expr]:
    """What a call is given, and whose method it is."""
    holder = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    return [*call.args, *(k.value for k in call.keywords), *holder]


def _written(call: ast.Call) -> list[ast.expr]:
    """Those of the expressions in a call that may be paths to which it writes."""
    name = last_name(call.func)
    if opens_to_write(call):
        return _given(call)
    if name not in WRITERS:
        return []
    if name in COPIES and len(call.args) > 1:
        of_text = isinstance(call.func, ast.Attribute) and last_name(call.func.value) not in ("os", "shutil")
        return [] if of_text else call.args[1:]  # text.replace("a", "b")
    return _given(call)
