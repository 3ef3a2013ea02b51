"""Where values flow in long files: judged in time that grows with the file, not with its square."""

from __future__ import annotations

import ast
import inspect

from torch.optim import lr_scheduler

from jupyter_hyperpod.runtime.program.analysis.parsing import parsed
from jupyter_hyperpod.runtime.program.analysis.reads import Flow, Reads


class Counting(Reads):
    """Counts the expressions that are followed."""

    followed = 0

    def _climb(self, node: ast.AST, name: str, seen: set[str]) -> Flow:
        self.followed += 1
        return super()._climb(node, name, seen)


def test_all_names_of_a_long_file_are_judged_at_once() -> None:
    tree = parsed(inspect.getsource(lr_scheduler))
    nodes = list(ast.walk(tree))
    names = sorted({node.id for node in nodes if isinstance(node, ast.Name)})
    reads = Counting([tree])
    flows = {name: reads.flow(reads.named(name)) for name in names}
    assert reads.followed < len(nodes), (reads.followed, len(nodes))
    for name in names[::20]:
        fresh = Reads([tree])
        assert fresh.flow(fresh.named(name)) is flows[name], f"what was remembered of {name} is no other answer"
