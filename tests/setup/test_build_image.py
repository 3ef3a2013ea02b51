"""The Dockerfile of a job's environment, built for real: the same cell prints the same in the image."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage.fingerprint import record
from jupyter_hyperpod.storage.store import JobStore, Store
from tests import wheels
from tests.support import image_builder
from tests.support.image_builder import ImageBuilder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(image_builder.missing()), reason=image_builder.missing() or "nothing is missing"),
]
PACKAGES = {"tiny-one": "1.5", "tiny-two": "2.0"}
CELL = """\
import sys, tiny_one, tiny_two
print(tiny_one.__version__, tiny_two.__version__, sys.version.split()[0])
print(sum(number / 7 for number in range(1000)).hex())
"""


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[ImageBuilder]:
    (folder := tmp_path / "builder").mkdir()
    found = ImageBuilder(folder)
    yield found
    found.close()


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The Python of an environment with the packages."""
    place = tmp_path / "project" / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=120)
    (site,) = place.glob("lib/python*/site-packages")
    for name, version in PACKAGES.items():
        wheels.unpack(site, name, version)
        wheels.build(tmp_path / "wheels", name, version)
    return place / "bin" / "python"


def submitted(store: Store, python: Path) -> JobStore:
    """A job as it is after a submission from that environment."""
    digest = store.prepare().put_cell(CELL)
    job = store.create_job(JobSpec(name="job", cell_digest=digest))
    record.leave(job.path, record.take(str(python.parents[2]), python=str(python), cache=record.cache_of(store)))
    return job


def test_the_same_cell_prints_the_same_in_the_image(
    builder: ImageBuilder, python: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, folder = Store(tmp_path / "store"), tmp_path / "image"
    job = submitted(store, python)
    assert main(["setup", "image", job.id, "-o", str(folder), "--json", "--store", str(store.root)]) == 0
    told = json.loads(capsys.readouterr().out)
    builder.base([told["base"], told["base"].replace("-slim", "")], tmp_path / "wheels")
    builder.build(folder, "localhost/made:1")

    here = subprocess.run([str(python), "-c", CELL], capture_output=True, text=True, check=True, timeout=60)
    assert builder.execute("localhost/made:1", "python", "cell.py") == here.stdout
    where = "import sys; print(sys.executable, sys.prefix)"
    by_path = builder.execute("localhost/made:1", str(python), "-c", f"{CELL}{where}")
    assert by_path == f"{here.stdout}{python} {python.parents[1]}\n", "pods start it by the path of the record"
    config = builder.config("localhost/made:1")
    assert config["User"] == "1000:1000" and config["Cmd"] == ["python", "cell.py"]
    who = "import os, getpass; print(os.getuid(), os.getgid(), getpass.getuser(), os.access('/opt', os.W_OK))"
    assert builder.execute("localhost/made:1", "python", "-c", who) == "1000 1000 hyperpod False\n"


def test_other_code_builds_no_package_again_and_a_secret_beside_it_stays_out(
    builder: ImageBuilder, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, folder = Store(tmp_path / "store"), tmp_path / "image"
    job = submitted(store, python)
    for tool in ("PIP", "UV"):  # the only packages that they find are those of the base
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(tmp_path / "wheels"))
    words = ["setup", "image", job.id, "-o", str(folder), "--base", "localhost/own:1", "--store", str(store.root)]
    assert main([*words, "--hashes"]) == 0
    assert (folder / "requirements.txt").read_text().count("--hash=sha256:") == len(PACKAGES)
    assert "--require-hashes" in (folder / "Dockerfile").read_text()
    builder.base(["localhost/own:1"], tmp_path / "wheels")
    (folder / "code" / ".env").write_text("TOKEN=secret")
    (folder / "id.key").write_text("secret")
    builder.build(folder, "localhost/made:1")
    assert builder.execute("localhost/made:1", "python", "-c", "import os; print(os.listdir('.'))") == "['cell.py']\n"

    (folder / "code" / "cell.py").write_text("print('changed')")
    said = builder.build(folder, "localhost/made:2")
    assert builder.execute("localhost/made:2", "python", "cell.py") == "changed\n"
    install, code = said.index("--requirement"), said.index("COPY --chown")
    assert "Using cache" in said[install:code] and "Using cache" not in said[code:], said
