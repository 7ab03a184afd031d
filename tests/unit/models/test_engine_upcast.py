"""Two contracts over one run: v1 events read as v2, v2 events read as v1, and nothing lost on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import runstate
from runstate.contracts import RunStateStoreV1, RunStateStoreV2
from runstate.errors import InvalidEvent
from runstate.models.canonical import parse
from runstate.models.engine import ENGINE, CanonicalEngineEvent, RunEventRecord, RunEventWrite
from runstate.models.engine.events import decode_v1, members_json, upcast

V1 = Callable[..., CanonicalEngineEvent]
Write = Callable[..., RunEventWrite]


# --- v1 seen through v2 ----------------------------------------------------------------------------------


def test_an_event_of_v1_is_upcast_field_by_field(v1: V1) -> None:
    old = v1(
        "StepFailed",
        run_seq=4,
        persisted_at="2026-11-15T09:30:00.500Z",
        step_id="extract",
        engine_attempt_id="0",
        logical_attempt_id="3",
        event_data={"error": {"code": "E"}},
    )
    assert upcast(old) == RunEventRecord(
        event_id=old.event_id,
        event_type="StepFailed",
        emitted_at="2026-11-15T10:30:00.000+01:00",
        run_id="r-1",
        tenant_id="unknown",
        project_id="unknown",
        environment_id="unknown",
        plan_id="unknown",
        plan_version="unknown",
        engine_attempt_id=0,
        logical_attempt_id=3,
        idempotency_key=old.idempotency_key,
        step_id="extract",
        payload={"error": {"code": "E"}},
        run_seq=4,
        persisted_at="2026-11-15T09:30:00.500Z",
    )


def test_attempts_that_v1_does_not_give_are_1(v1: V1) -> None:
    new = upcast(v1())
    assert (new.engine_attempt_id, new.logical_attempt_id) == (1, 1)


@pytest.mark.parametrize("event_data", [None, "text", 7, 0.5, True, [1], []])
def test_event_data_that_is_no_object_is_wrapped(event_data: Any, v1: V1) -> None:
    assert upcast(v1(event_data=event_data)).payload == {"eventData": event_data}


def test_what_only_v1_knows_is_kept_as_members_of_their_own_names(v1: V1) -> None:
    ids = {
        "causedBySignalId": "123e4567-e89b-42d3-a456-426614174000",
        "parentEventId": "123e4567-e89b-42d3-a456-426614174001",
    }
    old = v1(
        adapter_version="1.4",
        engine_run_ref={"workflowId": "w"},
        caused_by_signal_id=ids["causedBySignalId"],
        parent_event_id=ids["parentEventId"],
        extra={"traceId": "t"},
    )
    assert upcast(old).extra == {"adapterVersion": "1.4", "engineRunRef": {"workflowId": "w"}, "traceId": "t"} | ids


def test_a_reference_that_is_null_is_kept_as_null(v1: V1) -> None:
    assert upcast(v1(engine_run_ref=None)).extra == {"engineRunRef": None}


@pytest.mark.parametrize("clash", ["planVersion", "planId", "payload", "projectId", "environmentId"])
def test_an_upcast_event_with_a_member_that_v2_has_too_is_still_json(clash: str, v1: V1) -> None:
    written = members_json(upcast(v1(run_seq=1, persisted_at="2026-11-15T09:30:00Z", extra={clash: "x", "other": 1})))
    assert parse(written)["other"] == 1


def test_a_stored_line_of_v1_is_upcast_when_it_is_decoded(line_v1: Callable[..., bytes]) -> None:
    record = ENGINE.decode(line_v1(3, "StepStarted", step_id="extract"))
    assert (type(record), record.run_seq, record.step_id, record.tenant_id) == (RunEventRecord, 3, "extract", "unknown")


@pytest.mark.parametrize("value", [{}, {"x": 1}, None, 7, "text"])
def test_a_member_that_is_named_extra_comes_back_in_extra(line: Callable[..., bytes], value: object) -> None:
    stored = line(1, extra={"extra": value})
    for written in (stored, stored.replace(b'"extra"', rb'"\u0065xtra"')):
        assert ENGINE.decode(written).extra == {"extra": value}


def test_a_line_that_was_stored_with_engine_attempt_0_is_still_read(
    line: Callable[..., bytes], line_v1: Callable[..., bytes]
) -> None:
    for stored in (
        line(1, engine_attempt_id=0),
        line(1, engine_attempt_id=0, extra={"extra": 1}),
        line_v1(1, engine_attempt_id="0"),
    ):
        assert ENGINE.decode(stored).engine_attempt_id == 0
        assert decode_v1(stored).engine_attempt_id == "0"
        state = ENGINE.fold(ENGINE.initial("r-1"), [stored])
        assert (state.status, state.inconsistent) == ("RUNNING", False)


def test_a_line_that_was_stored_with_engine_attempt_0_is_appended_to_another_log_as_1(
    line: Callable[..., bytes], line_v1: Callable[..., bytes]
) -> None:
    for stored, attempt in ((line(1, engine_attempt_id=0), 1), (line_v1(1, engine_attempt_id="0"), "1")):
        event = ENGINE.parse_stored(stored)
        ENGINE.draft(event)
        assert event.engine_attempt_id == attempt


def test_both_contracts_fold_into_the_same_state(line: Callable[..., bytes], line_v1: Callable[..., bytes]) -> None:
    at = {"emitted_at": "2026-11-15T09:30:00Z"}
    new = [
        line(1, "RunStarted", **at),
        line(2, "StepStarted", "a", 2, **at),
        line(3, "StepFailed", "a", 2, payload={"error": {}}, **at),
    ]
    old = [
        line_v1(1, "RunStarted", **at),
        line_v1(2, "StepStarted", step_id="a", logical_attempt_id="2", **at),
        line_v1(3, "StepFailed", step_id="a", logical_attempt_id="2", event_data={"error": {}}, **at),
    ]
    assert ENGINE.dump(ENGINE.fold(ENGINE.initial("r-1"), old)) == ENGINE.dump(ENGINE.fold(ENGINE.initial("r-1"), new))


# --- v2 seen through v1 ----------------------------------------------------------------------------------


def test_an_event_of_v2_is_downcast_field_by_field(line: Callable[..., bytes]) -> None:
    body = line(4, "StepFailed", "extract", 3, engine_attempt_id=0, payload={"a": 1}, extra={"traceId": "t"})
    new = ENGINE.decode(body)
    assert decode_v1(body) == CanonicalEngineEvent(
        run_id="r-1",
        event_id=new.event_id,
        event_type="StepFailed",
        event_data={"a": 1},
        idempotency_key=new.idempotency_key,
        emitted_at=new.emitted_at,
        run_seq=4,
        persisted_at=new.persisted_at,
        step_id="extract",
        engine_attempt_id="0",
        logical_attempt_id="3",
        extra={"traceId": "t"},
    )


def test_a_missing_payload_is_downcast_to_an_empty_object(line: Callable[..., bytes]) -> None:
    assert decode_v1(line(1)).event_data == {}


def test_a_stored_line_of_v1_comes_back_through_v1_as_it_was(line_v1: Callable[..., bytes], v1: V1) -> None:
    fields: dict[str, Any] = {
        "event_data": [1, None],
        "engine_run_ref": "w",
        "adapter_version": "2",
        "extra": {"x": {}},
    }
    stored = v1("Custom", run_seq=5, persisted_at="2026-11-15T09:30:00.500Z", **fields)
    assert decode_v1(line_v1(5, "Custom", **fields)) == stored


@pytest.mark.parametrize("clash", ["eventData", "adapterVersion", "engineRunRef", "parentEventId"])
def test_a_downcast_event_with_a_member_that_v1_has_too_is_still_json(clash: str, line: Callable[..., bytes]) -> None:
    written = members_json(decode_v1(line(1, extra={clash: "x", "other": 1})))
    assert parse(written)["other"] == 1


# --- unknown members -------------------------------------------------------------------------------------

unknown = st.dictionaries(
    st.sampled_from(["extra", "", "zzz", "run_id", "payload2", "ключ", "\u2028", "seq", "stream", "event"]),
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.text("ab|\n\u2028", max_size=3)
    | st.lists(st.integers(0, 9), max_size=2),
    min_size=1,
    max_size=4,
)


@given(extra=unknown)
@settings(max_examples=60, deadline=None)
def test_unknown_members_of_v2_are_kept_through_append_and_fetch(extra: dict[str, Any], write: Write) -> None:
    with runstate.open("memory:") as store:
        RunStateStoreV2(store).append_event(write(extra=dict(extra)))
        assert RunStateStoreV2(store).fetch_events("r-1")[0].extra == extra


@given(extra=unknown)
@settings(max_examples=60, deadline=None)
def test_unknown_members_of_v1_are_kept_through_append_and_fetch(extra: dict[str, Any], v1: V1) -> None:
    with runstate.open("memory:") as store:
        RunStateStoreV1(store).append_event(v1(extra=dict(extra)))
        assert RunStateStoreV1(store).fetch_events("r-1")[0].extra == extra


@given(extra=unknown)
@settings(max_examples=60, deadline=None)
def test_a_line_with_unknown_members_is_parsed_and_written_as_it_came(extra: dict[str, Any], write: Write) -> None:
    line = members_json(write(extra=dict(extra)))
    event = ENGINE.parse(line)
    assert members_json(event) == line


def test_unknown_members_stand_at_the_top_level_of_the_line(write: Write) -> None:
    _, draft = ENGINE.draft(write(extra={"traceId": "t"}))
    members = msgspec.json.decode(draft.render(1, "2026-11-15T09:30:00.500Z"))
    assert (members["traceId"], members["runSeq"], "extra" in members) == ("t", 1, False)


def test_an_integer_written_as_a_double_is_an_integer(write: Write) -> None:
    line = members_json(write()).replace(b'"engineAttemptId":1', b'"engineAttemptId":1.0')
    event = ENGINE.parse(line)
    assert isinstance(event, RunEventWrite)
    assert (event.engine_attempt_id, type(event.engine_attempt_id)) == (1, int)


# --- what the authority assigns --------------------------------------------------------------------------


def test_what_a_caller_of_v1_says_about_its_place_is_replaced(v1: V1) -> None:
    _, draft = ENGINE.draft(v1(run_seq=99, persisted_at="2000-01-01T00:00:00Z"))
    members = parse(draft.render(1, "2026-11-15T09:30:00.500Z"))
    assert (members["runSeq"], members["persistedAt"]) == (1, "2026-11-15T09:30:00.500Z")


def test_a_record_of_v2_is_no_write(record: Callable[..., RunEventRecord]) -> None:
    # It would be stored with two places and two times, and readers would disagree on which of them counts.
    with pytest.raises(InvalidEvent, match="runSeq"):
        ENGINE.draft(record(5))


# --- content ---------------------------------------------------------------------------------------------


def stored(event: RunEventWrite) -> bytes:
    return ENGINE.draft(event)[1].render(1, "2026-11-15T09:30:00.500Z")


@pytest.mark.parametrize(
    "change",
    [
        {"event_id": "123e4567-e89b-42d3-a456-426614174000"},
        {"emitted_at": "2026-11-15T09:31:00Z"},
        {"engine_attempt_id": 2},
    ],
    ids=str,
)
def test_an_honest_retry_has_the_same_content(change: dict[str, Any], write: Write) -> None:
    assert ENGINE.draft(write(payload={"a": 1.0}, **change))[1].same_content(stored(write(payload={"a": 1})))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"payload": {"a": 1}}, {"payload": {"a": 2}}),
        ({"payload": {"a": 1}}, {"payload": {"a": True}}),
        ({"payload": {"a": 0}}, {"payload": {"a": False}}),
        ({"payload": {"a": None}}, {"payload": {}}),
        ({"payload": {}}, {}),
        ({"tenant_id": "other"}, {}),
        ({"extra": {"x": 1}}, {}),
        ({"extra": {"": 1}}, {"extra": {"": 2}}),
        ({"payload": {"eventId": 1}}, {"payload": {"eventId": 2}}),
        ({"payload": {"a": "é"}}, {"payload": {"a": "e\u0301"}}),
    ],
    ids=str,
)
def test_a_difference_in_content_is_seen(first: dict[str, Any], second: dict[str, Any], write: Write) -> None:
    assert not ENGINE.draft(write(**second))[1].same_content(stored(write(**first)))
