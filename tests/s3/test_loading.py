"""Models from real object stores, reached as the environment says."""

from __future__ import annotations

from pathlib import Path

import pytest

import jupyter_hyperpod as hp
from tests.loader.models import assert_same, decoder, encoded
from tests.support.s3_servers import S3Server

STATE = decoder()


@pytest.fixture
def store(request: pytest.FixtureRequest) -> S3Server:
    server: S3Server = request.getfixturevalue(request.param)
    return server


@pytest.mark.s3
@pytest.mark.parametrize("store", ["seaweedfs", "seaweedfs_tls", "rclone_s3"], indirect=True)
def test_a_model_in_a_real_store(store: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(encoded(STATE))
    store.put("real/model.safetensors", file)
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    assert_same(hp.load_model(f"{store.url}/real/model.safetensors"), STATE)
