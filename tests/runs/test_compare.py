"""Comparing jobs: facts about their losses and states, what of code and settings differs, and one harmless page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control.runs import verbs
from jupyter_hyperpod.control.runs.compare_page import compare_page
from jupyter_hyperpod.control.runs.report_page import report_page
from jupyter_hyperpod.control.runs.run_record import read
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.store import JobStore, Store
from tests.runs.pages import harmless


def trained(
    store: Store, name: str, losses: dict[int, float], digest: str = "", *, source: str = "lr = 1\n", **more: Any
) -> JobStore:
    """A job that has committed these steps; ``steps``: for how many each record stands."""
    spec = {"nodes": 2, "env": {"TOKEN": "hush"}, **more.pop("spec", {})}
    job = store.create_job(JobSpec(name=name, cell_digest=store.put_cell(source), **spec))
    (job.path / "packages.json").write_text(json.dumps(more.get("packages", {"torch": "2.0"})))
    now_s = iter(range(1_790_000_000, 1_800_000_000))
    with event_writer(job.events, "worker-a", clock=lambda: float(next(now_s))) as one:
        sizes = {"total_steps": None, "global_batch": 8, "micro_batch": 4, "micro_batches": 2, "parameters": 1}
        one.append("session.opened", {**sizes, "state_bytes": 8})
        before = 0
        for step, loss in losses.items():
            data = {"step": step, "generation": 1, "loss": loss, "loss_hex": loss.hex(), "step_time_s": 0.5}
            count = {"steps": step - before} if more.get("thinned") else {}
            one.append("step.committed", {**data, "samples": 8, "world_size": 2, "redone": 0, **count})
            one.append("metric.logged", {"step": step, "values": {"lr": 0.1, "grad <norm>": loss * 2}})
            before = step
        if digest:
            one.append("session.closed", {"step": max(losses), "digest": digest})
    return job


WHOLE = {step: 1.0 / step for step in range(1, 21)}


def told(store: Store, *jobs: JobStore) -> tuple[str, dict[str, Any]]:
    answer, _ = verbs.compare(store, [job.id for job in jobs], None)
    return answer.lines[0], answer.record


def test_equal_runs_are_bit_identical(store: Store) -> None:
    one, other = (trained(store, name, WHOLE, "ab" * 32) for name in ("a", "b"))
    line, record = told(store, one, other)
    assert line == (
        f"{one.id} and {other.id} are bit-identical until step 20; their states after step 20 have the same digest."
    )
    fact = record["identity"][0]["sessions"]["1"]
    assert (fact["verdict"], fact["step"], fact["exact"], fact["state"]) == ("same", 20, True, True)
    assert record["differences"]["parameters"] == record["differences"]["code"] == {}


def test_the_last_bit_counts(store: Store) -> None:
    changed = WHOLE | {9: float.fromhex((1 / 9).hex()) + 2**-56}
    assert changed[9] != WHOLE[9] and f"{changed[9]:.12g}" == f"{WHOLE[9]:.12g}"
    one, other = trained(store, "a", WHOLE), trained(store, "b", changed)
    assert told(store, one, other)[0].endswith("are bit-identical until step 8; the loss of step 9 differs.")


def test_thinned_journals_are_not_said_to_have_more_than_they_have(store: Store) -> None:
    kept = {step: loss for step, loss in WHOLE.items() if step % 5 == 0}
    one = trained(store, "a", kept, thinned=True)
    other = trained(store, "b", WHOLE | {14: 9.0, 15: 9.5})
    line, record = told(store, one, other)
    assert f"all steps from step 5 until step 10 that both journals still have are bit-identical in {one.id}" in line
    assert "the loss of step 15 differs, and of the 4 steps between, the journals keep none in common" in line
    assert record["identity"][0]["sessions"]["1"]["exact"] is False


def test_what_differs_stands_side_by_side(store: Store) -> None:
    one = trained(store, "a", WHOLE, packages={"torch": "2.0", "numpy": "1.0", "old": "1"})
    other = trained(
        store, "b", {1: 0.25}, source="lr = 2\n", packages={"torch": "2.1", "numpy": "1.0"},
        spec={"nodes": 3, "env": {"OTHER": "quiet"}, "seed": 7},
    )  # fmt: skip
    _, record = told(store, one, other)
    differences = record["differences"]
    assert differences["packages"] == {"torch": ["2.0", "2.1"], "old": ["1", "-"]}
    assert differences["parameters"] == {"nodes": ["2", "3"], "seed": ["0", "7"]}
    assert set(differences["environment"]) == {"$TOKEN", "$OTHER"}
    assert record["values_not_compared"] == []
    assert list(differences["code"]) == ["source"] and record["alike"]["packages"] == 1
    assert record["metrics"]["grad <norm>"] == ["0.1", "0.5"]
    assert record["metrics"]["lr"] == ["0.1", "0.1"], "equal values are there, too"
    assert record["curves"]["loss"][1] == [[1, 0.25, 0.25, 0.25]]
    page = harmless(compare_page(verbs.compared(store, [one.id, other.id]), "1"))
    for text in ("-lr = 1", "+lr = 2", "torch", "2.1", "grad <norm>", "$OTHER", "differ from the first step"):
        assert text in page.text
    assert "hush" not in page.text and "quiet" not in page.text


def test_digests_of_packages_are_compared_where_both_are_known(store: Store) -> None:
    known: list[dict[str, Any]] = [
        {"one": ["1", "aa", ""], "two": ["1", "aa", ""], "python": ["1", "aa", "git+x"]},
        {"one": ["1", "", "editable /x"], "two": ["1", "bb", ""], "python": ["1", "aa", "git+x"]},
    ]
    jobs = [trained(store, "a", WHOLE) for _ in known]
    for job, packages in zip(jobs, known, strict=True):
        git = {"known": True, "commit": "abc", "branch": "main", "files": {"mine.py": "deleted"}}
        found = {"v": 1, "packages": packages, "python": {"version": "3.11"}, "variables": ["PATH"], "git": git}
        (job.path / "fingerprint.json").write_text(json.dumps(found))
    _, record = told(store, *jobs)
    assert record["differences"]["packages"] == {"two": ["1 (aa)", "1 (bb)"]}
    assert record["alike"]["packages"] == 2 and record["packages_alike_by_version_alone"] == 1
    assert "other files" in record["packages_may_change"]["two"]
    assert "other files" in harmless(compare_page(verbs.compared(store, [job.id for job in jobs]), "1")).text
    text = harmless(report_page(read(store, jobs[0].id), "1")).text
    for word in ("3.11", "abc", "not committed: mine.py", "1 (aa)", "1 (aa) git+x", "PATH"):
        assert word in text


def test_variables_whose_values_are_not_kept_are_not_counted_as_equal(store: Store) -> None:
    one, other = (trained(store, "a", WHOLE, spec={"env": {"LR": rate}}) for rate in ("1e-2", "2e-2"))
    alone = trained(store, "b", WHOLE, spec={"env": {}})
    said = "(the values of 1 variable set with --env were not compared: LR)"
    answer, _ = verbs.compare(store, [one.id, other.id], None)
    assert any(said in line for line in answer.lines) and answer.record["values_not_compared"] == ["LR"]
    assert said in harmless(compare_page(verbs.compared(store, [one.id, other.id]), "1")).text
    answer, _ = verbs.compare(store, [one.id, alone.id], None)
    assert said not in " ".join(answer.lines) and list(answer.record["differences"]["environment"]) == ["$LR"]


def test_three_jobs_are_compared_with_the_first(store: Store, tmp_path: Path) -> None:
    jobs = [trained(store, name, WHOLE | {20: last}) for name, last in (("a", 0.05), ("b", 0.05), ("c", 9.0))]
    found = verbs.compared(store, [job.id for job in jobs])
    assert [pair.other for pair in found.pairs] == [jobs[1].id, jobs[2].id]
    assert found.pairs[0].sentence.startswith(f"{jobs[0].id} and {jobs[1].id} are bit-identical until step 20")
    assert found.pairs[1].sentence.endswith("until step 19; the loss of step 20 differs")
    harmless(compare_page(found, "1"))


def test_jobs_without_steps_are_compared_too(store: Store) -> None:
    one, other = (store.create_job(JobSpec(name=name, cell_digest="0" * 64)) for name in ("a", "b"))
    assert "there is nothing to compare" in told(store, one, other)[0]
    harmless(compare_page(verbs.compared(store, [one.id, other.id]), "1"))


def test_one_job_and_too_many_are_refused(store: Store) -> None:
    def refused(*words: str) -> str:
        with pytest.raises(SpecError) as error:
            verbs.compare(store, words, None)
        return str(error.value)

    first, *jobs = [store.create_job(JobSpec(name="a", cell_digest="0" * 64)).id for _ in range(7)]
    newest = store.job_ids()[0]
    other = next(job for job in store.job_ids() if job != newest)
    assert refused("a") == f"a alone cannot be compared; name another job, too, such as {other}"
    rest = f"one job, {newest}; name a job to compare it with, such as {other}, by its id where both have the same name"
    assert refused("a", "a") == f"a stands for {rest}"
    assert refused("a", newest, "a") == f"a, {newest} stand for {rest}"
    assert refused(first, *jobs) == "7 jobs are too many to be compared; name 2 to 6"


def test_the_command_prints_tables_json_and_a_page(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = trained(store, "first", WHOLE, "ab" * 32)
    other = trained(store, "second", WHOLE | {20: 7.0}, "cd" * 32, spec={"nodes": 4})
    path = tmp_path / "compare.html"
    assert main(["compare", "first", "second", "-o", str(path)]) == 0
    shown = capsys.readouterr().out
    assert f"{one.id} and {other.id} are bit-identical until step 19; the loss of step 20 differs." in shown
    assert "parameters" in shown and "grad <norm>" in shown
    assert "bit-identical until step 19" in harmless(path.read_text()).text
    assert path.stat().st_mode & 0o777 == 0o600
    assert main(["compare", "first", "second", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == [one.id, other.id]
    assert main(["compare", "first"]) == 2
