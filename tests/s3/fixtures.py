"""Real object stores for the tests: one of each kind a session, empty, reachable from this host only.

seaweedfs, rclone_s3   check signatures; `tests.support.s3_servers.S3Server`
lean_s3                the benchmark's own: any file put under its ``root`` is an object
seaweedfs_tls          SeaweedFS behind TLS; clients must trust its ``certificate``
fault_proxy            fault_proxy(server, Faults(…)) puts a `FaultProxy` in front of one of them for this test
environment_of         environment_of(server): this process reaches it as AWS, by environment variables
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import s3_servers
from tests.support.faulty_proxy import NONE, FaultProxy, Faults
from tests.support.s3_servers import S3Server

AWS = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CA_BUNDLE", "AWS_ENDPOINT_URL_S3")


@contextmanager
def shared(start: Callable[..., AbstractContextManager[S3Server]], *arguments: Any) -> Iterator[S3Server]:
    """Start a server for the whole session."""
    from tests.conftest import SHARED_MARK  # which loads this module as a plugin

    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(SHARED_MARK, "s3")  # it outlives the test that asks for it first
            server = stack.enter_context(start(*arguments))
        yield server


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[S3Server]:
    """SeaweedFS."""
    with shared(s3_servers.seaweedfs) as server:
        yield server


@pytest.fixture(scope="module")  # it uses a twentieth of a core while nobody asks it anything
def rclone_s3() -> Iterator[S3Server]:
    """``rclone serve s3``."""
    with shared(s3_servers.rclone) as server:
        yield server


@pytest.fixture(scope="session")
def lean_s3() -> Iterator[S3Server]:
    """The lean server."""
    with shared(s3_servers.lean) as server:
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A certificate of 127.0.0.1, its key, and the authority that clients have to trust."""
    import trustme

    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    paths = (directory / "server.pem", directory / "server.key", directory / "authority.pem")
    paths[1].touch(0o600)
    issued.cert_chain_pems[0].write_to_path(paths[0])
    issued.private_key_pem.write_to_path(paths[1])
    authority.cert_pem.write_to_path(paths[2])
    return paths


@pytest.fixture(scope="session")
def seaweedfs_tls(certificates: tuple[Path, Path, Path]) -> Iterator[S3Server]:
    """SeaweedFS behind TLS."""
    with shared(s3_servers.seaweedfs, certificates) as server:
        yield server


@pytest.fixture
def fault_proxy() -> Iterator[Callable[..., tuple[FaultProxy, S3Server]]]:
    """Put a proxy in front of a server: returns the proxy, and the server as it is seen through it."""
    with ExitStack() as stack:

        def make(server: S3Server, faults: Faults = NONE) -> tuple[FaultProxy, S3Server]:
            proxy = stack.enter_context(FaultProxy(("127.0.0.1", server.port), faults))
            return proxy, dataclasses.replace(server, endpoint=proxy.endpoint)

        yield make


@pytest.fixture
def environment_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[S3Server], None]:
    """Set the variables that lead AWS clients of this process to a server, and none that lead them elsewhere."""

    def set_all(server: S3Server) -> None:
        for name in AWS:
            monkeypatch.delenv(name, raising=False)
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            monkeypatch.setenv(name, "/nonexistent")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)

    return set_all
