"""Every exception that this project raises on purpose, as one tree.

HyperpodError
├── UserError               the request is wrong: say what was found, what was expected, what to do
│   ├── SpecError           a job specification that cannot be run
│   ├── NotFound            no such job, node or cluster
│   └── Conflict            the request does not fit the present state
├── StoreError              the job store cannot be read or written (full disk, permissions)
├── ProtocolError           a peer sent an unexpected or too long message, or lacks the secret
├── ClusterError            the cluster does not answer or cannot start
├── LoaderError             a model cannot be read or written: names the object, what was found, what was expected
└── TrainingError           raised inside a worker, shown to the person whose code it is
    ├── Stopped             the job was asked to stop; the cell is left quietly
    └── Fenced              this member belongs to an older generation and must not go on
"""

from __future__ import annotations


class HyperpodError(Exception):
    """Root of every error this project raises on purpose."""


class UserError(HyperpodError):
    """The request is wrong; exit status 2 in the CLI, 4xx over HTTP."""


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
    """The job store cannot be read or written."""


class ProtocolError(HyperpodError):
    """A peer sent something that the protocol does not have, or lacks the secret."""


class ClusterError(HyperpodError):
    """The cluster does not answer or cannot start."""


class LoaderError(HyperpodError):
    """A model cannot be read or written: `source` names the object, `found` and `expected` say what is wrong."""

    def __init__(self, source: str, found: str, expected: str, remedy: str = "") -> None:
        super().__init__(f"{source}: found {found}; expected {expected}" + (f": {remedy}" if remedy else ""))
        self.source, self.found, self.expected, self.remedy = source, found, expected, remedy

    def __reduce__(self) -> tuple[type, tuple[str, str, str, str]]:
        return type(self), (self.source, self.found, self.expected, self.remedy)


class TrainingError(HyperpodError):
    """Raised inside a worker, where the user's code runs."""


class Stopped(TrainingError):
    """The job was asked to stop."""


class Fenced(TrainingError):
    """This member belongs to an older generation."""
