"""The fold of a run's events: what is possible, what is not, and that nothing but the events decides it."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runstate.models.engine import ENGINE, RunEventRecord, RunSnapshot, StepError
from runstate.models.model import Alert

Lines = Callable[..., bytes]
Records = Callable[..., RunEventRecord]
Histories = st.SearchStrategy[list[bytes]]


def fold(lines: list[bytes], state: RunSnapshot | None = None) -> RunSnapshot:
    return ENGINE.fold(state or ENGINE.initial("r-1"), lines)


def alerts_of(lines: list[bytes]) -> list[Alert]:
    raised: list[Alert] = []
    ENGINE.fold(ENGINE.initial("r-1"), lines, raised.append)
    return raised


# --- run transitions -------------------------------------------------------------------------------------

run_states: dict[str, list[str]] = {
    "PENDING": [],
    "APPROVED": ["RunApproved"],
    "RUNNING": ["RunStarted"],
    "PAUSED": ["RunStarted", "RunPaused"],
    "COMPLETED": ["RunStarted", "RunCompleted"],
    "FAILED": ["RunFailed"],
    "CANCELLED": ["RunCancelled"],
}
"""Each state of a run, and a shortest way into it."""

run_types = ["RunQueued", "RunApproved", "RunStarted", "RunPaused", "RunResumed", "RunCompleted", "RunFailed"]
run_types += ["RunCancelled"]
run_moves = {
    ("PENDING", "RunQueued"): "PENDING",
    ("PENDING", "RunApproved"): "APPROVED",
    ("PENDING", "RunStarted"): "RUNNING",
    ("APPROVED", "RunStarted"): "RUNNING",
    ("RUNNING", "RunPaused"): "PAUSED",
    ("PAUSED", "RunResumed"): "RUNNING",
    ("RUNNING", "RunCompleted"): "COMPLETED",
    ("PENDING", "RunFailed"): "FAILED",
    ("APPROVED", "RunFailed"): "FAILED",
    ("RUNNING", "RunFailed"): "FAILED",
    ("PAUSED", "RunFailed"): "FAILED",
    ("PENDING", "RunCancelled"): "CANCELLED",
    ("APPROVED", "RunCancelled"): "CANCELLED",
    ("RUNNING", "RunCancelled"): "CANCELLED",
    ("PAUSED", "RunCancelled"): "CANCELLED",
}
"""All that is possible, written down from the semantics and not taken from the code."""
run_refusals = [(state, kind) for state in run_states for kind in run_types if (state, kind) not in run_moves]
attempted = {"RunQueued": "PENDING", "RunApproved": "APPROVED", "RunStarted": "RUNNING", "RunPaused": "PAUSED"}
attempted |= {"RunResumed": "RUNNING", "RunCompleted": "COMPLETED", "RunFailed": "FAILED", "RunCancelled": "CANCELLED"}


def way_to(line: Lines, state: str) -> list[bytes]:
    return [line(seq, kind) for seq, kind in enumerate(run_states[state], 1)]


@pytest.mark.parametrize(("state", "kind"), run_moves)
def test_a_possible_event_moves_the_run(state: str, kind: str, line: Lines) -> None:
    moved = fold([*way_to(line, state), line(9, kind)])
    assert (moved.status, moved.inconsistent) == (run_moves[state, kind], False)


@pytest.mark.parametrize(("state", "kind"), run_refusals)
def test_an_impossible_event_changes_nothing_but_the_marks(state: str, kind: str, line: Lines) -> None:
    before = fold(way_to(line, state))
    after = fold([*way_to(line, state), line(9, kind, payload={"artifacts": [1]})])
    assert after == msgspec.structs.replace(before, inconsistent=True, last_event_seq=9)


@pytest.mark.parametrize(("state", "kind"), run_refusals)
def test_an_impossible_event_raises_one_alert_that_says_all(state: str, kind: str, line: Lines) -> None:
    impossible = line(9, kind)
    event = ENGINE.decode(impossible)
    (alert,) = alerts_of([*way_to(line, state), impossible])
    assert (alert.code, alert.level, alert.subject) == ("INVALID_TRANSITION", "P2", "r-1")
    assert alert.event_id == event.event_id
    assert alert.details == {
        "runId": "r-1",
        "tenantId": "acme",
        "projectId": "sales",
        "environmentId": "prod",
        "eventId": event.event_id,
        "eventType": kind,
        "runSeq": 9,
        "persistedAt": "2026-11-15T09:30:00.500Z",
        "priorState": state,
        "attemptedState": attempted[kind],
    }


def test_a_possible_history_raises_no_alert(line: Lines) -> None:
    kinds = ["RunQueued", "RunApproved", "RunStarted", "RunPaused", "RunResumed", "RunCompleted"]
    assert alerts_of([line(seq, kind) for seq, kind in enumerate(kinds, 1)]) == []


def test_a_run_may_be_paused_many_times(line: Lines) -> None:
    kinds = ["RunStarted", "RunPaused", "RunResumed", "RunPaused", "RunResumed"]
    state = fold([line(seq, kind) for seq, kind in enumerate(kinds, 1)])
    assert (state.status, state.inconsistent) == ("RUNNING", False)


def test_inconsistent_stays_once_it_is_set(line: Lines) -> None:
    assert fold([line(1, "RunResumed"), line(2, "RunStarted"), line(3, "RunCompleted")]).inconsistent


# --- step transitions ------------------------------------------------------------------------------------

step_states: dict[str, list[str]] = {
    "PENDING": [],
    "RUNNING": ["StepStarted"],
    "SUCCESS": ["StepStarted", "StepCompleted"],
    "FAILED": ["StepStarted", "StepFailed"],
    "SKIPPED": ["StepSkipped"],
}
step_types = {"StepStarted": "RUNNING", "StepCompleted": "SUCCESS", "StepFailed": "FAILED", "StepSkipped": "SKIPPED"}
step_moves = {("PENDING", "StepStarted"), ("RUNNING", "StepCompleted"), ("RUNNING", "StepFailed")}
step_moves |= {("PENDING", "StepSkipped")}
step_refusals = [(state, kind) for state in step_states for kind in step_types if (state, kind) not in step_moves]


def step_way(line: Lines, state: str, attempt: int = 1) -> list[bytes]:
    return [line(seq, kind, "extract", attempt) for seq, kind in enumerate(step_states[state], 1)]


@pytest.mark.parametrize(("state", "kind"), sorted(step_moves))
def test_a_possible_event_moves_the_step(state: str, kind: str, line: Lines) -> None:
    moved = fold([*step_way(line, state), line(9, kind, "extract")])
    assert ([step.status for step in moved.steps], moved.inconsistent) == ([step_types[kind]], False)


@pytest.mark.parametrize(("state", "kind"), step_refusals)
def test_an_impossible_event_changes_nothing_of_the_step(state: str, kind: str, line: Lines) -> None:
    before = fold(step_way(line, state))
    after = fold([*step_way(line, state), line(9, kind, "extract", payload={"artifacts": [1], "error": {}})])
    assert after == msgspec.structs.replace(before, inconsistent=True, last_event_seq=9)


@pytest.mark.parametrize(("state", "kind"), step_refusals)
def test_an_impossible_step_event_raises_an_alert_with_both_states(state: str, kind: str, line: Lines) -> None:
    raised = alerts_of([*step_way(line, state), line(9, kind, "extract")])
    details = [alert.details for alert in raised if alert.code == "INVALID_TRANSITION"]
    assert [(d["priorState"], d["attemptedState"], d["runSeq"]) for d in details] == [(state, step_types[kind], 9)]


@pytest.mark.parametrize(("state", "kind"), [*step_refusals, *sorted(step_moves)])
def test_only_a_step_that_ends_before_it_starts_violates_causality(state: str, kind: str, line: Lines) -> None:
    raised = alerts_of([*step_way(line, state), line(9, kind, "extract")])
    levels = [alert.level for alert in raised if alert.code == "PROJECTOR_CAUSAL_VIOLATION"]
    assert levels == (["P3"] if state == "PENDING" and kind in ("StepCompleted", "StepFailed") else [])


def test_a_step_may_move_whatever_its_run_is_doing(line: Lines) -> None:
    assert fold([line(1, "RunCancelled"), line(2, "StepStarted", "extract")]).steps[0].status == "RUNNING"


# --- attempts --------------------------------------------------------------------------------------------


def test_a_retry_is_a_new_attempt_and_the_failed_one_stays_in_history(line: Lines) -> None:
    error = {"error": {"code": "TIMEOUT", "message": "no answer", "retryable": True}}
    state = fold(
        [
            *step_way(line, "RUNNING"),
            line(2, "StepFailed", "extract", payload=error),
            line(3, "StepStarted", "extract", 2),
        ]
    )
    (step,) = state.steps
    assert (step.status, step.logical_attempt_id, step.error, step.completed_at) == ("RUNNING", 2, None, None)
    assert [(a.status, a.logical_attempt_id, a.error) for a in step.attempts] == [
        ("FAILED", 1, StepError("TIMEOUT", "no answer", True))
    ]


def test_an_attempt_cannot_be_retried_under_its_own_number(line: Lines) -> None:
    state = fold([*step_way(line, "FAILED"), line(3, "StepStarted", "extract", 1)])
    assert (state.steps[0].status, state.inconsistent) == ("FAILED", True)


def test_three_attempts_are_kept_oldest_first(line: Lines) -> None:
    lines = []
    for attempt in (1, 2, 3):
        lines += [
            line(2 * attempt - 1, "StepStarted", "extract", attempt),
            line(2 * attempt, "StepFailed", "extract", attempt),
        ]
    (step,) = fold(lines).steps
    assert ([a.logical_attempt_id for a in step.attempts], step.logical_attempt_id) == ([1, 2], 3)


def test_a_late_event_belongs_to_the_older_attempt_that_it_names(line: Lines) -> None:
    lines = [line(1, "StepStarted", "extract", 1), line(2, "StepStarted", "extract", 2)]
    lines.append(line(3, "StepCompleted", "extract", 1, payload={"artifacts": ["late"]}))
    state = fold(lines)
    (step,) = state.steps
    assert (step.status, step.logical_attempt_id, step.artifacts) == ("RUNNING", 2, [])
    assert (step.attempts[0].status, step.attempts[0].artifacts) == ("SUCCESS", ["late"])
    assert (state.artifacts, state.inconsistent) == (["late"], False)


def test_an_attempt_that_is_first_heard_of_late_goes_into_history_in_its_order(line: Lines) -> None:
    lines = [line(seq, "StepStarted", "extract", attempt) for seq, attempt in enumerate((2, 5, 1, 3), 1)]
    state = fold(lines)
    (step,) = state.steps
    assert ([a.logical_attempt_id for a in step.attempts], step.logical_attempt_id) == ([1, 2, 3], 5)
    assert not state.inconsistent


def test_an_impossible_late_event_names_the_state_of_its_own_attempt(line: Lines) -> None:
    lines = [*step_way(line, "FAILED"), line(3, "StepStarted", "extract", 2), line(4, "StepCompleted", "extract", 1)]
    (alert,) = alerts_of(lines)
    assert (alert.details["priorState"], alert.details["attemptedState"]) == ("FAILED", "SUCCESS")


def test_the_engines_own_attempts_play_no_part_in_state(line: Lines) -> None:
    def statuses(engine: int) -> list[Any]:
        lines = [*step_way(line, "RUNNING"), line(2, "StepFailed", "extract", engine_attempt_id=engine)]
        return [(s.status, s.logical_attempt_id, len(s.attempts)) for s in fold(lines).steps]

    assert statuses(1) == statuses(9) == [("FAILED", 1, 0)]


def test_the_engines_last_attempt_is_shown(line: Lines) -> None:
    lines = [line(1, "StepStarted", "a", engine_attempt_id=2), line(2, "StepCompleted", "a", engine_attempt_id=4)]
    assert fold(lines).steps[0].engine_attempt_id == 4


def test_steps_stand_in_the_order_of_their_first_appearance(line: Lines) -> None:
    named = [
        ("StepStarted", "z"),
        ("StepStarted", "a"),
        ("StepSkipped", "m"),
        ("StepCompleted", "a"),
        ("StepFailed", "z"),
    ]
    state = fold([line(seq, kind, step) for seq, (kind, step) in enumerate(named, 1)])
    assert [step.step_id for step in state.steps] == ["z", "a", "m"]


def test_a_step_is_known_by_its_exact_name(line: Lines) -> None:
    names = ["extract", "Extract", "extract ", "e\u0301", "\u00e9"]
    state = fold([line(seq, "StepStarted", name) for seq, name in enumerate(names, 1)])
    assert [step.step_id for step in state.steps] == names


# --- events without effect -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["SignalAccepted", "SignalRejected", "StepCorrected", "runStarted", "RUNSTARTED", "RunStarted "]
)
@pytest.mark.parametrize("step", [None, "extract"])
def test_an_event_without_effect_moves_the_watermark_alone(kind: str, step: str | None, line: Lines) -> None:
    before = fold([line(1, "RunStarted")])
    after = fold([line(1, "RunStarted"), line(7, kind, step, payload={"artifacts": [1], "error": {}})])
    assert after == msgspec.structs.replace(before, last_event_seq=7)


def test_an_event_without_effect_raises_no_alert(line: Lines) -> None:
    assert alerts_of([line(1, "SignalRejected"), line(2, "Whatever", "extract")]) == []


# --- payloads and times ----------------------------------------------------------------------------------


def test_artifacts_are_kept_by_attempt_and_by_run_in_order(line: Lines) -> None:
    state = fold(
        [
            line(1, "RunStarted", payload={"artifacts": ["ignored: a start produces nothing"]}),
            line(2, "StepStarted", "a"),
            line(3, "StepStarted", "b"),
            line(4, "StepCompleted", "b", payload={"artifacts": [{"b": 1}]}),
            line(5, "StepFailed", "a", payload={"artifacts": ["a1", "a2"]}),
            line(6, "RunCompleted", payload={"artifacts": [None]}),
        ]
    )
    assert [step.artifacts for step in state.steps] == [["a1", "a2"], [{"b": 1}]]
    assert state.artifacts == [{"b": 1}, "a1", "a2", None]


@pytest.mark.parametrize("artifacts", ["text", {"a": 1}, 7, None, True])
def test_artifacts_that_are_no_list_are_left_out(artifacts: Any, line: Lines) -> None:
    state = fold([*step_way(line, "RUNNING"), line(2, "StepCompleted", "extract", payload={"artifacts": artifacts})])
    assert (state.steps[0].status, state.steps[0].artifacts, state.artifacts) == ("SUCCESS", [], [])


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ({}, None),
        ({"error": None}, None),
        ({"error": "it broke"}, None),
        ({"error": []}, None),
        ({"error": {}}, StepError("UNKNOWN", "", False)),
        ({"error": {"code": 7, "message": None, "retryable": "yes"}}, StepError("UNKNOWN", "", False)),
        ({"error": {"code": "", "retryable": 1}}, StepError("", "", False)),
        ({"error": {"code": "E", "message": "m", "retryable": True, "more": 1}}, StepError("E", "m", True)),
    ],
)
def test_an_error_is_read_as_far_as_it_is_well_formed(
    payload: dict[str, Any], error: StepError | None, line: Lines
) -> None:
    assert fold([*step_way(line, "RUNNING"), line(2, "StepFailed", "extract", payload=payload)]).steps[0].error == error


def test_only_a_failure_has_an_error(line: Lines) -> None:
    payload = {"error": {"code": "E", "message": "", "retryable": False}}
    assert (
        fold([*step_way(line, "RUNNING"), line(2, "StepCompleted", "extract", payload=payload)]).steps[0].error is None
    )


@pytest.mark.parametrize(
    ("start", "end", "milliseconds"),
    [
        ("2026-11-15T09:30:00Z", "2026-11-15T09:30:00Z", 0),
        ("2026-11-15T09:30:00.250Z", "2026-11-15T09:30:01Z", 750),
        ("2026-11-15T09:30:00+00:00", "2026-11-15T09:30:00.123456789Z", 123),
        ("2026-02-28T23:59:59.999Z", "2026-03-01T00:00:00Z", 1),
        ("2026-11-15T09:30:01Z", "2026-11-15T09:30:00Z", None),
        ("0000-01-01T00:00:00Z", "2026-11-15T09:30:00Z", None),
        ("2026-11-15T09:30:00Z", "0000-12-31T00:00:00Z", None),
        ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z", 315537897600000),
        ("2026-11-15t09:30:00z", "2026-11-15T09:30:01.5Z", 1500),
        ("2026-11-15T09:30:00Z", "2026-11-15t09:30:00.25z", 250),
        ("2026-11-15t09:30:00-00:00", "2026-11-15t09:30:00.001+00:00", 1),
        # Nanoseconds count: 1.499001 ms is 1 ms, and 1.5 ms is 2.
        ("2026-11-15T09:30:00.000000999Z", "2026-11-15T09:30:00.001500Z", 1),
        ("2026-11-15T09:30:00.000000000Z", "2026-11-15T09:30:00.001500Z", 2),
        ("2026-11-15T09:30:00.0000007z", "2026-11-15T09:30:00.0000006Z", None),
    ],
)
def test_the_duration_is_what_the_producers_clocks_allow(
    start: str, end: str, milliseconds: int | None, line: Lines
) -> None:
    state = fold([line(1, "RunStarted", emitted_at=start), line(2, "RunCompleted", emitted_at=end)])
    assert (state.started_at, state.completed_at, state.total_duration_ms) == (start, end, milliseconds)


def test_a_duration_is_measured_across_zones(line_v1: Lines) -> None:
    lines = [
        line_v1(1, "RunStarted", emitted_at="2026-11-15T10:30:00+01:00"),
        line_v1(2, "RunFailed", emitted_at="2026-11-15T05:00:02.5-04:30"),
    ]
    assert fold(lines).total_duration_ms == 2500


def test_a_run_that_never_started_has_no_duration(line: Lines) -> None:
    state = fold([line(1, "RunCancelled")])
    assert (state.started_at, state.completed_at, state.total_duration_ms) == (None, "2026-11-15T09:30:00.000Z", None)


def test_times_are_kept_as_the_producer_wrote_them(line: Lines) -> None:
    odd = "2026-11-15T09:30:00.120000+00:00"
    state = fold([line(1, "RunStarted", emitted_at=odd), line(2, "StepStarted", "a", emitted_at=odd)])
    assert (state.started_at, state.steps[0].started_at) == (odd, odd)


def test_the_time_of_storage_changes_nothing(line: Lines) -> None:
    early = [line(1, "RunStarted", persisted_at="2020-01-01T00:00:00Z"), line(2, "RunCompleted")]
    late = [line(1, "RunStarted", persisted_at="2030-01-01T00:00:00Z"), line(2, "RunCompleted")]
    assert fold(early) == fold(late)


# --- the fold itself -------------------------------------------------------------------------------------


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_evolve_leaves_the_state_that_it_was_given_alone(data: st.DataObject, histories: Histories) -> None:
    lines = data.draw(histories.filter(bool))
    state = fold(lines[:-1])
    before = deepcopy(state)
    event = ENGINE.decode(lines[-1])
    event_before = deepcopy(event)
    ENGINE.evolve(state, event)
    assert (state, event) == (before, event_before)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_the_state_shares_nothing_with_the_one_before(data: st.DataObject, histories: Histories) -> None:
    lines = data.draw(histories.filter(bool))
    state = fold(lines[:-1])
    before = ENGINE.dump(state)
    after = ENGINE.evolve(state, ENGINE.decode(lines[-1]))
    for step in after.steps:
        step.artifacts.append("changed")
        step.attempts.clear()
    after.artifacts.append("changed")
    assert ENGINE.dump(state) == before


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_fold_is_one_evolve_after_the_other(data: st.DataObject, histories: Histories) -> None:
    lines = data.draw(histories)
    state = ENGINE.initial("r-1")
    for body in lines:
        state = ENGINE.evolve(state, ENGINE.decode(body))
    assert ENGINE.dump(state) == ENGINE.dump(fold(lines))


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_fold_may_be_cut_anywhere(data: st.DataObject, histories: Histories) -> None:
    lines = data.draw(histories)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(lines)), max_size=3)))
    state = ENGINE.initial("r-1")
    for start, end in zip([0, *cuts], [*cuts, len(lines)], strict=True):
        state = fold(lines[start:end], state)
    assert ENGINE.dump(state) == ENGINE.dump(fold(lines))


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_fold_may_rest_on_file_anywhere(data: st.DataObject, histories: Histories) -> None:
    lines = data.draw(histories)
    cut = data.draw(st.integers(0, len(lines)))
    rested = ENGINE.load(ENGINE.dump(fold(lines[:cut])))
    assert ENGINE.dump(fold(lines[cut:], rested)) == ENGINE.dump(fold(lines))


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_reprocessing_from_any_earlier_watermark_changes_nothing(data: st.DataObject, histories: Histories) -> None:
    lines = data.draw(histories)
    again = data.draw(st.integers(0, len(lines)))
    raised: list[Alert] = []
    state = fold(lines)
    before = ENGINE.dump(state)
    state = ENGINE.fold(state, lines[again:], raised.append)
    assert (ENGINE.dump(state), raised) == (before, [])


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_refusal_foretells_what_the_fold_does(data: st.DataObject, histories: Histories) -> None:
    lines = data.draw(histories.filter(bool))
    state = msgspec.structs.replace(fold(lines[:-1]), inconsistent=False)
    event = ENGINE.decode(lines[-1])
    foretold = ENGINE.refusals(state, event)
    raised: list[Alert] = []
    after = ENGINE.fold(deepcopy(state), [lines[-1]], raised.append)
    assert (foretold, bool(foretold)) == (raised, after.inconsistent)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_the_watermark_is_the_last_event_whatever_it_is(data: st.DataObject, histories: Histories) -> None:
    lines = data.draw(histories.filter(bool))
    assert fold(lines).last_event_seq == msgspec.json.decode(lines[-1])["runSeq"]


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_an_alert_is_raised_once_per_event_and_code(data: st.DataObject, histories: Histories) -> None:
    ids = [alert.alert_id for alert in alerts_of(data.draw(histories))]
    assert len(ids) == len(set(ids))


def test_alerts_of_two_impossible_events_are_two(line: Lines) -> None:
    raised = alerts_of([line(1, "RunResumed"), line(2, "RunPaused"), line(3, "RunPaused", attempt=2)])
    assert len({alert.alert_id for alert in raised}) == 3
