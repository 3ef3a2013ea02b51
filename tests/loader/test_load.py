"""`load_model`: the same bytes as the format's own library gives, from everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
import torch

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import LoaderError, SpecError
from jupyter_hyperpod.loader.read import pace
from jupyter_hyperpod.loader.read.plan import CHUNK_BYTES, EARLY_BYTES
from jupyter_hyperpod.loader.read.progress import LoadProgress
from jupyter_hyperpod.loader.read.source import Options
from tests.loader.models import Net, assert_same, decoder, encoded
from tests.loader.ranges import serving

STATE = decoder()
CONTENT = encoded(STATE)


def test_a_local_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(CONTENT)
    for url in (str(path), path.as_uri(), str(tmp_path), path, tmp_path):
        assert_same(hp.load_model(url), STATE)


def test_what_is_loaded_can_be_written_and_the_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(CONTENT)
    loaded = hp.load_model(str(path))
    for tensor in loaded.values():
        tensor.zero_()
    assert path.read_bytes() == CONTENT
    assert_same(hp.load_model(str(path)), STATE)


def test_over_http_and_as_an_object_of_a_bucket() -> None:
    with serving({"/bucket/model.safetensors": CONTENT}) as server:
        assert_same(hp.load_model(f"{server.url}/bucket/model.safetensors"), STATE)
        anonymous = Options(anonymous=True, endpoint_url=server.url)
        assert_same(hp.load_model("s3://bucket/model.safetensors", options=anonymous), STATE)


def test_requests_are_signed_with_the_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-real-key")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    with serving({"/bucket/dir%20x/model.safetensors": CONTENT}) as server:
        assert_same(hp.load_model("s3://bucket/dir x/model.safetensors", endpoint_url=server.url), STATE)
        heads = [request.head.decode() for request in server.requests]
    assert all("Credential=AKIDEXAMPLE/" in head and "/eu-west-1/s3/aws4_request" in head for head in heads)
    assert not any("range" in head.partition("SignedHeaders=")[2].partition(",")[0] for head in heads)


ALL_IMPORTED = """
import sys
from jupyter_hyperpod.loader import model
from jupyter_hyperpod.loader.read import local, s3

s3.signing()
before = set(sys.modules)
for url in sys.argv[2:]:
    model.load_model(url, endpoint_url=sys.argv[1])
