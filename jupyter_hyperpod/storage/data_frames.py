"""Encodes data frames and series of pandas as records for JSON, column by column, with their types. Never pickle."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from ..core.errors import SpecError

Encode = Callable[[Any], Any]
Decode = Callable[[Any], Any]
_NUMPY_KINDS = "biufcmM"
_LISTED = ("object", "str", "string", "boolean", "Int", "UInt", "Float")  # types whose values travel one by one


def encode_frame(value: Any, encode: Encode) -> dict[str, Any] | None:
    """The record of a frame, a series or an index; None for another value. Raises SpecError for columns that cannot."""
    pandas: Any = sys.modules.get("pandas")
    if pandas is None:
        return None
    if isinstance(value, pandas.DataFrame):
        columns = [_column(value.iloc[:, place], encode) for place in range(value.shape[1])]
        return {
            "frame": {"data": columns, "columns": _index(value.columns, encode), "index": _index(value.index, encode)}
        }
    if isinstance(value, pandas.Series):
        return {
            "series": {"data": _column(value, encode), "name": encode(value.name), "index": _index(value.index, encode)}
        }
    if isinstance(value, pandas.Index):
        return {"index": _index(value, encode)}
    if value is pandas.NA or value is pandas.NaT:
        return {"missing": "NA" if value is pandas.NA else "NaT"}
    if isinstance(value, pandas.Timestamp | pandas.Timedelta):
        return {type(value).__name__.lower(): str(value)}
    return None


def decode_frame(form: str, content: Any, decode: Decode) -> Any:
    """Inverse of `encode_frame`."""
    import pandas

    if form == "frame":
        columns = {place: _series(column, decode) for place, column in enumerate(content["data"])}
        frame = pandas.DataFrame(columns, index=None if columns else _labels(content["index"], decode))
        frame.index, frame.columns = _labels(content["index"], decode), _labels(content["columns"], decode)
        return frame
    if form == "series":
        series = _series(content["data"], decode)
        series.index, series.name = _labels(content["index"], decode), decode(content["name"])
        return series
    if form == "index":
        return _labels(content, decode)
    if form == "missing":
        return pandas.NA if content == "NA" else pandas.NaT
    return pandas.Timestamp(content) if form == "timestamp" else pandas.Timedelta(content)


FORMS = frozenset({"frame", "series", "index", "missing", "timestamp", "timedelta"})


def _column(series: Any, encode: Encode) -> dict[str, Any]:
    kind, name = series.dtype, str(series.dtype)
    if name == "category":
        codes, categories = encode(series.cat.codes.to_numpy()), _index(series.cat.categories, encode)
        return {"codes": codes, "categories": categories, "ordered": bool(series.cat.ordered)}
    if getattr(kind, "tz", None) is not None:
        return {"utc": encode(series.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()), "zone": str(kind.tz)}
    if getattr(kind, "kind", "") in _NUMPY_KINDS and type(kind).__module__.startswith("numpy"):
        return {"array": encode(series.to_numpy())}
    if name.startswith(_LISTED):
        return {"list": [encode(one) for one in series.tolist()], "type": name}
    raise SpecError(
        f"column {series.name!r} of the frame has type {name}, which cannot travel: convert it with astype()"
    )


def _series(column: Mapping[str, Any], decode: Decode) -> Any:
    import pandas

    if "codes" in column:
        labels = _labels(column["categories"], decode)
        return pandas.Series(pandas.Categorical.from_codes(decode(column["codes"]), labels, ordered=column["ordered"]))
    if "utc" in column:
        return pandas.Series(decode(column["utc"])).dt.tz_localize("UTC").dt.tz_convert(column["zone"])
    if "array" in column:
        return pandas.Series(decode(column["array"]))
    return pandas.Series([decode(one) for one in column["list"]], dtype=column["type"])


def _index(index: Any, encode: Encode) -> dict[str, Any]:
    pandas: Any = sys.modules["pandas"]
    names = [encode(name) for name in index.names]
    if isinstance(index, pandas.RangeIndex):
        return {"range": [index.start, index.stop, index.step], "names": names}
    if isinstance(index, pandas.MultiIndex):
        levels = [_column(pandas.Series(index.get_level_values(level)), encode) for level in range(index.nlevels)]
        return {"levels": levels, "names": names}
    return {"values": _column(pandas.Series(index), encode), "names": names}


def _labels(record: Mapping[str, Any], decode: Decode) -> Any:
    import pandas

    names = [decode(name) for name in record["names"]]
    if "range" in record:
        return pandas.RangeIndex(*record["range"], name=names[0])
    if "levels" in record:
        return pandas.MultiIndex.from_arrays([_series(level, decode) for level in record["levels"]], names=names)
    return pandas.Index(_series(record["values"], decode), name=names[0])
