"""A real Kubernetes of several nodes on one machine, for tests and benchmarks: ``with Testbed(nodes=2) as bed``."""

from tests.support.kubernetes.access import ADMIN, TEAM, USER
from tests.support.kubernetes.cluster import CONTROLLER, Testbed
from tests.support.kubernetes.machine import missing
from tests.support.kubernetes.settings import IMAGE

__all__ = ["ADMIN", "CONTROLLER", "IMAGE", "TEAM", "USER", "Testbed", "missing"]
