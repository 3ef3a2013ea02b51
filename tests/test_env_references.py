"""Variables by reference: what may be asked for, what travels, and what a node fetches or refuses."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.control import jobs, lookup
from jupyter_hyperpod.control.option_parser import Parser
from jupyter_hyperpod.control.submit_options import add_submit_options, shown_fields, spec_fields
from jupyter_hyperpod.control.verb_options import add_serve_options, serve_fields
from jupyter_hyperpod.core.env_references import EnvReference
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.core.spec import HIDDEN, JobSpec
from jupyter_hyperpod.storage.environment import MOST_BYTES, adopt, fetched
from jupyter_hyperpod.storage.store import ENVIRONMENT, Store
from tests.secrets_scan import files_with

DIGEST = "0" * 64
SECRET = "hf_0123456789secret"


def asked(*words: str) -> dict[str, Any]:
    parser = Parser(prog="submit")
    add_submit_options(parser)
    return spec_fields(parser.parse_args(words), "job")


def test_a_reference_is_told_from_a_value(tmp_path: Path) -> None:
    path = tmp_path / "variables.env"
    path.write_text("D=@file:/run/secrets/d\nE=@\nF=@@file:/x\n")
    found = asked(
        "--env", "A=@file:~/.token", "--env", "B=@env:OTHER", "--env", "C=me@home: x", "--env-file", str(path)
    )
    assert found["env"] == {"C": "me@home: x", "E": "@", "F": "@@file:/x"}
    assert found["env_from"] == {"A": "@file:~/.token", "B": "@env:OTHER", "D": "@file:/run/secrets/d"}
    shown = shown_fields(found)
    assert shown["env"] == dict.fromkeys("CEF", HIDDEN) and shown["env_from"] == found["env_from"]
    assert "env_from" not in asked("--env", "A=1")


def test_of_one_name_the_last_one_counts() -> None:
    assert asked("--env", "A=1", "--env", "A=@env:B") | {"name": ""} == {
        "name": "",
        "env": {},
        "env_from": {"A": "@env:B"},
    }
    assert "env_from" not in asked("--env", "A=@env:B", "--env", "A=1")


def test_a_value_of_ones_own_environment_is_never_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "@file:/etc/hostname")
    found = asked("--env", "A")
    assert found["env"] == {"A": "@file:/etc/hostname"} and "env_from" not in found


@pytest.mark.parametrize(
    "value", [f"@vault:{SECRET}", f"@file:{SECRET}", f"@env:{SECRET}!", "@file:", "@env:", "@env:A-B"]
)
def test_a_reference_that_no_node_could_follow_is_refused(value: str) -> None:
    with pytest.raises(SpecError, match="did you mean @file:PATH or @env:NAME|reference @(file|env): needs") as error:
        asked("--env", f"A={value}")
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    ("references", "values"),
    [({"A": "x"}, {}), ({"A-B": "@env:X"}, {}), ({"A": "@env:X"}, {"A": "1"}), ({"A": "@env:B"}, {"B": "1"}),
     ({"A": "@env:B", "B": "@env:C"}, {}), ({"A": 3}, {})],
)  # fmt: skip
def test_a_specification_is_refused_where_its_references_are_unclear(references: Any, values: dict[str, str]) -> None:
    with pytest.raises(SpecError, match="A"):
        JobSpec(name="a", cell_digest=DIGEST, env=values, env_from=references)


def test_references_travel_openly_and_values_do_not(store: Store) -> None:
    spec = JobSpec(name="a", cell_digest=DIGEST, env={"A": SECRET}, env_from={"B": "@file:/b", "C": "@env:C"})
    again = JobSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again.env_from == spec.env_from and again.env == {"A": HIDDEN}
    assert JobSpec.from_json({"name": "old", "cell_digest": DIGEST}).env_from == {}
    job = store.create_job(spec)
    assert json.loads((job.path / ENVIRONMENT).read_text()) == {"A": SECRET} == job.environment()


def test_a_job_that_has_ended_runs_again_with_its_references(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted: list[dict[str, Any]] = []
    monkeypatch.setattr(jobs, "submit", lambda store, cell, fields, earlier: submitted.append(fields) or "id")
    spec = JobSpec(name="a", cell_digest=store.put_cell("pass"), env={"A": SECRET}, env_from={"B": "@file:/b"})
    job = store.create_job(spec)
    job.forget_environment()
    with pytest.raises(SpecError, match="had the environment variable A, and values"):
        lookup.submit_again(store, job.id)
    lookup.submit_again(store, job.id, env=[("A", EnvReference("env", "X"))])
    lookup.submit_again(store, job.id, env=[("A", "1"), ("B", "2")])
    assert [(fields["env"], fields["env_from"]) for fields in submitted] == [
        ({}, {"B": "@file:/b", "A": "@env:X"}),
        ({"A": "1", "B": "2"}, {}),
    ]


def test_a_deployment_takes_references_too() -> None:
    parser = Parser(prog="serve")
    add_serve_options(parser)
    found = serve_fields(parser.parse_args(["m.bin", "--env", "A=1", "--env", "B=@env:C"]))
    assert found == {"env": {"A": "1"}, "env_from": {"B": "@env:C"}}


def test_a_node_fetches_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OTHER", "")
    for name, content in (("line", b"a b \n"), ("bare", "\u00fc=1".encode()), ("two", b"x\ny\r\n")):
        (tmp_path / name).write_bytes(content)
    references = {"A": f"@file:{tmp_path}/line", "B": "@file:~/bare", "C": f"@file:{tmp_path}/two", "D": "@env:OTHER"}
    assert fetched(references, "node-1") == {"A": "a b ", "B": "\u00fc=1", "C": "x\ny", "D": ""}


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [("absent", None, "No such file"), ("large", b"x" * (MOST_BYTES + 1), "larger than 1 MiB"),
     ("binary", b"\xff" + SECRET.encode(), "not text"), ("nul", SECRET.encode() + b"\0", "NUL")],
)  # fmt: skip
def test_what_cannot_be_fetched_is_named_and_not_shown(tmp_path: Path, name: str, content: Any, why: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    wanted = f"node-1 cannot fetch the environment variable TOKEN from @file:{tmp_path / name}: "
    with pytest.raises(SpecError) as error:
        fetched({"TOKEN": f"@file:{tmp_path / name}"}, "node-1")
    assert str(error.value).startswith(wanted) and why in str(error.value) and SECRET not in str(error.value)


def test_only_a_node_fetches(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text(SECRET)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    job = store.create_job(JobSpec(name="a", cell_digest=DIGEST, env_from={"TOKEN": f"@file:{tmp_path / 'token'}"}))
    assert adopt(job) == [] and "TOKEN" not in os.environ, "a coordinator needs no secret"
    assert adopt(job, "node-1") == ["TOKEN"] and os.environ["TOKEN"] == SECRET
    assert files_with(store.root, SECRET) == []


@pytest.mark.parametrize(
    "text", ["@FILE:/a", "@File:/a", "@file/a", " @file:/a", "@ file:/a", "@fiel:/a", "@env", "@ENV:A"]
)
def test_what_is_nearly_a_reference_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(SpecError, match="did you mean @file:") as refused:
        EnvReference.parse(text)
    assert text not in str(refused.value).replace("@env:NAME", "")


@pytest.mark.parametrize("text", ["", "@", "@/a", "file:/a", "a@file:/b", "p@ss:word", "@files", "@2x:y"])
def test_other_values_stay_what_they_are(text: str) -> None:
    assert EnvReference.parse(text) is None


@pytest.mark.slow
def test_a_job_fails_where_a_node_cannot_fetch_a_value(shared_cluster: Store, tmp_path: Path) -> None:
    path = tmp_path / secrets.token_hex(8)
    job_id = jobs.submit(
        shared_cluster, "print('ran')", nodes=2, name="unresolved", env_from={"TOKEN": f"@file:{path}"}
    )
    view = jobs.wait(shared_cluster, job_id, timeout_s=60)
    assert view["state"] == "failed" and not view["output"]
    node, _, rest = view["reason"].partition(" cannot fetch the environment variable TOKEN from ")
    assert node.startswith("node-") and rest == f"@file:{path}: No such file or directory", view["reason"]
