"""References to the values of environment variables: where a node finds a value that no submission contains."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .errors import SpecError
from .names import is_env_name

# what a reference of each scheme names; storage/environment.py fetches the values. A backend that keeps secrets of
# its own, as Kubernetes does, adds its scheme in both places
SCHEMES = {
    "file": "PATH, the absolute path of a file on the node, or one that begins with ~/",
    "env": "NAME, a variable in the environment of the node's own process",
}
_REFERENCE = re.compile(r"@([a-z][a-z0-9+.-]*):(.*)", re.DOTALL)
_NEARLY = re.compile(rf"\s*@\s*(?:[A-Za-z][\w+.-]*\s*:|(?:{'|'.join(SCHEMES)})\b)", re.IGNORECASE)
FORMS = " or ".join(f"@{scheme}:{what.partition(',')[0]}" for scheme, what in SCHEMES.items())


@dataclass(frozen=True, slots=True)
class EnvReference:
    """Where a node finds a value. Shown as it was written: it is no secret."""

    scheme: str
    place: str

    def __str__(self) -> str:
        return f"@{self.scheme}:{self.place}"

    @classmethod
    def parse(cls, text: str) -> EnvReference | None:
        """Read ``@SCHEME:PLACE``; None for any other text.

        Raises SpecError for what looks like a reference and is none; it never shows the text, which may be a secret.
        """
        found = _REFERENCE.match(text)
        if (found is None or found[1] not in SCHEMES) and _NEARLY.match(text):
            raise SpecError(
                f"the value looks like a reference; did you mean {FORMS}? If the value itself begins so, export the "
                "variable in your shell and give only its name"
            )
        if found is None:
            return None
        scheme, place = found[1], found[2]
        fits = {"file": place.startswith(("/", "~/")) and "\0" not in place, "env": is_env_name(place)}
        if not fits[scheme]:
            raise SpecError(f"a reference @{scheme}: needs {SCHEMES[scheme]}")
        return cls(scheme, place)


def split(pairs: Iterable[tuple[str, str | EnvReference]]) -> tuple[dict[str, str], dict[str, str]]:
    """The variables with values, and those with references; of one name, the last one counts."""
    last = dict(pairs)
    values = {name: value for name, value in last.items() if isinstance(value, str)}
    return values, {name: str(value) for name, value in last.items() if isinstance(value, EnvReference)}


def check(references: Mapping[str, str], values: Mapping[str, str]) -> None:
    """Raise SpecError where a job cannot have these references beside these values."""
    for name, text in references.items():
        if not is_env_name(name):
            raise SpecError(f"{name[:80]!r} cannot be the name of an environment variable")
        reference = EnvReference.parse(text) if isinstance(text, str) else None
        if reference is None:
            raise SpecError(f"the reference of environment variable {name} is not of the form {FORMS}")
        if name in values:
            raise SpecError(f"environment variable {name} has both a value and a reference; expected one of them")
        if reference.scheme == "env" and reference.place != name and reference.place in {*values, *references}:
            raise SpecError(
                f"environment variable {name} refers to {reference.place}, which this job sets itself; expected a "
                "variable that the node has already"
            )
