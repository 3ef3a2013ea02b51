"""What SLURM is told, letter by letter, and that nothing a user may choose is ever read by a shell."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_hyperpod.backends.slurm import commands
from jupyter_hyperpod.backends.slurm import script as sbatch
from jupyter_hyperpod.backends.slurm.runner import SlurmRunner
from jupyter_hyperpod.backends.types import BASE, ELASTIC, LaunchRequest
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.backend_options import SLURM, STARTUP_DEADLINE
from jupyter_hyperpod.core.elastic import ElasticRange
from jupyter_hyperpod.core.errors import ClusterError, SpecError
from jupyter_hyperpod.core.spec import JobSpec, LaunchPlan
from jupyter_hyperpod.policy.allocation import avoidable
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.supervisor.allocation.allocation import wanted

PLAN = LaunchPlan(
    job_id="train-abcdefgh",
    module="jupyter_hyperpod.runtime.agent.main",
    head_module="jupyter_hyperpod.runtime.coordinator.main",
    arguments=(),
    env={"OMP_NUM_THREADS": "2", "GREETING": "it's $HOME `id`"},
    python="/opt/my env/bin/python",
    working_directory="/home/me/my project",
    log_directory="/store/jobs/train-abcdefgh/logs",
    warm_key="0",
)
SCRIPT = """\
#!/bin/sh
# train-abcdefgh: one of its nodes
export GREETING='it'"'"'s $HOME `id`'
export HYPERPOD_BIND=auto
export HYPERPOD_SOCKETS_ONLY=1
export HYPERPOD_SPARE=''
export OMP_NUM_THREADS=2
export HYPERPOD_NODE="$SLURMD_NODENAME"
export HYPERPOD_SCHEDULER_NODE="$SLURMD_NODENAME"
cd '/home/me/my project' || cd /
exec srun --ntasks=1 --nodes=1 --export=ALL --kill-on-bad-exit=0 env STALE '/opt/my env/bin/python' -m \
jupyter_hyperpod.runtime.agent.main
"""
# The shell finds this in the place of srun: it says what it was started with. It stands for no scheduler.
SAYS = """#!/bin/sh
printf '%s\\0' "$VALUE" "$HYPERPOD_NODE" "$PWD" "$@"
"""
text = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=40)


def test_the_script_of_an_element() -> None:
    shown = " ".join(f"-u {name}" for name in sbatch.STALE)
    assert sbatch.script(PLAN, {}) == SCRIPT.replace("STALE", shown)


def test_the_command_line() -> None:
    options = {"partition": "train", "elastic-partition": "spot", "gres": "gpu:8", "bind": "10.0.0.1"}
    assert sbatch.arguments(PLAN, options, ELASTIC, 3) == [
        "sbatch",
        "--parsable",
        "--requeue",
        "--exclusive",
        "--partition=spot",
        "--gres=gpu:8",
        "--job-name=train-abcdefgh",
        "--array=0-2",
        "--nodes=1",
        "--ntasks=1",
        "--output=/store/jobs/train-abcdefgh/logs/slurm-%A-%a.log",
        "--open-mode=append",
        "--export=ALL",
        "--signal=USR1@60",
        "--comment=elastic",
    ]
    base = sbatch.arguments(PLAN, options | {"cpus-per-task": "4"}, BASE, 1)
    assert "--partition=train" in base and "--exclusive" not in base, "who counts cores shares nodes"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of programs with nothing but `srun`."""
    place = tmp_path_factory.mktemp("bin")
    (place / "srun").write_text(SAYS)
    (place / "srun").chmod(0o755)
    return place


@given(value=text, python=text.filter(bool), argument=text)
def test_nothing_chosen_by_a_user_is_read_by_a_shell(shell: Path, value: str, python: str, argument: str) -> None:
    plan = replace(PLAN, env={"VALUE": value}, python=python, arguments=(argument,), working_directory=str(shell))
    environment = {"PATH": str(shell), "SLURMD_NODENAME": "n1", "LC_ALL": "C.UTF-8"}
    script = sbatch.script(plan, {}).encode()
    done = subprocess.run(["/bin/sh"], input=script, capture_output=True, env=environment, check=True)
    seen, node, where, *words = done.stdout.decode().split("\0")[:-1]
    assert (seen, node, where) == (value, "n1", str(shell))
    assert words[-4:] == [python, "-m", PLAN.module, argument]


