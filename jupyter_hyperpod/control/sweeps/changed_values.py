"""Finds what was changed here in modules that a trial imports anew, and in torch, before a trial computes without it.

Of the person's own modules, and those that they import, all values and functions are compared with the text of the
file; of others, what the code of the function names. No module runs again but for a value that no text tells.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
import sysconfig
import types
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...core.errors import SpecError
from ...core.extras import WITHOUT_TORCH
from .present_values import (
    NOTHING,
    assigned,
    bound,
    changed_by_itself,
    changed_place,
    check_function,
    class_changes,
    literal,
    written,
)
from .same_values import equal, same_definition

IMPORT_S = 60.0
MODULES_READ = 200
_OURS = __name__.partition(".")[0]
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_READ = "import sys,json,importlib;sys.path[:]=json.loads(sys.argv[1]);found=[]\n"
_TELL = """for module, name in json.loads(sys.argv[2]):
    try: found.append(repr(getattr(importlib.import_module(module), name)))
    except Exception: found.append(None)
sys.stdout.write(chr(0) + json.dumps(found))
"""
_PRECISION = ("set_float32_matmul_precision", "matmul.allow_tf32", "matmul.fp32_precision")  # all set the same state
# settings of torch that change numbers: what tells them, what a new process has, and what sets them
_TORCH: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("get_default_dtype", "torch.float32", ("set_default_dtype",)),
    ("get_default_device", "cpu", ("set_default_device",)),
    ("get_float32_matmul_precision", "highest", _PRECISION),
    ("are_deterministic_algorithms_enabled", "False", ("use_deterministic_algorithms",)),
    ("is_grad_enabled", "True", ("set_grad_enabled",)),
    ("backends.cudnn.benchmark", "False", ("benchmark",)),
    ("backends.cudnn.deterministic", "False", ("deterministic",)),
    ("backends.cudnn.enabled", "True", ("cudnn",)),
    ("backends.cudnn.allow_tf32", "True", ("cudnn.allow_tf32",)),
    ("backends.cuda.matmul.allow_tf32", "False", _PRECISION),
)


class ChangedValues:
    """What the pieces of a function's code read of modules."""

    def __init__(self, name: str, module: str) -> None:
        """``name``: of the function, in errors. ``module``: its own, whose code travels."""
        self._name, self._module = name, module
        self._used: dict[str, types.ModuleType] = {}
        self._read: dict[tuple[str, str], Any] = {}
        self._set: set[str] = set()
        self._texts: list[str] = []

    def add(self, source: str, names: Mapping[str, Mapping[str, Any]]) -> None:
        """Take up a piece of code. ``names``: those that it uses -> the namespace that each is of."""
        self._texts.append(source)
        tree = ast.parse(source)
        for name, owner in names.items():
            if inspect.ismodule(value := owner.get(name)):
                self._use(value)
            elif isinstance(place := getattr(value, "__module__", None), str) and place != self._module:
                self._use(sys.modules.get(place))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                self._add_read(node, names)
        values = {name: owner.get(name) for name, owner in names.items()}
        self._set |= _changed_of_others(tree, values, {})

    def _use(self, module: types.ModuleType | None) -> None:
        if module is not None and sys.modules.get(module.__name__) is module:
            self._used[module.__name__] = module

    def _add_read(self, node: ast.Attribute, names: Mapping[str, Mapping[str, Any]]) -> None:
        """Note what a chain such as ``np.random.default_rng`` reads of its last module."""
        chain = [node.attr]
        place: ast.expr = node.value
        while isinstance(place, ast.Attribute):
            chain.insert(0, place.attr)
            place = place.value
        value = names.get(place.id, {}).get(place.id) if isinstance(place, ast.Name) else None
        for at, name in enumerate(chain):
            if not inspect.ismodule(value):
                return
            with suppress(Exception), warnings.catch_warnings():  # a module may have a __getattr__ of its own
                warnings.simplefilter("ignore")
                module, value = value, getattr(value, name)
                if at == len(chain) - 1 and not inspect.ismodule(value):
                    self._use(module)
                    self._read[module.__name__, name] = value

    def check(self) -> None:
        """Raise SpecError for the first value that was changed here."""
        own = {name: tree for name, tree in _own_modules(self._used.values()) if name != self._module}
        for name, tree in own.items():
            taken = {one.asname or one.name: one.name for _, one in _from_imports(tree, name)}
            self._set |= _changed_of_others(tree, vars(sys.modules[name]), taken)
        told = set[tuple[str, str]]()
        for name, tree in own.items():
            told |= {(name, one) for one in _check_namespace(tree, vars(sys.modules[name]), name, self._set)}
        for name, tree in own.items():
            _check_from_imports(tree, name, own, self._set)
        for (module, name), value in self._read.items():
            if (callable(value) and module not in own) and self._is_from_here(value):
                raise SpecError(
                    f"{self._name} uses {module}.{name}, which was replaced here by {value.__qualname__}, and a trial "
                    f"imports {module} anew; call {value.__qualname__} itself"
                )
        self._check_imports(
            {key: value for key, value in self._read.items() if key not in told and key[1] not in self._set}
        )
        if own or {name.partition(".")[0] for name in self._used} - sys.stdlib_module_names - WITHOUT_TORCH:
            self._check_torch([*self._texts, *(ast.unparse(tree) for tree in own.values())])

    def _is_from_here(self, value: Any) -> bool:
        """Whether something is of the notebook, or of a module of the person's own."""
        place = getattr(value, "__module__", None)
        return isinstance(place, str) and hasattr(value, "__qualname__") and (
            place in ("__main__", self._module) or is_own(sys.modules.get(place))
        )  # fmt: skip

    def _check_imports(self, values: Mapping[tuple[str, str], Any]) -> None:
        """Compare plain values with those that an import in a new process gives; left out where it gives none."""
        asked = [key for key, value in values.items() if key[0] != "__main__" and literal(value) is not None]
        if not asked:
            return
        line = [sys.executable, "-c", _READ + _TELL, json.dumps([*map(str, sys.path)]), json.dumps(asked)]
        found: list[str | None] = []
        with suppress(OSError, subprocess.SubprocessError, ValueError):
            done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=IMPORT_S)
            found = json.loads(done.stdout.rpartition(chr(0))[2])
        for (module, name), fresh in zip(asked, found, strict=False):
            if fresh is not None and not _means(fresh, values[module, name]):
                raise SpecError(_sentence(f"{module}.{name}", values[module, name], fresh, module))

    def _check_torch(self, texts: list[str]) -> None:
        said = "\n".join(texts)
        for path, usual, setters in _TORCH if "torch" in sys.modules else ():
            if (value := _setting(path)) not in (None, usual) and not any(setter in said for setter in setters):
                how = f"set torch.{path}" if "." in path else f"call torch.{setters[0]}"
                raise SpecError(
                    f"torch.{path} is {value} here, and {usual} where a trial begins; {how} in {self._name}"
                )


