"""``doctor``: each thing is really broken, named with a remedy, and mended again where that is quick."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control import cluster as control
from jupyter_hyperpod.control.doctor import checkup, jupyter_parts, machine_parts
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.policy.preflight import FAILED, PASSED, SKIPPED, Row
from jupyter_hyperpod.storage.host_lease import directory_of_host
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.store import Store, private_directory
from jupyter_hyperpod.system.json_lines import listen
from tests import wheels
from tests.test_foreign_environments import TREE, make_environment

NAME = "jupyter_hyperpod"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's own configuration of Jupyter, empty."""
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")  # a person's own files count more than the environment's
    monkeypatch.delenv("JUPYTER_NO_CONFIG", raising=False)
    return tmp_path / "config"


def named(rows: list[Row]) -> dict[str, Row]:
    return {row.name: row for row in rows}


def test_an_environment_in_which_nothing_is_installed_right(tmp_path: Path) -> None:
    """A virtual environment that only imports the package: no extension, no kernel, an old tornado, a broken torch."""
    shared = [folder for folder in sys.path if folder.endswith("site-packages")]
    python = make_environment(tmp_path / "venv", [str(TREE), *shared])
    (packages,) = Path(python).parents[1].glob("lib/python*/site-packages")
    wheels.unpack(packages, "jsonschema", "4.1", {})
    wheels.unpack(
        packages, "torch", "2.6", {"torch/__init__.py": "raise ImportError('libcudart.so.12: no such file')\n"}
    )
    store = tmp_path / "store"
    environment = {
        "PATH": "/nowhere",
        "HOME": str(tmp_path),
        "JUPYTER_HYPERPOD_STORE": str(store),
        "JUPYTER_PATH": str(tmp_path / "none"),
        "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
    }
    limited = ["/bin/sh", "-c", 'ulimit -n 256 && exec "$0" "$@"', python, "-m", NAME, "doctor", "--json"]
    done = subprocess.run(limited, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 1, done.stderr
    said = json.loads(done.stdout)
    assert not said["fit"] and said["sentence"].endswith("ulimit -n")
    rows = {row["name"]: row for row in said["rows"]}
    broken = {name for name, row in rows.items() if row["verdict"] == FAILED}
    missing_kernel = {"kernel"} if "kernel" in rows else set()  # a machine may have one for everybody
    assert broken - {"kernel"} >= {"server extension", "lab extension", "versions", "torch", "ulimit -n"}, done.stdout
    assert broken >= missing_kernel and all(rows[name]["remedy"] for name in broken)
    assert "no file of configuration names it" in rows["server extension"]["sentence"]
    assert rows["versions"]["sentence"] == "jsonschema is 4.1, needed is >=4.18"
    assert "libcudart.so.12" in rows["torch"]["sentence"]
    assert "256 open files at most" in rows["ulimit -n"]["sentence"]
    assert rows["slurm"]["verdict"] == SKIPPED and rows["store"]["verdict"] == rows["disk"]["verdict"] == PASSED


@pytest.mark.slow
def test_an_extension_of_the_server_that_is_switched_off(mine: Path) -> None:
    assert jupyter_parts.server_extension().verdict == PASSED
    off = mine / "jupyter_server_config.d" / f"{NAME}.json"
    off.parent.mkdir(parents=True)
    off.write_text(json.dumps({"ServerApp": {"jpserver_extensions": {NAME: False}}}))
    found = jupyter_parts.server_extension()
    assert found.verdict == FAILED and found.sentence == f"it is switched off in {off}"
    subprocess.run(found.remedy.split(), check=True, capture_output=True, timeout=120)
    assert jupyter_parts.server_extension().verdict == PASSED, "the remedy mends it"
    (mine / "jupyter_server_config.json").write_text("{")
    found = jupyter_parts.server_extension()
    assert found.verdict == FAILED and f"ignores {mine}/jupyter_server_config.json" in found.sentence


@pytest.mark.parametrize(
    "line", ["c.ServerApp.jpserver_extensions = {NAME: False}", "c.ServerApp.jpserver_extensions.update({NAME: False})"]
)
def test_an_extension_of_the_server_that_python_switches_off(mine: Path, line: str) -> None:
    """A file in Python counts more than those that Jupyter's own command writes."""
    on = mine / "jupyter_server_config.d" / f"{NAME}.json"
    on.parent.mkdir(parents=True)
    on.write_text(json.dumps({"ServerApp": {"jpserver_extensions": {NAME: True}}}))
    off = mine / "jupyter_server_config.py"
    off.write_text(f"print('hello')\nNAME = '{NAME}'\n{line}\n")
    found = jupyter_parts.server_extension()
    assert found.verdict == FAILED and found.sentence.startswith(f"it is switched off in {off}")
    assert "in jpserver_extensions of that file" in found.remedy
    off.write_text(f"c.ServerApp.jpserver_extensions = {{'{NAME}': True}}")
    assert jupyter_parts.server_extension().sentence.startswith(f"enabled in {off}"), "the remedy mends it"
    off.write_text("raise SystemExit(nothing)")
    found = jupyter_parts.server_extension()
    assert found.verdict == FAILED and f"ignores {off}: name 'nothing' is not defined" in found.sentence


def test_a_page_configuration_that_is_not_json(tmp_path: Path, mine: Path) -> None:
    place = tmp_path / "data" / "labextensions" / NAME
    (place / "static").mkdir(parents=True)
    (place / "static" / "entry.js").write_text("")
    about = {"version": jupyter_parts.__version__, "jupyterlab": {"_build": {"load": "static/entry.js"}}}
    (place / "package.json").write_text(json.dumps(about))
    assert jupyter_parts.lab_extension().verdict == PASSED
    (mine / "labconfig").mkdir(parents=True)
    path = mine / "labconfig" / "page_config.json"
    path.write_text("{'disabledExtensions': {}}")
    found = jupyter_parts.lab_extension()
    assert found.verdict == FAILED and f"JupyterLab ignores {path}: Expecting property name" in found.sentence
    assert found.remedy == "correct the file, or remove it"


@pytest.mark.slow
def test_an_extension_of_the_lab_that_is_switched_off(mine: Path) -> None:
    before = jupyter_parts.lab_extension()
    if before.verdict != PASSED:
        pytest.skip(f"NOT VERIFIED HERE: {before.sentence}")
    disable = [sys.executable, "-m", "jupyter", "labextension", "disable", "--level=user", NAME]
    subprocess.run(disable, check=True, capture_output=True, timeout=120)
    found = jupyter_parts.lab_extension()
    assert found.verdict == FAILED and "it is switched off in" in found.sentence
    subprocess.run(found.remedy.split(), check=True, capture_output=True, timeout=120)
    assert jupyter_parts.lab_extension().verdict == PASSED, "the remedy mends it"


def test_an_extension_of_the_lab_that_is_old_or_half_there(tmp_path: Path, mine: Path) -> None:
    place = tmp_path / "data" / "labextensions" / NAME
    place.mkdir(parents=True)
    assert "is not complete" in jupyter_parts.lab_extension().sentence
    about = {"version": "0.0.1", "jupyterlab": {"_build": {"load": "static/entry.js"}}}
    (place / "package.json").write_text(json.dumps(about))
    assert "is not complete" in jupyter_parts.lab_extension().sentence
    (place / "static").mkdir()
    (place / "static" / "entry.js").write_text("")
    found = jupyter_parts.lab_extension()
    assert found.verdict == FAILED and "is of version 0.0.1, the package is" in found.sentence


def test_kernels(tmp_path: Path, mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    bare = make_environment(tmp_path / "bare", [])
    old = tmp_path / "old"
    wheels.unpack(old, "anything", "1.0", {f"{NAME}/__init__.py": "__version__ = '0.0.1'\n"})
    kernels = {
        "good": {"argv": [sys.executable, "-m", "ipykernel_launcher"], "language": "python"},
        "bare": {"argv": [bare, "-m", "ipykernel_launcher"], "language": "python"},
        "old": {
            "argv": [make_environment(tmp_path / "older", [str(old)]), "-m", "ipykernel_launcher"],
            "language": "python",
        },
        "gone": {"argv": [str(tmp_path / "none"), "-m", "ipykernel_launcher"], "language": "Python"},
        "wrapped": {"argv": ["/bin/sh", "start.sh"], "language": "python"},
        "r": {"argv": ["R"], "language": "R"},
    }
    for name, about in kernels.items():
        (tmp_path / "data" / "kernels" / name).mkdir(parents=True)
        (tmp_path / "data" / "kernels" / name / "kernel.json").write_text(json.dumps(about))
    (tmp_path / "data" / "kernels" / "torn").mkdir()
    (tmp_path / "data" / "kernels" / "torn" / "kernel.json").write_text("{")
    rows = named(list(jupyter_parts.kernels()))
    assert rows["kernel good"].verdict == PASSED, rows["kernel good"]
    assert f"No module named '{NAME}'" in rows["kernel bare"].sentence and rows["kernel bare"].verdict == FAILED
    assert rows["kernel bare"].remedy.startswith(f"{bare} -m pip install {NAME}==")
    assert "has version 0.0.1, here is" in rows["kernel old"].sentence
    assert "No such file" in rows["kernel gone"].sentence
    assert rows["kernel wrapped"].verdict == SKIPPED and "kernel r" not in rows
    assert "its file cannot be read" in rows["kernel torn"].sentence


@pytest.mark.parametrize(
    ("version", "wanted", "met"),
    [
        *(("6.4", ">=6.4,<7", True), ("7.0", ">=6.4,<7", False), ("6.4.1+cpu", ">=6.4.1", True), ("1.0", "", True)),
        *(("2.13", ">=2.6", True), ("1.0", "==1.*", True), ("2.0", "!=2.*", False), ("1.4.9", "~=1.4.2", True)),
        *(("1.5.0", "~=1.4.2", False), ("odd", ">=1", False), ("1", ">=1.0.0", True), ("1.0rc1", "<=1", True)),
    ],
)
def test_bounds_of_versions(version: str, wanted: str, met: bool) -> None:
    assert jupyter_parts.fits(version, wanted) is met


def test_modes_of_a_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "my store").prepare()
    rows = named(list(machine_parts.store_parts(store)))
    assert {row.verdict for row in rows.values()} == {PASSED} and set(rows) == {"store", "disk", "clock"}
    assert list(store.root.glob(".doctor*")) == []
    job = store.create_job(JobSpec(name="job", cell_digest="0" * 64))
    (job.path / "secret").chmod(0o644)
    found = named(list(machine_parts.store_parts(store)))["store"]
    assert found.verdict == FAILED and found.remedy == f"chmod go-rwx '{job.path / 'secret'}'"
    subprocess.run(shlex.split(found.remedy), check=True)
    assert named(list(machine_parts.store_parts(store)))["store"].verdict == PASSED
    store.root.chmod(0o777)
    (found,) = machine_parts.store_parts(store)
    assert found.verdict == FAILED and "other users may write in the store" in found.sentence
    (tmp_path / "file").write_text("")
    (found,) = machine_parts.store_parts(Store(tmp_path / "file" / "store"))
    assert found.verdict == FAILED and "Not a directory" in found.sentence


def test_room_on_the_disk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """No disk is filled for this: the need is set above what there is."""
    monkeypatch.setattr(machine_parts, "LEAST_FREE", 1 << 60)
    found = named(list(machine_parts.store_parts(store)))["disk"]
    assert found.verdict == FAILED and "prune" in found.remedy


def test_a_clock_that_differs_from_that_of_the_file_system(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of this machine is replaced for the process alone."""
    real = time.time
    monkeypatch.setattr(machine_parts.time, "time", lambda: real() - 60)  # type: ignore[attr-defined]
    found = named(list(machine_parts.store_parts(store)))["clock"]
    assert found.verdict == FAILED and "60 s ahead of this machine" in found.sentence


def test_an_address_that_this_machine_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine_parts.addresses().verdict == PASSED
    monkeypatch.setenv("HYPERPOD_BIND", "192.0.2.1")
    found = machine_parts.addresses()
    assert found.verdict == FAILED and "$HYPERPOD_BIND says 192.0.2.1" in found.sentence
    monkeypatch.setenv("HYPERPOD_BIND", "auto")
    assert machine_parts.addresses().verdict == PASSED


def test_half_of_a_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs with the names of SLURM's commands, which are no SLURM."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert named(list(machine_parts.schedulers()))["slurm"].verdict == SKIPPED
    (tmp_path / "sbatch").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "sbatch").chmod(0o755)
    found = named(list(machine_parts.schedulers()))["slurm"]
    assert found.verdict == FAILED and "sbatch found, but `squeue`" in found.sentence
    for name in ("squeue", "scancel", "sinfo"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
        (tmp_path / name).chmod(0o755)
    found = named(list(machine_parts.schedulers()))["slurm"]
    assert found.verdict == FAILED and "Unable to contact slurm controller" in found.sentence
    says = "sinfo: error: fetch_config: DNS SRV lookup failed\nsinfo: fatal: Could not establish a configuration source"
    (tmp_path / "sinfo").write_text(f"#!/bin/sh\necho '{says}' >&2; exit 1\n")
    found = named(list(machine_parts.schedulers()))["slurm"]
    assert found.verdict == SKIPPED and found.sentence == "SLURM's programs are here and no cluster is configured"


def test_a_cluster_of_kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert named(list(machine_parts.schedulers()))["kubernetes"].verdict == SKIPPED
    path.write_text("{")
    assert named(list(machine_parts.schedulers()))["kubernetes"].verdict == FAILED
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"https://127.0.0.1:{server.getsockname()[1]}"
        context = {"name": "a", "context": {"cluster": "b", "user": "c"}}
        about = {"clusters": [{"name": "b", "cluster": {"server": address}}], "contexts": [context]}
        about |= {"users": [{"name": "c", "user": {"token": "secret"}}], "current-context": "a"}
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **about}))
        assert named(list(machine_parts.schedulers()))["kubernetes"].verdict == PASSED
    found = named(list(machine_parts.schedulers()))["kubernetes"]
    assert found.verdict == FAILED and f"{address} cannot be reached" in found.sentence and "secret" not in str(found)


def test_a_supervisor_that_answers(cluster: Store) -> None:
    found = machine_parts.supervisor(cluster)
    assert found.verdict == PASSED and found.sentence.endswith("answers; 5 nodes")


def test_something_that_accepts_connections_and_does_not_answer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket with nobody behind it stands for a supervisor that was stopped: a real one is soon replaced."""
    monkeypatch.setattr(machine_parts, "ANSWER_S", 0.1)
    with closing(listen(private_directory(directory_of_host(store)), control.SOCKET)):
        found = machine_parts.supervisor(store)
    assert found.verdict == FAILED and "does not answer" in found.sentence and "kill -CONT" in found.remedy


def test_a_supervisor_whose_socket_was_deleted(cluster: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_parts, "ANSWER_S", 0.5)
    before = control.status(cluster)
    path = directory_of_host(cluster) / control.SOCKET
    path.unlink()
    found = machine_parts.supervisor(cluster)
    assert found.verdict == FAILED
    assert found.sentence == f"process {before['pid']} is alive, but nothing reaches it, as its socket is gone: {path}"
    first, second = re.findall("`([^`]*)`", found.remedy)
    assert first == f"kill -KILL {before['pid']}"
    subprocess.run(first.split(), check=True)
    assert main(["--store", str(cluster.root), *second.split()[2:]]) == 0
    assert machine_parts.supervisor(cluster).verdict == PASSED
    after = control.status(cluster)
    assert after["pid"] != before["pid"]
    assert [node["pid"] for node in after["nodes"]] == [node["pid"] for node in before["nodes"]], "the nodes stay"


def test_a_supervisor_that_was_lost_with_its_nodes(store: Store) -> None:
    assert machine_parts.supervisor(store).verdict == PASSED
    with event_writer(store.cluster_events, "supervisor") as journal:
        journal.append("cluster.state", {"state": "running", "reason": "", "nodes": ["node-1"], "pid": 1})
    found = machine_parts.supervisor(store)
    assert found.verdict == FAILED and found.remedy == "jupyter hyperpod cluster start"


@pytest.mark.slow
def test_the_command_says_it_in_words(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYPERPOD_BIND", "192.0.2.1")
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "fail     ports: " in said and "         → unset HYPERPOD_BIND" in said
    assert said.splitlines()[-1].startswith(("1 thing is broken: ports", "2 things are broken: "))


def test_the_sentence_at_the_end() -> None:
    good, bad, none = Row("a", PASSED, ""), Row("b", FAILED, "", "x"), Row("c", SKIPPED, "")
    assert checkup.summary([good, none]) == "nothing is broken; 1 check passed, 1 skipped"
    assert checkup.summary([good, bad]) == "1 thing is broken: b"
    assert checkup.summary([bad, bad]) == "2 things are broken: b, b"
