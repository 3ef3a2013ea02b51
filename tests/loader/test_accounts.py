"""Keys that are replaced while a load or a save goes on: the new ones are read, and nobody hears of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from botocore.exceptions import ClientError
from botocore.session import Session

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import LoaderError
from jupyter_hyperpod.loader.read.s3 import Account
from jupyter_hyperpod.loader.read.source import Options
from tests.loader.models import assert_same, decoder, encoded
from tests.loader.ranges import Answer, Request, serving
from tests.support.s3_servers import S3Server

STATE = {f"layers.{i}.w": torch.full((1_000_000,), i, dtype=torch.float32) for i in range(10)}
EXPIRED = Answer(400, b"<Error><Code>ExpiredToken</Code></Error>")
TOO_OLD = Answer(403, b"<Error><Code>RequestTimeTooSkewed</Code></Error>")
Rotate = Callable[[str, str], None]


@pytest.fixture
def rotate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rotate:
    """Write a key and its secret to the file that AWS clients read."""
    path = tmp_path / "credentials"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    def write(key: str, secret: str) -> None:
        new = path.with_suffix(".new")
        new.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
        new.replace(path)

    return write


class Rotating:
    """Accepts one key for `most` requests and then only the next one, which the file has by then."""

    def __init__(self, rotate: Rotate, most: int, last: int) -> None:
        self.number = 0
        self._rotate, self._most, self._last = rotate, most, last
        self._served = 0
        self._lock = threading.Lock()
        rotate("KEY0", "secret")

    def answer(self, request: Request, answer: Answer) -> Answer:
        with self._lock:
            if self._served >= self._most and self.number < self._last:
                self.number, self._served = self.number + 1, 0
                self._rotate(f"KEY{self.number}", "secret")
            if f"Credential=KEY{self.number}/".encode() not in request.head:
                return EXPIRED
            self._served += 1
            return answer


@pytest.mark.parametrize("connections", [1, 8])
def test_keys_that_are_rotated_again_and_again_while_a_model_is_loaded(rotate: Rotate, connections: int) -> None:
    with serving({"/bucket/m.safetensors": encoded(STATE)}) as server:
        keys = Rotating(rotate, 2, 3)
        server.misbehave = keys.answer
        found = hp.load_model("s3://bucket/m.safetensors", endpoint_url=server.url, connections=connections)
    assert_same(found, STATE)
    assert keys.number == 3


@pytest.mark.parametrize("left", ["the same", "nothing", "a half"])
def test_expired_keys_that_nobody_has_replaced(left: str, rotate: Rotate, tmp_path: Path) -> None:
    rotate("KEY0", "secret")

    def refuse(request: Request, answer: Answer) -> Answer:
        if left != "the same":
            (tmp_path / "credentials").write_text("" if left == "nothing" else "[default]\naws_access_key_id = KEY1\n")
        return EXPIRED

    with serving({}) as server:
        server.misbehave = refuse
        with pytest.raises(LoaderError, match=r"ExpiredToken \(status 400\)"):
            hp.load_model("s3://bucket/m.safetensors", endpoint_url=server.url)
        assert len(server.requests) == 1


def test_a_mounts_profile_comes_before_the_keys_of_the_environment(
    rotate: Rotate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "credentials").write_text("[team]\naws_access_key_id = TEAM\naws_secret_access_key = secret\n")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "MINE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    options = Options(region="x", endpoint_url="http://host")
    for account, key in (Account(options), "MINE"), (Account(options, lambda: {"AWS_PROFILE": "team"}), "TEAM"):
        assert f"Credential={key}/" in account.sign("GET", "http://host/bucket/key")["Authorization"]


def test_a_profile_that_is_not_there(rotate: Rotate, monkeypatch: pytest.MonkeyPatch) -> None:
    rotate("KEY0", "secret")
    monkeypatch.setenv("AWS_PROFILE", "nowhere")
    with pytest.raises(LoaderError, match=r"profile \(nowhere\) could not be found.*aws sso login"):
        hp.load_model("s3://bucket/m.safetensors", endpoint_url="http://127.0.0.1:1")


@pytest.mark.parametrize("lives", ["never", "once"])
def test_a_process_that_gives_no_key(
    lives: str, rotate: Rotate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it gives one that has soon expired, the next request cannot be signed."""
    key, soon = tmp_path / "key", datetime.now(UTC) + timedelta(minutes=5)
    given = {"Version": 1, "AccessKeyId": "KEY", "SecretAccessKey": "secret", "Expiration": soon.isoformat()}
    key.write_text(json.dumps(given))
    command = f'sh -c "cat {key} && rm {key}"' if lives == "once" else "/nonexistent"
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {command}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with serving({}) as server, pytest.raises(LoaderError, match="AWS credentials: found none"):
        hp.load_model("s3://bucket/m.safetensors", endpoint_url=server.url)


def test_a_role_that_may_not_be_assumed(rotate: Rotate, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(session: Session) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "AssumeRole")

    rotate("KEY0", "secret")
    monkeypatch.setattr(Session, "get_credentials", refuse)
    with pytest.raises(LoaderError, match="AccessDenied.*AssumeRole"):
        hp.save_model(STATE, "s3://bucket/m.safetensors", endpoint_url="http://127.0.0.1:1")


@pytest.fixture
def numbered(rotate: Rotate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each signature carries its number: two of the same second are alike."""
    numbers, sign = count(), Account.sign
    monkeypatch.setattr(Account, "sign", lambda *rest: sign(*rest) | {"X-Number": f"{next(numbers)}."})
    rotate("KEY0", "secret")


@pytest.mark.usefixtures("numbered")
def test_a_signature_that_is_too_old_for_all_connections_at_once() -> None:
    together = threading.Barrier(4)

    def misbehave(request: Request, answer: Answer) -> Answer:
        if request.number and b"X-Number: 0." in request.head:
            together.wait(50)
            return TOO_OLD
        return answer

    with serving({"/bucket/m.safetensors": encoded(STATE)}) as server:
        server.misbehave = misbehave
        found = hp.load_model("s3://bucket/m.safetensors", endpoint_url=server.url, connections=4)
    assert_same(found, STATE)


@pytest.mark.usefixtures("numbered")
def test_a_clock_that_is_wrong() -> None:
    with serving({}) as server:
        server.misbehave = lambda request, answer: TOO_OLD
        with pytest.raises(LoaderError, match=r"RequestTimeTooSkewed \(status 403\)"):
            hp.load_model("s3://bucket/m.safetensors", endpoint_url=server.url)
        assert len(server.requests) == 2


@pytest.mark.s3
def test_keys_that_are_rotated_while_a_model_is_saved(
    seaweedfs: S3Server,
    environment_of: Callable[[S3Server], None],
    rotate: Rotate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server does not know the old key at all; the file is replaced when that is noticed."""
    environment_of(seaweedfs)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    rotate(seaweedfs.access_key, seaweedfs.secret_key)
    state, url = decoder(blocks=2), f"{seaweedfs.url}/rotated.safetensors"
    hp.save_model(state, url)
    rotate("OLD", "secret")
    renew, seen = Account.renew, threading.Event()

    def replaced(account: Account, *rest: Any) -> Any:
        seen.set()
        rotate(seaweedfs.access_key, seaweedfs.secret_key)
        return renew(account, *rest)

    monkeypatch.setattr(Account, "renew", replaced)
    changed = {name: tensor + 1 for name, tensor in state.items()}
    hp.save_model(changed, url)
    assert seen.is_set()
    assert_same(hp.load_model(url), changed)
