"""Clients of a deployment: one that asks, and many that ask at a steady rate whatever comes back."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from jupyter_hyperpod.control import deploy
from jupyter_hyperpod.control.jobs import job_view
from jupyter_hyperpod.storage.store import Store

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back, and how long it took; ``status`` 0 where the connection was lost."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    took_s: float

    def json(self) -> Any:
        """The answer's JSON."""
        return json.loads(self.content)


@dataclass(frozen=True, slots=True)
class Client:
    """Asks one deployment."""

    host: str
    port: int
    token: str

    @classmethod
    def of(cls, store: Store, job_id: str) -> Client:
        """The client of a deployment that answers."""
        address = urlsplit(job_view(store, job_id)["deployment"]["url"])
        token = deploy.token_file(store, job_id).read_text()
        return cls(address.hostname or "", address.port or 0, token)

    def ask(
        self,
        path: str,
        body: Any = None,
        *,
        request_id: str = "",
        token: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Reply:
        """GET ``path``, or POST where there is a ``body`` (JSON, or bytes as they are). Never raises for an answer."""
        chosen = self.token if token is None else token
        headers = {"Authorization": f"Bearer {chosen}"} if chosen else {}
        headers |= {"X-Request-Id": request_id} if request_id else {}
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        began_s = time.monotonic()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            connection.request("GET" if content is None else "POST", path, content, headers)
            answer = connection.getresponse()
            found = answer.read()
            return Reply(answer.status, dict(answer.getheaders()), found, time.monotonic() - began_s)
        except (OSError, http.client.HTTPException) as error:
            return Reply(0, {}, repr(error).encode(), time.monotonic() - began_s)
        finally:
            connection.close()


@dataclass
class Drive:
    """Requests at a steady rate: each is sent when it is due, whether or not the ones before have been answered."""

    client: Client
    path: str
    body: Callable[[int], Any]
    rate: float
    replies: list[Reply] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self, seconds: float) -> list[Reply]:
        """Send requests for so many seconds (or until `stop`) and return every reply."""
        began_s = time.monotonic()
        with ThreadPoolExecutor(max_workers=64) as threads:
            sent = []
            for number in range(round(seconds * self.rate)):
                if self._over.wait(max(0.0, began_s + number / self.rate - time.monotonic())):
                    break
                sent.append(threads.submit(self.client.ask, self.path, self.body(number)))
            self.replies = [one.result() for one in sent]
        return self.replies

    def stop(self) -> None:
        """Send no more."""
        self._over.set()
