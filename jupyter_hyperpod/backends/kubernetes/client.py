"""The client of the Kubernetes API: read, list, create, change, delete, watch, logs, and commands in pods."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...core.errors import ClusterError
from .api_requests import ApiAnswer, ApiError, ApiRequest, ApiRequests, unreachable
from .exec_session import run_command
from .exec_stream import follow_command
from .kubeconfig import Access
from .login import Credential
from .watching import ApiWatch

__all__ = ["Api", "ApiError"]

Items = list[dict[str, Any]]
Listed = tuple[Items, str]  # the items and the version of the list
PAGE, PAGES_MOST = 500, 10_000
LIST_TRIES = 3
GONE, EXISTS, MISSING = 410, 409, 404
PATCHES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}
APPLY = "application/apply-patch+yaml"  # which JSON is, too
REVIEWS = frozenset({"SelfSubjectAccessReview", "SelfSubjectRulesReview", "SubjectAccessReview", "TokenReview"})
LOG_SILENT_S, FOLLOWED_SILENT_S = 60.0, 3600.0  # a program may be silent; keep-alive finds a peer that is gone


class Api:
    """One cluster, entered by one access. Threads may use it at once. ``close`` it at the end."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.namespace = access.namespace
        self._requests = ApiRequests(access)

    def close(self) -> None:
        """Close the connections that are kept."""
        self._requests.close()

    def credential(self) -> Credential:
        """With what requests are sent at present. Raises ClusterError."""
        return self._requests.login.current()[0]

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- objects -----------------------------------------------------------------------------------------------

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Read an object. Raises ApiError, with status 404 where there is none, and ClusterError."""
        return self._ask(ApiRequest("GET", path, query or {}))[0]

    def list(self, path: str, labels: str = "") -> Listed:
        """All objects with these labels, and the version of the list, from which a watch can go on."""
        for _ in range(LIST_TRIES):
            try:
                return self._list(path, labels, PAGE)
            except ApiError as error:
                if error.status != GONE:  # the pages of one version were kept for some minutes only
                    raise
        return self._list(path, labels, 0)

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object and return it as the server has it; one that a try before has created is no error."""
        about = body.get("metadata") or {}
        repeatable = bool(about.get("name")) or body.get("kind") in REVIEWS
        request = ApiRequest("POST", path, body=_json(body), repeatable=repeatable)
        try:
            return self._ask(request)[0]
        except ApiError as error:
            if error.status != EXISTS or not error.repeated:
                raise
            found = self.get(f"{path}/{about['name']}")
            if not _is_ours(found, about):
                raise
            return found

    def patch(self, path: str, body: Any, kind: str = "merge") -> dict[str, Any]:
        """Change an object: ``kind`` is merge, strategic or json."""
        asked = ApiRequest("PATCH", path, {}, _json(body), PATCHES[kind], repeatable=kind != "json")
        return self._ask(asked)[0]

    def apply(self, path: str, body: Mapping[str, Any], manager: str, dry_run: bool = False) -> dict[str, Any]:
        """Let an object have these fields, and no others of those that ``manager`` gave it; make it if it is not there.

        Fields of other managers with other values are taken over. ``dry_run``: tell only what it would be then.
        """
        query = {"fieldManager": manager, "force": "true", **({"dryRun": "All"} if dry_run else {})}
        return self._ask(ApiRequest("PATCH", path, query, _json(body), APPLY))[0]

    def delete(self, path: str, grace_s: int | None = None, propagation: str = "Background") -> None:
        """Delete an object; that it is gone already is no error."""
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            self._ask(ApiRequest("DELETE", path, {}, _json(options)))
        except ApiError as error:
            if error.status != MISSING:
                raise

    def watch(self, path: str, labels: str = "", since: str = "", known: Iterable[dict[str, Any]] = ()) -> ApiWatch:
        """Follow objects from a version on; without one, what is there comes first, as ADDED.

        Where the server has forgotten the version, they are listed again and what has changed since is given;
        ``known``, the items of the list that ``since`` is from, lets it tell then which of them are gone.
        """
        return ApiWatch(self._requests, path, labels, since, lambda: self.list(path, labels), known)

    # -- pods --------------------------------------------------------------------------------------------------

    def logs(self, pod: str, since: str = "", follow: bool = False, container: str = "") -> Iterator[bytes]:
        """What a pod of the namespace has written, in pieces, from a moment such as 2030-01-31T12:00:00Z on.

        A log that is followed ends with its container, or with a ClusterError where the connection is lost.
        """
        query = {"sinceTime": since, "container": container, "follow": "true" if follow else ""}
        request = ApiRequest("GET", self._pod(pod, "log"), {name: value for name, value in query.items() if value})
        answer = self._requests.open(request, FOLLOWED_SILENT_S if follow else LOG_SILENT_S)
        try:
            while data := _read(answer, request, self.access):
                yield data
        finally:
            answer.close()

    def execute(
        self, pod: str, command: Sequence[str], stdin: bytes = b"", timeout_s: float = 10, container: str = ""
    ) -> tuple[int, bytes, bytes]:
        """Run a command in a pod of the namespace; return its exit status, output and errors.

        Raises ApiError where it is refused, and ClusterError where it does not end in time: it may go on in the pod.
        A command that reads ``stdin`` to its end needs a server of 1.30 or newer: older ones cannot be told the end.
        """
        query = [("command", word) for word in command]
        query += [("stdout", "true"), ("stderr", "true"), ("stdin", "true" if stdin else "false")]
        query += [("container", container)] if container else []
        request = ApiRequest("GET", self._pod(pod, "exec"), tuple(query))
        return run_command(self._requests, request, stdin, time.monotonic() + timeout_s)

    def follow(self, pod: str, command: Sequence[str], stdin: bytes = b"", silent_s: float = 30) -> Iterator[bytes]:
        """Run a command in a pod of the namespace and give what it prints as it comes, until it ends.

        Raises ApiError where it is refused, and ClusterError where it fails, is cut off, or is silent for so long.
        """
        query = [("command", word) for word in command]
        query += [("stdout", "true"), ("stderr", "true"), ("stdin", "true" if stdin else "false")]
        return follow_command(self._requests, ApiRequest("GET", self._pod(pod, "exec"), tuple(query)), stdin, silent_s)

    # -- how ---------------------------------------------------------------------------------------------------

    def _pod(self, pod: str, what: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{pod}/{what}"

    def _ask(self, request: ApiRequest) -> tuple[dict[str, Any], bool]:
        body, repeated = self._requests.ask(request)
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ClusterError(
                f"{self.access.server} answered `{request}` with something else than an object of the Kubernetes API; "
                f"is that its API server? It is the address in {self.access.source}"
            )
        return found, repeated

    def _list(self, path: str, labels: str, page: int) -> Listed:
        query = {"labelSelector": labels} if labels else {}
        query |= {"limit": str(page)} if page else {}
        items: Items = []
        for _ in range(PAGES_MOST):
            found = self.get(path, query)
            items += found.get("items") or []
            about = found.get("metadata") or {}
            if not about.get("continue"):
                return items, str(about.get("resourceVersion", ""))
            query = {**query, "continue": str(about["continue"])}
        raise ClusterError(f"the list of {path} has no end after {PAGES_MOST} pages")


def _json(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _is_ours(found: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    """Whether an object that exists is the one that an earlier try of the same request has made: its labels say so."""
    about = found.get("metadata") or {}
    return all(
        (about.get(part) or {}).get(name) == value
        for part in ("labels", "annotations")
        for name, value in (asked.get(part) or {}).items()
    )


def _read(answer: ApiAnswer, request: ApiRequest, access: Access) -> bytes:
    try:
        return answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise unreachable(access, request, error) from error
