"""Reads the environment of a gateway or a replica, and checks the tokens that requests show."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import ClusterError, SpecError
from ..core.spec import TURN_VARIABLE, JobSpec, ServeSpec
from ..storage import endpoint
from ..storage.endpoint import Endpoint
from ..storage.store import ENDPOINT_FILE, JobStore
from ..system.addresses import BIND_VARIABLE, LOOPBACK, is_loopback, own_address
from ..system.encryption import BETWEEN_HOSTS, encryption_context, encryption_mode

HOST_VARIABLE, HOST = BIND_VARIABLE, LOOPBACK
REPLICA_PATH = "/-/replica"
AUTHORIZATION = "Authorization"
REQUEST_LIMIT_BYTES, ANSWER_LIMIT_BYTES = 16 << 20, 64 << 20
REQUEST_ID, CREATED = "X-Request-Id", "X-Hyperpod-Created"
FROM_ENGINE = "X-Hyperpod-Engine"  # the answer is the engine's own, whatever its status
MODELS_PATH = "/v1/models"
ENGINE_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
STREAM = "text/event-stream"
SHOWN = 60  # letters of a value in an error


@dataclass(frozen=True, slots=True)
class Site:
    """The deployment this process belongs to and the node it runs on."""

    job: JobStore
    node: str
    cell: Path
    spec: JobSpec
    serve: ServeSpec

    @classmethod
    def from_environment(cls) -> Site:
        """Read $HYPERPOD_JOB_DIR, _NODE and _CELL. Raises ClusterError, or SpecError for another job."""
        try:
            job = JobStore(Path(os.environ["HYPERPOD_JOB_DIR"]))
            cell, node = Path(os.environ["HYPERPOD_CELL"]), os.environ["HYPERPOD_NODE"]
        except KeyError as error:
            raise ClusterError(
                f"${error.args[0]} is not set: this module is started by a backend, not by hand"
            ) from error
        spec = job.spec()
        if spec.serve is None:
            raise SpecError(f"{job.id} is a job that trains; expected a deployment")
        return cls(job, node, cell, spec, spec.serve)

    @property
    def asked_host(self) -> str:
        """Where to listen for the other side: loopback, unless the backend says otherwise."""
        return os.environ.get(HOST_VARIABLE, HOST)

    @property
    def turn(self) -> int:
        """The turn of the host on which this gateway runs: one of a later turn replaces it."""
        return int(os.environ.get(TURN_VARIABLE, 0))

    def host(self) -> str:
        """The address to listen at for the other side. Raises OSError where it follows from the gateway's, as long as
        there is none."""
        return own_address(self.asked_host, self.endpoint_file)

    def encryption(self, host: str, place: str, *, calls: bool) -> ssl.SSLContext | None:
        """What encrypts connections to a place ("gateway", or a replica's name) at this address; None where nothing
        does. Both sides have to know the job's secret.

        Raises TrainingError where this host cannot encrypt, OSError.
        """
        mode = encryption_mode()
        if mode == "on" or (mode == BETWEEN_HOSTS and not is_loopback(host)):
            return encryption_context(self.job.secret(), f"deployment: {place}".encode(), calls=calls)
        return None

    @property
    def endpoint_file(self) -> Path:
        """The file with the gateway's address; the supervisor sees by its changes that the gateway is alive."""
        return self.job.path / ENDPOINT_FILE

    def endpoint(self) -> Endpoint | None:
        """Where the newest gateway listens; None where there is none, or the deployment has ended."""
        try:
            return endpoint.read(self.endpoint_file)
        except (OSError, ValueError):
            return None

    @property
    def model_names(self) -> tuple[str, ...]:
        """What a request may call the model; none where the engine itself says what its models are called."""
        engine = self.serve.engine
        return () if engine is not None and not engine.model_name else (self.spec.name, self.serve.model)

    def pass_between(self) -> str:
        """The token between gateway and replicas, which differs from the clients' token."""
        return bearer(hmac.new(self.job.secret(), b"gateway and replica", hashlib.sha256).hexdigest())


def bearer(token: str) -> str:
    """The value of the Authorization header."""
    return f"Bearer {token}"


def shows(header: str | None, expected: str) -> bool:
    """Whether a request's Authorization header has the expected value, in constant time."""
    return header is not None and hmac.compare_digest(header.encode(), expected.encode())


def error_body(status: int, message: str, **more: str) -> dict[str, Any]:
    """An error in the form of OpenAI's API."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "code": status} | more}


def shown(value: Any) -> str:
    """A value of a request as its sender wrote it, cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
