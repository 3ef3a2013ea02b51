"""Every message survives the wire, has one handler at each receiver, and nothing else is sent."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jupyter_hyperpod.runtime
from jupyter_hyperpod.core.errors import ProtocolError
from jupyter_hyperpod.policy.recovery import MemberState
from jupyter_hyperpod.runtime.agent.node_agent import Agent
from jupyter_hyperpod.runtime.coordinator.checkpoints import CheckpointTracker
from jupyter_hyperpod.runtime.coordinator.controller import Controller
from jupyter_hyperpod.runtime.coordinator.draining import Draining
from jupyter_hyperpod.runtime.coordinator.failures import Failures
from jupyter_hyperpod.runtime.coordinator.generations import Generations
from jupyter_hyperpod.runtime.coordinator.joining import Joining
from jupyter_hyperpod.runtime.coordinator.node_samples import NodeSamples
from jupyter_hyperpod.runtime.coordinator.scripts import Scripts
from jupyter_hyperpod.runtime.coordinator.session_lifecycle import SessionLifecycle
from jupyter_hyperpod.runtime.protocol import facts, orders
from jupyter_hyperpod.runtime.protocol.codec import MESSAGES, Message, Process, decode, encode
from jupyter_hyperpod.runtime.protocol.dispatch import handled_by

RUNTIME = Path(jupyter_hyperpod.runtime.__file__).parent
PARTS = (
    Controller,
    Joining,
    CheckpointTracker,
    Scripts,
    SessionLifecycle,
    Draining,
    Failures,
    Generations,
    NodeSamples,
)
json_values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists)
numbers = st.floats(allow_nan=False, allow_infinity=False)
st.register_type_strategy(float, numbers)
st.register_type_strategy(Mapping, st.dictionaries(st.text(), st.text()))
everything = st.sampled_from(list(MESSAGES.values())).flatmap(
    lambda cls: st.builds(
        cls,
        **{"value": json_values} if "value" in cls.__slots__ else {},
        **{"shown": st.dictionaries(st.text(), json_values)} if "shown" in cls.__slots__ else {},
        **{"values": st.lists(json_values).map(tuple)} if "values" in cls.__slots__ else {},
    )
)


@given(everything)
def test_what_arrives_is_what_was_sent(message: Message) -> None:
    assert decode(json.loads(json.dumps(encode(message)))) == message


@pytest.mark.parametrize("cls", MESSAGES.values(), ids=list(MESSAGES))
def test_messages_are_frozen_and_say_who_speaks_to_whom(cls: type[Message]) -> None:
    assert cls.__doc__ and cls.senders and cls.receivers
    assert cls.__dataclass_params__.frozen and cls.__dictoffset__ == 0  # type: ignore[attr-defined]


def test_what_is_unknown_is_ignored() -> None:
    assert decode({"type": "from another version"}) is None
    found = encode(facts.WorkerExited(1, 0.5)) | {"member": "m", "more": [1]}
    assert decode(found) == facts.WorkerExited(1, 0.5)
    assert decode({"type": "throttle", "factor": 2, "duration_s": 1}) == orders.ThrottleWorker(2, 1)


FORM = encode(orders.FormGeneration(1, 0, ()))
REPORT = encode(facts.StateReported(3, MemberState(1)))


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({"type": "exited", "code": 1}, "message 'exited': field 'ago_s' is missing"),
        ({"type": "exited", "code": "1", "ago_s": 0.1}, "message 'exited': field 'code': expected int, found '1'"),
        ({"type": "exited", "code": True, "ago_s": 0.1}, "field 'code': expected int, found True"),
        ({"type": "exited", "code": 1, "ago_s": float("nan")}, "field 'ago_s': expected float, found nan"),
        ({"type": "run", "rank": [0]}, "message 'run': field 'rank'"),
        (
            {"type": "form", "generation": 1, "rank": 0, "members": [{"member": "m", "host": "h"}]},
            "field 'port' is missing",
        ),
        ({"type": "form", "generation": 1, "rank": 0, "members": {}}, "field 'members': expected an array"),
        (REPORT | {"state": None}, "field 'state': expected an object, found None"),
        (REPORT | {"state": REPORT["state"] | {"nodes": [[1]]}}, "field 'state': field 'nodes': expected 2 values"),
        ({"type": "refused", "path": "p" * 10_000, "reason": 1}, "expected str, found 1"),
        ({"type": "refused", "path": ["p" * 10_000], "reason": ""}, "ppp…"),
    ],
)
def test_what_is_wrong_is_named(found: dict[str, object], text: str) -> None:
    with pytest.raises(ProtocolError) as error:
        decode(found)
    assert text in str(error.value)
    assert len(str(error.value)) < 200


def receivers(process: Process) -> list[type[Message]]:
    return [cls for cls in MESSAGES.values() if process in cls.receivers]


def named(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def taken_by_workers() -> Counter[str]:
    """Messages that methods of `runtime.worker` handle, wait for or collect, by the name of their class."""
    found: Counter[str] = Counter()
    for path in (RUNTIME / "worker").glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call):
                continue
            if named(call.func) in ("handles", "_await", "_collect"):
                found[named(call.args[0])] += 1
            elif named(call.func) == "isinstance" and path.name in ("main.py", "replica.py"):
                found[named(call.args[1])] += 1
    return found


def test_the_agent_has_one_handler_for_each_message_to_it() -> None:
    assert Counter(handled_by(Agent)) == Counter(receivers(Process.AGENT))


def test_the_coordinator_has_one_handler_for_each_message_to_it() -> None:
    assert Counter(handled_by(*PARTS)) == Counter(receivers(Process.COORDINATOR))


def test_a_worker_has_one_place_for_each_message_to_it() -> None:
    taken = taken_by_workers()
    to_workers = {*receivers(Process.WORKER), *receivers(Process.FOLLOWER)}
    assert {cls.__name__: taken[cls.__name__] for cls in to_workers} == {cls.__name__: 1 for cls in to_workers}


def test_nothing_is_sent_that_is_no_message() -> None:
    for path in RUNTIME.rglob("*.py"):
        for found in ast.walk(ast.parse(path.read_text())):
            if isinstance(found, ast.Dict):
                pairs = zip(found.keys, found.values, strict=True)
                types = [value for key, value in pairs if isinstance(key, ast.Constant) and key.value == "type"]
                assert not any(isinstance(value, ast.Constant) for value in types), f"{path}:{found.lineno}"
