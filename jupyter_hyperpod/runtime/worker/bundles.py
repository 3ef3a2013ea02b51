"""What a notebook would show for a value: a MIME bundle, by the methods that values have for IPython.

Nothing of IPython is needed. A bundle holds text by type; binary data, such as a PNG, is base64 text.
"""

from __future__ import annotations

import base64
import io
import json
import pprint
import sys
import traceback
from typing import Any

from ...core.units import format_bytes

WIDTH = 79  # of a shown value, as in IPython
LIMIT_BYTES = 4_000_000  # of one bundle
PLAIN, PNG = "text/plain", "image/png"
METHODS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_",
    PNG: "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "application/pdf": "_repr_pdf_",
    "application/json": "_repr_json_",
    "application/javascript": "_repr_javascript_",
}
Bundle = dict[str, Any]


def bundle_of(value: Any) -> tuple[Bundle, Bundle]:
    """The data and the metadata of a value, by MIME type."""
    data: Bundle = {PLAIN: shown(value)}
    metadata: Bundle = {}
    if isinstance(value, type):
        return data, metadata
    for kind, name in METHODS.items():
        _take(data, metadata, kind, _called(value, name))
    if is_figure(value) and PNG not in data:
        _take(data, metadata, PNG, _drawn(value))
    whole = _called(value, "_repr_mimebundle_", include=None, exclude=None)
    more, about = whole if isinstance(whole, tuple) else (whole, None)
    for kind, found in (more or {}).items():
        _take(data, metadata, kind, found)
    metadata.update(about or {})
    return data, metadata


def shown(value: Any) -> str:
    """The text a notebook has for a value: its repr; long lists, tuples, sets and dictionaries one element per line."""
    try:
        text = repr(value)
    except Exception as error:  # a notebook continues, too
        return f"<{type(value).__name__}: its repr raised {type(error).__name__}: {words(error)}>"
    if len(text) > WIDTH and type(value) in (list, tuple, set, frozenset, dict):
        return pprint.pformat(value, width=WIDTH, sort_dicts=False)
    return text


def words(error: BaseException) -> str:
    """The message of an error. Its ``__str__`` may raise, for which the traceback module has a text."""
    return str(traceback.TracebackException(type(error), error, None))


def is_figure(value: Any) -> bool:
    """Whether `value` is a figure of matplotlib."""
    return type(value).__module__.startswith("matplotlib.") and hasattr(value, "savefig")


def bounded(data: Bundle) -> tuple[Bundle, str]:
    """The bundle without the types that make it too large, and a sentence about them or ""."""
    sizes = {kind: len(json.dumps(found)) for kind, found in data.items()}
    kept, left_out = dict(data), []
    while sum(sizes[kind] for kind in kept) > LIMIT_BYTES:
        largest = max(kept, key=lambda kind: sizes[kind])
        left_out.append(f"{largest} of {format_bytes(sizes[largest])}")
        del kept[largest]
    if not left_out:
        return kept, ""
    kept.setdefault(PLAIN, f"<{left_out[0]}>")
    return kept, (
        f"not shown: {', '.join(left_out)}; a display may have {format_bytes(LIMIT_BYTES)}. Save it to a file under "
        "shared:// and open that in the notebook"
    )


def _called(value: Any, name: str, **options: Any) -> Any:
    """What a method of the value's class returns; None without one. An error is told and passed over."""
    method = getattr(value, name, None) if hasattr(type(value), name) else None
    if method is None:
        return None
    try:
        return method(**options)
    except NotImplementedError:
        return None
    except Exception as error:
        print(f"{type(value).__name__}.{name} raised {type(error).__name__}: {words(error)}", file=sys.stderr)
        return None


def _take(data: Bundle, metadata: Bundle, kind: str, found: Any) -> None:
    """Add one representation, which may come with metadata. What JSON cannot hold is left out."""
    if isinstance(found, tuple) and len(found) == 2:
        found, about = found
        if about:
            metadata[kind] = about
    if found is None:
        return
    if isinstance(found, bytes):
        found = base64.b64encode(found).decode()
    try:
        json.dumps(found, allow_nan=False)
    except (TypeError, ValueError):
        print(f"{kind} of a display is left out: JSON cannot hold it", file=sys.stderr)
        return
    data[kind] = found


def _drawn(figure: Any) -> bytes:
    """A figure of matplotlib as a PNG, cut to its contents as in a notebook."""
    target = io.BytesIO()
    look = {"facecolor": figure.get_facecolor(), "edgecolor": figure.get_edgecolor()}
    figure.savefig(target, format="png", dpi=figure.dpi, bbox_inches="tight", **look)
    return target.getvalue()
