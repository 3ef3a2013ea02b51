"""What the readers' parent notices between two steps: they have the data as it was when they were forked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from jupyter_hyperpod.runtime.data.changes import Watch


class Data(torch.utils.data.Dataset[Any]):
    """A data set with one list, one dictionary and a function that reads another object."""

    def __init__(self, size: int) -> None:
        self.rows: list[Any] = [b"%d" % (number + 1000) for number in range(size)]
        self.names = {f"row {number}": (number, 1.5) for number in range(5)}
        self.level = 0.25

    def __len__(self) -> int:
        return len(self.rows)


CHANGES: dict[str, Callable[[Data], object]] = {
    "a row": lambda data: data.rows.__setitem__(3, b"other"),
    "a row that is a list": lambda data: data.rows.__setitem__(3, [1]),
    "a further row": lambda data: data.rows.append(b"last"),
    "a value": lambda data: data.names.__setitem__("row 2", (2, 2.5)),
    "a key": lambda data: data.names.update({"row 9": data.names.pop("row 4")}),
    "a number": lambda data: setattr(data, "level", 0.5),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed_once(change: str) -> None:
    data = Data(20)
    watch = Watch(data)
    assert watch.changed() == [] and watch.changed() == []
    CHANGES[change](data)
    assert len(watch.changed()) == 1
    assert watch.changed() == []


def test_of_a_long_list_only_its_length_is_seen() -> None:
    data = Data(50_000)
    watch = Watch(data)
    watch.changed()
    data.rows.append(b"last")
    assert watch.changed() == ["Data.rows"]
