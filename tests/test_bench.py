"""The pure parts of the benchmarks: what is read, in which order arms run, what a bar says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest

import benchmarks
from benchmarks import figures
from benchmarks.arms import cpu_seconds, fair_rounds, marked, parse_commits, rotation
from benchmarks.kept import Kept
from benchmarks.kubernetes.disturbed import standstill
from benchmarks.loading.weights import write_decoder
from benchmarks.recovery import chaos, components
from benchmarks.recovery.abuse import efficiency
from benchmarks.recovery.components import ALL, SAVED
from benchmarks.recovery.elastic import ORDINARY, pause_steps
from benchmarks.rivals.environments import python_of
from benchmarks.rivals.systems import Rival, makers
from jupyter_hyperpod import bench
from jupyter_hyperpod.bench.laboratory import processor_s
from jupyter_hyperpod.bench.report import bar, not_run, row
from jupyter_hyperpod.bench.stalls import Commit, measure, percentile, steady, step_times
from jupyter_hyperpod.cli.parser import build_parser
from jupyter_hyperpod.core.errors import ClusterError, HyperpodError, SpecError
from jupyter_hyperpod.core.events import Event
from jupyter_hyperpod.storage.store import Store


def test_a_bar_is_a_limit_or_a_minimum() -> None:
    assert bar("a", 1.0, 1.0)["ok"] and not bar("a", 1.1, 1.0)["ok"]
    more = bar("b", 0.95, at_least=0.95)
    assert more["ok"] and not bar("b", 0.94, at_least=0.95)["ok"]
    assert more == {"name": "b", "value": 0.95, "limit": 0.95, "direction": "at least", "ok": True}
    with pytest.raises(ValueError, match="needs a limit"):
        bar("c", 1.0)


def test_observations_are_read_as_they_were_written() -> None:
    commits = parse_commits("12.500000 3 0 4 77\n12.250000 3 1 4 78\n13.000000 4 0 4 77\n")
    assert commits[0] == Commit(12.5, 3, 0, 4, 77)
    assert step_times(commits) == {3: 12.25, 4: 13.0}
    with pytest.raises(ValueError):
        parse_commits("half a line\n")


@pytest.mark.parametrize("count", range(1, 12))
def test_no_arm_is_always_first_or_always_behind_the_same_one(count: int) -> None:
    names = [f"arm {number}" for number in range(count)]
    rounds = 2 * count
    orders = rotation(names, rounds)
    assert len(orders) == rounds and all(sorted(order) == sorted(names) for order in orders)
    assert Counter(order[0] for order in orders) == dict.fromkeys(names, 2)
    assert Counter(pair for order in orders for pair in pairwise(order)) == dict.fromkeys(permutations(names, 2), 2)


def test_two_arms_change_places() -> None:
    assert rotation(["a", "b"], 3) == [["a", "b"], ["b", "a"], ["a", "b"]]
    assert [fair_rounds(2, 5), fair_rounds(2, 6), fair_rounds(3, 5)] == [6, 6, 5]


def test_settings_of_a_benchmark_on_the_command_line() -> None:
    options = build_parser().parse_args(["bench", "overhead", "members=4", "scale=0.5", "label=x", "--peers", "all"])
    assert dict(options.options) == {"members": 4, "scale": 0.5, "label": "x"} and options.peers == "all"
    for order in ("members=4 scale=0.5 --runs 3", "--runs 3 members=4 scale=0.5", "members=4 --runs 3 scale=0.5"):
        options = build_parser().parse_args(["bench", "overhead", "--json", *order.split()])
        assert (dict(options.options), options.runs, options.json) == ({"members": 4, "scale": 0.5}, 3, True)
    for wrong in (["members"], ["--runs", "3", "members"], ["--runs", "3", "--member=4"]):
        with pytest.raises(SystemExit):
            build_parser().parse_args(["bench", "overhead", *wrong])
    with pytest.raises(SpecError, match="bench latency: .*'colour'"):
        bench.run("latency", colour=1)


def steps(first_s: float, numbers: range, generation: int, members: int, gap_s: float = 0.5) -> list[Commit]:
    """Two members commit these steps, the second a hundredth of a second later."""
    return [
        Commit(first_s + place * gap_s + rank / 100, number, rank, members, generation)
        for place, number in enumerate(numbers)
        for rank in range(2)
    ]


def test_a_stall_is_measured_to_the_next_commit_of_the_group_that_was_formed_anew() -> None:
    before = steps(10.0, range(1, 11), generation=1, members=4)  # step 10 at 14.5
    fault_s = 14.7
    late = [Commit(14.8, 11, 3, 4, 1)]  # the end of the step in which it happened: nobody went on yet
    assert measure(before + late, fault_s, 4) is None
    fewer = steps(15.4, range(12, 14), generation=2, members=3)
    assert measure(before + late + fewer, fault_s, 4) is None  # still not at full strength
    whole = steps(16.7, range(14, 16), generation=3, members=4)
    stall = measure(before + late + fewer + whole, fault_s, 4)
    assert stall is not None
    assert stall.step_s == pytest.approx(0.5)
    assert stall.stall_s == stall.regained_s == pytest.approx(15.4 - 14.7 - 0.5)
    assert stall.strength_s == pytest.approx(2.0) and stall.repeated == 0


def test_steps_computed_again_after_a_checkpoint_are_downtime_too() -> None:
    before = steps(10.0, range(1, 16), generation=0, members=4)  # step 15 at 17.0
    again = steps(25.0, range(11, 18), generation=1, members=4)  # from the checkpoint of step 10
    stall = measure(before + again, 17.2, 4)
    assert stall is not None and stall.repeated == 5
    assert stall.stall_s == pytest.approx(25.0 - 17.2 - 0.5)
    assert stall.regained_s == pytest.approx(27.5 - 17.2 - 0.5)  # step 16 is the first new one


def test_an_arm_is_disturbed_only_when_it_runs_steadily_with_all_members() -> None:
    assert not steady([], 4)
    assert not steady(steps(0.0, range(1, 4), 0, 4), 4) and not steady(steps(0.0, range(1, 20), 0, 3), 4)
    assert steady(steps(0.0, range(1, 20), 0, 4), 4)
    assert not steady(steps(0.0, range(1, 20), 0, 4) + steps(30.0, range(20, 22), 1, 4), 4)


def test_a_member_that_leaves_with_notice_costs_the_longest_time_between_two_commits() -> None:
    before = steps(10.0, range(1, 11), generation=1, members=2)  # step 10 at 14.5
    asked_s = 14.6
    told = steps(15.0, range(11, 13), generation=1, members=2)  # its pod has heard of it by now
    assert standstill(before + told, asked_s) is None
    alone = steps(16.2, range(13, 15), generation=2, members=1)
    assert standstill(before + told + alone, asked_s) == pytest.approx(16.2 - 15.51 - 0.5)
    assert standstill(before + alone, asked_s) == pytest.approx(16.2 - 14.51 - 0.5)


def test_efficiency_is_counted_by_the_clock_and_by_the_members_that_were_there() -> None:
    calm = steps(0.0, range(1, 27), generation=1, members=4)
    slow = steps(0.0, range(1, 27), generation=1, members=2, gap_s=1.0)
    assert efficiency(slow, calm, nodes=4) == (pytest.approx(0.5), pytest.approx(1.0))


def test_percentiles_are_samples() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([1.0] * 99 + [9.0], 0.99) == 1.0 and percentile([1.0] * 98 + [9.0] * 2, 0.99) == 9.0
    assert percentile([4.0], 0.99) == 4.0


def test_which_systems_are_compared() -> None:
    assert makers("none", 10) == {} and list(makers("torchrun", 10)) == ["torchrun"]
    assert len(makers("torchft", 10)) == 4 and len(makers("all", 10)) == 6
    with pytest.raises(SpecError, match="no system named 'horovod'"):
        python_of("horovod")


def test_an_arm_is_seen_from_outside_and_leaves_nothing(tmp_path: Path) -> None:
    class Clock(Rival):
        """A system that says what it was told."""

        def begin(self) -> None:
            """Nothing of its own."""

        def victim(self) -> int:
            """Its only process."""
            return self.processes[0].pid

    arm = Clock("clock", tmp_path, sys.executable, {})
    code = "import os, signal\nprint('1.5 1 0 1 0', file=open(os.environ['BENCH_OBSERVATIONS'], 'a'))\nsignal.pause()"
    process = arm.spawn("-c", code)
    arm.until_step(1, timeout_s=30.0)
    assert arm.commits() == [Commit(1.5, 1, 0, 1, 0)]
    assert set(marked(arm.mark)) == {process.pid} and cpu_seconds([process.pid]) >= 0.0
    arm.stop()
    assert process.returncode is not None and not marked(arm.mark)
    with pytest.raises(ClusterError, match="clock has ended"):
        arm.until(lambda: False, 5.0)


def example_report() -> dict[str, Any]:
    case, metric = "SIGKILL of one of 4 members", figures.REGAINED
    rows = [
        row(figures.OURS, case, metric, "s", [0.1, 0.2, 0.15]),
        row("torchrun", case, metric, "s", [9.0]),
        not_run("another", case, "error: no such device"),
    ]
    bars = [bar("kill_stall_p50_s", 0.15, 0.15), bar("times", 4.0, at_least=5.0)]
    return {"bench": "recovery", "machine": {"cpus": 2, "python": "3.11", "torch": "2.13"}, "rows": rows, "bars": bars}


def test_a_report_becomes_a_table_and_a_picture(tmp_path: Path) -> None:
    source = tmp_path / "report.json"
    source.write_text(json.dumps(example_report()))
    assert figures.main([str(source), str(tmp_path / "bench-recovery")]) == 0
    table = (tmp_path / "bench-recovery.md").read_text()
    assert "| jupyter_hyperpod | SIGKILL of one of 4 members | 3 | 0.15 s (0.1–0.2) |" in table
    assert "| `times` | 4 | ≥ 5 | missed |" in table and "error: no such device" in table
    assert "jupyter_hyperpod" in (tmp_path / "bench-recovery.svg").read_text()
    assert (tmp_path / "bench-recovery.png").stat().st_size > 1000
    source.write_text(json.dumps({"bench": "latency"}))
    with pytest.raises(SystemExit):
        figures.main([str(source), str(tmp_path / "x")])


def test_what_components_save_becomes_bars(tmp_path: Path) -> None:
    slow, fast = ({"stall_s": s, "strength_s": 2 * s, "digest": "d"} for s in (0.5, 0.25))
    result = components._report([{ALL: fast, "without init": slow}, {ALL: fast, "without init": fast}])
    saved = [r["median"] for r in result["rows"] if r["metric"] == SAVED]
    assert saved == [0.125, 0.25] and result["bars"][0]["ok"]
    source = tmp_path / "report.json"
    source.write_text(json.dumps(result))
    assert figures.main([str(source), str(tmp_path / "components")]) == 0
    assert "without init" in (tmp_path / "components.svg").read_text()


def test_a_long_benchmark_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    one = Kept(tmp_path, seed=1)
    one.add("1-0", {"worlds": [1, 2]})
    again = Kept(tmp_path, seed=1)
    assert "1-0" in again and "1-1" not in again and again["1-0"] == {"worlds": [1, 2]}
    assert "1-0" not in Kept()
    with pytest.raises(SpecError, match="'seed': 1"):
        Kept(tmp_path, seed=2)


def test_schedules_add_up() -> None:
    clean = {"events": {"kill": 6}, "worlds": [1, 2], "uneven": 3, "lost": 0, "repeated": 0, "different": ""}
    stuck = clean | {"events": {"kill": 4, "join": 1}, "lost": 2, "different": "STUCK: job-1 did not get there"}
    result = chaos._report([clean, stuck])
    assert {b["name"]: (b["value"], b["ok"]) for b in result["bars"]} == {
        "mismatches": (1, False), "samples_lost": (2, False), "samples_repeated": (0, True), "events": (11, True),
    }  # fmt: skip


def commits(*gaps: float) -> list[Event]:
    times = [sum(gaps[:count], 100.0) for count in range(len(gaps) + 1)]
    return [Event("w", at + 1, time_s, "step.committed", {}) for at, time_s in enumerate(times)]


def test_a_pause_is_the_longest_gap_beyond_an_ordinary_step() -> None:
    calm = [1.0] * ORDINARY
    assert pause_steps(commits(*calm, *calm)) == 0
    assert pause_steps(commits(*calm, 1.5, 1.2, *calm)) == 0.5
    assert pause_steps(commits(*calm, 1.5, *[2.0] * ORDINARY)) == 0, "a smaller world has longer steps"


def test_a_benchmark_that_is_told_to_terminate_takes_its_cluster_with_it(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", "from jupyter_hyperpod.cli import main; main()", "bench", "latency"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("hyperpod-bench-*/cluster/*.sock")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert not list(tmp_path.glob("hyperpod-bench-*"))


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A directory that holds the package as a wheel does, without what is beside it in a checkout."""
    package = Path(bench.__file__).parents[1]
    shutil.copytree(package, tmp_path / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def bench_in(place: Path, *arguments: str, without: str = "") -> tuple[int, str]:
    """``jupyter hyperpod bench`` of the package in ``place``, ``without`` some others: exit status and error."""
    code = f"import sys; sys.modules.update(dict.fromkeys({without.split()!r}))\n"
    code += "from jupyter_hyperpod.cli import main\n"
    command = [sys.executable, "-c", code + "sys.exit(main(sys.argv[1:]))", "bench", *arguments]
    environment = os.environ | {"PYTHONPATH": str(place)}
    done = subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr


def test_every_benchmark_is_found_in_a_checkout() -> None:
    assert set(benchmarks.MODULES) - set(bench.HERE) == set(bench.IN_A_CHECKOUT)
    for name in {*bench.HERE, *benchmarks.MODULES}:
        assert callable(bench._module(name).run)


@pytest.mark.timeout(120)
def test_an_installed_package_says_where_the_other_benchmarks_are(installed: Path) -> None:
    status, said = bench_in(installed, "chaos")
    assert status == 2 and "bench chaos is not installed, only latency, recovery, model; it is in the folder" in said
    status, said = bench_in(installed, "recovery", "--peers", "all")
    assert status == 2 and "what measures other systems is not installed; it is in the folder benchmarks/" in said
    status, said = bench_in(installed, "nothing")
    assert status == 2 and "expected one of latency, recovery, model\n" in said
    status, said = bench_in(installed, "model")
    assert status == 2 and "bench model needs url=URL" in said


@pytest.mark.timeout(120)
def test_a_missing_package_is_named_with_its_extra(installed: Path) -> None:
    status, said = bench_in(installed, "latency", without="torch")
    assert status == 1 and "pip install 'jupyter_hyperpod[train]'" in said
    status, said = bench_in(benchmarks.ROOT, "loading", without="numpy")
    assert status == 1 and "numpy is not installed: pip install 'jupyter_hyperpod[train]'" in said


def test_a_model_of_ones_own_is_loaded_as_often_as_asked_for(tmp_path: Path) -> None:
    size = write_decoder(tmp_path / "mine.safetensors", 1e6)
    found = bench.run("model", url=str(tmp_path / "mine.safetensors"), runs=1)
    assert {(line["metric"], line["n"]) for line in found["rows"]} >= {("load", 1), ("rate", 1)}
    assert size > 0 and found["bars"] == []
    with pytest.raises(HyperpodError, match="absent.safetensors"):
        bench.run("model", url=str(tmp_path / "absent.safetensors"), runs=1)


def test_a_job_of_many_light_members_forms_again_after_each_loss() -> None:
    from benchmarks.control import scale

    report = scale.run(runs=2, members="24", quiet_s=0.2)
    assert all(row["metric"] != "not run" for row in report["rows"]), report["rows"]
    formed = next(row for row in report["rows"] if "all others have the next plan" in row["metric"])
    assert formed["n"] == 2 and 0 < formed["max"] < 30


@pytest.mark.slow
def test_strangers_at_every_listening_socket_change_nothing() -> None:
    from benchmarks.control import strangers

    report = strangers.run(runs=1, steps=20, count=60, held=200)
    found = {bar["name"]: bar["value"] for bar in report["bars"]}
    assert found["different_states"] == 0 and found["lines_per_1000_strangers"] <= 100 * 1000 / 60
    metrics = {row["metric"]: row["median"] for row in report["rows"]}
    assert all(f"memory that was gained: {name}" in metrics for name in ("coordinator", "gateway", "fan-out"))
    assert metrics["a member joins"] > 0 and metrics["a client is answered"] > 0 and metrics["a rank gets a chunk"] > 0


def test_strangers_call_all_sockets_in_all_ways() -> None:
    from benchmarks.control.stranger_crowd import GARBAGE, Plan, Target

    plan = Plan([Target("127.0.0.1", 1, {GARBAGE: b"x".hex()}), Target("127.0.0.1", 2, {})], 10, 0.5)
    assert Plan.decode(plan.encode().decode()) == plan


def test_the_watch_of_the_loop_takes_no_memory_that_grows_and_says_why_a_callback_was_long() -> None:
    import asyncio

    from benchmarks.control.watched_server import NAMED, Moment, Watch

    loop = asyncio.new_event_loop()
    handle = loop.call_soon(print)
    loop.close()
    watch = Watch()

    def note(count: int) -> None:
        for number in range(count):
            took_s = 1e-5 * (1 + number % 1000)
            after = Moment(took_s, took_s / 2, took_s / 2 + 0.001, 3, 2)
            watch.note(Moment(0.0, 0.0, 0.0, 1, 2), after, handle)

    note(1000)
    tracemalloc.start()
    try:
        note(20_000)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    found = watch.report()
    assert grown < 20_000
    assert (found["callbacks"], found["longest_s"], len(found["longest"])) == (21_000, 0.01, NAMED)
    assert 0.0099 < found["p99_s"] <= 0.01
    longest = found["longest"][0]
    assert longest["others_s"] == pytest.approx(0.001)
    assert (longest["took_s"], longest["waits"], longest["preemptions"]) == (0.01, 2, 0)


def test_browsers_get_the_news_of_jobs_that_train() -> None:
    from benchmarks.control import browsers

    report = browsers.run(clients=3, jobs=8, training=2, seconds=2.0, settle=0.5)
    found = {row["metric"]: row["median"] for row in report["rows"]}
    assert 0 < found["sent to all clients"] < found["the same before compression"]
    assert 0 < found["from an event until a client has it, median"] < 30
    names = {"bytes_per_s", "longest_handler_ms", "longest_handler_p99_ms", "memory_bytes"}
    assert names < {bar["name"] for bar in report["bars"]}


def test_the_processor_time_of_a_cluster_has_that_of_its_processes_that_have_ended(tmp_path: Path) -> None:
    store = Store(tmp_path)
    program = """
import os, sys, time
if not (child := os.fork()):
    while time.process_time() < 0.4:
        pass
    os._exit(0)
os.waitpid(child, 0)
print("ended", flush=True)
sys.stdin.read()
"""
    assert processor_s(store) == 0
    command = [sys.executable, "-c", program, os.fspath(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ended\n"
        assert 0.35 < processor_s(store) < 2  # it counts hundredths of a second
