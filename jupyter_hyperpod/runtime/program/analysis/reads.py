"""Reads from source code whether what a name holds flows into the training, only into what is printed, or nowhere.

The rule, for a variable, an attribute or an argument of this name in any of the files:

- what only changes itself (``n += 1``, ``seen.append(x)``) flows nowhere;
- what is given to something that shows or records (``print``, loggers, writers, bars) within a loop or a function flows
  nowhere; at the end of the cell it is a printed result;
- what is assigned to another name flows where that name flows, and a returned value where the calls' values flow;
- a condition that decides only about what is shown, or whether the program ends with an error, flows nowhere;
- what is set of an object of a library flows into the training;
- everything else flows into the training.

Variables of functions are told apart (`scopes`), attributes are not: a second one of the same name may make the answer
stricter, never laxer.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable
from enum import IntEnum

from . import known_functions as known
from .cell_analysis import MEASURES
from .namespaces import fits
from .read_index import chain, index_of, mentioned, targets_of
from .scopes import base, is_visible, scoped
from .syntax import FUNCTIONS, OBJECT, is_made, last_name


class Flow(IntEnum):
    """Where a value flows; the greater one counts."""

    NOWHERE = 0
    PRINTED = 1
    TRAINING = 2


class Reads:
    """The reads of some source files.

    ``is_plain(name)`` says whether a variable now holds a number or text, ``is_foreign(expression)`` whether that is an
    object of a library now, None where it cannot tell, ``is_own_function(name)`` whether a call of what a variable now
    holds runs code of the program, None where there is no such variable.
    """

    def __init__(
        self,
        trees: Iterable[ast.Module],
        is_plain: Callable[[str], bool] = lambda name: False,
        is_foreign: Callable[[ast.AST], bool | None] = lambda expression: False,
        is_own_function: Callable[[str], bool | None] = lambda name: False,
    ) -> None:
        self._is_plain, self._is_foreign, self._is_own_function = is_plain, is_foreign, is_own_function
        self._index = index = index_of(tuple(map(scoped, trees)))
        self._parents, self._loads, self._calls = index.parents, index.loads, index.calls
        self._arguments, self._computed = index.arguments, index.computed
        self._known = {"param_groups": Flow.TRAINING}

    def named(self, name: str, qualname: str | None = None) -> set[str]:
        """What variables and attributes of this name are called in the scopes: in all of them, or in the function that
        is called ``qualname``.
        """
        found = self._index.written.get(name, set()) | {name}
        near = {one for one in found if qualname is not None and is_visible(one, qualname)}
        return near or found

    def loads(self, name: str) -> list[ast.AST]:
        """Where a name of one scope, or an attribute of this name, is read, or may be by a text."""
        written = base(name)
        by_text = [node for node, ends in self._computed if self._may_be(written, *ends)]
        return [*self._loads.get(name, ()), *self._index.by_text.get(written, ()), *by_text]

    def _may_be(self, name: str, begins: str, ends: str | None) -> bool:
        if ends is None:
            return True
        fit = bool(begins or ends) or name in self._index.words or fits(name, self._index.stems)
        return fit and name.startswith(begins) and name.endswith(ends)

    def flow_of(self, node: ast.AST, name: str) -> Flow:
        """Where the value of one expression flows, which reads ``name``."""
        return self._climb(node, name, {name})

    def flow(self, names: Iterable[str]) -> Flow:
        """Where what one of these names of scopes holds flows."""
        whole = Flow.NOWHERE
        for name in names:
            seen: set[str] = set()
            found = self._flow(name, seen)
            # where nothing flows from here, nothing flows from all that was seen on the way
            self._known.update(dict.fromkeys(seen if found is Flow.NOWHERE else {name}, found))
            whole = max(whole, found)
        return whole

    def flow_of_attributes(self, name: str, asking: frozenset[str], seen: frozenset[str] = frozenset()) -> Flow:
        """Where all attributes flow of an object of this name that is compared, shown or given away as a whole.

        ``asking``: functions that read none of them, beside those that never do.
        """
        found, unread = Flow.NOWHERE, known.NOT_READ | asking
        for node in self._loads.get(name, ()) if name not in seen else ():
            parent = self._parents.get(node)
            given = isinstance(parent, ast.Call) and node in parent.args
            function = last_name(parent.func) if isinstance(parent, ast.Call) else ""
            if given and isinstance(parent, ast.Call) and function in self._arguments:
                for one in self._at(parent, node, function):
                    found = max(found, self.flow_of_attributes(one, asking, seen | {name}))
            elif isinstance(parent, ast.Attribute) and parent.attr == "__dict__":
                found = max(found, self._climb(parent, name, {name}))
            elif isinstance(parent, (ast.Compare, ast.FormattedValue)) or (given and function not in unread):
                found = max(found, self._climb(node, name, {name}))
        return found

    def _flow(self, name: str, seen: set[str]) -> Flow:
        if name in self._known:
            return self._known[name]
        if name in seen:
            return Flow.NOWHERE
        seen.add(name)
        found = Flow.NOWHERE
        for node in self.loads(name):
            found = max(found, self._climb(node, name, seen))
            if found is Flow.TRAINING:
                self._known[name] = found
                break
        return found

    def _climb(self, node: ast.AST, name: str, seen: set[str]) -> Flow:
        """Where the value of an expression flows."""
        while True:
            parent = self._parents.get(node)
            if parent is None or isinstance(parent, ast.Expr):
                return self._decided(node)
            if isinstance(parent, ast.Call):
                found = self._of_call(parent, node, name, seen)
                if found is not None:
                    return found
            elif isinstance(parent, ast.stmt):
                return self._of_statement(parent, node, name, seen)
            elif isinstance(parent, (ast.Yield, ast.YieldFrom)):
                return self._returned(parent, name, seen)
            elif isinstance(parent, ast.Subscript) and node is parent.slice and not isinstance(parent.ctx, ast.Load):
                return self._of_targets([parent], name, seen)  # it chooses what is changed
            elif isinstance(parent, ast.Lambda):
                return Flow.TRAINING
            elif isinstance(parent, ast.comprehension):
                return max(
                    Flow.TRAINING if node in parent.ifs else Flow.NOWHERE, self._of_targets([parent.target], name, seen)
                )
            elif isinstance(parent, ast.NamedExpr):
                if (found := self._of_targets([parent.target], name, seen)) is Flow.TRAINING:
                    return found
            elif isinstance(parent, ast.arguments):
                return Flow.TRAINING
            node = parent

    def _decided(self, node: ast.AST) -> Flow:
        """What an expression decides about whose value is not taken: ``n > 3 and schedule.step()``."""
        chooses = isinstance(node, (ast.BoolOp, ast.IfExp))
        calls = [last_name(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)] if chooses else []
        return Flow.TRAINING if any(name not in known.OUTPUT | known.PURE for name in calls) else Flow.NOWHERE

    def _of_call(self, call: ast.Call, node: ast.AST, name: str, seen: set[str]) -> Flow | None:
        """Where a value flows that takes part in a call; None where the call's own value is what matters."""
        function = last_name(call.func)
        alone = self._is_statement(call)
        if node is call.func:
            given = [*call.args, *(k.value for k in call.keywords)]
            fills = function in known.OUTPUT | known.FILLS and function not in self._arguments
            return Flow.TRAINING if alone and not fills and not all(map(self._harmless, given)) else None
        if function in known.SESSION or (function == known.STEP and alone and function not in self._arguments):
            return Flow.TRAINING
        if function in known.OUTPUT:
            return self._shown(call) if alone else Flow.TRAINING
        if function in known.PURE and function not in self._arguments:
            return None
        changed = [keyword.value for keyword in call.keywords if keyword.arg == "out"]
        in_place = alone or (function.endswith("_") and not function.endswith("__"))
        if in_place and isinstance(call.func, ast.Attribute) and function not in self._arguments:
            changed.append(call.func.value)
            if function.endswith("_") and self._index.anything.intersection(chain(call.func.value)):
                return Flow.TRAINING
        if changed:
            found = self._of_targets(changed, name, seen, changes=True, fills=function in known.FILLS)
            return found if found is Flow.TRAINING or alone else None
        if (names := self._given_as(call, node, function)) is not None:
            found = max([self._flow(one, seen) for one in names if one != name] or [Flow.NOWHERE])
            return found if found is Flow.TRAINING or alone else None
        return Flow.TRAINING if alone or self._may_act(call.func) else None

    def _given_as(self, call: ast.Call, node: ast.AST, function: str) -> set[str] | None:
        """The arguments of functions of the program that a value becomes in a call; None where there is no such one."""
        if function in self._index.bases:
            function = "__init__"
        if function not in self._arguments:
            return None
        if isinstance(node, ast.keyword) and node.arg:
            return {name for name in self._index.keywords[function] if base(name) == node.arg} or {node.arg}
        known = [set(names) for names in self._arguments[function]]
        if isinstance(node, (ast.keyword, ast.Starred)):  # ``**options``
            return set().union(*known)
        return self._at(call, node, function)

    def _at(self, call: ast.Call, node: ast.AST, function: str) -> set[str]:
        """The arguments of functions of this name that a positional argument of a call becomes."""
        place = call.args.index(node)  # type: ignore[arg-type]
        return {names[place] for names in self._arguments[function] if place < len(names)}

    def _is_statement(self, call: ast.AST) -> bool:
        """Whether nobody takes the value of a call."""
        parent = self._parents.get(call)
        while isinstance(parent, (ast.Await, ast.BoolOp, ast.IfExp)):
            parent = self._parents.get(parent)
        return isinstance(parent, ast.Expr)

    def _may_act(self, called: ast.AST) -> bool:
        """Whether a variable is called that may hold a function or an object of the program, which may do anything."""
        if not isinstance(called, ast.Name):
            return isinstance(called, ast.Subscript)
        plain = called.id in self._index.imported or called.id in self._index.bases or hasattr(builtins, called.id)
        return not plain and self._is_own_function(base(called.id)) is not False

    def _harmless(self, argument: ast.AST) -> bool:
        """Whether an argument cannot be changed by whom it is given to."""
        if isinstance(argument, (ast.Constant, ast.JoinedStr, ast.Compare)):
            return True
        if isinstance(argument, (ast.List, ast.Tuple, ast.Set)):
            return all(map(self._harmless, argument.elts))
        if isinstance(argument, ast.Call) and isinstance(argument.func, ast.Name) and argument.func.id in known.VALUES:
            return True
        nodes = list(ast.walk(argument))
        calls = {last_name(n.func) for n in nodes if isinstance(n, ast.Call)}
        if calls and calls <= MEASURES:  # a duration
            return True
        copied = any(isinstance(n, ast.Attribute) and n.attr in known.COPIES for n in nodes)
        return copied or all(self._is_plain(base(n.id)) for n in nodes if isinstance(n, ast.Name))

    def _of_statement(self, statement: ast.stmt, node: ast.AST, name: str, seen: set[str]) -> Flow:
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = targets_of(statement)
            if node in targets:  # the holder of what is set: its own change
                return Flow.NOWHERE
            return self._of_targets(targets, name, seen, changes=isinstance(statement, ast.AugAssign))
        if isinstance(statement, (ast.If, ast.While)):
            return self._effects(statement, seen)
        if isinstance(statement, (ast.For, ast.AsyncFor)):
            if node is statement.target:
                return Flow.NOWHERE
            decided = self._effects(statement, seen)
            return max(decided, self._of_targets([statement.target], name, seen))
        if isinstance(statement, ast.Return):
            return self._returned(statement, name, seen)
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            if any(self._is_given_to(item.context_expr, name) for item in statement.items if item is node):
                return Flow.TRAINING
            targets = [item.optional_vars for item in statement.items if item.optional_vars is not None]
            return self._of_targets(targets, name, seen)
        if isinstance(statement, ast.Delete):
            return Flow.NOWHERE
        if isinstance(statement, ast.Assert):
            return Flow.TRAINING if self._index.goes_on_after("AssertionError") else Flow.NOWHERE
        if isinstance(statement, ast.Raise):
            return self._raised(statement)
        return Flow.TRAINING

    def _of_targets(
        self, targets: Iterable[ast.AST], name: str, seen: set[str], changes: bool = False, fills: bool = False
    ) -> Flow:
        """``changes``: what the targets hold is changed, ``weight *= n``, instead of replaced; ``fills``: it gets one
        item more.
        """
        found = Flow.NOWHERE
        for target in targets:
            if is_made(target) or (not changes and self._sets_library(target)):
                return Flow.TRAINING
            if changes and isinstance(target, ast.Name) and target.id in self._index.anything and not fills:
                return Flow.TRAINING
            for one in chain(target):
                if one != name:
                    found = max(found, self._flow(one, seen))
                if not isinstance(target, ast.Name) or (changes and not self._is_plain(base(one))):
                    found = self._of_parts(found, one, seen, fills)
                if found is Flow.TRAINING:
                    return found
        return found

    def _sets_library(self, target: ast.AST) -> bool:
        """Whether an attribute of an object of a library is set, which may read it."""
        if isinstance(target, ast.Subscript) and last_name(target.value) == "__dict__":
            target = target.value
        if not isinstance(target, ast.Attribute):
            return False
        foreign = self._is_foreign(target.value)
        if foreign is None:  # of an object that no variable holds now
            declared = target.attr in self._index.own_attributes or target.attr in self._loads
            return not declared and last_name(target.value) not in OBJECT
        return foreign

    def _of_parts(self, found: Flow, name: str, seen: set[str], fills: bool = False) -> Flow:
        """Where the whole flows of which a variable is a part, which changes with it, or ``found`` if that is more."""
        for whole in self._index.wholes(name, fills):
            if found is not Flow.TRAINING:
                found = max(found, self._flow(whole, seen))
        return found

    def _returned(self, node: ast.AST, name: str, seen: set[str]) -> Flow:
        """Where what a function returns or yields flows."""
        function = self.function_of(node)
        if function is None:  # of a lambda
            return Flow.TRAINING
        own = getattr(function, "name", "")
        kind = getattr(self._parents.get(function), "name", "")
        if own in known.TEXTS and kind:
            return self._as_text(kind, seen)
        if known.PROPERTIES.intersection(map(last_name, getattr(function, "decorator_list", ()))):
            return self._flow(own, seen)
        if not own or own.startswith("__") or own == "forward" or own in seen:
            return Flow.TRAINING if own not in seen else Flow.NOWHERE
        if any(getattr(self._parents.get(n), "func", None) is not n for n in self._loads.get(own, ())):
            return Flow.TRAINING  # the function itself is given away
        unseen = (
            Flow.TRAINING if isinstance(self._parents.get(function), ast.ClassDef) else Flow.NOWHERE
        )  # by a library
        inner = seen | {own}
        return max((self._climb(call, name, inner) for call in self._calls.get(own, ())), default=unseen)

    def _as_text(self, kind: str, seen: set[str]) -> Flow:
        """Where objects of a class flow as a whole, such as ``print(meter)`` and ``f"{meter}"``."""
        names = self._index.instances(kind)
        if names is None:
            return Flow.TRAINING
        found = Flow.NOWHERE
        for name in names - seen:
            for node in self._loads.get(name, ()):
                if not isinstance(self._parents.get(node), (ast.Attribute, ast.Subscript)):
                    found = max(found, self._climb(node, name, seen | {name}))
        return found

    def _effects(self, statement: ast.If | ast.For | ast.AsyncFor | ast.While, seen: set[str]) -> Flow:
        inner = (*statement.body, *statement.orelse)
        return max((self._effect(one, seen) for one in inner), default=Flow.NOWHERE)

    def _effect(self, statement: ast.stmt, seen: set[str]) -> Flow:
        """What a statement decides about that runs or does not."""
        if isinstance(statement, (ast.Pass, ast.Import, ast.ImportFrom)):
            return Flow.NOWHERE
        if isinstance(statement, ast.Expr):
            if isinstance(statement.value, ast.Call):
                return self._of_shown_or_kept(statement.value, seen)
            return Flow.NOWHERE if isinstance(statement.value, ast.Constant) else Flow.TRAINING
        if isinstance(statement, ast.Raise):
            return self._raised(statement)
        if isinstance(statement, ast.If):
            return self._effects(statement, seen)
        if isinstance(statement, (ast.Assign, ast.AugAssign)):
            return self._of_targets(targets_of(statement), "", seen, changes=isinstance(statement, ast.AugAssign))
        return Flow.TRAINING

    def _is_given_to(self, context: ast.AST, name: str) -> bool:
        """Whether a context of a library gets a value, ``with torch.set_grad_enabled(n > 3)``: it may do anything."""
        function = last_name(context.func) if isinstance(context, ast.Call) else ""
        if not isinstance(context, ast.Call) or function in known.OPENS or function in self._arguments:
            return False
        return any(name in mentioned(given) for given in (*context.args, *context.keywords))

    def _of_shown_or_kept(self, call: ast.Call, seen: set[str]) -> Flow:
        """What a call decides about that is made or not: what is shown, or what a container holds."""
        function = last_name(call.func)
        if function in known.OUTPUT:
            return self._shown(call)
        changes = function in known.FILLS | known.EMPTIES and function not in self._arguments
        if not changes or not isinstance(call.func, ast.Attribute):
            return Flow.TRAINING
        return self._of_targets([call.func.value], "", seen, changes=True, fills=True)

    def _raised(self, statement: ast.Raise) -> Flow:
        """What an error decides about: it ends the program, which is seen, unless the program goes on."""
        raised = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
        name = last_name(raised) if raised is not None else ""
        return Flow.TRAINING if self._index.goes_on_after(name) else Flow.NOWHERE

    def _shown(self, call: ast.AST) -> Flow:
        """Shown within a loop or a function: progress. Shown at the end: a result."""
        return Flow.NOWHERE if self._index.is_inside(call) else Flow.PRINTED

    def statement_of(self, node: ast.AST) -> ast.AST | None:
        """The statement of which a node is a part."""
        return self._index.around(node, (ast.stmt,))

    def function_of(self, node: ast.AST) -> ast.AST | None:
        """The function of whose body a node is a part; None at the top level of its file."""
        return self._index.around(node, FUNCTIONS)
