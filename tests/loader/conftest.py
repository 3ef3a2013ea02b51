"""The object stores of `tests.s3`, here too."""

from __future__ import annotations

from tests.s3.conftest import fault_proxy, lean_s3

__all__ = ["fault_proxy", "lean_s3"]
