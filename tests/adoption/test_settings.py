"""Programs that change late what no state dictionary holds: settings, schedulers in a callback, blocks of memory.

Each runs in one process, and once more from a step at which a member joins. All were
quietly different, or ended with an error of this package's own.
"""

from __future__ import annotations

import gc
import re
import sqlite3
from pathlib import Path

import pytest

from jupyter_hyperpod.runtime.worker.rehearse import rehearse
from tests.adoption.test_replaced import CELL, Row

LATE = "hooks = {'end': [callback]}"
CALL = "[one(epoch) for one in hooks['end']]"
RATE = "optimizer.param_groups[0]['lr']"
STEPS = "torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)"
COSINE = "torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)"


def late(name: str, setup: str, body: str, loss: str = "loss", refused: bool = False) -> Row:
    """A program whose callback runs after each epoch."""
    indented = body.replace("\n", "\n    ")
    setup = f"{setup}\ndef callback(epoch):\n    {indented}\n{LATE}"
    return Row(name, setup=setup, loss=loss, end=CALL, refused=refused)


SETTINGS = (
    late(
        "getcontext",
        "import decimal; D = decimal.Decimal",
        "if epoch == 2: decimal.getcontext().prec = 3",
        "loss * float(1 / D(7))",
    ),
    late(
        "set_flush_denormal",
        "tiny = 1e-310",
        "if epoch == 2: torch.set_flush_denormal(True)",
        "loss * (1 + tiny * 1e300)",
    ),
    late("set_autocast_enabled", "", "if epoch == 2: torch.set_autocast_enabled('cpu', True)"),
    late("set_autocast_dtype", "", "if epoch == 2: torch.set_autocast_dtype('cpu', torch.float16)"),
    late("sdpa_kernel", "", "if epoch == 2: torch.backends.cuda.enable_flash_sdp(False)"),
    late("seterr", "import numpy", "if epoch == 2: numpy.seterr(over='raise')"),
    late(
        "register_module_forward_hook",
        "add = torch.nn.modules.module.register_module_forward_hook",
        "if epoch == 2: add(lambda module, given, output: output * 0.9)",
    ),
    late("setlocale", "import locale", "if epoch == 2: locale.setlocale(locale.LC_NUMERIC, 'C.UTF-8')"),
    late(
        "tzset",
        "import os, time",
        "if epoch == 2: os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()",
        "loss * (1 + time.localtime(0).tm_hour / 100)",
    ),
)
REGISTERED = (
    late(
        "singledispatch",
        "import functools\n@functools.singledispatch\ndef scale(x): return 1.0",
        "if epoch == 2: scale.register(int, lambda x: 0.5)",
        "loss * scale(3)",
    ),
    late(
        "abstract_class",
        "import abc\nclass scale(abc.ABC): pass\nclass Own: pass\nown = Own()",
        "if epoch == 2: scale.register(Own)",
        "loss * (0.5 if isinstance(own, scale) else 1.0)",
    ),
)
OTHER = "other = torch.nn.Parameter(torch.ones(4, 1), requires_grad=False)"
CARRIED = (
    Row("scheduler_of_two", setup=f"a, b = {STEPS}, {COSINE}", end="(b if epoch >= 2 else a).step()", kept=RATE),
    Row("scheduler_or", setup=f"a, b = None, {STEPS}", end="(a or b).step()", kept=RATE),
    Row("scheduler_bound", setup=f"a = {COSINE}; go = a.step", post="go()", kept=RATE),
    Row("scheduler_by_name", setup=f"a = {STEPS}", end="getattr(a, 'step')()", kept=RATE),
    late("scheduler_in_a_callback", f"a = {COSINE}", "a.step()"),
    late("array", "import array\na = array.array('d', [1.0])", "a.append(0.1)", "loss * sum(a)"),
    late("bytearray", "a = bytearray([1])", "a.append(1)", "loss * sum(a)"),
    Row(
        "array_in_the_loop",
        setup="import array\na = array.array('d', [1.0])",
        loss="loss * a[0]",
        end="a[0] *= 0.9",
        kept="a",
    ),
    Row(
        "decimal",
        setup="from decimal import Decimal\na = Decimal(1)",
        loss="loss * float(a)",
        end="a *= Decimal('0.9')",
        kept="a",
    ),
    Row(
        "fraction",
        setup="from fractions import Fraction\na = {'x': Fraction(1)}",
        loss="loss * float(a['x'])",
        end="a['x'] *= Fraction(9, 10)",
        kept="a",
    ),
    late(
        "array_of_words",
        "import numpy\na = numpy.array(['xxxxx', 'z'])",
        "a[0] = 'y' * epoch",
        "loss * (1 + len(str(a[0])))",
    ),
    late(
        "frozen_outside_of_the_model",
        OTHER,
        "if epoch == 2: other.requires_grad_(True)",
        "loss + (model.weight * 0.1).sum() if other.requires_grad else loss",
    ),
    late(
        "dictionary_whose_attributes_are_items",
        "class Own(dict):\n    __getattr__ = dict.__getitem__\n    __setattr__ = dict.__setitem__\na = Own(x=1.0)",
        "a.x *= 0.9",
        "loss * a.x",
    ),
    late(
        "rows_of_a_database_as_dictionaries",
        "import sqlite3\na = sqlite3.connect(':memory:', check_same_thread=False)\n"
        "a.row_factory = lambda cursor, row: dict(zip([name for name, *_ in cursor.description], row))\nb = 1.0",
        "global b\nb *= a.execute('select 0.9 as x').fetchone()['x']",
        "loss * b",
    ),
    late(
        "wrapper_that_forwards_all_names",
        "class Own:\n    def __init__(self, inner): self.inner, self.n = inner, 0\n"
        "    def __getattr__(self, name): return getattr(self.__dict__['inner'], name)\na = Own(optimizer)",
        "a.n += 1\na.param_groups[0]['lr'] = 0.05 / a.n",
    ),
    late("rate_of_each_group", "n = 1", "global n\nn += 1\nfor g in optimizer.param_groups: g['lr'] = 0.1 / n"),
    late(
        "each_weight",
        "n = 1",
        "global n\nn += 1\nwith torch.no_grad():\n    for p in model.parameters(): p.mul_(0.99 ** n)",
    ),
    Row(
        "hook_of_the_optimizer",
        "n = [0]\ndef hook(o, *_):\n    n[0] += 1\n    for g in o.param_groups: g['lr'] = 0.05 / n[0]\n"
        "optimizer.register_step_pre_hook(hook)",
    ),
    late(
        "indices_of_a_subset",
        "data = torch.utils.data.Subset(data, list(range(64)))",
        "data.indices = data.indices[1:] + data.indices[:1]",
    ),
    late(
        "conjugate",
        "a = {'x': torch.ones(2, dtype=torch.complex64)}",
        "a['x'] = (a['x'] * 0.9j).conj()",
        "loss + a['x'].imag.sum()",
    ),
)
REFUSED = (
    late("sparse", "a = {'x': torch.eye(4).to_sparse()}", "a['x'] = a['x'] * 0.9", "loss * torch.sparse.sum(a['x'])"),
    late("array_of_objects", "import numpy\na = numpy.array([1.0, None], dtype=object)", "a[0] *= 0.9", "loss * a[0]"),
    late(
        "array_of_records",
        "import numpy\na = numpy.ones(2, dtype=[('x', 'f4')])",
        "a['x'] *= 0.9",
        "loss * float(a['x'].sum())",
    ),
    late("number_of_c", "import ctypes\na = ctypes.c_double(1.0)", "a.value *= 0.9", "loss * a.value"),
    late(
        "shared_number",
        "import multiprocessing\na = multiprocessing.Value('d', 1.0)",
        "a.value *= 0.9",
        "loss * a.value",
    ),
    late(
        "database_in_memory",
        "import sqlite3\na = sqlite3.connect(':memory:', check_same_thread=False)\n"
        "a.execute('create table t as select 1.0 as x')",
        "a.execute('update t set x = x * 0.9')",
        "loss * a.execute('select x from t').fetchone()[0]",
    ),
    late(
        "numbers_by_first_use",
        "import collections, itertools\na = collections.defaultdict(itertools.count(1).__next__)\nb = {'x': 0}",
        "b['x'] = a[epoch * 7]",
        "loss * b['x']",
    ),
    late(
        "batches_of_another_loader",
        "a = iter(torch.utils.data.DataLoader(torch.arange(40.0), batch_size=2))\nb = {'x': 1.0}",
        "b['x'] = float(next(a).sum())",
        "loss * b['x']",
    ),
    late("mapped_memory", "import mmap\na = mmap.mmap(-1, 10)", "a[0] = epoch + 1", "loss * (1 + a[0])"),
)


