"""Reads from source code whether the training depends on how many members there are, as scripts for DDP let it."""

from __future__ import annotations

import ast

from ..walk import Walk
from .reads import Flow
from .source import Program

VARIABLE = "WORLD_SIZE"
NAMES = ("world_size", "get_world_size")
DEPENDS = (
    "{place}: the training depends on the number of members ({name}), so on another number of nodes, or after a loss, "
    "it is another run. The global batch is the same on any number of members: nothing has to be scaled by them. A "
    "batch that grows with them is hp.Session(grow=hp.GrowBatch(...))"
)


def depends_on_members() -> str:
    """A sentence about the first line that lets the number of members into the training, "" for none."""
    program = Program(Walk())
    for name in NAMES:
        for node in program.reads.loads(name):
            if isinstance(node, ast.Attribute) and program.reads.flow_of(node, name) is Flow.TRAINING:
                return _said(program, node, ast.unparse(node))
    for node in program.constants(VARIABLE):
        if program.reads.flow_of(node, VARIABLE) is Flow.TRAINING:
            return _said(program, node, VARIABLE)
    return ""


def _said(program: Program, node: ast.AST, name: str) -> str:
    return DEPENDS.format(place=program.place_of(node), name=name)
