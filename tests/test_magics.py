"""The magics in a real IPython shell, on a real cluster."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from jupyter_hyperpod.control import cluster as control
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.errors import ClusterError, SpecError
from jupyter_hyperpod.core.events import TERMINAL_STATES
from jupyter_hyperpod.notebook.push import named_values, place, with_values
from jupyter_hyperpod.notebook.stream import JobFailed
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.store import ENVIRONMENT_VARIABLE, Store
from jupyter_hyperpod.storage.values import decode_values, encode_values
from tests.cells import FILLS_A_LIST, train

Eventually = Callable[..., Any]


def make_shell(**traits: Any) -> InteractiveShell:
    config = Config({"HistoryManager": {"enabled": False}, "HyperpodMagics": traits})
    shell = InteractiveShell(config=config, colors="nocolor")
    shell.run_line_magic("load_ext", "jupyter_hyperpod")
    return shell


@pytest.fixture
def shell(store: Store) -> Iterator[InteractiveShell]:
    """A shell whose store is empty and has no cluster."""
    yield make_shell()
    assert not control.connectable(store), "this test was not meant to start a cluster"


@pytest.fixture
def live(shared_cluster: Store, monkeypatch: pytest.MonkeyPatch) -> InteractiveShell:
    """A shell on the shared cluster."""
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(shared_cluster.root))
    return make_shell(lost_after_s=5.0)


def magics(shell: InteractiveShell) -> Any:
    return shell.magics_manager.registry["HyperpodMagics"]


def run(shell: InteractiveShell, cell: str) -> Any:
    result = shell.run_cell(cell)
    result.raise_error()
    return result.result


def refused(shell: InteractiveShell, cell: str, kind: type[Exception] = SpecError) -> Exception:
    error = shell.run_cell(cell).error_in_exec
    assert isinstance(error, kind), error
    return error


# ---- running cells ------------------------------------------------------------------------------------------


def test_cell_streams_what_every_rank_prints(live: InteractiveShell, capfd: pytest.CaptureFixture[str]) -> None:
    run(live, "%%hyperpod --nodes 3 --name hello --env WHO=world\nimport os\nprint('hello', os.environ['WHO'])")
    out = capfd.readouterr().out.splitlines()
    assert sorted(out[:3]) == [f"[rank {rank}] hello world" for rank in range(3)]
    assert out[3] == "hello · succeeded"


def test_one_rank_needs_no_prefix(live: InteractiveShell, capfd: pytest.CaptureFixture[str]) -> None:
    run(live, "%%hyperpod\nimport sys\nprint('alone'); print('aside', file=sys.stderr); print('open end', end='')")
    out, err = capfd.readouterr()
    assert out.splitlines() == ["alone", "open end", "cell · succeeded"] and err == "aside\n"


def test_a_warning_of_the_run_is_shown_once_below_the_cell(live: InteractiveShell, capfd: Any) -> None:
    run(live, f"%%hyperpod --nodes 2\n{FILLS_A_LIST}")
    out, err = capfd.readouterr()
    assert err.count("warning: each member has another value of sizes") == 1 and "warning" not in out


def test_users_error_has_the_cells_lines_and_none_of_ours(live: InteractiveShell, capfd: Any) -> None:
    cell = "%%hyperpod --nodes 2 --name wrong\n\ndef f():\n    raise KeyError('lost')\n\nf()"
    error = refused(live, cell, JobFailed)
    shown = capfd.readouterr().out
    assert "line 6" in shown and "line 4, in f" in shown and "raise KeyError('lost')" in shown
    assert "KeyError: 'lost'" in shown and "jupyter_hyperpod/" not in shown
    assert str(error).startswith("KeyError: 'lost' (rank ")
    view = jobs.list_jobs(Store())[0]
    assert view["state"] == "failed" and view["incidents"] == []


def test_a_variable_of_the_notebook_that_the_job_lacks_is_named(live: InteractiveShell, capfd: Any) -> None:
    live.user_ns["lr_of_mine"] = 0.5
    refused(live, "%%hyperpod\nprint(lr_of_mine)", JobFailed)
    assert "give it with --push lr_of_mine" in capfd.readouterr().out
    refused(live, "%%hyperpod\nprint(of_nobody)", JobFailed)
    assert "--push" not in capfd.readouterr().out


def test_pushed_values_arrive_whole(live: InteractiveShell, capfd: pytest.CaptureFixture[str]) -> None:
    run(
        live,
        "import numpy, torch\narray = numpy.arange(6, dtype='>f4').reshape(2, 3)\nweights = torch.eye(2).bfloat16()",
    )
    run(live, "settings = {'rate': 3e-4, 'names': ['a', 'b'], 'none': None, 'pair': (1, float('inf'))}")
    cell = (
        "from __future__ import annotations\nprint(settings)\nprint(array.sum(), array.shape, weights.dtype, weights)"
    )
    run(live, f"%%hyperpod --push array,weights --push settings\n{cell}")
    out = capfd.readouterr().out.splitlines()
    assert out[0] == "{'rate': 0.0003, 'names': ['a', 'b'], 'none': None, 'pair': (1, inf)}"
    assert out[1].startswith("15.0 (2, 3) torch.bfloat16 tensor([[1., 0.]")


def test_pushing_keeps_line_numbers(live: InteractiveShell, capfd: pytest.CaptureFixture[str]) -> None:
    live.user_ns["zero"] = 0
    refused(live, "%%hyperpod --push zero\nfrom __future__ import annotations\none = 1\none / zero", JobFailed)
    assert "line 4" in capfd.readouterr().out


def test_detach_attach_scale_fault_and_stop(live: InteractiveShell, capfd: Any, eventually: Eventually) -> None:
    run(live, f"%%hyperpod --elastic 1:3 --nodes 2 --name verbs --detach\n{train()}")
    store, job_id = Store(), magics(live).last_job
    assert f"%hyperpod attach {job_id}" in capfd.readouterr().out
    run(live, "%hyperpod fault kill --rank 1 --after-step 4")
    run(live, "%hyperpod scale 3")
    eventually(lambda: jobs.job_view(store, job_id)["world_size"] == 3, 60)
    stopper = threading.Timer(0.5, lambda: jobs.stop(store, job_id))
    stopper.start()
    run(live, "%hyperpod attach verbs")
    stopper.join()
    out = capfd.readouterr().out
    assert "] rank 0 trains" in out and "stopped" in out
    view = run(live, "%hyperpod describe")
    assert view["id"] == job_id and view["state"] == "stopped" and view["incidents"]
    assert "RESUMED IN" in repr(view)
    kinds = [event["kind"] for event in run(live, "%hyperpod events verbs --kind fault.injected")]
    assert kinds == ["fault.injected"]
    run(live, "%hyperpod logs verbs --rank 0")
    assert "[rank 0] rank 0 trains" in capfd.readouterr().out


def test_queries_show_tables_and_give_values(live: InteractiveShell) -> None:
    run(live, "%%hyperpod --name query\npass")
    listed = run(live, "%hyperpod jobs")
    assert listed[0]["name"] == "query"
    assert repr(listed).splitlines()[1].split()[1] == "succeeded"
    assert ">succeeded</td>" in listed._repr_html_()
    nodes = run(live, "%hyperpod nodes")
    assert {node["node"] for node in nodes} >= {"node-1", "node-2", "node-3", "node-4"}
    run(live, "%hyperpod cluster status")


def test_a_report_and_a_comparison_from_a_cell(live: InteractiveShell, capfd: Any, tmp_path: Path) -> None:
    for name in ("one", "two"):
        run(live, f"%%hyperpod --name {name}\nprint('{name}')")
    capfd.readouterr()
    run(live, f"%hyperpod report -o {tmp_path / 'two.html'}")
    assert "it succeeded" in capfd.readouterr().out
    assert "two-" in (tmp_path / "two.html").read_text()
    found = run(live, f"%hyperpod compare one two -o {tmp_path / 'both.html'}")
    assert "there is nothing to compare" in capfd.readouterr().out
    assert found[0]["metrics"]["state"] == ["succeeded", "succeeded"] and "STATE" not in repr(found)
    assert "-print('one')" in (tmp_path / "both.html").read_text().replace("&#x27;", "'")


def test_rerun_repeats_a_cell(live: InteractiveShell, capfd: pytest.CaptureFixture[str]) -> None:
    run(live, "%%hyperpod --name once --seed 3\nprint('same')")
    run(live, "%hyperpod rerun once --name twice")
    assert capfd.readouterr().out.splitlines() == ["same", "once · succeeded", "same", "twice · succeeded"]
    assert Store().job(magics(live).last_job).spec().seed == 3


@pytest.mark.parametrize("option", ["", "--cancel-on-interrupt"])
def test_interrupt_detaches_or_cancels(live: InteractiveShell, capfd: Any, eventually: Eventually, option: str) -> None:
    store = Store()
    known = set(store.job_ids())

    def interrupt() -> None:
        job_id = eventually(lambda: next(iter(set(store.job_ids()) - known), None), 60)
        eventually(lambda: jobs.job_view(store, job_id)["step"] >= 2, 60)
        _thread.interrupt_main()

    thread = threading.Thread(target=interrupt)
    thread.start()
    run(live, f"%%hyperpod --name break {option}\n{train()}")
    thread.join()
    job_id = magics(live).last_job
    out = capfd.readouterr().out
    if option:
        assert "was asked to stop" in out
    else:
        assert f"%hyperpod attach {job_id}" in out
        assert jobs.job_view(store, job_id)["state"] not in TERMINAL_STATES
        run(live, "%hyperpod stop")
    assert jobs.wait(store, job_id, timeout_s=60)["state"] == "stopped"


def test_cell_goes_on_while_the_supervisor_is_gone(cluster: Store, capfd: Any, eventually: Eventually) -> None:
    shell = make_shell(lost_after_s=30.0)

    def kill_supervisor() -> None:
        eventually(lambda: any(view["step"] >= 20 for view in jobs.list_jobs(cluster)), 60)
        os.kill(control.status(cluster)["pid"], signal.SIGKILL)

    thread = threading.Thread(target=kill_supervisor)
    thread.start()
    run(shell, f"%%hyperpod --nodes 2 --name bereft\n{train(150)}\nprint('to the end')")
    thread.join()
    assert capfd.readouterr().out.count("to the end") == 2
    assert jobs.list_jobs(cluster)[0]["state"] == "succeeded"


def test_silence_without_a_supervisor_ends_the_cell(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    shell = make_shell(lost_after_s=3.0)
    digest = store.put_cell("print(1)\n")
    from jupyter_hyperpod.core.spec import JobSpec

    job = store.create_job(JobSpec(name="orphan", cell_digest=digest))
    with event_writer(job.events, "coordinator") as journal:
        journal.append("job.state", {"state": "running", "reason": ""})
    error = refused(shell, f"%hyperpod attach {job.id}", ClusterError)
    assert "no news from orphan-" in str(error) and "cluster start" in str(error)


# ---- bad use ------------------------------------------------------------------------------------------------

BAD_LINES = {
    "unknown option": ("%%hyperpod --nods 3\nprint(1)", "did you mean --nodes?"),
    "impossible range": ("%%hyperpod --elastic 5:2\nprint(1)", "elastic range 5:2 is impossible"),
    "range and nodes": ("%%hyperpod --elastic 2:3 --nodes 9\nprint(1)", "outside the elastic range 2:3"),
    "name with a path": ("%%hyperpod --name ../evil\nprint(1)", "job name '../evil' is not allowed"),
    "open quote": ("%%hyperpod --name 'x\nprint(1)", "No closing quotation"),
    "empty": ("%%hyperpod", "is empty"),
    "empty with options": ("%%hyperpod --nodes 2", "is empty"),
    "blank lines": ("%%hyperpod\n\n  \n", "is empty"),
    "shell line": ("%%hyperpod\nx = 1\n!ls", "line 3 of the cell is for IPython"),
    "magic line": ("%%hyperpod\n%time 1", "line 2 of the cell is for IPython"),
    "unknown variable": ("%%hyperpod --push nothing\nprint(1)", "no variable of that name"),
    "not a variable": ("%%hyperpod --push a.b\nprint(1)", "'a.b' is not a variable's name"),
    "function": ("%%hyperpod --push print_it\nprint(1)", "it holds a builtins.function"),
    "unknown verb": ("%hyperpod job", "did you mean jobs?"),
    "unknown fault": ("%hyperpod fault explode --rank 0", "invalid choice"),
    "fault of a job": ("%hyperpod fault first-abcdefgh", "the kind of the fault comes first: fault kill --job first-"),
    "fault without aim": ("%hyperpod fault kill", "expected one of --rank, --node, --target"),
    "no job yet": ("%hyperpod attach", "has not submitted a job yet"),
    "unknown job": ("%hyperpod stop nobody", "no job 'nobody'"),
    "job with a path": ("%hyperpod logs ../../secret", "not of the form"),
    "agent": ("%hyperpod health agent node-1", "in a terminal there"),
    "nodes": ("%hyperpod cluster start 4", "takes no '4': write `cluster start --nodes 4`"),
    "cluster": ("%hyperpod cluster stop --nodes 3", "belong to `cluster start`"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_bad_use_is_one_clear_line(shell: InteractiveShell, capfd: Any, case: str) -> None:
    cell, said = BAD_LINES[case]
    shell.user_ns["print_it"] = lambda: None
    error = shell.run_cell(cell).error_in_exec
    shown = capfd.readouterr().out
    assert error is not None and said in str(error)
    assert said in shown and "Traceback" not in shown and len(shown.strip().splitlines()) == 1
    assert Store().job_ids() == []


def test_syntax_error_looks_like_pythons(shell: InteractiveShell, capfd: pytest.CaptureFixture[str]) -> None:
    refused(shell, "%%hyperpod\nx = 1\ny = (x ]\n")
    lines = capfd.readouterr().out.rstrip().splitlines()
    assert lines[0].endswith("line 3") and lines[1].strip() == "y = (x ]"
    assert lines[2].index("^") == lines[1].index("]")
    assert lines[3].startswith("SyntaxError: ") and len(lines) == 4


def test_hundred_megabytes_are_refused(shell: InteractiveShell, store: Store) -> None:
    with pytest.raises(SpecError, match="the cell is 100 MiB; the limit is 16 MiB"):
        shell.run_cell_magic("hyperpod", "--name large", "#" * (100 * 2**20))
    assert store.job_ids() == []


def test_too_much_pushed_is_refused(shell: InteractiveShell) -> None:
    shell.user_ns["large"] = b"x".decode() * (9 * 2**20)
    error = refused(shell, "%%hyperpod --push large\nprint(1)")
    assert "the limit is 8 MiB" in str(error)


# ---- help, completion, defaults -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cell", ["%%hyperpod --help", "%%hyperpod -h\nprint(1)", "%hyperpod --help", "%hyperpod", "%hyperpod fault -h"]
)
def test_help_is_no_error(shell: InteractiveShell, capfd: pytest.CaptureFixture[str], cell: str) -> None:
    run(shell, cell)
    out, err = capfd.readouterr()
    assert out.startswith("usage: %") and err == ""


def test_question_mark_shows_the_options(shell: InteractiveShell, capfd: pytest.CaptureFixture[str]) -> None:
    run(shell, "%%hyperpod?")
    assert "--cancel-on-interrupt" in capfd.readouterr().out
    run(shell, "%hyperpod?")
    assert "break something on purpose" in capfd.readouterr().out


def complete(shell: InteractiveShell, text: str) -> list[str]:
    with provisionalcompleter():
        return [completion.text for completion in shell.Completer.completions(text, len(text))]


def test_completion_of_verbs_options_and_values(shell: InteractiveShell) -> None:
    shell.user_ns["alpha"] = 1
    assert complete(shell, "%hyperpod fa") == ["fault"]
    assert complete(shell, "%hyperpod lis") == ["list"]
    assert complete(shell, "%hyperpod cluster st") == ["start", "status", "stop"]
    assert complete(shell, "%hyperpod fault kill --af") == ["--after-step"]
    assert complete(shell, "%%hyperpod --el") == ["--elastic"]
    assert complete(shell, "%%hyperpod --backend lo") == ["local"]
    assert complete(shell, "%%hyperpod --push al") == ["alpha"]
    assert complete(shell, "hyperpod = fa") != ["fault"]


def test_completion_of_jobs_and_nodes(live: InteractiveShell) -> None:
    run(live, "%%hyperpod --name completed\npass")
    assert complete(live, "%hyperpod logs comple")[0] == "completed"
    assert magics(live).last_job in complete(live, "%hyperpod fault kill --job completed-")
    assert complete(live, "%hyperpod compare comple")[0] == "completed"
    assert "node-4" in complete(live, "%hyperpod fault kill --node node-")


def test_the_cap_of_the_output_has_a_default(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    def shown_cap(options: str) -> str | None:
        run(shell, f"%%hyperpod --dry-run {options}\nprint(1)")
        return dict(line.split(maxsplit=1) for line in capfd.readouterr().out.splitlines()[1:]).get("output_cap")

    shell = make_shell(output_cap="2GB")
    assert shown_cap("") == "2000000000" and shown_cap("--output-cap 5MB") == "5000000"
    assert "1 MB or more" in str(refused(shell, "%%hyperpod --output-cap 10kB\nprint(1)"))
    found = str(refused(make_shell(output_cap="much"), "%%hyperpod --dry-run\nprint(1)"))
    assert found.startswith("HyperpodMagics.output_cap: size 'much' is not a number of bytes")


def test_defaults_come_from_configuration(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    shell = make_shell(nodes=3, spares=0, priority=7, threads=2)
    run(shell, "%%hyperpod --dry-run\nprint(1)")
    shown = dict(line.split(maxsplit=1) for line in capfd.readouterr().out.splitlines()[1:])
    assert (shown["nodes"], shown["spares"], shown["priority"], shown["threads"]) == ("3", "0", "7", "2")
    run(shell, "%%hyperpod --dry-run --elastic 1:2 --priority -1\nprint(1)")
    shown = dict(line.split(maxsplit=1) for line in capfd.readouterr().out.splitlines()[1:])
    assert (shown["nodes"], shown["priority"]) == ("2", "-1")
    assert store.job_ids() == []


def test_another_interpreter_is_a_path_that_exists_where_the_job_runs(
    shell: InteractiveShell, store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    run(shell, f"%%hyperpod --dry-run --python {sys.executable}\nprint(1)")
    assert f"python        {sys.executable}" in capfd.readouterr().out
    run(shell, "%%hyperpod --dry-run --backend slurm --python /elsewhere/python\nprint(1)")
    assert "/elsewhere/python" in capfd.readouterr().out
    for python, told in (("python3", "not the path of an interpreter"), ("/elsewhere/python", "not a program on")):
        with pytest.raises(SpecError, match=told):
            run(shell, f"%%hyperpod --dry-run --python {python}\nprint(1)")
    assert store.job_ids() == []


def test_loading_twice_registers_once(shell: InteractiveShell) -> None:
    shell.run_line_magic("reload_ext", "jupyter_hyperpod")
    names = [getattr(matcher, "matcher_identifier", "") for matcher in shell.Completer.custom_matchers]
    assert names.count("hyperpod_matcher") == 1


# ---- pushed values ------------------------------------------------------------------------------------------


def test_values_survive_the_journey() -> None:
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    values = {
        "plain": [1, -2.5, "ü", None, True, {"a": (1,)}],
        "array": numpy.array([[1 + 2j]], dtype="complex128"),
        "scalar": numpy.float32(1.5),
        "empty": torch.empty(0, 3, dtype=torch.int16),
        "tensor": torch.randn(3, 2).bfloat16(),
        "strided": torch.arange(6).reshape(2, 3).T,
    }
    back = decode_values(encode_values(values))
    assert back["plain"] == values["plain"] and back["scalar"] == 1.5
    assert numpy.array_equal(back["array"], values["array"]) and back["array"].flags.writeable
    for name in ("empty", "tensor", "strided"):
        assert torch.equal(back[name], values[name]) and back[name].dtype == values[name].dtype


def test_what_has_no_safe_form_is_refused() -> None:
    numpy = pytest.importorskip("numpy")
    for value in (object(), {1: object()}, {"a": {print}}, numpy.array([object()]), range(3), print):
        with pytest.raises(SpecError, match="--push cannot send 'v'"):
            encode_values({"v": value})


def test_frames_survive_the_journey() -> None:
    import pandas

    times = pandas.date_range("2026-03-28", periods=3, freq="D")
    frame = pandas.DataFrame(
        {
            "loss": [1.5, float("nan"), float("inf")],
            "name": ["a", None, "ü"],
            "whole": pandas.array([1, None, 3], dtype="Int64"),
            "kind": pandas.Categorical(["x", "y", "x"], ordered=True),
            "at": times,
            "there": times.tz_localize("Europe/Berlin"),
            7: [True, False, True],
            "mixed": [1, "a", (2.5, None)],
        },
        index=pandas.MultiIndex.from_tuples([(1, "a"), (1, "b"), (2, "a")], names=["n", None]),
    )
    values = {
        "frame": frame,
        "column": frame["loss"],
        "empty": pandas.DataFrame(index=[1, 2]),
        "nested": {1: [frame.head(1)], "s": {2, 3}, "b": b"bytes", "c": 1j},
    }
    back = decode_values(encode_values(values))
    pandas.testing.assert_frame_equal(back["frame"], frame, check_freq=False)
    pandas.testing.assert_series_equal(back["column"], frame["loss"])
    pandas.testing.assert_frame_equal(back["empty"], values["empty"])
    pandas.testing.assert_frame_equal(back["nested"][1].pop(), frame.head(1), check_freq=False)
    assert back["nested"] == {1: [], "s": {2, 3}, "b": b"bytes", "c": 1j}


def test_pulled_values_come_back_typed(live: InteractiveShell) -> None:
    cell = (
        "import numpy, pandas, torch\nloss = float('nan')\nhistory = [{'step': 1, 'w': torch.eye(2).bfloat16()}]\n"
        "array = numpy.float32(1.5)\nframe = pandas.DataFrame({'loss': [1.0, 2.0]})\nmodel = torch.nn.Linear(1, 1)"
    )
    error = refused(live, f"%%hyperpod --nodes 2 --pull loss,history,model --pull frame,array\n{cell}", SpecError)
    assert "--pull: cannot bring back 'model': it holds a torch.nn.modules.linear.Linear" in str(error)
    found = live.user_ns
    assert found["loss"] != found["loss"] and found["frame"]["loss"].tolist() == [1.0, 2.0]
    assert str(found["history"][0]["w"].dtype) == "torch.bfloat16" and type(found["array"]).__name__ == "float32"
    assert "model" not in found


def test_a_name_that_the_cell_cannot_bind_is_refused_before_it_runs(shell: InteractiveShell) -> None:
    assert "did you mean history?" in str(refused(shell, "%%hyperpod --pull histroy\nhistory = []", SpecError))
    assert "not a variable's name" in str(refused(shell, "%%hyperpod --pull a.b\na = 1", SpecError))


def test_prelude_takes_a_line_that_is_there(store: Store) -> None:
    for body in ("print(a)\n", '"""Doc."""\nfrom __future__ import annotations\nprint(a)\n', "# ä\nprint(a)"):
        placed = place(body, 1)
        source = with_values(placed, named_values(["a"], {"a": 1}), store)
        assert source.count("\n") == placed.count("\n")
        compile(source, "<cell>", "exec", dont_inherit=True)
    assert with_values(placed, {}, store) == placed
