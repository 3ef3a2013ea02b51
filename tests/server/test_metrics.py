"""Metrics at the Jupyter server: for whoever holds its token, in Prometheus' format."""

from __future__ import annotations

from typing import Any

from tests.server.conftest import Api, MakeJob


async def test_metrics_of_nodes_and_jobs(api: Api, jp_fetch: Any, make_job: MakeJob) -> None:
    job = make_job()
    answer = await jp_fetch("jupyter_hyperpod", "api", "v1", "metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    text = answer.body.decode()
    assert "hyperpod_cluster_up 0.0" in text
    assert f'hyperpod_job_state{{job="{job.id}",name="tinylm",state="pending"}} 1.0' in text