def rehearsed(row: Row, path: Path, joins_after: int) -> tuple[bool | None, str]:
    parts = {name: getattr(row, name) for name in ("setup", "loss", "pre", "post", "end", "kept", "epochs")}
    path.write_text(CELL.format(**parts))
    found = rehearse(path, joins_after)
    if "sqlite3" in row.setup:  # newer versions of Python warn of a database that nobody has closed
        for one in gc.get_objects():
            if type(one) is sqlite3.Connection:
                one.close()
    return found.exact, found.sentence


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.name)
def test_a_setting_of_the_process_that_changes_late_is_named(row: Row, tmp_path: Path) -> None:
    exact, sentence = rehearsed(row, tmp_path / "cell.py", 13)
    assert exact is False and row.name in sentence
    assert "in a block around step.run()" in sentence and "session.state" not in sentence
    assert rehearsed(row, tmp_path / "cell.py", 4) == (True, "")


@pytest.mark.parametrize("row", REGISTERED, ids=lambda row: row.name)
def test_what_is_registered_late_is_named(row: Row, tmp_path: Path) -> None:
    exact, sentence = rehearsed(row, tmp_path / "cell.py", 13)
    assert exact is False and "scale.register()" in sentence and "call register() before the loop" in sentence
    early = Row(row.name, row.setup, row.loss, post="callback(2) if step.index == 1 else None")
    exact, sentence = rehearsed(early, tmp_path / "cell.py", 4)
    assert exact is None and re.match(r"line \d+: scale\.register\(\) is called in the loop", sentence), sentence


