"""The code and the commands of docs/loading.md, as they are printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.loader.write.save import save_model
from tests.loader.models import assert_same, decoder
from tests.support.s3_servers import S3Server

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "loading.md").read_text()
STATE = decoder(blocks=3)


def module_of(state: dict[str, torch.Tensor]) -> nn.Module:
    """A module with these parameters, all of them zero."""
    root = nn.Module()
    for name, tensor in state.items():
        *path, last = name.split(".")
        inner = root
        for part in path:
            if not hasattr(inner, part):
                inner.add_module(part, nn.Module())
            inner = inner.get_submodule(part)
        inner.register_parameter(last, nn.Parameter(torch.zeros_like(tensor)))
    return root


@pytest.mark.s3
def test_the_guide(
    seaweedfs: S3Server,
    environment_of: Callable[[S3Server], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    environment_of(seaweedfs)
    monkeypatch.chdir(tmp_path)
    save_model(STATE, f"{seaweedfs.url}/minilm")
    names: dict[str, Any] = {"model": module_of(STATE)}
    for block in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL):
        exec(block, names)
    assert_same(names["state"], STATE)
    assert_same({name: tensor.detach() for name, tensor in names["model"].state_dict().items()}, STATE)
    assert names["part"]["lm_head.weight"].shape == (26, 64)
    assert_same(names["again"], STATE)
    said = []
    for line in re.findall(r"```bash\n(.*?)```", GUIDE, re.DOTALL)[0].splitlines():
        words = shlex.split(line)
        assert words[:2] == ["jupyter", "hyperpod"]
        assert main(words[2:]) == 0
        said.append(capsys.readouterr().out)
    assert "matches its manifest" in said[1]
    assert said[3] == "merged.safetensors.manifest.json\n"


def test_the_guide_names_errors_as_they_are() -> None:
    source = "".join(
        path.read_text() for path in sorted(Path(save_model.__code__.co_filename).parents[1].rglob("*.py"))
    )
    for words in ("the bucket in region ", "no permission: ", "nothing: ", "checksum {found} of "):
        assert words in source and words.split("{")[0] in GUIDE
