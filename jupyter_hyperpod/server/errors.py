"""Turns exceptions into HTTP answers, in this one place."""

from __future__ import annotations

import json
from typing import Any

from tornado import web

from ..core.errors import ClusterError, Conflict, Denied, Foreign, Hangs, HyperpodError, NotFound, StoreError, UserError

# the first match counts
STATUS: tuple[tuple[type[BaseException], int], ...] = (
    (NotFound, 404),
    (Denied, 403),
    (Conflict, 409),
    (UserError, 400),
    (Hangs, 504),
    (Foreign, 403),
    (StoreError, 507),
    (ClusterError, 503),
    (TimeoutError, 503),
    (OSError, 507),
    (HyperpodError, 500),
)
STRANGER = "not signed in to this Jupyter server, or not from one of its own pages"
HINTS = {
    503: "The log of the cluster's supervisor, cluster/supervisor.log in the job store, has more.",
    507: "Free some space, or choose another directory with HyperpodExtension.store.",
}


class RequestRefused(web.HTTPError):
    """A refused request, with a sentence for the user."""

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        super().__init__(status, "%s", message)
        self.message = message
        self.hint = hint


def refusal(error: BaseException) -> RequestRefused:
    """The answer to a request that ended with `error`."""
    status = next((status for kind, status in STATUS if isinstance(error, kind)), 500)
    return RequestRefused(status, str(error) or type(error).__name__, HINTS.get(status, ""))


class JsonErrors(web.RequestHandler):
    """Errors as ``{"message", "hint"?}``."""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with the error's sentence. Internal errors go to the server's log only."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        answer = {"message": STRANGER if status_code == 403 else self._reason}
        if isinstance(error, RequestRefused):
            answer = {"message": error.message} | ({"hint": error.hint} if error.hint else {})
        elif isinstance(error, web.HTTPError) and error.log_message:
            answer = {"message": error.log_message % error.args if error.args else error.log_message}
        if status_code == 405:
            self.set_header("Allow", ", ".join(_methods(type(self))))
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(answer))


def _methods(handler: type[web.RequestHandler]) -> list[str]:
    """The HTTP methods that a handler answers."""
    missing = web.RequestHandler._unimplemented_method
    return [name for name in handler.SUPPORTED_METHODS if getattr(handler, name.lower()) is not missing]