@given(options=st.dictionaries(st.sampled_from(sorted(SLURM.checks)), text.filter(bool)))
def test_options_stay_what_they_are(options: dict[str, str]) -> None:
    try:
        JobSpec("job", "0" * 64, backend="slurm", slurm=options)
    except SpecError:
        assert any("\n" in value for value in options.values()) or STARTUP_DEADLINE in options
        return
    words = sbatch.arguments(PLAN, options, BASE, 1)
    own = {"elastic-partition", "bind", STARTUP_DEADLINE}
    assert all(f"--{name}={value}" in words for name, value in options.items() if name not in own)
    assert all(word.startswith("--") for word in words[1:])


SAYS_ALL = """#!/bin/sh
printf '%s\\0' "$@" >"$(dirname "$0")/said"
cat >"$(dirname "$0")/script"
echo 7
"""


@settings(max_examples=25)
@given(options=st.dictionaries(st.sampled_from(sorted(SLURM.checks)), text.filter(bool)), directory=text)
def test_no_shell_stands_between_us_and_sbatch(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, str], directory: str
) -> None:
    """What the program is started with is what was meant, word by word. The program stands for no scheduler."""
    place = tmp_path_factory.mktemp("sbatch")
    (place / "sbatch").write_text(SAYS_ALL)
    (place / "sbatch").chmod(0o755)
    plan = replace(PLAN, log_directory=directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(place), prepend=":")
        runner = SlurmRunner()
        assert runner.launch(plan, LaunchRequest(options=options)).result(50) == 7
        runner.close(20)
    words = (place / "said").read_bytes().split(b"\0")[:-1]
    assert words == [word.encode() for word in sbatch.arguments(plan, options, BASE, 1)[1:]]
    assert (place / "script").read_bytes() == sbatch.script(plan, options).encode()


def test_options_are_refused_where_they_mean_nothing() -> None:
    with pytest.raises(SpecError, match="unknown; expected one of account"):
        JobSpec("job", "0" * 64, backend="slurm", slurm={"wrap": "rm -rf /"})
    with pytest.raises(SpecError, match="did you mean partition"):
        JobSpec("job", "0" * 64, backend="slurm", slurm={"partitoin": "train"})
    with pytest.raises(SpecError, match="belong to --backend slurm"):
        JobSpec("job", "0" * 64, slurm={"partition": "train"})
    for wrong in ("soon", "0s"):
        with pytest.raises(SpecError, match="a time"):
            JobSpec("job", "0" * 64, backend="slurm", slurm={STARTUP_DEADLINE: wrong})


def test_what_slurm_prints() -> None:
    assert sbatch.submitted("17;testbed\n") == 17
    with pytest.raises(ClusterError, match="expected the number"):
        sbatch.submitted("sbatch: error")
    lines = ["12|0|RUNNING|n1|None|train-abcdefgh|base", "12|1|PENDING||(Resources)|train-abcdefgh|elastic"]
    other = ["13|N/A|RUNNING|n2|None|wrap|(null)", "", "slurm_load_jobs error", "14|0|RUNNING|n3|None|a|b|c|d"]
    assert list(sbatch.queue("\n".join([*lines, *other]))) == [
        sbatch.element(12, 0, "RUNNING", "n1", "None", "train-abcdefgh", "base"),
        sbatch.element(12, 1, "PENDING", "", "(Resources)", "train-abcdefgh", "elastic"),
        sbatch.element(14, 0, "RUNNING", "n3", "None", "a", "b|c|d"),
    ]


