"""The magics in a real kernel: what a front end receives."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.notebook.output import MIME_TYPE
from jupyter_hyperpod.storage.store import ENVIRONMENT, ENVIRONMENT_VARIABLE, Store
from tests.cells import train
from tests.secrets_scan import files_with

Eventually = Callable[..., Any]
TIMEOUT_S = 60
WIDGET = {"text/plain", "application/vnd.jupyter.widget-view+json"}


class Kernel:
    """A kernel and what it has sent."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager = manager
        self.client = client
        self.messages: list[dict[str, Any]] = []

    def start(self, code: str, cell_id: str = "cell-1") -> str:
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        message = self.client.session.msg("execute_request", content | {"stop_on_error": True})
        message["metadata"]["cellId"] = cell_id
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def finish(self, request: str) -> str:
        """Collect messages until the kernel is idle again; return the reply's status."""
        self.messages = []
        while True:
            message = self.client.get_iopub_msg(timeout=TIMEOUT_S)
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
            self.messages.append(message)
        while (reply := self.client.get_shell_msg(timeout=TIMEOUT_S))["parent_header"]["msg_id"] != request:
            pass
        return str(reply["content"]["status"])

    def run(self, code: str) -> str:
        return self.finish(self.start(code))

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [message["content"] for message in self.messages if message["msg_type"] == kind]

    def bundles(self) -> list[dict[str, Any]]:
        """What is shown below the cell, but for the job itself."""
        shown = [m["content"]["data"] for m in self.messages if m["msg_type"] in ("display_data", "execute_result")]
        return [data for data in shown if MIME_TYPE not in data]

    def order(self, *wanted: str | dict[str, Any]) -> bool:
        """Whether texts, bundles and kinds of messages came in this order."""
        at = 0
        for message in self.messages:
            content = message["content"]
            one = wanted[at] if at < len(wanted) else None
            if one is not None and (
                one == message["msg_type"] or one == content.get("data") or str(one) in content.get("text", "")
            ):
                at += 1
        return at == len(wanted)

    def text(self, name: str = "stdout") -> str:
        return "".join(content["text"] for content in self.of_type("stream") if content["name"] == name)


@pytest.fixture(scope="module")
def kernel(shared_cluster: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    manager = KernelManager(kernel_name="python3")
    environment = os.environ | {
        ENVIRONMENT_VARIABLE: str(shared_cluster.root),
        "JPY_SESSION_NAME": "work/My notebook.ipynb",
        "IPYTHONDIR": str(tmp_path_factory.mktemp("ipython")),
    }
    manager.start_kernel(env=environment, extra_arguments=["--HistoryManager.enabled=False"])
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=TIMEOUT_S)
        kernel = Kernel(manager, client)
        assert kernel.run("%load_ext jupyter_hyperpod") == "ok"
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
        manager.context.destroy()


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_one_display_follows_the_job_to_its_end(kernel: Kernel, shared_cluster: Store) -> None:
    assert kernel.run("%%hyperpod --nodes 2 --name shown\nprint('here')") == "ok", kernel.of_type("error")
    shown = kernel.of_type("display_data")
    assert len(shown) == 1
    identity = shown[0]["data"][MIME_TYPE]
    view = jobs.list_jobs(shared_cluster)[0]
    assert identity["job_id"] == view["id"] and identity["store"] == str(shared_cluster.root)
    assert identity["cell_digest"] == shared_cluster.job(view["id"]).spec().cell_digest
    updates = kernel.of_type("update_display_data")
    assert {u["transient"]["display_id"] for u in updates} == {shown[0]["transient"]["display_id"]}
    assert updates[-1]["data"][MIME_TYPE] == identity
    assert "succeeded" in updates[-1]["data"]["text/html"] and "succeeded" in updates[-1]["data"]["text/plain"]
    assert sorted(kernel.text().splitlines()) == ["[rank 0] here", "[rank 1] here"]


