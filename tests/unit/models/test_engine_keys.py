"""Idempotency keys: golden vectors that OpenSSL computed, and what does and does not take part."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runstate.errors import InvalidEvent, KeyMismatch
from runstate.models.engine import ENGINE, CanonicalEngineEvent, RunEventWrite, idempotency_key, idempotency_key_v1
from runstate.models.engine.events import members_json

vectors: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden/idempotency_keys.json").read_text(encoding="utf-8")
)["vectors"]

fields: dict[str, Any] = {
    "run_id": "r-1",
    "step_id": "extract",
    "logical_attempt_id": 1,
    "event_type": "StepStarted",
    "plan_id": "nightly",
    "plan_version": "7",
}
fields_v1 = {name: value for name, value in fields.items() if name != "plan_id"} | {"logical_attempt_id": "1"}


def key_of(vector: dict[str, Any]) -> str:
    given_fields = vector["fields"]
    shared = {
        "run_id": given_fields["runId"],
        "step_id": given_fields["stepId"],
        "logical_attempt_id": given_fields["logicalAttemptId"],
        "event_type": given_fields["eventType"],
        "plan_version": given_fields["planVersion"],
    }
    if vector["contract"] == 1:
        return idempotency_key_v1(**shared)
    return idempotency_key(plan_id=given_fields["planId"], **shared)


@pytest.mark.parametrize("vector", vectors, ids=lambda vector: vector["claim"])
def test_the_key_is_the_golden_one(vector: dict[str, Any]) -> None:
    assert key_of(vector) == vector["key"]


@pytest.mark.parametrize("vector", vectors, ids=lambda vector: vector["claim"])
def test_the_golden_key_is_the_digest_of_its_text(vector: dict[str, Any]) -> None:
    assert hashlib.sha256(vector["text"].encode("utf-8")).hexdigest() == vector["key"]


def test_no_two_vectors_share_a_key() -> None:
    assert not [(a["claim"], b["claim"]) for a, b in combinations(vectors, 2) if a["key"] == b["key"]]


@pytest.mark.parametrize("name", ["run_id", "step_id", "event_type", "plan_id", "plan_version"])
def test_a_separator_in_a_field_is_refused(name: str) -> None:
    with pytest.raises(InvalidEvent, match=r"\|"):
        idempotency_key(**(fields | {name: "a|b"}))


@pytest.mark.parametrize("name", ["run_id", "step_id", "logical_attempt_id", "event_type", "plan_version"])
def test_a_separator_in_a_field_is_refused_by_v1_too(name: str) -> None:
    with pytest.raises(InvalidEvent, match=r"\|"):
        idempotency_key_v1(**(fields_v1 | {name: "a|b"}))


def test_text_that_has_no_utf_8_is_refused() -> None:
    with pytest.raises(InvalidEvent):
        idempotency_key(**(fields | {"run_id": "\ud800"}))


@pytest.mark.parametrize("event_type", ["StepStarted", "StepCompleted", "StepFailed", "StepSkipped"])
@pytest.mark.parametrize("step", [None, ""])
def test_a_step_event_without_a_step_id_has_no_key(event_type: str, step: str | None) -> None:
    for helper, given_fields in ((idempotency_key, fields), (idempotency_key_v1, fields_v1)):
        with pytest.raises(InvalidEvent, match=r"stepId.*step_id="):
            helper(**(given_fields | {"event_type": event_type, "step_id": step}))


def test_a_run_event_with_a_step_id_has_no_key() -> None:
    for helper, given_fields in ((idempotency_key, fields), (idempotency_key_v1, fields_v1)):
        with pytest.raises(InvalidEvent, match="stepId"):
            helper(**(given_fields | {"event_type": "RunStarted"}))


@pytest.mark.parametrize("attempt", [0, -1, True, False, 1.0, 1.5, "1", None, 10**15], ids=repr)
def test_an_attempt_that_is_not_an_integer_from_1_has_no_key(attempt: Any) -> None:
    with pytest.raises(InvalidEvent, match="logicalAttemptId"):
        idempotency_key(**(fields | {"logical_attempt_id": attempt}))


@pytest.mark.parametrize("attempt", ["0", "-1", "01", "1.0", " 1", "", "x", 1, True, None, "9" * 16], ids=repr)
def test_an_attempt_of_v1_that_is_not_a_counter_from_1_has_no_key(attempt: Any) -> None:
    with pytest.raises(InvalidEvent, match="logicalAttemptId"):
        idempotency_key_v1(**(fields_v1 | {"logical_attempt_id": attempt}))


@pytest.mark.parametrize("name", ["run_id", "step_id", "event_type", "plan_id", "plan_version"])
@pytest.mark.parametrize("value", [5, b"a", ["a"], ""], ids=repr)
def test_a_field_that_is_not_text_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidEvent):
        idempotency_key(**(fields | {name: value}))


@pytest.mark.parametrize("name", ["run_id", "step_id", "event_type", "plan_id", "plan_version"])
def test_every_field_takes_part(name: str) -> None:
    assert idempotency_key(**(fields | {name: "other"})) != idempotency_key(**fields)


@given(st.tuples(*[st.text("RUN1 aAé\u0301", min_size=1, max_size=3)] * 5), st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_the_key_is_the_digest_of_the_fields_as_they_came(texts: tuple[str, ...], attempt: int) -> None:
    run, step, event_type, plan, version = texts
    key = idempotency_key(
        run_id=run, step_id=step, logical_attempt_id=attempt, event_type=event_type, plan_id=plan, plan_version=version
    )
    assert key == hashlib.sha256(f"{run}|{step}|{attempt}|{event_type}|{plan}|{version}".encode()).hexdigest()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tenant_id", "other"),
        ("project_id", "other"),
        ("environment_id", "other"),
        ("engine_attempt_id", 99),
        ("emitted_at", "2020-01-01T00:00:00Z"),
        ("event_id", "123e4567-e89b-42d3-a456-426614174000"),
        ("payload", {"a": 1}),
        ("extra", {"traceId": "t"}),
    ],
)
def test_what_may_differ_between_retries_plays_no_part(
    field: str, value: Any, write: Callable[..., RunEventWrite]
) -> None:
    assert ENGINE.expected_key(write(**{field: value})) == ENGINE.expected_key(write())


def test_the_model_expects_the_key_that_the_helper_derives(write: Callable[..., RunEventWrite]) -> None:
    event = write("StepStarted", "extract", 3, run="r-9")
    expected = fields | {"run_id": "r-9", "logical_attempt_id": 3}
    assert ENGINE.expected_key(event) == idempotency_key(**expected)


def test_validation_reports_a_key_that_does_not_match(write: Callable[..., RunEventWrite]) -> None:
    with pytest.raises(KeyMismatch):
        ENGINE.check_line(members_json(write(idempotency_key="abc123")))


def test_validation_passes_a_key_that_matches(write: Callable[..., RunEventWrite], line: Callable[..., bytes]) -> None:
    ENGINE.check_line(members_json(write("StepFailed", "load")))
    ENGINE.check_line(line(3, "StepFailed", "load"))


def test_a_key_of_v1_cannot_be_derived_from_its_event(v1: Callable[..., CanonicalEngineEvent]) -> None:
    # The event does not carry the plan version, which is part of the key.
    assert ENGINE.expected_key(v1(idempotency_key="abc123")) is None
    ENGINE.check_line(members_json(v1(idempotency_key="abc123")))
