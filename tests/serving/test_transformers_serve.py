"""The engine `transformers serve` on a tiny model with random weights, where its packages are installed."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_hyperpod.control.engines.presets import PRESETS
from jupyter_hyperpod.system.processes import descendants
from tests.serving.conftest import Serve

MISSING = [name for name in PRESETS["transformers"].modules if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(bool(MISSING), reason=f"pip install 'transformers[serving]' for {', '.join(MISSING)}"),
]
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of transformers with its tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {"<s>": 0, "</s>": 1} | {letter: at for at, letter in enumerate(alphabet, 2)}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(tmp_path / "model")
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(words), max_position_embeddings=512, bos_token_id=0, eos_token_id=1, **shape)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_it_chats_streams_and_is_replaced(serve: Serve, model: Path, eventually: Callable[..., object]) -> None:
    found = serve(model, engine="transformers", name="tiny")
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0}
    whole = found.client.ask("/v1/chat/completions", body)
    assert whole.status == 200, whole.content
    text = whole.json()["choices"][0]["message"]["content"]
    stream = found.client.ask("/v1/chat/completions", body | {"stream": True}).content.decode()
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    said = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
    assert said.rstrip("\ufffd") == text.rstrip("\ufffd"), "but for half a letter at the end"
    assert json.loads(stream.splitlines()[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length", stream
    assert found.client.ask("/v1/models").json()["data"][0]["id"] == "tiny"
    assert found.client.ask("/v1/chat/completions", body | {"model": "org/other"}).status == 404, "it fetches nothing"
    replica = found.pids()[0]
    os.kill(descendants(replica)[1], signal.SIGKILL)
    eventually(lambda: found.pids() and replica not in found.pids(), 60)
    again = found.client.ask("/v1/chat/completions", body)
    assert again.json()["choices"][0]["message"]["content"] == text
