"""A real SLURM of several nodes on one machine, for tests and benchmarks: ``with Testbed(4) as bed``."""

from tests.support.slurm.cluster import CONTROLLER, Testbed
from tests.support.slurm.machine import missing

__all__ = ["CONTROLLER", "Testbed", "missing"]
