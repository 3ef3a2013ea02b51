"""What AWS refuses, or does not answer, in plain words: bounded, and without a credential in it.

The answers are those of AWS's documentation, given by a server on loopback: moto has none of them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from jupyter_hyperpod.control.aws import connection
from tests.aws.clouds import REGION
from tests.aws.conftest import SECRET, Command
from tests.backends.kubernetes.server import CUT, scripted

LIST = ("list-cluster", "--region", REGION)
WHO = "arn:aws:sts::123456789012:assumed-role/dev/me"
DENIAL = f"User: {WHO} is not authorized to perform: sagemaker:{{}} on resource: arn:aws:x because no policy allows it"

CANONICAL = "The Canonical String for this request should have been x-amz-security-token"


@contextmanager
def answering(answers: Callable[[str], tuple[int, object]]) -> Iterator[tuple[str, list[str]]]:
    """A server that answers each action of SageMaker as `answers` says; its address, and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            action = self.headers["X-Amz-Target"].partition(".")[2]
            asked.append(action)
            status, body = answers(action)
            payload = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def silent() -> Iterator[tuple[str, socket.socket]]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", listener


@pytest.mark.parametrize(
    ("code", "message", "status", "said"),
    [
        ("ExpiredTokenException", "The security token included in the request is expired", 1, "have expired: log in"),
        ("AccessDeniedException", DENIAL.format("ListClusters"), 2, f"let {WHO} do sagemaker:ListClusters: ask"),
        ("UnrecognizedClientException", "The security token included is invalid", 1, "does not know the credentials"),
        ("InvalidSignatureException", f"{CANONICAL}:{SECRET}", 1, "this machine's clock"),
        ("SomethingNew", f"{CANONICAL}:{SECRET}", 1, "this machine's clock"),
        ("ThrottlingException", "Rate exceeded", 1, "too many requests of this account, after 3 tries"),
        ("SomethingNew", "no idea", 1, "refuses sagemaker:ListClusters in us-west-2: SomethingNew: no idea"),
    ],
)
def test_a_refusal_says_what_to_do(
    code: str, message: str, status: int, said: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(lambda action: (400, {"__type": f"com.amazon#{code}", "message": message})) as (address, asked):
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        found, out, err = command(*LIST)
    assert (found, out) == (status, "") and said in err and err.count("\n") == 1
    assert len(asked) == (3 if "Throttling" in code else 1)


def test_a_cluster_that_may_not_be_described_is_listed_with_the_reason(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = {"ClusterName": "llama", "ClusterArn": "arn:aws:x", "CreationTime": 0, "ClusterStatus": "InService"}

    def answers(action: str) -> tuple[int, object]:
        if action == "ListClusters":
            return 200, {"ClusterSummaries": [summary]}
        return 400, {"__type": "AccessDeniedException", "message": DENIAL.format(action)}

    with answering(answers) as (address, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        status, out, _ = command(*LIST)
        assert status == 0 and "InService  ?" in out and "do sagemaker:DescribeCluster: ask" in out
        assert "sagemaker:DescribeCluster" in command("describe-cluster", "llama", "--region", REGION)[2]


def test_who_does_not_answer_is_not_waited_for(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "READ_S", 0.05)
    with silent() as (address, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        status, _, err = command("list-cluster", "--region", "us-wets-2")
    assert status == 1 and "does not answer in us-wets-2 (did you mean us-west-2?), after 3 tries" in err


def test_a_certificate_of_somebody_else_is_not_trusted(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(lambda number: CUT) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{server.port}")
        status, _, err = command(*LIST)
    assert status == 1 and server.asked == [] and "is not trusted: where a proxy" in err


def test_ctrl_c_ends_it_at_once(home: Path) -> None:
    with silent() as (address, listener):
        environment = {**os.environ, "AWS_ENDPOINT_URL": address}
        words = [sys.executable, "-m", "jupyter_hyperpod", *LIST]
        with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as process:
            listener.settimeout(60)
            asked, _ = listener.accept()  # it waits for an answer now
            with asked:
                began_s = time.monotonic()
                process.send_signal(signal.SIGINT)
                said = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "Traceback" not in said and time.monotonic() - began_s < 15


def test_what_is_missing_is_named(command: Command, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no region of AWS is known: give --region" in command("list-cluster", "--provider", "aws")[2]
    monkeypatch.setenv("AWS_REGION", "us west")
    assert "is no region of AWS" in command("list-cluster", "--provider", "aws")[2]
    (home / ".aws").mkdir()
    (home / ".aws" / "config").write_text("[profile research]\nregion = us-west-2\n")
    monkeypatch.setenv("AWS_PROFILE", "reserch")
    assert "no profile 'reserch' (did you mean research?)" in command(*LIST)[2]
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    assert "no credentials for AWS are known: log in" in command(*LIST)[2]


def test_what_a_program_for_credentials_says_is_not_shown(
    command: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    (home / ".aws").mkdir()
    script = f"{sys.executable} -c \"import sys; sys.exit('{SECRET}')\""
    (home / ".aws" / "config").write_text(f"[default]\ncredential_process = {script}\n")
    status, _, err = command(*LIST)
    assert status == 1 and "CredentialRetrievalError" in err and "log in again" in err


@pytest.mark.parametrize(
    "words", [("list-cluster", "--provider", "aws"), ("set-cluster-context", "--cluster-name", "x")]
)
def test_a_missing_boto3_is_named_with_its_extra(words: tuple[str, ...], home: Path) -> None:
    code = (
        "import sys; sys.modules['boto3'] = None; from jupyter_hyperpod.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: boto3 is not installed: pip install 'jupyter_hyperpod[aws]'\n"


@pytest.mark.parametrize("words", [("list-cluster",), ("get-cluster-context",), ("list-cluster", "--help")])
def test_who_does_not_ask_aws_does_not_import_its_library(words: tuple[str, ...], home: Path) -> None:
    code = (
        "import sys\nfrom jupyter_hyperpod.cli import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
        "sys.exit('boto3' in sys.modules or 'botocore' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
