"""Replicas that load their model from a real object store: by the mount table's keys, which are told to nobody else."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.serving.replicas import write_decoder as write_random_decoder
from jupyter_hyperpod.control import deploy, jobs
from jupyter_hyperpod.core.errors import ClusterError
from jupyter_hyperpod.core.mount_spec import MountSpec
from jupyter_hyperpod.mounts import block_cache, table
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.system.processes import descendants
from tests.serving.conftest import end, start, write_decoder
from tests.support import ROOT
from tests.support.s3_servers import S3Server, ask

pytestmark = pytest.mark.s3


@pytest.fixture
def bucket(shared_cluster: Store, seaweedfs: S3Server, tmp_path: Path) -> Iterator[Store]:
    """The cluster with the server's bucket in its mount table as ``weights``."""
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text(f"AWS_ACCESS_KEY_ID={seaweedfs.access_key}\nAWS_SECRET_ACCESS_KEY={seaweedfs.secret_key}\n")
    spec = MountSpec(
        "weights", "", "", driver="s3", source=seaweedfs.url, credentials=str(keys),
        options={"endpoint": seaweedfs.endpoint, "region": seaweedfs.region},
    )  # fmt: skip
    table.add(shared_cluster, spec)
    try:
        yield shared_cluster
    finally:
        table.remove(shared_cluster, spec.name)


def test_a_model_in_a_bucket_is_served_as_one_on_disk(bucket: Store, seaweedfs: S3Server, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    folder = write_decoder(tmp_path / "tiny")
    for path in folder.iterdir():
        seaweedfs.put(f"tiny/{path.name}", path)
    begun, said = [], []
    try:
        for model in (str(folder), f"{seaweedfs.url}/tiny", "shared://weights/tiny"):
            found = start(bucket, model, name="from-bucket")
            begun.append(found.job_id)
            reply = found.complete("hello", max_tokens=12, seed=5)
            said.append(reply.json()["choices"])
            for file in found.store.job(found.job_id).path.rglob("*"):
                assert not file.is_file() or seaweedfs.secret_key.encode() not in file.read_bytes(), file
            end(bucket, [found.job_id])
    finally:
        end(bucket, begun)
    assert said[0] == said[1] == said[2]


def test_an_engine_has_the_model_of_a_bucket_as_files_and_no_keys(
    bucket: Store, seaweedfs: S3Server, tmp_path: Path
) -> None:
    for name in ("weights", "more/config"):
        (tmp_path / "file").write_text(name)
        seaweedfs.put(f"engine/{name}", tmp_path / "file")
    command = f"{sys.executable} {ROOT}/tests/support/openai_server.py {{model}}/weights --port {{port}}"
    kept = tmp_path / "kept"
    found = start(
        bucket, f"{seaweedfs.url}/engine", engine=command, name="files", env={block_cache.DIRECTORY_VARIABLE: str(kept)}
    )
    try:
        (folder,) = [path for path in (kept / "models").iterdir() if path.is_dir()]
        assert {(folder / name).read_text() for name in ("weights", "more/config")} == {"weights", "more/config"}
        assert found.complete("hello").status == 200
        for pid in descendants(found.pids()[0]):
            told = Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()
            assert seaweedfs.secret_key.encode() not in told
    finally:
        end(bucket, [found.job_id])


def test_a_bucket_without_the_model_ends_the_deployment_with_the_reason(bucket: Store) -> None:
    job_id = deploy.serve(bucket, "shared://weights/nothing", recipe="llama-tiny", name="absent")
    with pytest.raises(ClusterError, match="failed: the model cannot be served: s3://models/nothing"):
        deploy.wait_ready(bucket, job_id, 60)
    view = jobs.job_view(bucket, job_id)
    assert view["error"]["type"] == "LoaderError"


def test_a_new_replica_has_its_weights_from_the_one_beside_it(
    shared_cluster: Store, lean_s3: S3Server, tmp_path: Path, eventually: Callable[..., object]
) -> None:
    assert lean_s3.root is not None
    size = (write_random_decoder(lean_s3.root / "wide", 4, 256) / "model.safetensors").stat().st_size
    found = start(shared_cluster, f"{lean_s3.url}/wide", name="beside", replicas="1:2", env=lean_s3.environment)
    try:
        before = ask(lean_s3.process)["body_bytes"]
        assert before >= size
        jobs.scale(found.store, found.job_id, 2)
        eventually(lambda: found.health().get("ready") == 2)
        assert ask(lean_s3.process)["body_bytes"] - before < size / 10
        pids = found.pids()
        os.kill(pids[0], signal.SIGKILL)
        eventually(lambda: pids[0] not in found.pids() and len(found.pids()) == 2)
        assert ask(lean_s3.process)["body_bytes"] - before < size / 5
        assert found.complete().status == 200
    finally:
        end(found.store, [found.job_id])
