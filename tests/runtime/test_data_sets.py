"""An attribute that only data sets set is read by the lines that name it, and by nothing else."""

from __future__ import annotations

import ast
from textwrap import indent

import pytest

from jupyter_hyperpod.runtime.program.analysis.data_sets import alone_have

COUNTS = """
class Counting(Base):
    def __init__(self):
        self.hits = 0

    def __getitem__(self, index):
        self.hits += 1
        return index
"""


def have(source: str) -> bool:
    return alone_have((ast.parse(source),), "hits")


@pytest.mark.parametrize("base", ["torch.utils.data.Dataset", "Dataset", "IterableDataset", "object"])
def test_a_data_set_of_the_persons_own_has_it(base: str) -> None:
    assert have(COUNTS.replace("Base", base))
    assert have(f"class Mine({base}):\n    pass\n" + COUNTS.replace("Base", "Mine"))
    assert have(COUNTS.replace("Base", base) + "x = getattr(data, 'name', None)")


@pytest.mark.parametrize(
    "also",
    [
        "print(vars(data))",
        "print(data.__dict__)",
        "x = getattr(data, name)",
        "x = attrgetter(*names)(data)",
        "x = dataclasses.asdict(data)",
        "inspect.getmembers(data)",
        "data.hits = 3",
        "class Other:\n    def step(self):\n        self.hits = 1",
    ],
)
def test_code_that_reads_or_sets_it_in_another_way_is_seen(also: str) -> None:
    assert have(COUNTS.replace("Base", "Dataset"))
    assert not have(COUNTS.replace("Base", "Dataset") + also)
    assert not have(COUNTS.replace("Base", "Dataset") + "\ndef work():\n" + indent(also, "    "))


def test_a_class_with_code_of_a_library_or_made_by_one_does_not_count() -> None:
    assert not have(COUNTS.replace("Base", "datasets.ImageFolder"))
    assert not have("@dataclass" + COUNTS.replace("Base", "Dataset"))
    assert not have(COUNTS.replace("Base", "Dataset, metaclass=Meta"))
    assert not have(COUNTS.replace("Base", "Dataset").replace("__getitem__", "take"))
    assert not have("class Counting(Counting):\n" + COUNTS.split("\n", 2)[2]), "a class that is its own base"