print(*sorted(set(sys.modules) - before))
"""


def test_a_load_imports_nothing_of_the_mounts_that_it_is_not_from(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(CONTENT)
    keys = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "not-a-real-key", "AWS_REGION": "eu-west-1"}
    with serving({"/bucket/model.safetensors": CONTENT}) as server:
        urls = ["s3://bucket/model.safetensors", f"{server.url}/bucket/model.safetensors", str(path)]
        command = [sys.executable, "-c", ALL_IMPORTED, server.url, *urls]
        done = subprocess.run(command, env={**os.environ, **keys}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []  # one import takes longer than a request


def test_through_fsspec() -> None:
    files = fsspec.filesystem("memory")
    files.pipe_file("/models/model.safetensors", CONTENT)
    try:
        assert_same(hp.load_model("memory://models/model.safetensors"), STATE)
        with pytest.raises(LoaderError, match="nothing"):
            hp.load_model("memory://models/other.safetensors")
    finally:
        files.rm("/models", recursive=True)


def test_shards_with_an_index() -> None:
    names = sorted(STATE)
    shards = {f"model-{i}.safetensors": {name: STATE[name] for name in names[i::3]} for i in range(3)}
    weights = {name: file for file, shard in shards.items() for name in shard}
    objects = {f"/m/{file}": encoded(shard) for file, shard in shards.items()}
    objects["/m/model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": weights}).encode()
    with serving(objects) as server:
        assert_same(hp.load_model(f"{server.url}/m"), STATE)
        assert_same(hp.load_model(f"{server.url}/m/model.safetensors.index.json"), STATE)
        objects["/m/model-1.safetensors"] = objects["/m/model-0.safetensors"]
        with pytest.raises(LoaderError, match="as the index says"):
            hp.load_model(f"{server.url}/m")


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("scheme", ["http", "file"])
def test_each_tensor_parallel_rank_reads_its_slices_and_little_else(
    size: int, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "HEDGE_FLOOR_S", 60.0)  # what a busy machine delays is not asked for again
    state = decoder(width=128, inner=200, words=2001, blocks=3)
    content = encoded(state)
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with serving({"/model.safetensors": content}) as server:
        url = f"{server.url}/model.safetensors" if scheme == "http" else str(path)
        parts = [hp.load_model(url, tp=(rank, size)) for rank in range(size)]
        share = sum(tensor.nbytes for tensor in parts[0].values())
        if scheme == "http":
            opening = 65536 * size  # the header's request
            assert server.sent <= 1.05 * share * size + opening
    for name, tensor in state.items():
        dim = 1 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0
        whole = "norm" in name
        for rank, piece in enumerate(part[name] for part in parts):
            assert torch.equal(piece, tensor if whole else tensor.tensor_split(size, dim)[rank]), name


def test_rules_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    state = {"a.weight": torch.arange(60).reshape(3, 20, 1), "b": torch.arange(10)}
    path.write_bytes(encoded(state))
    rules = [(r"^a\.weight$", 1, 4)]
    found = [hp.load_model(str(path), tp=(rank, 3), tp_rules=rules) for rank in range(3)]
    assert [part["a.weight"].shape[1] for part in found] == [8, 8, 4]
    assert torch.equal(torch.cat([part["a.weight"] for part in found], 1), state["a.weight"])
    assert all(torch.equal(part["b"], state["b"]) for part in found)
    with pytest.raises(SpecError, match="dimension 3"):
        hp.load_model(str(path), tp=(0, 2), tp_rules=[("a", 3)])
    with pytest.raises(SpecError, match="rank"):
        hp.load_model(str(path), tp=(2, 2))


def test_progress_is_told_and_ends_complete(tmp_path: Path) -> None:
    told: list[LoadProgress] = []
    with serving({"/model.safetensors": CONTENT}) as server:
        hp.load_model(f"{server.url}/model.safetensors", progress=told.append)
    last = told[-1]
    assert last.done
    assert last.bytes_done == last.bytes_total == sum(tensor.nbytes for tensor in STATE.values())
    assert last.tensors_done == last.tensors_total == len(STATE)
    assert 0 < (last.first_layer_s or 0) <= last.elapsed_s
    assert [p.bytes_done for p in told] == sorted(p.bytes_done for p in told)


def test_the_callers_callback_may_end_the_load(tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def stop(progress: LoadProgress) -> None:
        raise Enough

    with serving({"/model.safetensors": CONTENT}) as server, pytest.raises(Enough):
        hp.load_model(f"{server.url}/model.safetensors", progress=stop)


def test_into_a_model_in_place_also_from_the_meta_device(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    source = Net()
    state = {name: tensor for name, tensor in source.state_dict().items() if name != "head.weight"}
    path.write_bytes(encoded(state))
    with torch.device("meta"):
        model = Net()
    model.embed.weight.requires_grad_(False)
    assert hp.load_model(str(path), model=model) is model
    assert_same(dict(model.state_dict()), dict(source.state_dict()))
    assert model.head.weight is model.embed.weight
    assert not model.embed.weight.requires_grad
    assert isinstance(model.norm.weight, torch.nn.Parameter)


def test_weights_of_another_model_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    state = dict(Net().state_dict())
    del state["head.weight"]
    path = tmp_path / "model.safetensors"
    cases = {
        r"no norm\.bias": {name: tensor for name, tensor in state.items() if name != "norm.bias"},
        r"also extra": state | {"extra": torch.zeros(1)},
        r"\[16, 9\]; expected \[16, 8\]": state | {"embed.weight": torch.zeros(16, 9)},
        r"torch\.float16; expected torch\.float32": state | {"embed.weight": torch.zeros(16, 8).half()},
    }
    for message, wrong in cases.items():
        path.write_bytes(encoded(wrong))
        model = Net()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with pytest.raises(LoaderError, match=message):
            hp.load_model(str(path), model=model)
        assert_same(dict(model.state_dict()), before)


def test_all_dtypes_empty_tensors_and_none(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    names = "bool uint8 int8 int16 uint16 float16 bfloat16 int32 uint32 float32 float64 int64 uint64 complex64".split()
    names += ["float8_e4m3fn", "float8_e5m2"]
    state = {name: torch.arange(7).to(getattr(torch, name)) for name in names}
    state |= {"empty": torch.zeros(0, 3), "scalar": torch.tensor(2.5)}
    path.write_bytes(encoded(state))
    assert_same(hp.load_model(str(path)), state)
    with serving({"/model.safetensors": path.read_bytes()}) as server:
        assert_same(hp.load_model(f"{server.url}/model.safetensors"), state)
    path.write_bytes(encoded({}))
    assert hp.load_model(str(path)) == {}


def test_more_than_one_chunk_arrives_in_the_order_of_the_model() -> None:
    big = {f"layers.{i}.weight": torch.full((CHUNK_BYTES // 2,), i, dtype=torch.int32) for i in (0, 1, 10, 2)}
    with serving({"/m.safetensors": encoded(big)}) as server:
        assert_same(hp.load_model(f"{server.url}/m.safetensors", connections=1), big)
        begins = [request.begin // CHUNK_BYTES for request in server.requests[1:]]
    assert begins == [0, 0, 1, 1, 2, 2, 3, 4, 6, 7, 8, 5]  # the first's in pieces; the tenth lies before the second
    assert all(request.begin % EARLY_BYTES == 0 for request in server.requests[2:])  # as parts of uploads do