def test_job_remembers_notebook_and_cell(kernel: Kernel, shared_cluster: Store) -> None:
    assert kernel.finish(kernel.start("%%hyperpod\npass", cell_id="b7c1")) == "ok"
    view = jobs.list_jobs(shared_cluster)[0]
    assert view["name"] == "My-notebook"
    assert view["origin"] == {"notebook": "work/My notebook.ipynb", "cell_id": "b7c1"}


def test_a_secret_of_the_kernel_reaches_the_job_and_no_message(kernel: Kernel, shared_cluster: Store) -> None:
    assert kernel.run("import os, secrets\nos.environ['HF_TOKEN'] = token = secrets.token_hex(20)") == "ok"
    digest = "hashlib.sha256(os.environ['HF_TOKEN'].encode()).hexdigest()"
    cell = f"%%hyperpod --name secretive --env HF_TOKEN\nimport hashlib, os\nprint({digest})"
    messages = []
    assert kernel.run(cell) == "ok", kernel.of_type("error")
    messages += kernel.messages
    assert kernel.run("%hyperpod describe") == "ok" and kernel.messages
    messages += kernel.messages
    assert kernel.run("%hyperpod events") == "ok" and kernel.messages
    messages += kernel.messages
    assert kernel.run(f"import hashlib\nprint({digest}, token)") == "ok"
    arrived, token = kernel.text().split()
    said = repr(messages)
    assert arrived in said and token not in said
    assert [path for path in files_with(shared_cluster.root, token) if path.name != ENVIRONMENT] == []


def test_error_is_a_cell_error_with_the_lines_as_seen(kernel: Kernel) -> None:
    assert kernel.run("\n\n%%hyperpod --name wrong\n\nx = 1\nx / 0\n") == "error"
    (error,) = kernel.of_type("error")
    assert error["ename"] == "JobFailed" and error["evalue"].startswith("ZeroDivisionError: division by zero (rank 0")
    traceback = plain("\n".join(error["traceback"]))
    assert "line 6" in traceback and "x / 0" in traceback and "jupyter_hyperpod" not in traceback


def test_tracebacks_carry_the_number_of_the_cell(kernel: Kernel) -> None:
    for _ in range(2):
        assert kernel.run("%%hyperpod --name numbered\n1 / 0") == "error"
        (shown,) = kernel.of_type("execute_input")
        (error,) = kernel.of_type("error")
        assert f'File "Cell In[{shown["execution_count"]}]", line 2' in plain("\n".join(error["traceback"]))


@pytest.mark.parametrize(
    "cell",
    [
        "x = 6\nx * 7",
        "x = 6\nx * 7;",
        "display({'a': 1}, 'text')\nNone",
        "list(range(60))",
        "from __future__ import annotations\n{name: 'x' * 30 for name in 'abc'}",
        "class Odd:\n    def __repr__(self):\n        return 'odd'\nOdd()",
    ],
)
def test_a_cell_shows_the_same_with_and_without_its_first_line(kernel: Kernel, cell: str) -> None:
    assert kernel.run(cell) == "ok"
    alone = kernel.bundles()
    assert kernel.run(f"%%hyperpod --nodes 1\n{cell}") == "ok", kernel.of_type("error")
    assert kernel.bundles() == alone


RICH = """
import pandas, sys, time
import matplotlib.pyplot as plt
from IPython.display import HTML, Markdown, clear_output, display
from tqdm.notebook import tqdm
print("gone")
clear_output()
print("before")
display(pandas.DataFrame({"loss": [1.5, 2.5]}))
print("between", end="")
handle = display(HTML("<b>first</b>"), display_id="word")
handle.update(HTML("<b>second</b>"))
for _ in tqdm(range(3), file=sys.stdout, mininterval=0, miniters=1):
    time.sleep(0.3)
plt.plot([1, 2])
plt.show()
Markdown("*end*")
"""


