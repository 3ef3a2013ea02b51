"""The server and schemathesis, which makes requests from the OpenAPI file: valid ones and wrong ones."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

import jupyter_hyperpod.server
from tests.server.conftest import ROOT, Api, MakeJob

FILE = Path(jupyter_hyperpod.server.__file__).with_name("openapi.yaml")
# the websocket, what starts processes, and what is answered with 503 because no cluster is running here
LEFT_OUT = "/stream$|/cluster/(start|stop|keep|heal)$|/promote$"
# 400 and 409 say, too, what no schema can: two arguments that exclude each other, a job that has ended
CHECKS = "positive_data_acceptance"
# how many requests per operation the fuzzer makes up; the same ones at each run unless a number is asked for
EXAMPLES = os.environ.get("HYPERPOD_EXAMPLES", "5")


@pytest.mark.timeout(600)
async def test_no_request_breaks_the_server_or_gets_an_answer_that_the_file_does_not_know(
    api: Api, make_job: MakeJob, jp_http_port: int, jp_base_url: str, jp_auth_header: dict[str, str], tmp_path: Path
) -> None:
    make_job()
    status, found = await api("GET", "/jobs")
    assert status == 200 and found["jobs"]
    url = f"http://127.0.0.1:{jp_http_port}{jp_base_url}{ROOT}"
    command = [sys.executable, "-m", "schemathesis.cli", "run", str(FILE), "--url", url, "--workers", "1"]
    command += ["--header", f"Authorization: {jp_auth_header['Authorization']}", "--no-color", "--continue-on-failure"]
    command += ["--checks", "all", "--exclude-checks", CHECKS, "--exclude-path-regex", LEFT_OUT]
    command += ["--phases", "examples,coverage,fuzzing", "--max-examples", EXAMPLES]
    # the same requests each time need no database, and the program refuses to be told both
    command += (
        ["--generation-database", "none"] if "HYPERPOD_EXAMPLES" in os.environ else ["--generation-deterministic"]
    )
    tested = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, env=os.environ | {"COLUMNS": "200"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await tested.communicate()
    assert tested.returncode == 0, said.decode()[-20_000:]
    assert "generated" in said.decode()
