"""A command line with made-up credentials for AWS, which must not be shown."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from moto import mock_aws

from jupyter_hyperpod.cli import main

Command = Callable[..., tuple[int, str, str]]
SECRET = "a-secret-nobody-may-see"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {"HOME": tmp_path, "KUBECONFIG": tmp_path / "kube" / "config", "COLUMNS": "200"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET)
    return tmp_path


@pytest.fixture
def aws(home: Path) -> Iterator[None]:
    with mock_aws(config={"core": {"mock_credentials": False}}):
        yield


@pytest.fixture
def command(home: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*words: str) -> tuple[int, str, str]:
        status = main(["--store", str(home / "store"), *words])
        done = capsys.readouterr()
        assert SECRET not in done.out + done.err
        return status, done.out, done.err

    return run