def test_what_rank_0_displays_appears_as_if_the_cell_ran_in_the_kernel(kernel: Kernel) -> None:
    assert kernel.run(RICH) == "ok", kernel.of_type("error")
    alone = [set(bundle) for bundle in kernel.bundles()]
    assert kernel.run(f"# of today\n\n%%hyperpod --nodes 2 --name rich\n{RICH}") == "ok", kernel.of_type("error")
    for turn in ("streamed", "attached"):
        found = kernel.bundles()
        frame, word, figure, end = (bundle for bundle in found if MIME_TYPE not in bundle)
        assert frame["text/html"].count("<td>") == 2 and "loss" in frame["text/plain"], turn
        assert word["text/html"] == "<b>first</b>" and end["text/markdown"] == "*end*"
        assert base64.b64decode(figure["image/png"]).startswith(b"\x89PNG")
        assert [set(bundle) for bundle in (frame, word, figure, end)] == [kinds for kinds in alone if kinds != WIDGET]
        updated = [content["data"] for content in kernel.of_type("update_display_data")]
        assert any(data.get("text/html") == "<b>second</b>" for data in updated)
        assert kernel.order("gone", "clear_output", "before", frame, "between", word, figure, end), turn
        assert "\r[rank 0]  33%" in kernel.text() and "[rank 0] 100%" in kernel.text()
        assert kernel.text().count("[rank 1] 100%") == 1 and "[rank 1]  33%" not in kernel.text()
        assert kernel.run("%hyperpod attach rich") == "ok"


def test_what_is_too_large_to_display_is_said(kernel: Kernel) -> None:
    cell = "from IPython.display import HTML\ndisplay(HTML('x' * 5_000_000))"
    assert kernel.run(f"%%hyperpod --nodes 1\n{cell}") == "ok", kernel.of_type("error")
    assert "not shown: text/html of 5 MB" in kernel.text("stderr")
    assert [set(bundle) for bundle in kernel.bundles() if MIME_TYPE not in bundle] == [{"text/plain"}]


def test_comments_may_stand_above_the_magic(kernel: Kernel) -> None:
    assert kernel.run("\n# my run\n\n  # of today\n%%hyperpod --name below\nx = 1\nx / 0\n") == "error"
    traceback = plain("\n".join(kernel.of_type("error")[0]["traceback"]))
    assert "line 7, in <module>" in traceback and "    x / 0" in traceback


def test_code_above_the_magic_is_refused_in_words(kernel: Kernel) -> None:
    assert kernel.run("x = 1\n%%hyperpod --nodes 2\nprint(x)") == "error"
    (error,) = kernel.of_type("error")
    assert "%%hyperpod has to be the first line of its cell" in error["evalue"]
    assert kernel.run("text = '''\n%%hyperpod\n'''\nprint(text)") == "ok"
    assert kernel.text().strip() == "%%hyperpod"


def test_bad_use_is_one_line(kernel: Kernel) -> None:
    assert kernel.run("%%hyperpod --nods 2\nprint(1)") == "error"
    (error,) = kernel.of_type("error")
    assert len(error["traceback"]) == 1 and "did you mean --nodes?" in error["traceback"][0]
    assert kernel.run("%%hyperpod\nx = = 1") == "error"
    assert plain(kernel.of_type("error")[0]["traceback"][-1]) == "SyntaxError: invalid syntax"
    assert kernel.run("%%hyperpod --nodes 2") == "error"
    assert "is empty" in kernel.of_type("error")[0]["evalue"]


def test_interrupt_detaches_and_attach_comes_back(
    kernel: Kernel, shared_cluster: Store, eventually: Eventually
) -> None:
    known = set(shared_cluster.job_ids())
    request = kernel.start(f"%%hyperpod --nodes 2 --name long\n{train()}")
    job_id = eventually(lambda: next(iter(set(shared_cluster.job_ids()) - known), None), 60)
    eventually(lambda: jobs.job_view(shared_cluster, job_id)["step"] >= 2, 60)
    kernel.manager.interrupt_kernel()
    assert kernel.finish(request) == "ok"
    assert f"detached; {job_id} goes on" in kernel.text()
    request = kernel.start(f"%hyperpod attach {job_id}")
    jobs.stop(shared_cluster, job_id)
    assert kernel.finish(request) == "ok"
    assert "stopped" in kernel.of_type("update_display_data")[-1]["data"]["text/html"]


