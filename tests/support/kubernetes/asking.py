"""What `kubectl get` asks for, asked by this process: tests ask again and again, and each kubectl is a process of its
own that takes a tenth of a second of processor time."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from jupyter_hyperpod.core.errors import ClusterError

BASES = {
    "/api/v1": "configmaps namespaces nodes persistentvolumeclaims pods resourcequotas secrets serviceaccounts",
    "/apis/apps/v1": "daemonsets",
    "/apis/batch/v1": "jobs",
    "/apis/rbac.authorization.k8s.io/v1": "clusterrolebindings",
}
KINDS = {kind: base for base, kinds in BASES.items() for kind in kinds.split()}
OF_NO_NAMESPACE = ("clusterrolebindings", "namespaces", "nodes")
ANSWER_S = 30.0


class Refused(ClusterError):
    """The API server has refused: ``status`` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Access:
    """What is in a kubeconfig of a testbed."""

    server: str
    authority: str
    namespace: str
    token: str

    @classmethod
    def of(cls, kubeconfig: Path) -> Access:
        """Read it: `settings.kubeconfig` has written it."""
        text = kubeconfig.read_text()
        names = ("server", "certificate-authority", "namespace", "token")
        return cls(*(re.findall(rf'\b{name}: "?([^"}},\s]+)', text)[0] for name in names))


class Asker:
    """Asks as several people, over one connection each; ``close`` it at the end."""

    def __init__(self, kubeconfig: Callable[[str], Path], network: Callable[[], AbstractContextManager[None]]) -> None:
        """``network``: in which connections are made."""
        self._kubeconfig, self._network = kubeconfig, network
        self._links: dict[str, http.client.HTTPSConnection] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connections."""
        while self._links:
            self._links.popitem()[1].close()

    def get(self, user: str, *words: str) -> dict[str, Any] | None:
        """What `kubectl get WORD …` says, as data; None where it has to be asked: it knows more words, and is patient.

        Raises Refused.
        """
        access = Access.of(self._kubeconfig(user))
        target = address(words, access.namespace)
        body = target and self._ask(user, access, target)
        found: dict[str, Any] | None = json.loads(body) if body else None
        return found

    def log(self, user: str, pod: str) -> str:
        """What a pod of the user's namespace has written; "" where the server is away. Raises Refused."""
        access = Access.of(self._kubeconfig(user))
        return (self._ask(user, access, f"/api/v1/namespaces/{access.namespace}/pods/{pod}/log") or b"").decode()

    def _ask(self, user: str, access: Access, target: str) -> bytes | None:
        token = {"Authorization": f"Bearer {access.token}"}
        with self._lock:
            for _ in range(2):  # a connection that was kept may have ended meanwhile
                link = self._links.pop(user, None)
                try:
                    if link is None:
                        link = self._connect(access)
                    link.request("GET", target, headers=token)
                    answer = link.getresponse()
                    body = answer.read()
                except (OSError, http.client.HTTPException):
                    if link is not None:
                        link.close()
                    continue
                self._links[user] = link
                if answer.status >= http.HTTPStatus.BAD_REQUEST:
                    raise Refused(answer.status, f"{target}: {answer.status} {body.decode(errors='replace')}")
                return body
        return None

    def _connect(self, access: Access) -> http.client.HTTPSConnection:
        server, context = urlsplit(access.server), ssl.create_default_context()
        context.load_verify_locations(access.authority)
        link = http.client.HTTPSConnection(server.hostname or "", server.port, timeout=ANSWER_S, context=context)
        with self._network():
            link.connect()
        link.auto_open = 0  # it would be in another network
        return link


def address(words: Sequence[str], namespace: str) -> str:
    """The path and the query for `kubectl get WORD …`; "" for words that are not known here. Pure."""
    names, options = [], {"-n": namespace, "-l": ""}
    left = iter(words)
    for word in left:
        if word in options:
            options[word] = next(left)
        else:
            names.append(word)
    kind = names[0] if names[0].endswith("s") else f"{names[0]}s"
    if kind not in KINDS or len(names) > 2 or any(name.startswith("-") for name in names):
        return ""
    place = "" if kind in OF_NO_NAMESPACE else f"/namespaces/{options['-n']}"
    query = f"?{urlencode({'labelSelector': options['-l']})}" if options["-l"] else ""
    return "/".join([f"{KINDS[kind]}{place}", kind, *names[1:]]) + query
