"""Every exception that this project raises on purpose, as one tree."""

from __future__ import annotations


class HyperpodError(Exception):
    """Root of every error this project raises on purpose."""


class UserError(HyperpodError):
    """The request is wrong: it says what was found and expected. Exit status 2 in the CLI, 4xx over HTTP."""


class SpecError(UserError):
    """A job specification that cannot be run; `syntax` is Python's own error where its source is not Python."""

    syntax: SyntaxError | None = None


class NotFound(UserError):
    """No such job, node or cluster."""


class Denied(UserError):
    """The request is not allowed, now or later."""


class Conflict(UserError):
    """The request does not fit the present state."""


class StoreError(HyperpodError):
    """The job store cannot be read or written: a full disk, permissions."""


class Foreign(StoreError):
    """The job store belongs to somebody else, who has not allowed this."""


class Hangs(StoreError):
    """A mount did not answer in time."""


class ProtocolError(HyperpodError):
    """A peer sent an unexpected or too long message, or lacks the secret."""


class ClusterError(HyperpodError):
    """The cluster does not answer or cannot start. ``final``: the same request would be refused again."""

    final = False


class NoCluster(ClusterError):
    """A scheduler's programs are here, and no cluster of it is configured."""


class LoaderError(HyperpodError):
    """A model cannot be read or written: `source` names the object, `found` and `expected` say what is wrong."""

    def __init__(self, source: str, found: str, expected: str, remedy: str = "") -> None:
        super().__init__(f"{source}: found {found}; expected {expected}" + (f": {remedy}" if remedy else ""))
        self.source, self.found, self.expected, self.remedy = source, found, expected, remedy

    def __reduce__(self) -> tuple[type, tuple[str, str, str, str]]:
        return type(self), (self.source, self.found, self.expected, self.remedy)


class TrainingError(HyperpodError):
    """Raised inside a worker, and shown to the user whose code runs there."""


class Stopped(TrainingError):
    """The job was asked to stop; the cell is left quietly."""


class Fenced(TrainingError):
    """This member belongs to an older generation and must not go on."""