def _changed_of_others(tree: ast.AST, values: Mapping[str, Any], taken: Mapping[str, str]) -> set[str]:
    """Names of what code changes in other modules, such as ``settings.SCALE = 1`` or ``registry.MODELS.update(…)``.

    ``values``: what its global names mean. ``taken``: those that it took out of others -> their names there.
    """
    found = set[str]()
    for node in ast.walk(tree):
        place = changed_place(node)
        chain: list[str] = []
        while isinstance(place, ast.Attribute | ast.Subscript):
            chain += [place.attr] if isinstance(place, ast.Attribute) else []
            place = place.value
        if isinstance(place, ast.Name) and inspect.ismodule(values.get(place.id)):
            found.update(chain)
        elif isinstance(place, ast.Name) and place.id in taken:
            found.update([taken[place.id], *chain])
    return found


def _setting(path: str) -> str | None:
    """A setting of torch as text; None where this version has none of the name."""
    value: Any = sys.modules["torch"]
    with suppress(Exception):
        for part in path.split("."):
            value = getattr(value, part)
        return str(value() if callable(value) else value)
    return None


def is_own(module: types.ModuleType | None) -> bool:
    """Whether a module is a file of the person's own, neither of an installed package nor of Python or of ours."""
    file = getattr(module, "__file__", None)
    if module is None or not file or not file.endswith(".py") or module.__name__.partition(".")[0] == _OURS:
        return False
    installed = file.startswith(tuple(f"{place}{os.sep}" for place in _INSTALLED))
    return not installed and not {"site-packages", "dist-packages"} & set(Path(file).parts)


