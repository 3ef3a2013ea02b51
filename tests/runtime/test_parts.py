"""The coordinator's parts, read from the source: they only yield actions, every action is carried out, in one place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import jupyter_hyperpod.runtime.coordinator as package

FOLDER = Path(package.__file__).parent
PARTS = (
    "adoption", "checkpoints", "draining", "failures", "generations", "joining", "scripts", "session_lifecycle",
    "stragglers",
)  # fmt: skip


def tree(name: str) -> ast.Module:
    return ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))


def lost_actions(sources: dict[str, ast.Module]) -> Iterator[str]:
    """Calls of what yields actions where nobody takes them: they would do nothing at all."""
    yielding = {
        node.name
        for source in sources.values()
        for node in ast.walk(source)
        if isinstance(node, ast.FunctionDef) and node.returns is not None and "Action" in ast.unparse(node.returns)
        if any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(node))
    }
    for name, source in sources.items():
        taken: set[ast.AST] = set()
        for node in ast.walk(source):
            if isinstance(node, ast.YieldFrom):
                taken.add(node.value)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "self.apply":
                taken.update(node.args)
        for node in ast.walk(source):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)) or node in taken:
                continue
            if node.func.attr in yielding and ast.unparse(node.func).startswith("self."):
                yield f"{name}: {ast.unparse(node)}"


def test_every_action_is_carried_out() -> None:
    assert list(lost_actions({name: tree(name) for name in (*PARTS, "controller")})) == []


def test_an_action_that_nobody_takes_is_found() -> None:
    source = ast.parse(
        "def say(self) -> Actions:\n yield 1\ndef more(self) -> Actions:\n self.say()\n yield from self.say()"
    )
    assert list(lost_actions({"a": source})) == ["a: self.say()"]


def test_only_the_controller_speaks_writes_and_changes_phase() -> None:
    for name in PARTS:
        source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
        for effect in ("channel.send", "reporter", ".phase = ", "del self._state.roster", "from .controller"):
            assert effect not in source, f"{name} has an effect of its own: {effect}"
