"""Checks clients' messages against the OpenAPI file that documents them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from ..core.errors import SpecError

try:  # libyaml, where PyYAML was built with it, takes a tenth of the time at the start of a server
    from yaml import CSafeLoader as SafeLoader
except ImportError:
    from yaml import SafeLoader


class Contract:
    """The schemas of one OpenAPI 3.1 file."""

    def __init__(self, path: Path) -> None:
        self._document: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), SafeLoader)
        self._bodies = {
            operation["operationId"]: self._validator(operation["requestBody"]["content"]["application/json"]["schema"])
            for item in self._document["paths"].values()
            for operation in item.values()
            if isinstance(operation, dict) and "requestBody" in operation
        }
        self._messages = {
            kind: self._validator({"$ref": f"#/components/schemas/{kind.title()}"})
            for kind in ("subscribe", "unsubscribe")
        }

    def _validator(self, schema: dict[str, Any]) -> Draft202012Validator:
        return Draft202012Validator(schema | {"components": self._document["components"]})

    def check_body(self, operation: str, body: Any) -> dict[str, Any]:
        """Return the body of an operation if it matches its schema; raises SpecError."""
        return _checked(self._bodies[operation], body, "the body")

    def check_message(self, message: Any) -> dict[str, Any]:
        """Return a client's websocket message if it matches its schema; raises SpecError."""
        kind = message.get("type") if isinstance(message, dict) else None
        if not isinstance(kind, str) or kind not in self._messages:
            raise SpecError(f"message type {str(kind)[:80]!r} is unknown; expected {' or '.join(self._messages)}")
        return _checked(self._messages[kind], message, "the message")


def _checked(validator: Draft202012Validator, value: Any, what: str) -> dict[str, Any]:
    error = next(validator.iter_errors(value), None)
    if error is not None:
        where = ".".join(str(part) for part in error.absolute_path)
        raise SpecError(f"{where or what}: {error.message[:300]}")
    checked: dict[str, Any] = value
    return checked
