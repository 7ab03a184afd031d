"""Pairing activities into spans: what a stream says in good order, and what is made of every other order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runstate.models.activity import Activity, ActivityKind
from runstate.models.engine import ENGINE
from runstate.pipeline.report.spans import Outcome, Span, elapsed_ms, span_fields, spans, unnamed


def t(second: float) -> str:
    return f"2026-11-15T09:30:{second:06.3f}Z"


def act(kind: ActivityKind, second: float, scope: str = "", **members: Any) -> Activity:
    return Activity(kind=kind, scope=scope, at=t(second), **members)


def paired(*activities: Activity) -> list[Span]:
    return list(spans("r-1", "acme", [("", t(59), [activity]) for activity in activities]))


def told(found: Sequence[Span]) -> list[tuple[Any, ...]]:
    return [(span.kind, span.name, span.attempt, span.outcome, span.wait_ms, span.duration_ms) for span in found]


def test_a_step_waits_runs_and_ends() -> None:
    found = paired(act("queued", 1, "i", name="render", attempt=2), act("started", 3, "i"), act("finished", 7.5, "i"))
    assert found == [
        Span(
            "r-1",
            "acme",
            "step",
            "render",
            2,
            t(1),
            t(3),
            t(7.5),
            "finished",
            2000.0,
            4500.0,
            end_emitted_at=t(7.5),
            end_persisted_at=t(59),
        ),
    ]


def test_a_run_waits_runs_and_ends() -> None:
    found = paired(act("run_queued", 1, name="nightly"), act("run_started", 2), act("run_failed", 4))
    assert found == [
        Span(
            "r-1",
            "acme",
            "run",
            "nightly",
            1,
            t(1),
            t(2),
            t(4),
            "failed",
            1000.0,
            2000.0,
            end_emitted_at=t(4),
            end_persisted_at=t(59),
        )
    ]


def test_attempts_at_the_same_step_are_spans_of_their_own() -> None:
    found = paired(
        act("started", 1, "load|1", name="load", attempt=1),
        act("failed", 2, "load|1", name="load", attempt=1),
        act("started", 3, "load|2", name="load", attempt=2),
        act("finished", 5, "load|2", name="load", attempt=2),
    )
    assert told(found) == [
        ("step", "load", 1, "failed", None, 1000.0),
        ("step", "load", 2, "finished", None, 2000.0),
    ]


def test_an_end_without_a_beginning_has_no_duration() -> None:
    assert told(paired(act("failed", 2, "i", name="load"))) == [("step", "load", 1, "failed", None, None)]


def test_what_was_begun_twice_was_interrupted_once() -> None:
    found = paired(
        act("queued", 1, "i", name="render", attempt=1),
        act("started", 2, "i"),
        act("started", 5, "i"),
        act("finished", 6, "i"),
    )
    assert told(found) == [
        ("step", "render", 1, "interrupted", 1000.0, None),
        ("step", "render", 1, "finished", None, 1000.0),
    ]


def test_what_is_begun_again_after_its_end_keeps_its_name() -> None:
    found = paired(
        act("queued", 0, "i", name="render", attempt=3),
        act("started", 1, "i"),
        act("failed", 2, "i"),
        act("started", 5, "i"),
        act("finished", 6, "i"),
    )
    assert told(found)[1] == ("step", "render", 3, "finished", None, 1000.0)


def test_an_end_after_an_end_is_nothing_new() -> None:
    found = paired(act("started", 1, "i"), act("finished", 2, "i"), act("failed", 3, "i"))
    assert told(found) == [("step", unnamed, 1, "finished", None, 1000.0)]


def test_what_was_skipped_has_no_duration() -> None:
    found = paired(act("queued", 1, "i"), act("started", 2, "i"), act("skipped", 9, "i"))
    assert told(found) == [("step", unnamed, 1, "skipped", 1000.0, None)]


def test_what_has_not_ended_is_running_or_queued() -> None:
    found = paired(act("run_started", 1), act("queued", 2, "a"), act("started", 3, "b"), act("call_started", 4, "c"))
    assert [(span.kind, span.outcome, span.ended_at) for span in found] == [
        ("run", "running", None),
        ("step", "queued", None),
        ("step", "running", None),
        ("call", "running", None),
    ]


@pytest.mark.parametrize(
    ("end", "left"), [("run_cancelled", "cancelled"), ("run_failed", "interrupted"), ("run_finished", "interrupted")]
)
def test_what_an_ended_run_leaves_behind_does_not_run_any_more(end: ActivityKind, left: Outcome) -> None:
    found = paired(act("run_started", 1), act("queued", 2, "a"), act("started", 3, "b"), act(end, 4))
    assert [span.outcome for span in found if span.kind == "step"] == [left, left]


def test_a_late_end_still_ends_its_step() -> None:
    found = paired(act("run_started", 1), act("started", 2, "b"), act("run_failed", 3), act("finished", 4, "b"))
    assert [span.outcome for span in found if span.kind == "step"] == ["finished"]


def test_a_resumed_run_is_begun_once_more() -> None:
    found = paired(
        act("run_queued", 0, name="site"),
        act("run_resumed", 1),
        act("run_resumed", 2),
        act("run_failed", 3),
        act("run_resumed", 10),
        act("run_finished", 12),
    )
    assert told(found) == [
        ("run", "site", 1, "failed", 1000.0, 2000.0),
        ("run", "site", 2, "finished", None, 2000.0),
    ]


def test_a_run_that_has_ended_is_not_started_again() -> None:
    found = paired(act("run_started", 1), act("run_finished", 2), act("run_started", 3), act("run_failed", 4))
    assert told(found) == [("run", unnamed, 1, "finished", None, 1000.0)]


def test_a_call_lasts_as_long_as_its_event_says() -> None:
    (call,) = paired(act("call", 5, name="m-1", duration_ms=830.0, cost=0.5, tokens_in=9, tokens_out=2))
    assert (call.duration_ms, call.cost, call.tokens_in, call.tokens_out) == (830.0, 0.5, 9, 2)


def test_a_call_that_says_no_duration_is_measured_from_its_beginning() -> None:
    found = paired(act("call_started", 1, "c", name="m-1"), act("call", 3, "c", outcome="failed"))
    assert told(found) == [("call", "m-1", 1, "failed", None, 2000.0)]


def test_calls_that_share_a_scope_end_in_the_order_of_their_beginnings() -> None:
    found = paired(act("call_started", 1, "c"), act("call_started", 2, "c"), act("call", 4, "c"), act("call", 6, "c"))
    assert [span.duration_ms for span in found] == [3000.0, 4000.0]


def test_the_log_s_time_stands_in_for_a_missing_one() -> None:
    events = [("", t(1), [Activity(kind="started", scope="i")]), ("", t(4), [Activity(kind="finished", scope="i")])]
    (span,) = spans("r-1", "", events)
    assert (span.started_at, span.ended_at, span.duration_ms) == (t(1), t(4), 3000.0)
    assert (span.end_emitted_at, span.end_persisted_at) == (None, t(4))


def test_the_event_s_own_time_comes_before_the_log_s() -> None:
    events = [(t(1), t(50), [Activity(kind="started", name="i")]), (t(4), t(51), [Activity(kind="failed", name="i")])]
    (span,) = spans("r-1", "", events)
    assert (span.started_at, span.ended_at, span.duration_ms) == (t(1), t(4), 3000.0)
    assert (span.end_emitted_at, span.end_persisted_at) == (t(4), t(51))


def test_what_has_not_ended_was_not_stored_as_ended() -> None:
    (span,) = spans("r-1", "", [(t(1), t(50), [Activity(kind="started", name="i")])])
    assert span.end_persisted_at is None


def test_steps_without_a_scope_are_told_apart_by_their_names() -> None:
    found = paired(
        act("started", 1, name="mix"), act("started", 2, name="bake"), act("finished", 4, name="mix"),
        act("finished", 9, name="bake"),
    )  # fmt: skip
    assert [(span.name, span.duration_ms) for span in found] == [("mix", 3000.0), ("bake", 7000.0)]


def test_attempts_that_no_event_numbers_are_counted() -> None:
    kinds: tuple[ActivityKind, ...] = ("queued", "started", "failed") * 2
    found = paired(
        *(act(kind, second, name="bake") for second, kind in enumerate(kinds)),
        act("started", 7, name="bake"),
        act("started", 8, name="bake"),
    )
    assert [(span.attempt, span.outcome) for span in found] == [
        (1, "failed"),
        (2, "failed"),
        (3, "interrupted"),
        (4, "running"),
    ]


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (t(2), t(1)),
        ("0000-01-01T00:00:00Z", t(1)),
        ("2026-11-15T09:30:00", t(1)),
        ("soon", t(1)),
        (None, t(1)),
        (t(1), ""),
    ],
)
def test_clocks_that_make_no_sense_measure_nothing(start: str | None, end: str) -> None:
    assert elapsed_ms(start, end) is None


def test_times_of_two_zones_are_compared_as_instants() -> None:
    assert elapsed_ms("2026-11-15T10:30:00+01:00", "2026-11-15T09:30:00.250Z") == 250.0


@pytest.mark.parametrize(
    ("start", "end", "milliseconds"),
    [
        ("2026-11-15t09:30:00z", "2026-11-15T09:30:00.250Z", 250.0),
        ("2026-11-15T09:30:00.000000500Z", "2026-11-15T09:30:00.001000500Z", 1.0),
        ("2026-11-15T09:30:00.123456789Z", "2026-11-15T09:30:00.123456790Z", 1e-06),
    ],
)
def test_every_form_of_rfc_3339_is_measured(start: str, end: str, milliseconds: float) -> None:
    assert elapsed_ms(start, end) == milliseconds


def test_the_columns_are_the_fields_of_a_span() -> None:
    assert [name for name, _ in span_fields] == list(Span.__struct_fields__)
    types = {"string": str, "int64": int, "double": float}
    for field, (name, kind) in zip(msgspec.structs.fields(Span), span_fields, strict=True):
        allowed = [part for part in get_args(field.type) if part is not type(None)] or [field.type]
        assert all(part is types[kind] or (kind == "string" and isinstance(part, str)) for part in allowed), name


def test_an_engine_s_stored_lines_become_spans() -> None:
    def line(seq: int, kind: str, second: int, **members: Any) -> bytes:
        ids = {"eventId": "e", "runId": "r-1", "tenantId": "t", "projectId": "p", "environmentId": "e"}
        plan = {"planId": "nightly", "planVersion": "1", "engineAttemptId": 1, "logicalAttemptId": 1}
        places = {"runSeq": seq, "persistedAt": t(59), "emittedAt": t(second), "idempotencyKey": "k"}
        return msgspec.json.encode({**ids, **plan, **places, "eventType": kind, **members})

    lines = [
        line(1, "RunStarted", 1),
        line(2, "StepStarted", 2, stepId="load"),
        line(3, "StepCompleted", 4, stepId="load", payload={"calls": [{"model": "m-1", "cost": 0.25}]}),
        line(4, "RunCompleted", 5),
    ]
    found = list(spans("r-1", "t", [(t(9), t(59), ENGINE.activities(ENGINE.decode(each))) for each in lines]))
    assert told(found) == [
        ("call", "m-1", 1, "finished", None, None),
        ("step", "load", 1, "finished", None, 2000.0),
        ("run", "nightly", 1, "finished", None, 4000.0),
    ]
    assert found[0].cost == 0.25


hostile = st.builds(
    Activity,
    kind=st.sampled_from(get_args(ActivityKind)),
    name=st.sampled_from(["", "load", "render"]),
    scope=st.sampled_from(["", "a", "b"]),
    attempt=st.integers(0, 3),
    at=st.one_of(st.sampled_from(["", "soon", "0000-01-01T00:00:00Z"]), st.integers(0, 59).map(t), st.text(max_size=8)),
    duration_ms=st.one_of(st.none(), st.floats(0, 1e6)),
    outcome=st.sampled_from(["finished", "failed"]),
)


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(st.sampled_from(["", t(2)]), st.sampled_from(["", t(1)]), st.lists(hostile, max_size=4)), max_size=12
    )
)
def test_in_any_order_all_that_began_is_one_span_each(events: list[tuple[str, str, list[Activity]]]) -> None:
    found = list(spans("r-1", "acme", events))
    kinds = Counter(activity.kind for *_, activities in events for activity in activities)
    steps = [span for span in found if span.kind == "step"]
    calls = [span for span in found if span.kind == "call"]
    assert sum(span.started_at is not None for span in steps) == kinds["started"]
    assert sum(span.started_at is not None for span in calls) == kinds["call_started"]
    assert sum(span.ended_at is not None for span in calls) == kinds["call"]
    for span in found:
        msgspec.convert(msgspec.to_builtins(span), Span)
        assert span.name
        assert span.attempt >= 1
        assert all(ms is None or ms >= 0 for ms in (span.wait_ms, span.duration_ms))
    assert [span.outcome for span in found if span.kind == "run"][:-1].count("running") == 0
