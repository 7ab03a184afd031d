"""The producer: keys, ids and guards for free, and every call may be repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import runstate
from runstate.contracts import EngineStore
from runstate.errors import InvalidEvent, InvalidStream, InvalidTransition
from runstate.models.engine import ENGINE, RunEventRecord, RunEventWrite, idempotency_key
from runstate.producer import RunProducer

Open = Callable[..., EngineStore]


def producer(store: EngineStore, run: str = "r-1", **scope: str) -> RunProducer:
    return store.run(run, **({"tenant": "acme", "plan": "nightly"} | scope))


def last(store: EngineStore, run: str = "r-1") -> RunEventRecord:
    return store.fetch_events(run)[-1]


def types(store: EngineStore) -> list[str]:
    return [event.event_type for event in store.fetch_events("r-1")]


# --- what is sent ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "call", "event_type"),
    [
        ([], "queued", "RunQueued"),
        ([], "approved", "RunApproved"),
        ([], "started", "RunStarted"),
        (["started"], "paused", "RunPaused"),
        (["started", "paused"], "resumed", "RunResumed"),
        (["started"], "completed", "RunCompleted"),
        (["started"], "failed", "RunFailed"),
        ([], "cancelled", "RunCancelled"),
    ],
)
def test_a_run_level_call_sends_its_event(open_store: Open, before: list[str], call: str, event_type: str) -> None:
    store = open_store()
    run = producer(store)
    for earlier in before:
        getattr(run, earlier)()
    getattr(run, call)(reason="why")
    sent = last(store)
    assert (sent.event_type, sent.step_id, sent.logical_attempt_id) == (event_type, msgspec.UNSET, 1)
    assert sent.payload == {"reason": "why"}


@pytest.mark.parametrize(
    ("before", "call", "arguments", "event_type", "payload"),
    [
        ([], "step_started", {}, "StepStarted", {"why": 1}),
        (["step_started"], "step_completed", {}, "StepCompleted", {"why": 1}),
        (["step_started"], "step_completed", {"artifacts": ["a"]}, "StepCompleted", {"why": 1, "artifacts": ["a"]}),
        (
            ["step_started"],
            "step_failed",
            {"code": "E"},
            "StepFailed",
            {"why": 1, "error": {"code": "E", "message": "", "retryable": False}},
        ),
        (
            ["step_started"],
            "step_failed",
            {"code": "E", "message": "m", "retryable": True},
            "StepFailed",
            {"why": 1, "error": {"code": "E", "message": "m", "retryable": True}},
        ),
        ([], "step_skipped", {}, "StepSkipped", {"why": 1}),
    ],
)
def test_a_step_level_call_sends_its_event(
    open_store: Open, before: list[str], call: str, arguments: Any, event_type: str, payload: Any
) -> None:
    store = open_store()
    run = producer(store)
    for earlier in before:
        getattr(run, earlier)("extract")
    getattr(run, call)("extract", why=1, **arguments)
    sent = last(store)
    assert (sent.event_type, sent.step_id, sent.payload) == (event_type, "extract", payload)


def test_no_payload_is_sent_where_there_is_none(open_store: Open) -> None:
    store = open_store()
    producer(store).started()
    assert last(store).payload is msgspec.UNSET


def test_the_scope_is_on_every_event(open_store: Open) -> None:
    store = open_store()
    run = producer(store, project="sales", environment="prod", plan_version="7")
    run.started()
    run.step_started("extract")
    scopes = {
        (e.tenant_id, e.project_id, e.environment_id, e.plan_id, e.plan_version) for e in store.fetch_events("r-1")
    }
    assert scopes == {("acme", "sales", "prod", "nightly", "7")}


def test_the_key_is_the_derived_one(open_store: Open) -> None:
    store = open_store(strict_keys=True)
    run = producer(store)
    run.started()
    run.step_started("extract", attempt=3)
    assert last(store).idempotency_key == idempotency_key(
        run_id="r-1",
        step_id="extract",
        logical_attempt_id=3,
        event_type="StepStarted",
        plan_id="nightly",
        plan_version="1",
    )


def test_the_event_id_is_that_of_the_fact_and_its_scope(open_store: Open) -> None:
    store = open_store()
    first = producer(store).started()
    second = producer(store, "r-2").started()
    third = producer(store, "r-3", tenant="other").started()
    assert len({first.event_id, second.event_id, third.event_id}) == 3


def test_any_other_type_may_be_sent(open_store: Open) -> None:
    store = open_store()
    producer(store).emit("StepCorrected", step="extract", attempt=2, engine_attempt=5, payload={"a": 1})
    sent = last(store)
    assert (sent.event_type, sent.step_id, sent.logical_attempt_id, sent.engine_attempt_id) == (
        "StepCorrected",
        "extract",
        2,
        5,
    )


def test_the_engine_attempt_is_1_where_the_runtime_gives_none(open_store: Open) -> None:
    store = open_store()
    producer(store).started()
    assert last(store).engine_attempt_id == 1


@pytest.mark.parametrize("attempt", [0, -1])
def test_an_attempt_below_one_is_refused(open_store: Open, attempt: int) -> None:
    store = open_store()
    with pytest.raises(InvalidEvent, match="logicalAttemptId"):
        producer(store).step_started("extract", attempt=attempt)
    assert store.log.streams() == []


@pytest.mark.parametrize(
    ("event_type", "step"), [("RunStarted", "extract"), ("StepStarted", None), ("Note", "a|b"), ("Note", "")]
)
def test_an_event_that_breaks_its_schema_is_refused(open_store: Open, event_type: str, step: str | None) -> None:
    store = open_store()
    with pytest.raises(InvalidEvent):
        producer(store).emit(event_type, step=step)
    assert store.log.streams() == []


@pytest.mark.parametrize("run", ["", "a\nb", "\ud800", "x" * 513], ids=ascii)
def test_a_run_id_that_no_log_could_hold_is_refused(open_store: Open, run: str) -> None:
    with pytest.raises(InvalidStream):
        producer(open_store(), run)


# --- repeating -------------------------------------------------------------------------------------------


def whole_run(run: RunProducer) -> list[Any]:
    return [
        run.queued(),
        run.started(),
        run.step_started("extract"),
        run.step_failed("extract", code="E"),
        run.step_started("extract", attempt=2),
        run.step_completed("extract", attempt=2, artifacts=["a"]),
        run.paused(),
        run.resumed(),
        run.completed(),
    ]


def test_a_whole_run_may_be_repeated_by_the_same_producer(open_store: Open) -> None:
    store = open_store()
    run = producer(store)
    first = whole_run(run)
    run.step_failed("extract", code="E", attempt=1)
    again = [run.queued(), run.started(), run.step_started("extract", attempt=1)]
    assert [(r.seq, r.persisted) for r in again] == [(r.seq, False) for r in first[:3]]


def test_a_run_may_be_repeated_from_its_beginning_after_a_crash(open_store: Open) -> None:
    store = open_store()
    run = producer(store)
    first = [run.started(), run.step_started("extract"), run.step_completed("extract"), run.completed()]
    reborn = producer(store)
    again = [reborn.started(), reborn.step_started("extract"), reborn.step_completed("extract"), reborn.completed()]
    assert [(r.event_id, r.seq, r.persisted) for r in again] == [(r.event_id, r.seq, False) for r in first]


def test_a_crash_anywhere_is_no_reason_for_an_alert(open_store: Open) -> None:
    raised: list[Any] = []
    store = open_store(on_alert=raised.append)
    for length in range(1, 5):
        run = producer(store)
        calls: list[Callable[[], Any]] = [
            run.started,
            lambda run=run: run.step_started("extract"),  # type: ignore[misc]
            lambda run=run: run.step_completed("extract"),  # type: ignore[misc]
            run.completed,
        ]
        for call in calls[:length]:
            call()
    assert (raised, len(types(store))) == ([], 4)


def test_a_second_pause_is_another_fact_with_another_attempt(open_store: Open) -> None:
    store = open_store()
    run = producer(store)
    run.started()
    run.paused()
    run.resumed()
    assert run.paused(attempt=2).persisted
    assert run.resumed(attempt=2).persisted
    assert store.project_snapshot("r-1").status == "RUNNING"


# --- attempts --------------------------------------------------------------------------------------------


def test_a_step_ends_at_the_attempt_that_is_under_way(open_store: Open) -> None:
    store = open_store()
    run = producer(store)
    run.step_started("extract")
    run.step_failed("extract", code="E")
    run.step_started("extract", attempt=2)
    run.step_completed("extract")
    assert last(store).logical_attempt_id == 2


def test_a_failed_attempt_is_not_begun_again_under_its_own_number(open_store: Open) -> None:
    store = open_store()
    run = producer(store)
    run.step_started("extract")
    run.step_failed("extract", code="E")
    assert not run.step_started("extract").persisted


# --- the guard -------------------------------------------------------------------------------------------


def test_what_is_impossible_is_refused_before_it_is_sent(open_store: Open) -> None:
    store = open_store()
    run = producer(store)
    run.started()
    with pytest.raises(InvalidTransition) as refused:
        run.step_completed("extract")
    assert (refused.value.details["priorState"], refused.value.details["attemptedState"]) == ("PENDING", "SUCCESS")
    assert types(store) == ["RunStarted"]


def test_a_refusal_says_what_to_do(open_store: Open) -> None:
    run = producer(open_store())
    run.step_started("extract")
    run.step_failed("extract", code="E")
    with pytest.raises(InvalidTransition, match=r"'extract' is FAILED at attempt 1.*higher attempt"):
        run.step_completed("extract")


def test_a_refused_call_may_be_made_again_once_it_is_possible(open_store: Open) -> None:
    run = producer(open_store())
    with pytest.raises(InvalidTransition):
        run.completed()
    run.started()
    assert run.completed().persisted


def test_the_guard_knows_what_other_producers_have_done(open_store: Open) -> None:
    store = open_store()
    one, other = producer(store), producer(store)
    one.started()
    one.step_started("extract")
    assert other.step_completed("extract").persisted


def test_the_guard_refuses_what_became_impossible_through_others(open_store: Open) -> None:
    store = open_store()
    one, other = producer(store), producer(store)
    one.cancelled()
    with pytest.raises(InvalidTransition):
        other.completed()


def test_a_fact_that_another_producer_has_sent_is_a_retry(open_store: Open) -> None:
    store = open_store()
    one, other = producer(store), producer(store)
    one.started()
    one.completed()
    assert not other.started().persisted


def test_what_changes_no_state_is_never_refused(open_store: Open) -> None:
    run = producer(open_store())
    run.cancelled()
    assert run.emit("SignalRejected").persisted


# --- the producer's own view -----------------------------------------------------------------------------


def test_the_view_of_a_producer_is_that_of_the_log(open_store: Open) -> None:
    store = open_store()
    run = producer(store)
    whole_run(run)
    assert ENGINE.dump(run.state) == ENGINE.dump(store.project_snapshot("r-1"))


def test_the_view_of_a_producer_begins_with_what_is_there(open_store: Open) -> None:
    store = open_store()
    whole_run(producer(store))
    assert ENGINE.dump(producer(store).state) == ENGINE.dump(store.project_snapshot("r-1"))


def test_the_view_of_a_producer_has_no_holes_where_others_have_written(open_store: Open) -> None:
    store = open_store()
    one, other = producer(store), producer(store)
    one.started()
    other.step_started("a")
    one.step_started("b")
    assert [step.step_id for step in one.state.steps] == ["a", "b"]
    assert ENGINE.dump(one.state) == ENGINE.dump(store.project_snapshot("r-1"))


def test_what_a_caller_does_with_its_payload_later_changes_nothing(open_store: Open) -> None:
    store = open_store()
    run = producer(store)
    run.step_started("extract")
    artifacts = [{"name": "a"}]
    run.step_completed("extract", artifacts=artifacts)
    artifacts[0]["name"] = "changed"
    assert ENGINE.dump(run.state) == ENGINE.dump(store.project_snapshot("r-1"))


def test_a_producer_needs_three_methods_of_a_store_and_no_more() -> None:
    class Recorder:
        """A store that is none: it remembers what it is given."""

        def __init__(self) -> None:
            self.sent: list[RunEventWrite] = []

        def append_event(self, event: RunEventWrite) -> Any:
            self.sent.append(event)
            return runstate.AppendResult(event.event_id, len(self.sent), "2026-11-15T09:30:00.000Z")

        def current_state(self, stream: str) -> Any:
            return ENGINE.initial(stream)

        def holds_key(self, stream: str, key: str) -> bool:
            return False

    store = Recorder()
    run = RunProducer(store, "r-1", tenant="t", project="p", environment="e", plan="n", plan_version="1")
    run.started()
    assert [event.event_type for event in store.sent] == ["RunStarted"]
