"""What SLURM is told, letter by letter, and that nothing a user may choose is ever read by a shell."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.backends import sbatch
from jupyter_hyperpod.backends.sbatch import BASE, ELASTIC, Element
from jupyter_hyperpod.control.allocation import plan_step, wanted
from jupyter_hyperpod.core.errors import ClusterError, SpecError
from jupyter_hyperpod.core.spec import SLURM_OPTIONS, ElasticRange, JobSpec, LaunchPlan

PLAN = LaunchPlan(
    job_id="train-abcdefgh",
    module="jupyter_hyperpod.runtime.agent",
    head_module="jupyter_hyperpod.runtime.coordinator",
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
cd '/home/me/my project' || cd /
exec srun --ntasks=1 --nodes=1 --export=ALL --kill-on-bad-exit=0 '/opt/my env/bin/python' -m \
jupyter_hyperpod.runtime.agent
"""
# The shell finds this in the place of srun: it says what it was started with. It stands for no scheduler.
SAYS = """#!/bin/sh
printf '%s\\0' "$VALUE" "$HYPERPOD_NODE" "$PWD" "$@"
"""
text = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=40)


def test_the_script_of_an_element() -> None:
    assert sbatch.script(PLAN, {}) == SCRIPT


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
        "--export=NIL",
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


@given(options=st.dictionaries(st.sampled_from(SLURM_OPTIONS), text.filter(bool)))
def test_options_stay_what_they_are(options: dict[str, str]) -> None:
    try:
        JobSpec("job", "0" * 64, backend="slurm", slurm=options)
    except SpecError:
        assert any("\n" in value for value in options.values())
        return
    words = sbatch.arguments(PLAN, options, BASE, 1)
    own = {"elastic-partition", "bind"}
    assert all(f"--{name}={value}" in words for name, value in options.items() if name not in own)
    assert all(word.startswith("--") for word in words[1:])


def test_options_are_refused_where_they_mean_nothing() -> None:
    with pytest.raises(SpecError, match="unknown; expected one of account"):
        JobSpec("job", "0" * 64, backend="slurm", slurm={"wrap": "rm -rf /"})
    with pytest.raises(SpecError, match="belong to --backend slurm"):
        JobSpec("job", "0" * 64, slurm={"partition": "train"})


def test_what_slurm_prints() -> None:
    assert sbatch.submitted("17;testbed\n") == 17
    with pytest.raises(ClusterError, match="expected the number"):
        sbatch.submitted("sbatch: error")
    printed = "12|0|RUNNING|n1|None\n12|1|PENDING||(Resources | x)\n13|N/A|RUNNING|n2|None\n\nslurm_load_jobs error\n"
    assert list(sbatch.queue(printed)) == [
        Element(12, 0, "RUNNING", "n1", "None"),
        Element(12, 1, "PENDING", "", "(Resources | x)"),
    ]


@given(st.text())
def test_any_output_is_read(printed: str) -> None:
    list(sbatch.queue(printed))


def test_what_is_missing_is_asked_for_and_what_waits_in_vain_given_back() -> None:
    spec = JobSpec("job", "0" * 64, nodes=4, elastic=ElasticRange(2, 4), spares=1, backend="slurm")
    assert wanted(spec, 4) == {BASE: 2, ELASTIC: 3}
    assert wanted(spec, 2) == {BASE: 2, ELASTIC: 1}
    here = [Element(1, 0, "RUNNING", "n1", ""), Element(1, 1, "NODE_FAIL", "n2", "")]
    more = [Element(2, 0, "RUNNING", "n3", ""), Element(2, 1, "PENDING", "", "Priority")]
    step = plan_step({BASE: here, ELASTIC: more}, wanted(spec, 4))
    assert step.submit == {BASE: 1, ELASTIC: 1} and step.cancel == ()
    assert plan_step({BASE: here[:1] * 2, ELASTIC: more}, wanted(spec, 2)).cancel == (more[1],)
