"""One table says what events are made of; golden journals and TypeScript keep to it.

What real clusters write is held against it by `conftest.running_cluster`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.core.errors import ProtocolError
from jupyter_hyperpod.core.events import EVENT_FIELDS, decode_event
from jupyter_hyperpod.core.vocabulary import CHOICES, EVENTS, RECORDS, typescript, violations

TREE = Path(__file__).parents[2]
GOLDEN = sorted((TREE / "tests" / "journals").glob("*.jsonl"))

# what a writer that knows no times may tell
DELIBERATE = {"recoveries": ["incident.stage: data.since_s is 'a while ago', expected float"]}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_golden_journal_is_written_as_real_ones_are(path: Path) -> None:
    found = []
    for line in path.read_bytes().splitlines():
        try:
            event = decode_event(line)
        except ProtocolError:
            continue  # some journals hold such lines on purpose
        found += violations(event.kind, event.data)
    assert found == DELIBERATE.get(path.stem, [])


def test_typescript_has_the_table_as_it_is_now() -> None:
    source = (TREE / "src" / "model" / "facts.ts").read_text(encoding="utf-8")
    assert source == typescript(), "run: python tests/journals/regenerate.py"


def test_every_type_is_one_that_both_languages_have() -> None:
    for fields in (*EVENTS.values(), *RECORDS.values()):
        for kind in fields.values():
            for one in kind.split("|"):
                known = {"str", "int", "float", "bool", "null", "map", "any", *RECORDS, *CHOICES}
                assert one.removesuffix("[]") in known, kind
    assert {kind: set(names) for kind, names in EVENT_FIELDS.items()} == {
        kind: {name for name in fields if not name.endswith("?")} for kind, fields in EVENTS.items()
    }


GOOD: dict[str, Any] = {
    "member": "node-1.a",
    "node": "node-1",
    "rank": 0,
    "type": "ValueError",
    "message": "no",
    "traceback": ["ValueError: no"],
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"traceback": "ValueError: no"}, "user.error: data.traceback is 'ValueError: no', expected str[]"),
        ({"traceback": ["a", 3]}, "user.error: data.traceback[1] is 3, expected str"),
        ({"rank": "0"}, "user.error: data.rank is '0', expected int"),
        ({"rank": True}, "user.error: data.rank is True, expected int"),
        ({"line": 1.5}, "user.error: data.line is 1.5, expected int"),
        ({"message": None}, "user.error: data.message is None, expected str"),
    ],
)
def test_a_field_of_another_type_is_named(changes: dict[str, Any], words: str) -> None:
    assert violations("user.error", GOOD) == violations("user.error", GOOD | {"line": 4, "new": {}}) == []
    assert violations("user.error", GOOD | {"rank": None, "line": None}) == []
    assert violations("user.error", GOOD | changes) == [words]


def test_what_is_missing_and_what_is_inside_records_is_named() -> None:
    assert violations("member.ready", {"member": "a"}) == ["member.ready: data.node is missing"]
    formed = {"generation": 1, "members": [{"member": "a", "node": "n"}], "spares": [], "target": 1, "reason": ""}
    assert violations("generation.formed", formed) == ["generation.formed: data.members[0].rank is missing"]
    assert violations("job.state", {"state": "napping", "reason": ""}) == [
        "job.state: data.state is 'napping', expected one of pending, running, recovering, succeeded, failed, stopped"
    ]
    assert violations("dream.dreamt", {}) == ["unknown kind 'dream.dreamt'"]