def _own_modules(used: Iterable[types.ModuleType]) -> Iterator[tuple[str, ast.Module]]:
    """Name and syntax of the own modules among these, and of those that they use."""
    waiting, seen = deque(used), set[str]()
    while waiting and len(seen) < MODULES_READ:
        module = waiting.popleft()
        if module.__name__ in seen or module.__name__ == "__main__" or not is_own(module):
            continue
        seen.add(module.__name__)
        for value in list(vars(module).values()):
            place = value if inspect.ismodule(value) else sys.modules.get(getattr(value, "__module__", None) or "")
            if place is not None and sys.modules.get(place.__name__) is place:
                waiting.append(place)
        with suppress(OSError, SyntaxError, ValueError):
            tree = ast.parse(Path(str(module.__file__)).read_bytes())
            waiting.extend(place for place, _ in _from_imports(tree, module.__name__))
            yield module.__name__, tree


def _from_imports(tree: ast.Module, module: str) -> Iterator[tuple[types.ModuleType, ast.alias]]:
    """What a module takes out of others at its top level."""
    package = str(vars(sys.modules[module]).get("__package__") or "").split(".")
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            place = sys.modules.get(".".join(filter(None, [*above, node.module])))
            if place is not None:
                yield from ((place, one) for one in node.names)


def _check_namespace(tree: ast.Module, live: Mapping[str, Any], module: str, itself: set[str]) -> set[str]:
    """Compare what the text of a module says with what it has here; the names of which that is known, or no setting.

    Names that the module's own code changes, or the function (``itself``), are no settings; those that are bound twice
    are left out. Raises SpecError.
    """
    itself, known = changed_by_itself(tree) | itself, dict[str, Any]()
    once = {name for name, count in bound(tree).items() if count == 1} - itself
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list and node.name in once:
            check_function(live.get(node.name), node.name, module)
        elif isinstance(node, ast.ClassDef) and node.name in once and isinstance(kind := live.get(node.name), type):
            for name, _, value, found in class_changes(kind, node, known, itself):
                if found is not NOTHING:
                    raise SpecError(_sentence(f"{module}.{node.name}.{name}", value, repr(found), module))
        name, expression = assigned(node)
        if expression is None or name not in once or name not in live:
            continue
        if (found := written(expression, known)) is not NOTHING:
            known[name] = found
            if not equal(found, live[name]):
                raise SpecError(_sentence(f"{module}.{name}", live[name], repr(found), module))
    return set(known) | itself


def _check_from_imports(tree: ast.Module, module: str, own: Mapping[str, ast.Module], itself: set[str]) -> None:
    """Raise SpecError where a module has something else than it took out of another ``own`` one."""
    live = vars(sys.modules[module])
    once = {name for name, count in bound(tree).items() if count == 1} - changed_by_itself(tree) - itself
    for place, one in _from_imports(tree, module):
        name, there = one.asname or one.name, vars(place).get(one.name, NOTHING)
        if name not in once or name not in live or there is NOTHING or place.__name__ not in own:
            continue
        if one.name in itself or one.name in changed_by_itself(own[place.__name__]):
            continue
        if not equal(live[name], there) and not same_definition(live[name], there):
            raise SpecError(_sentence(f"{module}.{name}", live[name], repr(there), place.__name__))


def _means(text: str, value: Any) -> bool:
    with suppress(ValueError, SyntaxError):
        return text == repr(value) or equal(ast.literal_eval(text), value)
    return False


def _sentence(name: str, here: object, there: str, module: str) -> str:
    found = sys.modules.get(module)
    if is_own(found):
        file = Path(str(getattr(found, "__file__", ""))).name
        place, remedy = f"in {file}, which a trial imports anew", "write it there, or"
    else:
        place, remedy = f"where a trial imports {module} anew", "give it as an argument, or"
    return f"{name} is {here!r:.60} here, and {there:.60} {place}; {remedy} set it in the function"