@pytest.mark.parametrize("row", CARRIED, ids=lambda row: row.name)
def test_a_newcomer_gets_it(row: Row, tmp_path: Path) -> None:
    for joins_after in (4, 13):
        assert rehearsed(row, tmp_path / "cell.py", joins_after) == (True, "")


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.name)
def test_a_newcomer_is_told_that_it_cannot_be_given_it(row: Row, tmp_path: Path) -> None:
    exact, sentence = rehearsed(row, tmp_path / "cell.py", 13)
    assert exact is False and "does not have" in sentence


def test_blocks_around_the_steps_change_no_setting(tmp_path: Path) -> None:
    """A step that runs inside a block of autocast or of a decimal context is refused nothing."""
    setup = "import decimal, numpy\nfrom torch.nn.attention import SDPBackend, sdpa_kernel"
    blocks = "torch.autocast('cpu'), numpy.errstate(all='ignore'), decimal.localcontext(), sdpa_kernel(SDPBackend.MATH)"
    row = Row("blocks", setup=setup)
    parts = {name: getattr(row, name) for name in ("setup", "loss", "pre", "post", "end", "kept", "epochs")}
    run = "loss = step.run(loss_function)"
    path = tmp_path / "cell.py"
    path.write_text(CELL.format(**parts).replace(run, f"with {blocks}: {run}"))
    for joins_after in (3, 9):
        found = rehearse(path, joins_after)
        assert found.exact and not found.sentence, found