def test_what_sinfo_prints() -> None:
    printed = (
        "n1|idle|train*|none\nn2|draining|train*|bad disk | twice\nn3|drained*|train|\nn4|down*|train|Not responding\n"
        "n5|fail|train|Action:Replace\nn6|draining@|train|Reboot ASAP\nn7|mixed-|train*|none\nn7|mixed-|spot|none\n"
        "n8|idle|big|none\n"
    )
    drained = {"n2": "bad disk | twice", "n3": "drained", "n5": "Action:Replace", "n6": "Reboot ASAP"}
    assert sbatch.draining(printed) == drained
    assert sbatch.node_states(printed)["n4"] == ("down*", "Not responding")
    assert sbatch.node_states(printed)["n7"] == ("mixed", "")
    assert (sbatch.serving(printed), sbatch.serving(printed, "spot")) == ({"n1", "n7"}, {"n7"})
    assert sbatch.serving(printed, "spot,big") == {"n7", "n8"} and not sbatch.serving(printed, "none")


def test_nodes_are_excluded_only_where_enough_others_serve() -> None:
    theirs = {"partition": "train", "exclude": "n9"}
    assert sbatch.excluding(theirs, ("n1", "n2")) == theirs | {"exclude": "n9,n1,n2"}
    assert sbatch.excluding({}, ("n1",)) == {"exclude": "n1"} and sbatch.excluding(theirs, ()) == theirs
    assert avoidable({"n1", "n2"}, {"n1", "n2", "n3", "n4"}, 2) == ("n1", "n2")
    assert avoidable({"n1"}, {"n1", "n2", "n3", "n4"}, 4) == (), "SLURM would wait for a fourth"
    assert avoidable({"n1"}, (), 4) == ("n1",), "nobody has looked yet"
    assert avoidable((), {"n1"}, 1) == ()


def test_what_sacct_prints() -> None:
    """Recorded from sacct 22.05.8 with slurmdbd: ended, failed, cancelled, running and waiting elements."""
    printed = (
        "3_0|COMPLETED|n2|0:0\n3_1|FAILED|n3|3:0\n4_0|CANCELLED by 0|n4|0:0\n4_1|RUNNING|n2|0:0\n"
        "5_[0-2]|PENDING|None assigned|0:0\n"
    )
    assert sbatch.history(printed) == {
        "3_0": ("COMPLETED", "n2", "0:0"),
        "3_1": ("FAILED", "n3", "3:0"),
        "4_0": ("CANCELLED", "n4", "0:0"),
        "4_1": ("RUNNING", "n2", "0:0"),
    }


@given(st.text())
def test_any_output_is_read(printed: str) -> None:
    list(sbatch.queue(printed))
    sbatch.draining(printed)
    sbatch.serving(printed)
    sbatch.history(printed)


def test_an_elastic_job_has_the_fewest_it_needs_as_its_base() -> None:
    spec = JobSpec("job", "0" * 64, nodes=4, elastic=ElasticRange(2, 4), spares=1, backend="slurm")
    assert wanted(spec, 4) == {BASE: 2, ELASTIC: 3}
    assert wanted(spec, 2) == {BASE: 2, ELASTIC: 1}


def test_without_slurm_it_is_said_what_was_looked_for(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match=r"`sbatch`.* not found in PATH \(.*login node.*--backend local"):
        jobs.submit(store, "print(1)", {"backend": "slurm"})
    assert not store.job_ids(), "nothing half-made is left"


def test_who_is_to_leave_is_told_even_if_the_controller_has_forgotten_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that went on from a state that was saved before the step began says nothing of it, and does nothing."""
    begun: list[list[str]] = []

    def run(command: list[str], text: str = "") -> str:
        begun.append(command)
        return ""

    monkeypatch.setattr(commands, "run", run)
    runner = SlurmRunner()
    for number in (signal.SIGUSR1, signal.SIGKILL):
        runner.signal("job", "92_0", number).result(50)
    runner.close(10)
    sent = [command[1:] for command in begun if command[0] == "scancel"]
    assert sent == [["--quiet", "--signal=USR1", "92_0"], ["--quiet", "--signal=KILL", "92_0.0"]]
