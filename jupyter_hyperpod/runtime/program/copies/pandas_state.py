"""The state of data frames and series of pandas, as plain containers, and back: the same values in the same layout.

The layout matters: pandas adds up the columns of a block row by row, or each column in pairs, as they lie in memory.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from ....core.errors import SpecError
from ....storage.data_frames import decode_frame, encode_frame

VALUES = "values"  # in the state of a frame that is one block: its numbers, instead of its columns


def is_table(value: Any) -> bool:
    """Whether `value` is a data frame or a series of pandas itself, not of a subclass, whose state can be read."""
    pandas: Any = sys.modules.get("pandas")
    if pandas is None or type(value) not in (getattr(pandas, "DataFrame", None), getattr(pandas, "Series", None)):
        return False
    if value.attrs or not value.flags.allows_duplicate_labels:
        return False
    with suppress(SpecError):
        _record(value.iloc[:0])
        return all(map(_is_contiguous, _columns(value))) or (value.ndim == 2 and _block(value) is not None)
    return False


def table_state(value: Any) -> dict[str, Any]:
    """The state of a table that `is_table`."""
    if value.ndim == 1 or all(map(_is_contiguous, _columns(value))):
        return _record(value)
    ((form, record),) = _record(value.iloc[:0]).items()
    rows = _record(value.iloc[:, :0])[form]["index"]
    return {form: {**record, "index": rows, VALUES: _block(value)}}


def seen_of_table(value: Any, rows: int) -> dict[str, Any]:
    """What a table that `is_table` holds in at least so many evenly spread rows, where it has as many."""
    return {"rows": len(value), "seen": _record(value.iloc[:: max(1, len(value) // rows)])}


def set_table(table: Any, state: dict[str, Any]) -> None:
    """Let a table hold this state: other names of the program may refer to it, so it stays the same object."""
    type(table).__init__(table, new_table(state))


def _record(value: Any) -> dict[str, Any]:
    """As `encode_frame`; what is missing in a column of a type of pandas is None. Raises SpecError."""
    record = encode_frame(value, _same)
    assert record is not None
    ((form, content),) = record.items()
    for column in content["data"] if form == "frame" else [content["data"]]:
        if column.get("type", "object") != "object":
            column["list"] = [None if one is sys.modules["pandas"].NA else one for one in column["list"]]
    return record


def new_table(state: dict[str, Any]) -> Any:
    """A new table that holds this state."""
    ((form, content),) = state.items()
    if VALUES not in content:
        return decode_frame(form, content, _same)
    empty = decode_frame(form, {**content, "index": {"range": [0, 0, 1], "names": [None]}}, _same)
    rows = decode_frame("index", content["index"], _same)
    found = type(empty)(content[VALUES], index=rows, copy=False)
    found.columns = empty.columns
    return found


def _columns(value: Any) -> list[Any]:
    return [value] if value.ndim == 1 else [value.iloc[:, place] for place in range(value.shape[1])]


def _is_contiguous(column: Any) -> bool:
    """Whether the items of a column lie side by side; so they do wherever numpy does not hold them."""
    kept = column.array
    return type(kept).__name__ != "NumpyExtensionArray" or bool(kept.to_numpy().flags.c_contiguous)


def _block(frame: Any) -> Any:
    """The array of numbers that a frame shows, (rows, columns) as it lies in memory; None where it shows several."""
    import numpy

    values = frame.to_numpy(copy=False)
    kinds = {column.dtype for column in _columns(frame)}
    is_one = len(kinds) == 1 and values.dtype in kinds and values.dtype != object
    return values if is_one and numpy.shares_memory(values, frame.iloc[:, 0].to_numpy(copy=False)) else None


def _same(value: Any) -> Any:
    return value
