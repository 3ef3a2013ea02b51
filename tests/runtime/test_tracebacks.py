"""What a person sees of an error: the frames of the cell and of what it called, none of the session's around them."""

from __future__ import annotations

import pytest

from jupyter_hyperpod.core.errors import HyperpodError
from jupyter_hyperpod.runtime.coordinator.session_lifecycle import failure
from jupyter_hyperpod.runtime.protocol.facts import CellError
from jupyter_hyperpod.runtime.worker import bundles
from jupyter_hyperpod.runtime.worker.main import cell
from tests.runtime.conftest import Submit

FILENAME = "Cell In[3]"


def told(loss: str, more: str = "") -> str:
    source = f"""
import torch, jupyter_hyperpod as hp
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [(torch.ones(2), torch.ones(1)) for _ in range(8)]
def loss_fn(inputs, targets):
    {loss}
with hp.Session(model, optimizer, data, global_batch=4, micro_batch=2) as session:
    for step in session.steps(2):
        step.run(lambda batch: loss_fn(*batch))
        {more}
"""
    try:
        exec(compile(source, FILENAME, "exec"), {"__name__": "__main__"})
    except Exception as error:
        return "\n".join(cell.describe(error, FILENAME).traceback)
    raise AssertionError("no error")


def test_the_sessions_frames_are_left_out_between_those_of_the_cell() -> None:
    text = told("return torch.nn.functional.cross_entropi(inputs, targets)")
    assert cell.OWN_FOLDER not in text
    assert [line.strip() for line in text.splitlines() if line.startswith("  File")] == [
        'File "Cell In[3]", line 10, in <module>',
        'File "Cell In[3]", line 10, in <lambda>',
        'File "Cell In[3]", line 7, in loss_fn',
    ]
    assert text.splitlines()[-1].startswith("AttributeError: module 'torch.nn.functional' has no attribute")


def test_frames_of_what_the_cell_called_and_chained_errors_stay() -> None:
    text = told("return torch.nn.functional.mse_loss(inputs.reshape(3, 7), targets)")
    assert "line 7, in loss_fn" in text and cell.OWN_FOLDER not in text
    text = told(
        "\n    try:\n        1 / 0\n    except ZeroDivisionError as zero:\n        raise ValueError('mine') from zero"
    )
    assert "ZeroDivisionError" in text and "direct cause" in text and text.endswith("ValueError: mine")


def test_a_refusal_ends_at_the_line_of_the_cell() -> None:
    text = told(
        "return torch.nn.functional.mse_loss(model(inputs), targets)", "step.run(lambda batch: loss_fn(*batch))"
    )
    assert cell.OWN_FOLDER not in text and "line 11, in <module>" in text


def test_an_error_of_the_package_shows_where_it_was() -> None:
    try:
        exec(compile("from jupyter_hyperpod.core.units import plural\nplural(object(), 'node')", FILENAME, "exec"), {})
    except HyperpodError as error:
        raise AssertionError("a refusal") from error
    except Exception as error:
        assert cell.OWN_FOLDER in "\n".join(cell.describe(error, FILENAME).traceback)
    else:
        raise AssertionError("no error")


def raised(source: str) -> CellError:
    try:
        exec(compile(source, FILENAME, "exec"), {"__name__": "__main__"})
    except BaseException as error:
        return cell.describe(error, FILENAME)
    raise AssertionError("no error")


@pytest.mark.parametrize("base", ["Exception", "RuntimeError"])
def test_an_error_that_cannot_be_printed_is_told_all_the_same(base: str) -> None:
    error = raised(f"class E({base}):\n    def __str__(self): raise RuntimeError('x')\nraise E()\n")
    assert error.type == "E" and error.message == "<exception str() failed>" and error.line == 3
    assert error.traceback[-1].endswith("E: <exception str() failed>")


def test_a_value_whose_repr_raises_what_cannot_be_printed_is_shown() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("x")

    class Value:
        def __repr__(self) -> str:
            raise Odd

    assert bundles.shown(Value()) == "<Value: its repr raised Odd: <exception str() failed>>"


def test_a_very_long_message_is_cut_and_says_by_how_much() -> None:
    error = raised("raise ValueError('x' * 100_000)")
    assert error.message == "x" * 1000 + "… (99,000 characters more)"
    last = error.traceback[-1]
    assert last.startswith("ValueError: xxx") and last.endswith("… (98,012 characters more)") and len(last) < 2100


def test_a_message_of_very_many_lines_is_cut_in_the_middle() -> None:
    lines = raised("raise ValueError('x\\n' * 100_000 + 'the end')").traceback
    assert lines[0].startswith("Traceback") and lines[-1] == "the end" and len(lines) <= 501
    assert sum(line.endswith(" lines more)") for line in lines) == 1


def test_an_error_that_cannot_be_printed_ends_the_job_as_any_other(job: Submit) -> None:
    source = "class E(Exception):\n    def __str__(self): raise RuntimeError('x')\nraise E()\n"
    run = job(source, nodes=1)
    view = run.finish("failed")
    assert view["reason"] == "E on rank 0 at line 3: <exception str() failed>"
    assert view["error"]["traceback"][-1] == "E: <exception str() failed>"
    assert view["incidents"] == [] and view["generation"] == 1


def test_the_reason_is_the_first_line_of_the_message_and_short(job: Submit) -> None:
    view = job("raise ValueError('a' * 100_000 + '\\nb')\n", nodes=1).finish("failed")
    assert view["reason"] == "ValueError on rank 0 at line 1: " + "a" * 200 + "…"
    assert len(view["error"]["message"]) < 1100
    view = job("raise KeyboardInterrupt\n", nodes=1).finish("failed")
    assert view["reason"] == "KeyboardInterrupt on rank 0 at line 1"


@pytest.mark.parametrize(
    ("kind", "message", "text"),
    [
        ("TrainingError", "line 5: x is one", "TrainingError on rank 0: line 5: x is one"),
        ("TrainingError", "x " * 300, "TrainingError on rank 0 at line 5: " + ("x " * 300).strip()),
        ("ValueError", "x is one", "ValueError on rank 0 at line 5: x is one"),
        ("ValueError", "a" * 300, "ValueError on rank 0 at line 5: " + "a" * 200 + "…"),
    ],
)
def test_a_refusal_is_whole_and_names_its_line_once(kind: str, message: str, text: str) -> None:
    assert failure(CellError(kind, message, (), 5, False), 0) == text
