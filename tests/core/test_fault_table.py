"""One table of faults, and everywhere people choose one, the same names and sentences."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

import jupyter_hyperpod
from jupyter_hyperpod.core.events import AIMS, FAULTS

PACKAGE = Path(jupyter_hyperpod.__file__).parent


def test_every_aim_is_one_that_there_is() -> None:
    for name, fault in FAULTS.items():
        assert fault.aims and set(fault.aims) <= set(AIMS), name
        assert fault.sentence and not fault.sentence.endswith("."), name


def test_the_browser_knows_the_same_faults() -> None:
    source = (PACKAGE.parent / "src" / "model" / "events.ts").read_text()
    table = source[source.index("export const FAULTS") : source.index("export type Fault ")]
    entry = re.compile(r"""'?([a-z-]+)'?: \{\s+aims: (EVERYBODY|\[.*?\]),\s+sentence:\s+(['"])(.*?)\3\s+\}""")
    found = {name: (aims, sentence) for name, aims, _, sentence in entry.findall(table)}
    everybody = re.search(r"EVERYBODY: readonly Aim\[\] = (\[.*?\]);", source)
    assert everybody is not None
    for name, fault in FAULTS.items():
        aims = everybody[1] if found[name][0] == "EVERYBODY" else found[name][0]
        assert tuple(re.findall(r"'(\w+)'", aims)) == fault.aims, name
        assert found[name][1] == fault.sentence, name
    assert list(found) == list(FAULTS)


def test_the_contract_of_the_server_knows_the_same_faults() -> None:
    contract: dict[str, Any] = yaml.safe_load((PACKAGE / "server" / "openapi.yaml").read_text())
    body = contract["paths"]["/jobs/{id}/fault"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["fault"]["enum"] == list(FAULTS)
