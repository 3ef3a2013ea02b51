"""The SLURM backend's class: requests nodes from SLURM through its commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...core.errors import ClusterError, NoCluster
from ...core.units import plural
from ..base import Backend, Remedies, Scheduler
from ..types import Capabilities, Surroundings
from . import commands, remedies
from .runner import SlurmRunner

_NO_CLUSTER = ("DNS SRV lookup failed", "Could not establish a configuration source")  # sinfo: neither file nor record


class SlurmBackend:
    """See `backends.base.Backend`."""

    title = "SLURM"
    capabilities = Capabilities(serves=True)
    advice = "see `sinfo -R`; `scontrol update nodename=NODE state=resume` brings a node back that is in order"
    list_command = "sinfo"

    def missing(self, isolated: bool = False) -> str:
        return commands.missing()

    def programs(self) -> Sequence[str]:
        return commands.found()

    def refusal(self, options: Mapping[str, str], store: str, nodes: int = 1) -> str:
        return ""

    def answer(self, limit_s: float) -> str:
        try:
            return f"answers, with {plural(len(self.node_states({})), 'node')}"
        except ClusterError as error:
            if all(words in str(error) for words in _NO_CLUSTER):
                raise NoCluster(f"{self.title}'s programs are here and no cluster is configured") from error
            raise

    def node_states(self, options: Mapping[str, str]) -> Mapping[str, tuple[str, str]]:
        return commands.node_states(options.get("partition", ""))

    def contexts(self) -> Sequence[str]:
        return ("",)

    def kept(self, options: Mapping[str, str], store: str) -> tuple[()]:
        return ()

    def let_go(self, options: Mapping[str, str], store: str) -> tuple[()]:
        return ()

    def remedies(self) -> Remedies | None:
        return remedies.SlurmRemedies()

    def health_board(self, node: str) -> None:
        return None

    def remote_head(self, options: Mapping[str, str], job_id: str) -> None:
        """None: heads run beside the supervisor."""

    def apart_pods(self, options: Mapping[str, str], job_id: str) -> None:
        """None: nodes have the store of their head."""

    def place(self, options: Mapping[str, str]) -> str:
        return ""

    def open(self, surroundings: Surroundings, options: Mapping[str, str] | None = None) -> SlurmRunner:
        """A runner, whose thread begins with its first query."""
        return SlurmRunner()


if TYPE_CHECKING:
    _backend: type[Backend] = SlurmBackend
    _scheduler: type[Scheduler] = SlurmRunner
