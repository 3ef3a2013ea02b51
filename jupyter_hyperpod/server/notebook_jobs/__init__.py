"""Notebook jobs of jupyter-scheduler that run as jobs on the cluster.

An environment "hyperpod" stands in the dialog of jupyter-scheduler. A notebook job with this environment is submitted
to the cluster and followed by a process of jupyter-scheduler. That process may end at any time: the job goes on, and
the next start of the server follows it again. Every other environment is left to jupyter-scheduler.

Only who has configured these classes imports this package: it needs jupyter-scheduler.
"""

from .execution_manager import HyperpodExecutionManager
from .scheduler import HyperpodEnvironments, HyperpodScheduler

__all__ = ["HyperpodEnvironments", "HyperpodExecutionManager", "HyperpodScheduler"]
