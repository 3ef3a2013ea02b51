"""Reads from source code whether only data sets and modules of the program have an attribute: no library reads it then.

Data sets are asked for samples and their number, modules are called. `torch.nn.Module` reads what it has set itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from functools import lru_cache

from .syntax import FUNCTIONS, last_name, nodes_of

# What takes such an object and reads no attribute of it; bases of a class that read none; a method that all have.
ASKING = frozenset("DataLoader Session Subset deepcopy evaluate random_split".split())
BASES = frozenset("Dataset IterableDataset Module object".split())
METHODS = frozenset(("__getitem__", "__getitems__", "__iter__", "forward"))
BY_NAME = frozenset("attrgetter getattr hasattr".split())
WHOLE = frozenset("__dict__ __slots__ asdict astuple dir getmembers vars".split())


@lru_cache(maxsize=1024)  # every walk asks for each attribute that no line reads
def alone_have(trees: tuple[ast.Module, ...], attribute: str) -> bool:
    """Whether only own classes of data sets and modules set an attribute of this name, and no code reads attributes
    whose names it computes: then the lines that name the attribute are all that read it."""
    nodes = [node for tree in trees for node in nodes_of(tree)]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    own = {id(inner) for node in classes.values() if _is_closed(node, classes) for inner in _set_of_self(node)}
    stores = [n for n in nodes if isinstance(n, ast.Attribute) and n.attr == attribute and _is_set(n)]
    return bool(stores) and all(id(node) in own for node in stores) and not any(map(_reads_any, nodes))


def _is_set(node: ast.Attribute) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _set_of_self(owner: ast.ClassDef) -> Iterable[ast.Attribute]:
    for method in owner.body:
        if isinstance(method, FUNCTIONS) and method.args.args:
            own = method.args.args[0].arg
            for node in ast.walk(method):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == own:
                    yield node


def _is_closed(owner: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> bool:
    """Whether instances give samples or are modules, and all their code is in these files."""
    lineage, names = [owner], []
    for one in lineage:
        if one.decorator_list or one.keywords or len(lineage) > len(classes):
            return False
        for base in map(last_name, one.bases):
            if base in classes:
                lineage.append(classes[base])
            else:
                names.append(base)
    methods = {part.name for one in lineage for part in one.body if isinstance(part, FUNCTIONS)}
    return BASES.issuperset(names) and not METHODS.isdisjoint(methods)


def _reads_any(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and last_name(node.func) in BY_NAME:
        return not all(isinstance(one, ast.Constant) for one in node.args[1:2]) or len(node.args) < 2
    return last_name(node) in WHOLE
