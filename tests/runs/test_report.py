"""The report of a job is one harmless file, whatever the job was and whatever it printed."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control.runs.markup import number as axis_number
from jupyter_hyperpod.control.runs.markup import section
from jupyter_hyperpod.control.runs.page import LARGEST_BYTES, bounded
from jupyter_hyperpod.control.runs.report_page import report_page
from jupyter_hyperpod.control.runs.run_record import RunRecord, read
from jupyter_hyperpod.control.runs.sentence import what_happened
from jupyter_hyperpod.control.runs.verbs import write
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.core.events import Event, decode_event, encode
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage import segments
from jupyter_hyperpod.storage.journal import event_writer, files, identity
from jupyter_hyperpod.storage.resources.node_uses import FOLDER
from jupyter_hyperpod.storage.resources.samples import Use, as_event
from jupyter_hyperpod.storage.store import JobStore, Store
from tests.runs.pages import harmless

JOURNALS = Path(__file__).parents[1] / "journals"
GOLDEN = sorted(path.stem for path in JOURNALS.glob("*.jsonl") if not path.stem.startswith("cluster"))
HOSTILE = "</pre></td><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x00\x1b[31m\u202e"


def job_of(store: Store, journal: str, source: str = "print(1)\n") -> JobStore:
    """A job with a golden journal."""
    job = store.create_job(JobSpec(name="told", cell_digest=store.put_cell(source), nodes=2, env={"TOKEN": "hush"}))
    for line in (JOURNALS / f"{journal}.jsonl").read_bytes().splitlines(keepends=True):
        known = identity(line)
        with (job.events / segments.first_name(known[0] if known else "odd")).open("ab") as file:
            file.write(line)
    return job


def page_of(store: Store, job: JobStore) -> tuple[RunRecord, str]:
    record = read(store, job.id)
    return record, report_page(record, "1.2.3")


@pytest.mark.parametrize("journal", GOLDEN)
def test_every_journal_has_a_report(store: Store, journal: str) -> None:
    job = job_of(store, journal)
    record, source = page_of(store, job)
    page = harmless(source)
    assert job.id in page.text and record.view["state"] in page.text
    for name in record.view["metrics"]:
        assert name in page.text, "every value of session.log is told"
    for incident in record.incidents:
        assert incident["cause"] in page.text and all(stage["text"] in page.text for stage in incident["stages"])
    for losses in record.losses.values():
        assert losses.digest in page.text
    assert "hush" not in source and "$TOKEN" in page.text
    assert "print(1)" in page.text


@pytest.mark.parametrize("members", [0, 1, 3, 20])
def test_what_the_nodes_used_is_drawn(store: Store, members: int) -> None:
    job = job_of(store, "kill")
    (job.path / FOLDER).mkdir()
    start_s = 1790000000.0
    moments = iter([start_s + 10 * at for at in range(1, 4)])
    with event_writer(job.path / FOLDER, "coordinator", clock=lambda: next(moments)) as journal:
        for cpu_ms in (0, 5_000, 20_000) if members else ():
            use = {"ms": 10_000, "cpu_ms": cpu_ms, "cores": 2, "memory": 1 << 30, "limit": 1 << 34, "sent": 10**9}
            found: dict[str, Use] = {f"n<{at}": dict(use) for at in range(members)}
            journal.append("nodes.sampled", as_event(found, 10.0))
    _, source = page_of(store, job)
    page = harmless(source)
    for title in ("Resources", "CPU, percent of 2 cores", "Memory of 17.2 GB, in MB", "Network, MB sent per second"):
        assert (title in page.text) is bool(members), title
    assert ("lowest" in page.text and "highest" in page.text) is (members > 8)
    assert ("n<2" in page.text) is (members == 3)
    assert "network and GPUs are those of the whole node" in page.text or not members


def test_a_story_is_told_in_a_sentence_with_its_decisions(store: Store) -> None:
    record, source = page_of(store, job_of(store, "kill"))
    page = harmless(source)
    assert len(record.incidents) == 1 and record.decisions
    assert all(reason in page.text for _, _, reason in record.decisions)
    assert record.time.goodput and f"goodput {100 * record.time.goodput:.1f} %" in page.text
    assert len(page.pictures) >= 4, "loss, throughput, nodes, time"


@pytest.mark.parametrize(
    ("state", "started", "sentence"),
    [
        ("pending", False, "told has not started on 2 nodes; it is pending: why."),
        ("stopped", False, "told did not start on 2 nodes; it was stopped: why."),
        ("running", True, "told has run for 5.0 s on 2 nodes; it is running: why."),
        ("succeeded", True, "told ran for 5.0 s on 2 nodes; it succeeded."),
    ],
)
def test_a_job_without_steps_is_told_in_a_whole_sentence(
    store: Store, state: str, started: bool, sentence: str
) -> None:
    job = store.create_job(JobSpec(name="told", cell_digest=store.put_cell("1"), nodes=2))
    times = iter([100.0, 100.0, 105.0])
    with event_writer(job.events, "control", clock=lambda: next(times)) as journal:
        journal.append("job.submitted", {"id": job.id, "spec": job.spec().to_json()})
        if started:
            journal.append("job.state", {"state": "running", "reason": ""})
        journal.append("job.state", {"state": state, "reason": "why"})
    record = replace(read(store, job.id), now_s=105.0)
    assert what_happened(record) == sentence


def test_rates_are_written_without_an_exponent() -> None:
    assert [axis_number(value) for value in (1840.5, 18405.5, 2_500_000.0, 0.5)] == ["1840", "18.41k", "2.5M", "0.5"]


def hostile(job: JobStore, text: str) -> None:
    """Replace every text of a journal that a job or its program writes by another one."""
    free = {
        "text",
        "cause",
        "detail",
        "reason",
        "type",
        "message",
        "name",
        "notebook",
        "node",
        "policy",
        "path",
        "stage",
    }

    def changed(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            spoilt = {text: value["loss"]} if name == "values" and "loss" in value else {}
            return {key: changed(one, key) for key, one in value.items()} | spoilt
        if isinstance(value, list):
            return [changed(one, name or "text") for one in value]
        return text + value if isinstance(value, str) and name in free and value != "resumed" else value

    for path in files(job.events):
        events = [decode_event(line) for line in path.read_bytes().splitlines()]
        spoilt = (Event(e.writer, e.seq, e.time_s, e.kind, changed(dict(e.data))) for e in events)
        path.write_bytes(b"".join(map(encode, spoilt)))


@pytest.mark.parametrize("journal", ["kill", "elastic", "user-error", "recoveries", "deployment", "loading", "rules"])
def test_nothing_that_a_job_says_becomes_part_of_the_page(store: Store, journal: str) -> None:
    job = job_of(store, journal, f"print('''{HOSTILE}''')".replace("\x00", ""))
    hostile(job, HOSTILE)
    record, source = page_of(store, job)
    page = harmless(source)
    assert "<script" not in source and "<img" not in source and "\x1b" not in source and "\x00" not in source
    assert "<script>alert(1)</script>" in page.text, "it is shown as text"
    assert record.view["state"] in page.text


@settings(max_examples=30)
@given(st.text(max_size=60))
def test_any_text_is_only_text(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    store = Store(tmp_path_factory.mktemp("any") / "store").prepare()
    job = job_of(store, "kill")
    clean = text.encode("utf-8", "replace").decode()
    hostile(job, clean)
    harmless(page_of(store, job)[1])


def test_a_job_without_anything_has_a_report(store: Store) -> None:
    job = store.create_job(JobSpec(name="bare", cell_digest="0" * 64))
    (job.path / "packages.json").write_text("[1]")
    record, source = page_of(store, job)
    assert "The source is not kept" in harmless(source).text
    assert record.packages() == {}
    (job.path / "spec.json").write_text("{")
    harmless(page_of(store, job)[1])


def test_output_that_a_job_has_left_is_at_its_end(store: Store) -> None:
    job = job_of(store, "happy")
    record, source = page_of(store, job)
    assert record.output and record.output[-1][1] in harmless(source).text


def thinned_journal(job: JobStore, steps: int, stride: int, newest: int) -> None:
    """What the keeper leaves of a job with so many steps: one of ``stride``, and the ``newest`` whole."""
    data = (
        '"step":%d,"generation":1,"loss":%f,"loss_hex":"%s","step_time_s":0.01,"samples":%d,"world_size":2,"redone":0'
    )
    line = (
        '{"v":1,"writer":"worker-a.1","seq":%d,"time_s":%f,"kind":"step.committed","data":{' + data + ',"steps":%d}}\n'
    )
    logged = (
        '{"v":1,"writer":"worker-b.1","seq":%d,"time_s":%f,"kind":"metric.logged","data":{"step":%d,"values":{%s}}}\n'
    )
    values = ",".join(f'"metric_{number}":{number}.5' for number in range(40))
    began_s, seq, known = 1_790_000_000.0, 0, []
    with (job.events / segments.first_name("worker-a.1")).open("w") as file:
        old = range(stride, steps - newest + 1, stride)
        for step, count in [*((step, stride) for step in old), *((old[-1] + n, 1) for n in range(1, newest + 1))]:
            seq += 1
            loss = 1000.0 if step == old[len(old) // 2] else 5.0 / (1 + step / 1e6)
            file.write(line % (seq, began_s + step * 0.01, step, loss, loss.hex(), 32 * count, count))
            known.append(step)
    with (job.events / segments.first_name("worker-b.1")).open("w") as file:
        for number, step in enumerate(known[::16], 1):
            file.write(logged % (number, began_s + step * 0.01, step, values))
    formed = {"generation": 1, "target": 2, "spares": [], "reason": "2 are ready"}
    members = [{"member": f"node-{n}.a", "node": f"node-{n}", "rank": n - 1} for n in (1, 2)]
    events = [Event("coordinator.1", 1, began_s, "generation.formed", formed | {"members": members})]
    (job.events / segments.first_name("coordinator.1")).write_bytes(b"".join(map(encode, events)))


def test_ten_million_steps_are_a_small_page_in_seconds(store: Store) -> None:
    job = store.create_job(JobSpec(name="long", cell_digest="0" * 64, nodes=2))
    thinned_journal(job, 10_000_000, 4096, 20_000)
    began_s = time.process_time()
    record, source = page_of(store, job)
    took_s = time.process_time() - began_s
    assert record.view["step"] > 9_990_000
    assert took_s < 20
    page = harmless(source)
    assert "metric_39" in page.text and "each place stands for" in page.text
    assert record.curves[1, "loss"].highest == 1000.0, "a spike is not thinned away"
    assert record.curves[1, "samples/s"].highest == pytest.approx(3200, rel=0.01), "also of the steps before the first"
    assert "Of older steps the journal keeps some" in page.text


def test_a_large_job_is_a_small_page(store: Store) -> None:
    """A thousand values, a thousand incidents, a megabyte of code, output without an end, ten thousand nodes."""
    code = "#" + "<" * 1_000_000
    job = store.create_job(JobSpec(name="large", cell_digest=store.put_cell(code), nodes=2))
    events, now_s = [], 1_790_000_000.0

    def say(kind: str, **data: Any) -> None:
        events.append(Event("w.1", len(events) + 1, now_s + len(events) * 0.01, kind, data))

    members = [{"member": f"<{n}>.a", "node": f"<{n}>", "rank": n} for n in range(10_000)]
    say("generation.formed", generation=1, members=members, spares=[], target=2, reason="")
    for number in range(1500):
        say("metric.logged", step=number, values={f"<{number}>": 1.0, "seen": number})
        say("incident.stage", incident=number, stage="detected", cause="<" * 9999, node=f"<{number}>", rank=0, rung=1,
            text="<" * 9999)  # fmt: skip
        say("decision.made", policy="p", value=1, reason="<" * 9999)
        say("incident.stage", incident=number, stage="resumed", cause="", node="", rank=0, rung=1, text="<" * 9999)
        say("output.written", member="m", node="n", rank=0, stream="stdout", text="<" * 9999 + "\n")
    say("user.error", member="m", node="n", rank=0, type="E", message="<" * 99_999, traceback=["<" * 99_999])
    (job.events / "w.1.jsonl").write_bytes(b"".join(map(encode, events)))
    _, source = page_of(store, job)
    page = harmless(source)
    assert "values of further names are left out" in page.text and "older incidents left out" in page.text
    assert "are not drawn" in page.text


def test_a_page_that_would_be_too_large_says_what_it_leaves_out() -> None:
    parts = [section("Short", "<p>kept</p>"), section("Long", f"<p>{'x' * LARGEST_BYTES}</p>"), "<footer>end</footer>"]
    assert bounded(parts[::2]) == parts[0] + parts[2]
    page = harmless(bounded(parts))
    assert "kept" in page.text and "end" in page.text and "xx" not in page.text
    assert "Long\nLeft out: the page would be too large." in page.text


def test_the_command_writes_a_private_file_and_says_where(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(store, "happy")
    monkeypatch.chdir(tmp_path)
    assert main(["report", "told", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    path = tmp_path / f"{job.id}.html"
    assert told["id"] == job.id and told["path"] == str(path) and told["bytes"] == path.stat().st_size
    assert path.stat().st_mode & 0o777 == 0o600
    assert main(["report", job.id, "-o", "run.html"]) == 0
    assert told["sentence"] in capsys.readouterr().out
    harmless((tmp_path / "run.html").read_text())
    assert main(["report", job.id, "-o", str(tmp_path / "missing" / "run.html")]) == 2
    assert "name another file" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["store", f"{job.id}.html", "run.html"])
    with pytest.raises(SpecError, match="is a folder"):
        write(tmp_path, "x")
