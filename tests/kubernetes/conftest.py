"""A real Kubernetes for all tests of this directory: ``kubernetes`` has two nodes, ready when a test begins.

It is never skipped: where the programs are not built, or this machine lacks something, the tests fail and say what to
do.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import SHARED_MARK
from tests.support.kubernetes import TEAM, Testbed


@pytest.fixture(scope="session")
def shared_testbed() -> Iterator[Testbed]:
    with Testbed(2, {SHARED_MARK: "kubernetes"}) as bed:
        yield bed


@pytest.fixture
def kubernetes(shared_testbed: Testbed) -> Iterator[Testbed]:
    yield shared_testbed
    shared_testbed.restore()
    shared_testbed.kubectl("delete", "pods", "--all", "-n", TEAM, "--grace-period=0", "--force")
