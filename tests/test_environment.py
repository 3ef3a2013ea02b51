"""``--env`` as it is asked for, refused, written down and read again; journals of old that hold values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control import jobs, lookup
from jupyter_hyperpod.control.option_parser import Parser
from jupyter_hyperpod.control.sources.source import notebook_source
from jupyter_hyperpod.control.submit_options import add_submit_options, spec_fields
from jupyter_hyperpod.core.errors import SpecError, StoreError
from jupyter_hyperpod.core.events import Event, decode_event, encode
from jupyter_hyperpod.core.spec import HIDDEN, JobSpec
from jupyter_hyperpod.notebook.arguments import cell_parser, parse, verb_parser
from jupyter_hyperpod.storage.journal import read_events
from jupyter_hyperpod.storage.store import ENVIRONMENT, JobStore, Store
from jupyter_hyperpod.supervisor.launch import launch_plan

SECRET = "hf_0123456789secret"
DIGEST = "0" * 64


def written(store: Store, **fields: Any) -> JobStore:
    complete = jobs.complete({"name": "job", **fields})
    return jobs._create(store, jobs.make_spec(complete, store.put_cell("pass")))


def asked(*words: str) -> dict[str, Any]:
    parser = Parser(prog="submit")
    add_submit_options(parser)
    return spec_fields(parser.parse_args(words), "job")


def test_a_name_alone_takes_the_callers_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("EMPTY", "")
    assert asked("--env", "HF_TOKEN", "--env", "A=b=c", "--env", "EMPTY")["env"] == {
        "HF_TOKEN": SECRET,
        "A": "b=c",
        "EMPTY": "",
    }


def test_a_name_that_is_not_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(SpecError, match="HF_TOKEN is not set in your environment; export it, or use HF_TOKEN=VALUE"):
        asked("--env", "HF_TOKEN")


@pytest.mark.parametrize(
    "words",
    [
        ("--env", f"{SECRET}!"),
        ("--env", f"{SECRET}-x=HF_TOKEN"),
        ("--env", f"HF_TOKEN:{SECRET}"),
        ("--env", f"=HF_TOKEN {SECRET}"),
        ("--env", f"HF_TOKEN={SECRET}\0"),
        ("--envv", f"HF_TOKEN={SECRET}"),
        ("--environment", f"HF_TOKEN='two words {SECRET}'"),
    ],
)
def test_no_refusal_shows_a_value(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SpecError) as error:
        asked(*words)
    assert SECRET not in str(error.value), error.value
    if "\0" not in words[1]:
        with pytest.raises(SystemExit):
            main(["submit", "cell.py", *words])
        said = capsys.readouterr()
        assert SECRET not in said.out + said.err and said.err
        with pytest.raises(SpecError) as error:
            parse(cell_parser(), f'{words[0]} "{words[1]}"')
        assert SECRET not in str(error.value)


def test_variables_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAKEN", "mine")
    path = tmp_path / "variables.env"
    path.write_text("# a comment\n\nA=1\nexport B='two words'\nC = x=$A#y \nTAKEN\nD=\"\n")
    wanted = {"A": "1", "B": "two words", "C": "x=$A#y", "TAKEN": "mine", "D": '"'}
    assert asked("--env-file", str(path))["env"] == wanted
    assert asked("--env", "A=0", "--env-file", str(path), "--env", "B=3")["env"] == wanted | {"B": "3"}
    assert parse(cell_parser(), f"--env-file {path}").env == list(wanted.items())


@pytest.mark.parametrize("line", [f"{SECRET}!", f"A-B={SECRET}", f"={SECRET}", f"A={SECRET}\0"])
def test_a_line_of_a_file_that_is_refused_is_named_and_not_shown(tmp_path: Path, line: str) -> None:
    path = tmp_path / "variables.env"
    path.write_text(f"A=1\n{line}\n")
    with pytest.raises(SpecError) as error:
        asked("--env-file", str(path))
    assert SECRET not in str(error.value)
    if "\0" not in line:
        assert f"line 2 of {path}" in str(error.value)
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        asked("--env-file", str(tmp_path / "missing"))


def test_a_file_of_other_editors_is_read(tmp_path: Path) -> None:
    path = tmp_path / "variables.env"
    path.write_bytes(b"\xef\xbb\xbfA=1\r\nB = 2\r\n")
    assert parse(cell_parser(), f"--env-file {path}").env == [("A", "1"), ("B", "2")]
    for content, said in (
        (f"A=1\n\nMY NAME={SECRET}\n".encode(), f"line 3 of {path}: there is a space in the name, before '='"),
        (b"A=1\nB=\xff" + SECRET.encode(), f"line 2 of {path} cannot be read: it is not text in UTF-8"),
        (f"A={SECRET}\n".encode("utf-16"), f"line 1 of {path} cannot be read: it is text in UTF-16; save the file as"),
    ):
        path.write_bytes(content)
        with pytest.raises(SpecError) as error:
            asked("--env-file", str(path))
        assert said in str(error.value) and SECRET not in str(error.value)


def test_no_line_of_a_magic_shows_a_value() -> None:
    with pytest.raises(SpecError) as error:
        parse(verb_parser(), f"rerun job --env HF_TOKEN={SECRET} --name 'open")
    assert SECRET not in str(error.value) and "No closing quotation" in str(error.value)
    for line in (f"%hyperpod rerun x --env HF_TOKEN={SECRET}", f"%hyperpod rerun x --env='HF_TOKEN=a {SECRET}'"):
        cells = [{"cell_type": "code", "source": f"x = 1\n{line}"}]
        with pytest.raises(SpecError) as error:
            notebook_source(json.dumps({"cells": cells}), "book.ipynb")
        assert SECRET not in str(error.value) and "%hyperpod rerun x --env" in str(error.value)


def test_a_specification_never_shows_values(store: Store) -> None:
    spec = JobSpec(name="a", cell_digest=DIGEST, env={"HF_TOKEN": SECRET, "B": "c"})
    assert SECRET not in repr(spec) + json.dumps(spec.to_json())
    assert spec.to_json()["env"] == {"HF_TOKEN": HIDDEN, "B": HIDDEN}
    for env in ({"A-B": SECRET}, {SECRET + "!": "x"}, {"A": f"{SECRET}\0"}, {"A": [SECRET]}):
        with pytest.raises(SpecError) as error:
            jobs.submit(store, "pass", env=env)
        assert SECRET not in str(error.value)


def test_values_lie_in_a_private_file_only_and_go_with_the_end(store: Store) -> None:
    job = written(store, env={"HF_TOKEN": SECRET})
    private = job.path / ENVIRONMENT
    assert private.stat().st_mode & 0o777 == 0o600
    assert job.environment() == {"HF_TOKEN": SECRET} and job.spec().env == {"HF_TOKEN": HIDDEN}
    assert SECRET not in (job.path / "spec.json").read_text() + repr(read_events(job.events))
    assert SECRET not in repr(launch_plan(store, job, job.spec(), "digest"))
    job.forget_environment()
    job.forget_environment()
    with pytest.raises(StoreError, match="cannot read .*environment: No such file"):
        job.environment()
    with pytest.raises(SpecError, match="had the environment variable HF_TOKEN, and values are not kept once a job"):
        lookup.submit_again(store, job.id)
    assert not (written(store).path / ENVIRONMENT).exists() and written(store).environment() == {}


def test_a_private_file_that_is_damaged_shows_nothing(store: Store) -> None:
    job = written(store, env={"HF_TOKEN": SECRET})
    for content in (f'{{"HF_TOKEN": "{SECRET}', f'["{SECRET}"]'):
        (job.path / ENVIRONMENT).write_text(content)
        with pytest.raises(StoreError, match="is not an object in JSON") as error:
            job.environment()
        assert SECRET not in str(error.value) and error.value.__cause__ is None


@given(st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True), st.text(), max_size=4))
def test_any_value_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, env: dict[str, str]) -> None:
    env = {name: value.replace("\0", "") for name, value in env.items()}
    store = Store(tmp_path_factory.mktemp("store")).prepare()
    job = store.create_job(JobSpec(name="a", cell_digest=DIGEST, env=env))
    assert job.environment() == env and dict.fromkeys(env, HIDDEN) == job.spec().env


# ---- what was written before ----------------------------------------------------------------------------------


def old_line(env: Any) -> bytes:
    spec = JobSpec(name="old", cell_digest=DIGEST).to_json() | {"env": env}
    data = {"id": "old-aaaaaaaa", "spec": spec}
    return json.dumps(
        {"v": 1, "writer": "control.1", "seq": 1, "time_s": 1.0, "kind": "job.submitted", "data": data}
    ).encode()


def test_journals_of_old_show_no_values() -> None:
    event = decode_event(old_line({"HF_TOKEN": SECRET}))
    assert event.data["spec"]["env"] == {"HF_TOKEN": HIDDEN}
    assert decode_event(old_line([SECRET])).data["spec"]["env"] == [SECRET], "never written; nothing breaks on it"
    raw = Event("control.1", 1, 1.0, "job.submitted", json.loads(old_line({"HF_TOKEN": SECRET}))["data"])
    assert SECRET.encode() not in encode(raw)


def test_an_unfinished_job_of_old_keeps_its_variables(store: Store) -> None:
    job = written(store)
    path: Path = job.path / "spec.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"env": {"A": "b"}}))
    assert job.environment() == {"A": "b"}
    assert launch_plan(store, job, job.spec(), "digest").env["A"] == "b", "its nodes may run an older source"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"backend": "slurm"}))
    assert "A" not in launch_plan(store, job, job.spec(), "digest").env, "on SLURM it would be in the batch script"
