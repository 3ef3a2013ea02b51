"""The engines that `serve --engine` knows, and commands of others: what is filled in, and what is refused before."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from jupyter_hyperpod.control import deploy, served
from jupyter_hyperpod.control.engines import presets
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.core.spec import ENGINE_WORDS, EngineSpec, JobSpec, ServeSpec, filled_in
from jupyter_hyperpod.serving.context import Site
from jupyter_hyperpod.serving.engine_process import sums
from jupyter_hyperpod.serving.external import ExternalEngine
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.system.addresses import this_loopback

VALUES = {"model": "/m", "port": "1", "host": "127.0.0.1", "name": "chat", "device": "cpu", "threads": "2"}


@pytest.mark.parametrize("name", presets.PRESETS)
def test_each_preset_names_model_and_port_listens_on_loopback_and_says_how_to_get_it(name: str) -> None:
    preset = presets.PRESETS[name]
    words = [filled_in(part, VALUES) for part in preset.spec.command]
    assert {"/m", "1", "127.0.0.1"} <= set(words) and not any("{" in word for word in words)
    assert preset.spec.ready and preset.remedy
    assert bool(preset.spec.metrics) == bool(preset.spec.running) == bool(preset.spec.waiting)
    assert "chat" in words or preset.spec.model_name, "clients know the deployment's name only"


def test_what_nobody_has_run_says_so() -> None:
    assert {"vllm", "sglang"} <= {name for name, preset in presets.PRESETS.items() if not preset.verified}
    assert "vllm (not verified), sglang (not verified)" in presets.help_text()
    assert presets.notes("vllm", "s3://bucket/model") == [
        "vllm is not verified: nobody has run it with this project yet",
        "the model is copied into a directory of each node before the engine starts",
    ]
    assert presets.notes(None, "s3://bucket/model") == presets.notes("cmd {model}", "/model") == []


def test_a_command_is_split_without_a_shell_and_other_braces_stay() -> None:
    spec, _ = presets.engine_of("python -c 'x; {\"a\": 1}' '{model}' {port}", "--more '$HOME {name}'")
    assert spec.command[0] == str(Path(sys.executable).parent / "python")
    assert [filled_in(part, VALUES) for part in spec.command[1:]] == [
        *("-c", 'x; {"a": 1}', "/m", "1"),
        *("--more", "$HOME chat"),
    ]
    assert {"vllm:num_requests_running", "llamacpp:requests_processing"} <= set(spec.running)


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ("vlm", "'vlm' is no engine; expected one of transformers, vllm, sglang, llama.cpp, or a command"),
        ("python {model}", "has no {port}"),
        ("python {port} {gpu}", r"has \{gpu\}; expected some of \{model\} \(path of the model on the node\)"),
        ("python '{port}", "cannot be split into words"),
        ("", "is no engine"),
        ("no-such-engine {model} {port}", "no-such-engine is neither in .* nor in .PATH; give its path"),
        ("llama.cpp", "llama-server is neither in .* install it with apt install llama.cpp"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, why: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "model").touch()
    with pytest.raises(SpecError, match=why):
        deploy.serve(Store(tmp_path / "store").prepare(), str(tmp_path / "model"), engine=engine)
    assert not list((tmp_path / "store").glob("jobs/*"))


def test_packages_that_an_engine_of_this_environment_needs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"needs sglang, which this environment lacks; install it with pip install sgl"):
        presets.engine_of("sglang")


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "store").prepare()
    with pytest.raises(SpecError, match="neither a handler nor a recipe"):
        deploy.serve(store, "m", engine="python {port}", recipe="llama-tiny")
    with pytest.raises(SpecError, match="those of an engine; name it with --engine"):
        deploy.serve(store, "m", engine_args="--x")


def test_a_specification_keeps_its_engine() -> None:
    spec = EngineSpec("e", ("e", "{port}"), running=("a", "b"), start_timeout_s=5.0)
    job = JobSpec("s", "0" * 64, nodes=1, serve=ServeSpec("m", task="engine", engine=spec))
    assert JobSpec.from_json(job.to_json()) == job
    assert set(VALUES) == set(ENGINE_WORDS)
    with pytest.raises(SpecError, match="exactly where there is an engine"):
        ServeSpec("m", task="engine")


def test_an_engine_with_its_own_name_of_the_model_is_asked_by_it(store: Store) -> None:
    """Whatever name of `/v1/models` the client has used: with another one, the engine would look for another model."""
    serve = ServeSpec("s3://bucket/model", task="engine", engine=presets.PRESETS["transformers"].spec)
    spec = JobSpec("chat", store.put_cell(""), nodes=1, serve=serve)
    engine = ExternalEngine(Site(store.create_job(spec), "", Path(), spec, serve))
    engine._model_name = "/node/copy"
    bodies: list[dict[str, object]] = [{"model": name} for name in ("chat", "s3://bucket/model", None)]
    for body in (*bodies, {}):
        assert json.loads(engine._named(json.dumps(body).encode())) == {"model": "/node/copy"}
    assert engine._named(b'{"model": "org/other"}') == b'{"model": "org/other"}'


def test_metrics_are_summed_over_labels() -> None:
    text = '# HELP a b\na{x="1} 2"} 3\na{x="2"} 4.5 1700000000\nb 2e1\nc\n# EOF\nd{e="f"} NaN'
    found = sums(text)
    assert (found["a"], found["b"]) == (7.5, 20.0) and "c" not in found


def test_a_person_is_told_how_to_chat() -> None:
    opened = {"url": "http://h:1", "task": "engine", "host": "h", "loopback": this_loopback()}
    view = {"id": "chat-aaaaaaaa", "name": "chat", "deployment": opened}
    assert '{"model": "chat", "messages"' in served.how_to_ask(view, "/token")[1]
