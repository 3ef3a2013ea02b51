"""Job specifications: what is accepted, what is refused and with which words."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.core.backends import BACKENDS
from jupyter_hyperpod.core.elastic import MAX_NODES, ElasticRange
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.core.mount_spec import MountSpec
from jupyter_hyperpod.core.names import validate_job_id, validate_name
from jupyter_hyperpod.core.spec import HIDDEN, JobSpec

DIGEST = "0" * 64
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", fullmatch=True)


NEEDED = {"kubernetes": {"image": "team/train:3", "host-path": "/data"}}


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    low, nodes, high = sorted(draw(st.lists(st.integers(1, MAX_NODES), min_size=3, max_size=3)))
    sizes = tuple(sorted({low, nodes, high}))
    backend = draw(st.sampled_from(sorted(BACKENDS)))
    return JobSpec(
        name=draw(names),
        cell_digest=DIGEST,
        nodes=nodes,
        elastic=draw(st.sampled_from([None, ElasticRange(low, high), ElasticRange(low, high, sizes)])),
        backend=backend,
        priority=draw(st.integers(-1000, 1000)),
        spares=draw(st.integers(0, 8)),
        env=draw(st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True), st.just("välue"), max_size=3)),
        hang_timeout_s=draw(st.floats(0.1, 1e4)),
        mounts=draw(st.just(()) | st.just((MountSpec("shared", "/a", "/b", True),))),
        **({backend: NEEDED[backend]} if backend in NEEDED else {}),
    )


@given(specs())
def test_specification_survives_json(spec: JobSpec) -> None:
    hidden = replace(spec, env=dict.fromkeys(spec.env, HIDDEN))
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == hidden


@given(specs())
def test_a_job_may_start_and_shrink_within_its_range(spec: JobSpec) -> None:
    assert spec.range.minimum <= spec.start_minimum <= spec.range.maximum
    assert spec.range.minimum <= spec.nodes <= spec.range.maximum


def test_specification_of_a_newer_version_is_read() -> None:
    record = JobSpec(name="a", cell_digest=DIGEST).to_json() | {"invented_later": 1}
    assert JobSpec.from_json(record).name == "a"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_reading_rubbish_raises_nothing_but_a_spec_error(value: Any) -> None:
    record = {"name": "a", "cell_digest": DIGEST}
    for field in dataclasses.fields(JobSpec):
        try:
            JobSpec.from_json(record | {field.name: value})
        except SpecError:
            pass


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "../evil"}, r"job name '\.\./evil' is not allowed; use 1 to 40"),
        ({"name": ""}, "job name '' is not allowed"),
        ({"name": "a" * 41}, "not allowed"),
        ({"name": "a\n"}, "not allowed"),
        ({"name": "-rf"}, "starting with a letter or digit"),
        ({"nodes": 0}, "nodes is 0; expected a whole number from 1"),
        ({"nodes": MAX_NODES + 1}, "expected a whole number"),
        ({"nodes": 9, "elastic": ElasticRange(2, 8)}, "nodes is 9, outside the elastic range 2:8"),
        ({"backend": "cloud"}, "backend 'cloud' is unknown; expected one of local"),
        ({"priority": 1001}, "priority is 1001; expected -1000"),
        ({"spares": -1}, "cannot be negative"),
        ({"threads": 0}, "at least 1"),
        ({"script_restarts": -1}, "cannot be negative"),
        ({"grace_s": -1.0}, "grace_s is -1.0; expected a number of seconds, 0 or more"),
        ({"scale_up_delay_s": float("inf")}, "scale_up_delay_s is inf; expected a number of seconds"),
        ({"queue": "../q"}, "queue name '../q' is not allowed"),
        ({"elastic": ElasticRange(1, 1, (1,)), "nodes": 2}, "outside the elastic range"),
        ({"hang_timeout_s": 0}, "expected more than 0 seconds"),
        ({"hang_timeout_s": float("nan")}, "expected more than 0 seconds"),
        ({"env": {"A-B": "1"}}, "environment variable number 1 has a name that is not allowed; expected NAME=VALUE"),
        ({"env": {"A": "x\0y"}}, "the value of environment variable A is not text, or has a NUL character in it"),
    ],
)
def test_what_cannot_run_is_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        JobSpec(**({"name": "job", "cell_digest": DIGEST} | changes))


@pytest.mark.parametrize("text", ["4", "2:", ":8", "a:b", "2:8:2:1", "1,,2", "-1:4", "2.5:4", "", "²:8"])
def test_malformed_elastic_range(text: str) -> None:
    with pytest.raises(SpecError, match="not of the form MIN:MAX, MIN:MAX:STEP or A,B,C, for"):
        ElasticRange.parse(text)


@pytest.mark.parametrize("text", ["8:2", "0:4", f"1:{MAX_NODES + 1}"])
def test_impossible_elastic_range(text: str) -> None:
    with pytest.raises(SpecError, match="is impossible; expected 1 <= MIN <= MAX"):
        ElasticRange.parse(text)


@pytest.mark.parametrize("text", ["2:8:9", "2:9:2", "2:8:0"])
def test_steps_that_do_not_lead_to_the_maximum(text: str) -> None:
    with pytest.raises(SpecError, match="is impossible: steps of . do not lead from 2 to"):
        ElasticRange.parse(text)


@pytest.mark.parametrize("text", ["2:8", "2:8:2", "1,2,4,8", "3,7"])
def test_an_elastic_range_prints_as_it_is_written(text: str) -> None:
    assert str(ElasticRange.parse(text)) == text


def test_a_job_runs_only_on_allowed_sizes() -> None:
    allowed = ElasticRange.parse("8,1,4,2")
    assert [size for size in range(10) if allowed.allows(size)] == [1, 2, 4, 8]
    assert [allowed.fit(nodes) for nodes in (0, 1, 3, 4, 7, 99)] == [0, 1, 2, 4, 4, 8]
    assert (allowed.clamp(0), allowed.clamp(6)) == (1, 4)
    with pytest.raises(SpecError, match="nodes is 3, outside the elastic range 1,2,4,8"):
        JobSpec(name="job", cell_digest=DIGEST, nodes=3, elastic=allowed)


@given(st.text(max_size=60))
def test_a_name_that_passes_stays_in_its_directory(text: str) -> None:
    for validate in (lambda t: validate_name(t, "name"), validate_job_id):
        try:
            accepted = validate(text)
        except SpecError:
            continue
        assert os.path.normpath(os.path.join("/store/jobs", accepted)) == f"/store/jobs/{accepted}"
        assert re.fullmatch(r"[A-Za-z0-9_-]+", accepted)


@pytest.mark.parametrize("text", ["../../etc-abcdefgh", "a-ABCDEFGH", "a-1bcdefgh", "a-abcdefg", "a", "a-abcdefgh\n"])
def test_malformed_job_ids(text: str) -> None:
    with pytest.raises(SpecError, match="not of the form NAME-xxxxxxxx"):
        validate_job_id(text)
