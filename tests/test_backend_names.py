"""Backends are known by name in one table only: these packages neither compare nor import one by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_hyperpod import backends
from jupyter_hyperpod.core.backends import BACKENDS, CLUSTER_BACKEND, DEFAULT_BACKEND
from jupyter_hyperpod.core.errors import SpecError
from tests.test_layers import ROOT, imports

KNOW_NONE = (
    "control",
    "supervisor",
    "runtime",
    "serving",
    "health",
    "policy",
    "storage",
    "system",
    "recipes",
    "planner",
)
# control/setup makes clusters of Kubernetes, and control/aws contexts of it: no job passes them
OF_KUBERNETES = ("setup", "aws")


def constants(node: ast.AST) -> Iterator[str]:
    """The texts that stand for themselves in an expression, alone or in a tuple, list, set or dictionary."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


def named(path: Path) -> Iterator[str]:
    """Where a module compares with the name of a backend, looks one up, or imports one."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        parts: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Dict) and any(
            key is not None and set(constants(key)) & set(BACKENDS) for key in node.keys
        ):
            parts = [key for key in node.keys if key is not None]  # something for each backend, or for one
        elif isinstance(node, ast.Subscript):
            parts = [node.slice] * isinstance(node.slice, ast.Constant)
        elif isinstance(node, ast.Constant | ast.Tuple | ast.List | ast.Set | ast.Dict):
            texts = set(constants(node))
            parts = [node] if len(texts) > 1 and texts <= set(BACKENDS) else []  # a list of backends
        elif isinstance(node, ast.Call):
            parts = [argument for argument in node.args if isinstance(argument, ast.Constant)] * (
                ast.unparse(node.func).endswith(("load", "get_backend"))
            )
        for found in set(BACKENDS) & {text for part in parts for text in constants(part)}:
            yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} names {found!r}"
    for module in (*imports(path), *constants(ast.parse(path.read_bytes()))):
        for name in BACKENDS:
            if module.startswith(f"jupyter_hyperpod.backends.{name}"):
                yield f"{path.relative_to(ROOT)} imports or names {module}"


@pytest.mark.parametrize("package", KNOW_NONE)
def test_no_backend_is_known_by_name(package: str) -> None:
    paths = [path for path in sorted((ROOT / package).rglob("*.py")) if path.parent.name not in OF_KUBERNETES]
    assert paths and [fault for path in paths for fault in named(path)] == []


def test_names_are_found_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.test_backend_names.ROOT", tmp_path)
    monkeypatch.setattr("tests.test_layers.ROOT", tmp_path)
    monkeypatch.setattr("tests.test_layers.TREE", tmp_path)
    path = tmp_path / "jupyter_hyperpod" / "control" / "somewhere.py"
    path.parent.mkdir(parents=True)
    lines = ['NAMES = ("local", "slurm")', 'if spec.backend == "slurm":', '    load("slurm")']
    lines += ['PROGRAMS = {"slurm": ("sbatch", "squeue")}', 'first = found["kubernetes"]']
    path.write_text(
        "\n".join([*lines, "from ..backends.local import host", '"jupyter_hyperpod.backends.slurm.runner"'])
    )
    assert len(list(named(path))) == 8


def test_every_backend_of_the_table_is_there_and_is_imported_on_use() -> None:
    assert DEFAULT_BACKEND in BACKENDS
    for name in BACKENDS:
        assert backends.load(name).title
        assert BACKENDS[name].startswith(f"jupyter_hyperpod.backends.{name}."), "each is a folder"
    with pytest.raises(SpecError, match="expected one of local, slurm, kubernetes"):
        backends.load("nomad")


def test_this_machines_nodes_belong_to_one_backend_alone() -> None:
    assert [name for name in BACKENDS if backends.load(name).capabilities.owns_nodes] == [DEFAULT_BACKEND]
    assert CLUSTER_BACKEND in BACKENDS and CLUSTER_BACKEND != DEFAULT_BACKEND
