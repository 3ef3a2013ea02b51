"""Tells variables of the same name apart: in a copy of a syntax tree, a local variable has the name of its scope, too.

``total`` of a function ``evaluate`` is ``total@evaluate`` there, with Python's ``__qualname__`` of the function.
What is global keeps its name. Attributes and arguments given by keyword are as written. So are ``self``, functions,
classes, modules, and names that ``except`` and ``match`` bind: of them a second one of the name counts as the same.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from .syntax import FUNCTIONS, KEPT_TREES, OBJECT

AT = "@"
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def base(name: str) -> str:
    """The name as it is written."""
    return name.partition(AT)[0]


def is_visible(name: str, qualname: str) -> bool:
    """Whether a variable is one of the function of this name, or of one around it."""
    scope = name.partition(AT)[2]
    return bool(scope) and (scope == qualname or qualname.startswith(f"{scope}.<locals>."))


@lru_cache(maxsize=KEPT_TREES)
def scoped(tree: ast.Module) -> ast.Module:
    """The copy of a tree. It is shared: do not change it."""
    found = copy.deepcopy(tree)
    _Renamer().visit_each(found.body, (_Scope("", is_class=False),))
    return found


@dataclass
class _Scope:
    qualname: str
    is_class: bool
    names: set[str] = field(default_factory=set)
    outer: set[str] = field(default_factory=set)  # declared nonlocal
    everywhere: set[str] = field(default_factory=set)  # declared global

    def within(self, name: str) -> str:
        """The name of a function or a class that is defined here."""
        if not self.qualname:
            return name
        return f"{self.qualname}.{name}" if self.is_class else f"{self.qualname}.<locals>.{name}"


_Scopes = tuple[_Scope, ...]


class _Renamer:
    def visit_each(self, nodes: Iterable[ast.AST | None], scopes: _Scopes) -> None:
        for node in nodes:
            if node is not None:
                self._visit(node, scopes)

    def _visit(self, node: ast.AST, scopes: _Scopes) -> None:
        if isinstance(node, ast.Name):
            node.id = _resolved(node.id, scopes)
        elif isinstance(node, (*FUNCTIONS, ast.Lambda)):
            self._function(node, scopes)
        elif isinstance(node, _COMPREHENSIONS):
            self._comprehension(node, scopes)
        elif isinstance(node, ast.ClassDef):
            self.visit_each([*node.decorator_list, *node.bases, *node.keywords], scopes)
            self.visit_each(node.body, (*scopes, _Scope(scopes[-1].within(node.name), True, _bound(node.body))))
        else:
            self.visit_each(ast.iter_child_nodes(node), scopes)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, scopes: _Scopes) -> None:
        given = node.args
        arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
        self.visit_each([*given.defaults, *given.kw_defaults], scopes)
        self.visit_each((argument.annotation for argument in arguments), scopes)
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        if not isinstance(node, ast.Lambda):
            self.visit_each([*node.decorator_list, node.returns], scopes)
        inner = _Scope(scopes[-1].within(getattr(node, "name", "<lambda>")), False, _bound(body))
        inner.names |= {argument.arg for argument in arguments} - {*OBJECT}
        for one in _own(body):
            if isinstance(one, ast.Global):
                inner.everywhere.update(one.names)
            elif isinstance(one, ast.Nonlocal):
                inner.outer.update(one.names)
        for argument in arguments:
            argument.arg = _resolved(argument.arg, (*scopes, inner))
        self.visit_each(body, (*scopes, inner))

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp, scopes: _Scopes
    ) -> None:
        first = node.generators[0]
        self._visit(first.iter, scopes)
        targets = [generator.target for generator in node.generators]
        names = {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        inner = (
            *scopes,
            _Scope(f"{scopes[-1].within('<comprehension>')}:{node.lineno}:{node.col_offset}", False, names),
        )
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        rest = [part for g in node.generators for part in (g.target, *g.ifs, *([] if g is first else [g.iter]))]
        self.visit_each([*results, *rest], inner)


def _resolved(name: str, scopes: _Scopes) -> str:
    for depth, scope in enumerate(reversed(scopes)):
        if name in scope.everywhere:
            return name
        if scope.is_class:
            if depth == 0 and name in scope.names:
                return name
        elif name in scope.names and name not in scope.outer and scope.qualname:
            return f"{name}{AT}{scope.qualname}"
    return name


def _bound(body: Iterable[ast.AST]) -> set[str]:
    """The variables that statements bind, without those that ``import``, ``def``, ``except`` and ``match`` bind."""
    nodes = list(_own(body))
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    others: set[str] = set(OBJECT)
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            others.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            others.add(node.name)
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            others.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            others.add(node.rest)
    return stored - others


def _own(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions and classes in it; of comprehensions what ``:=`` binds."""
    todo = list(body)
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            continue
        if isinstance(node, _COMPREHENSIONS):
            yield from (n.target for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
            continue
        todo.extend(ast.iter_child_nodes(node))