def test_killed_rank_does_not_hang_the_cell(kernel: Kernel, shared_cluster: Store, eventually: Eventually) -> None:
    known = set(shared_cluster.job_ids())
    request = kernel.start(f"%%hyperpod --nodes 2 --name hurt\n{train(150)}")
    job_id = eventually(lambda: next(iter(set(shared_cluster.job_ids()) - known), None), 60)
    eventually(lambda: jobs.job_view(shared_cluster, job_id)["step"] >= 20, 60)
    jobs.fault(shared_cluster, job_id, "kill", rank=1)
    assert kernel.finish(request) == "ok", kernel.of_type("error")
    last = kernel.of_type("update_display_data")[-1]["data"]
    assert "step 150/150" in last["text/plain"] and "1 incident" in last["text/plain"]
    assert "<table>" in last["text/html"]


def test_completion_reaches_the_front_end(kernel: Kernel) -> None:
    code = "%hyperpod clu"
    reply = kernel.client.complete(code, len(code), reply=True, timeout=TIMEOUT_S)
    assert reply["content"]["matches"] == ["cluster"]


def test_attaching_brings_the_display_of_a_detached_cell_up_to_date(kernel: Kernel) -> None:
    assert kernel.run("%%hyperpod --name later --detach\nprint('done')") == "ok"
    (first,) = kernel.of_type("display_data")
    assert kernel.run("%hyperpod attach later") == "ok"
    mine = first["transient"]["display_id"]
    updates = [u["data"] for u in kernel.of_type("update_display_data") if u["transient"]["display_id"] == mine]
    assert "succeeded" in updates[-1]["text/html"]


def test_warm_up_shows_a_bar_and_leaves_none(kernel: Kernel, shared_cluster: Store, tmp_path: Path) -> None:
    store = "import os; os.environ['" + ENVIRONMENT_VARIABLE + "'] = {!r}"
    assert kernel.run(store.format(str(tmp_path / "store"))) == "ok"
    try:
        assert kernel.run("%hyperpod cluster start --nodes 1 --spares 0") == "ok", kernel.of_type("error")
        opened = [content["target_name"] for content in kernel.of_type("comm_open")]
        assert "jupyter.widget" in opened and len(kernel.of_type("comm_close")) >= 3
        kinds = [message["msg_type"] for message in kernel.messages]
        assert kinds.index("display_data") < kinds.index("clear_output") < kinds.index("stream")
        assert "cluster running · 1 node up" in kernel.text()
    finally:
        assert kernel.run("%hyperpod cluster stop") == "ok"
        assert kernel.run(store.format(str(shared_cluster.root))) == "ok"


def test_plain_notebook_without_a_name(kernel: Kernel, shared_cluster: Store, tmp_path: Path) -> None:
    kernel.run("import os; os.environ.pop('JPY_SESSION_NAME')")
    assert kernel.run("%%hyperpod --detach\npass") == "ok"
    assert kernel.of_type("display_data") and kernel.of_type("update_display_data") == []
    view = jobs.list_jobs(shared_cluster)[0]
    assert view["name"] == "cell"
    jobs.wait(shared_cluster, view["id"], timeout_s=60)


def test_the_card_of_a_job_object_has_the_end_of_the_job(kernel: Kernel) -> None:
    """It is not a widget of the kernel: what it showed last stays."""
    assert kernel.run("%%hyperpod --name object --detach\nimport time\ntime.sleep(1)") == "ok"
    code = "import jupyter_hyperpod as hp\njob = hp.widgets.Job('object')\ndisplay(job)\n_ = job.wait()"
    assert kernel.run(code) == "ok", kernel.of_type("error")
    (shown,), updates = kernel.of_type("display_data"), kernel.of_type("update_display_data")
    assert not WIDGET <= shown["data"].keys() and updates[-1]["data"][MIME_TYPE] == shown["data"][MIME_TYPE]
    assert updates[-1]["transient"] == shown["transient"] and "succeeded" in updates[-1]["data"]["text/html"]
