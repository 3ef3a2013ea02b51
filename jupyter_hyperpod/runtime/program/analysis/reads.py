"""Reads from source code whether what a name holds flows into the training, only into what is printed, or nowhere.

The rule, for a variable, an attribute or an argument of this name in any of the files:

- what only changes itself (``n += 1``, ``seen.append(x)``) flows nowhere;
- what is given to something that shows or records (``print``, loggers, writers, bars) within a loop or a function flows
  nowhere; at the end of the cell it is a printed result;
- what is assigned to another name flows where that name flows, and a returned value where the calls' values flow;
- a condition that decides only about what is shown flows nowhere;
- everything else flows into the training.

Names are not told apart by scope: a second variable of the same name may make the answer stricter, never laxer.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from enum import IntEnum

from .cell_analysis import MEASURES
from .namespaces import fits
from .read_index import base_of, chain, clocks_of, index_of, is_inside
from .syntax import FUNCTIONS, last_name

# Functions and methods that show or record their arguments.
OUTPUT = frozenset(
    "add_figure add_histogram add_hparams add_image add_scalar add_scalars add_text critical debug display dump error "
    "exception flush info journal log log_metric log_metrics plot postfix pprint print savefig scatter secho "
    "set_description set_description_str set_postfix set_postfix_str set_title show track warn warning write "
    "writelines writerow writerows".split()
)
# Functions whose value depends on their arguments, and that do nothing else.
PURE = frozenset(
    "abs all any bool bytes complex dict divmod enumerate filter float format frozenset getattr hasattr hash hex id "
    "int isinstance len list map max mean min pow range repr reversed round set sorted sqrt str sum tensor tuple type "
    "zip".split()
)

# Functions that read no attribute of their arguments.
NOT_READ = frozenset("callable delattr hasattr id isinstance issubclass len setattr type".split())
SESSION = frozenset(("Session", "register", "run"))
STEP = "step"  # a scheduler's


class Flow(IntEnum):
    """Where a value flows; the greater one counts."""

    NOWHERE = 0
    PRINTED = 1
    TRAINING = 2


class Reads:
    """The reads of some source files. ``is_plain(name)`` says whether a variable now holds a number or text."""

    def __init__(self, trees: Iterable[ast.Module], is_plain: Callable[[str], bool] = lambda name: False) -> None:
        self._trees = list(trees)
        self._is_plain = is_plain
        index = index_of(tuple(self._trees))
        self._parents, self._loads, self._calls = index.parents, index.loads, index.calls
        self._arguments, self._parts, self._computed = index.arguments, index.parts, index.computed
        self._words = index.words
        self._known = {"param_groups": Flow.TRAINING}

    def loads(self, name: str) -> list[ast.AST]:
        """Where a name or an attribute of this name is read, or may be by a computed text."""
        return [*self._loads.get(name, ()), *(node for node, ends in self._computed if self._may_be(name, *ends))]

    def _may_be(self, name: str, begins: str, ends: str) -> bool:
        known = bool(begins or ends) or name in self._words or fits(name, self._words)
        return known and name.startswith(begins) and name.endswith(ends)

    def flow_of(self, node: ast.AST, name: str) -> Flow:
        """Where the value of one expression flows, which reads ``name``."""
        return self._climb(node, name, {name})

    def flow(self, name: str) -> Flow:
        """Where what this name holds flows."""
        return self._flow(name, set())

    def flow_of_attributes(self, name: str, asking: frozenset[str], seen: frozenset[str] = frozenset()) -> Flow:
        """Where all attributes flow of an object of this name that is compared, shown or given away as a whole.

        ``asking``: functions that read none of them, beside those that never do.
        """
        found = Flow.NOWHERE
        for node in self._loads.get(name, ()) if name not in seen else ():
            parent = self._parents.get(node)
            given = isinstance(parent, ast.Call) and node in parent.args
            function = last_name(parent.func) if isinstance(parent, ast.Call) else ""
            if given and isinstance(parent, ast.Call) and function in self._arguments:
                place = parent.args.index(node)  # type: ignore[arg-type]
                for names in self._arguments[function]:
                    if place < len(names):
                        found = max(found, self.flow_of_attributes(names[place], asking, seen | {name}))
            elif isinstance(parent, ast.Attribute) and parent.attr == "__dict__":
                found = max(found, self._climb(parent, name, {name}))
            elif isinstance(parent, (ast.Compare, ast.FormattedValue)) or (given and function not in NOT_READ | asking):
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
                break
        if len(seen) == 1:
            self._known[name] = found
        return found

    def _climb(self, node: ast.AST, name: str, seen: set[str]) -> Flow:
        """Where the value of an expression flows."""
        while True:
            parent = self._parents.get(node)
            if parent is None or isinstance(parent, ast.Expr):
                return Flow.NOWHERE
            if isinstance(parent, ast.Call):
                found = self._of_call(parent, node, name, seen)
                if found is not None:
                    return found
            elif isinstance(parent, ast.stmt):
                return self._of_statement(parent, node, name, seen)
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

    def _of_call(self, call: ast.Call, node: ast.AST, name: str, seen: set[str]) -> Flow | None:
        """Where a value flows that takes part in a call; None where the call's own value is what matters."""
        function = last_name(call.func)
        alone = isinstance(self._parents.get(call), ast.Expr)
        if node is call.func:
            given = [*call.args, *(k.value for k in call.keywords)]
            return Flow.TRAINING if alone and function not in OUTPUT and not all(map(self._harmless, given)) else None
        if function in SESSION or (function == STEP and alone and function not in self._arguments):
            return Flow.TRAINING
        if function in OUTPUT:
            return self._shown(call) if alone else Flow.TRAINING
        if function in PURE:
            return None
        if alone and isinstance(call.func, ast.Attribute) and function not in self._arguments:
            base = base_of(call.func)
            found = Flow.NOWHERE if base == name else self._flow(base, seen) if base else Flow.TRAINING
            return self._of_parts(found, base, seen)
        if function in self._arguments and node in call.args:
            place = call.args.index(node)
            names = [names[place] for names in self._arguments[function] if place < len(names)]
            found = max([self._flow(one, seen) for one in names if one != name] or [Flow.NOWHERE])
            return found if found is Flow.TRAINING or alone else None
        return Flow.TRAINING if alone else None

    def _harmless(self, argument: ast.AST) -> bool:
        """Whether an argument cannot be changed by whom it is given to."""
        names = {n.id for n in ast.walk(argument) if isinstance(n, ast.Name)}
        attributes = {n.attr for n in ast.walk(argument) if isinstance(n, ast.Attribute)}
        calls = {last_name(n.func) for n in ast.walk(argument) if isinstance(n, ast.Call)}
        if calls and calls <= MEASURES:  # a duration
            return True
        return all(map(self._is_plain, names)) or bool(attributes & {"number", "index", "item", "tolist", "detach"})

    def _of_statement(self, statement: ast.stmt, node: ast.AST, name: str, seen: set[str]) -> Flow:
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if node in targets:  # the holder of what is set: its own change
                return Flow.NOWHERE
            return self._of_targets(targets, name, seen)
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
            targets = [item.optional_vars for item in statement.items if item.optional_vars is not None]
            return self._of_targets(targets, name, seen)
        if isinstance(statement, ast.Delete):
            return Flow.NOWHERE
        return Flow.TRAINING

    def _of_targets(self, targets: Iterable[ast.AST], name: str, seen: set[str]) -> Flow:
        found = Flow.NOWHERE
        for target in targets:
            for one in chain(target):
                if one != name:
                    found = max(found, self._flow(one, seen))
                if not isinstance(target, ast.Name):
                    found = self._of_parts(found, one, seen)
        return found

    def _of_parts(self, found: Flow, name: str, seen: set[str]) -> Flow:
        """Where the whole flows of which a variable is a part, which changes with it, or ``found`` if that is more."""
        return max([found, *(self._flow(whole, seen) for whole in self._parts.get(name, ()))])

    def _returned(self, statement: ast.stmt, name: str, seen: set[str]) -> Flow:
        function = self.function_of(statement)
        assert function is not None
        own = getattr(function, "name", "")
        if not own or own.startswith("__") or own == "forward" or own in seen:
            return Flow.TRAINING if own not in seen else Flow.NOWHERE
        if any(getattr(self._parents.get(n), "func", None) is not n for n in self._loads.get(own, ())):
            return Flow.TRAINING  # the function itself is given away
        unseen = (
            Flow.TRAINING if isinstance(self._parents.get(function), ast.ClassDef) else Flow.NOWHERE
        )  # by a library
        inner = seen | {own}
        return max((self._climb(call, name, inner) for call in self._calls.get(own, ())), default=unseen)

    def _effects(self, statement: ast.If | ast.For | ast.AsyncFor | ast.While, seen: set[str]) -> Flow:
        inner = (*statement.body, *statement.orelse)
        return max((self._effect(one, seen) for one in inner), default=Flow.NOWHERE)

    def _effect(self, statement: ast.stmt, seen: set[str]) -> Flow:
        """What a statement decides about that runs or does not."""
        if isinstance(statement, (ast.Pass, ast.Import, ast.ImportFrom)):
            return Flow.NOWHERE
        if isinstance(statement, ast.Expr):
            if isinstance(statement.value, ast.Call) and last_name(statement.value.func) in OUTPUT:
                return self._shown(statement.value)
            return Flow.NOWHERE if isinstance(statement.value, ast.Constant) else Flow.TRAINING
        if isinstance(statement, ast.If):
            return self._effects(statement, seen)
        if isinstance(statement, (ast.Assign, ast.AugAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            return self._of_targets(targets, "", seen)
        return Flow.TRAINING

    def _shown(self, call: ast.AST) -> Flow:
        """Shown within a loop or a function: progress. Shown at the end: a result."""
        return Flow.NOWHERE if is_inside(call, self._parents) else Flow.PRINTED

    def statement_of(self, node: ast.AST) -> ast.stmt | None:
        """The statement of which a node is a part."""
        found: ast.AST | None = node
        while found is not None and not isinstance(found, ast.stmt):
            found = self._parents.get(found)
        return found

    def function_of(self, node: ast.AST) -> ast.AST | None:
        """The function of whose body a node is a part; None at the top level of its file."""
        parent: ast.AST | None = node
        while parent is not None and not isinstance(parent, FUNCTIONS):
            parent = self._parents.get(parent)
        return parent

    def clocks(self) -> set[str]:
        """Names, attributes included, whose values come from a clock or another measurement, also by way of others."""
        return set(clocks_of(tuple(self._trees)))
