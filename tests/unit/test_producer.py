"""The producer: keys, ids and guards for free, and every call may be repeated."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

import runstate
from runstate.contracts import EngineStore
from runstate.errors import InvalidEvent, InvalidStream, InvalidTransition
from runstate.models.engine import ENGINE, RunEventRecord, RunEventWrite, StepError, idempotency_key
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


# --- attempts --------------------------------------------------------------------------------------------


def test_a_step_ends_at_the_attempt_that_is_under_way(open_store: Open) -> None:
    store = open_store()
    run = producer(store)
    run.step_started("extract")
    run.step_failed("extract", code="E")
    run.step_started("extract", attempt=2)
    run.step_completed("extract")
    assert last(store).logical_attempt_id == 2


def test_a_step_that_starts_after_it_failed_is_the_next_attempt(open_store: Open) -> None:
    store = open_store()
    run = producer(store)
    run.step_started("extract")
    run.step_failed("extract", code="E")
    assert run.step_started("extract").persisted
    assert run.step_failed("extract", code="E").persisted
    assert run.step_started("extract").persisted
    run.step_completed("extract")
    (step,) = store.project_snapshot("r-1").steps
    assert (step.status, step.logical_attempt_id, [old.status for old in step.attempts]) == (
        "SUCCESS",
        3,
        ["FAILED", "FAILED"],
    )


def test_a_run_that_pauses_again_is_paused(open_store: Open) -> None:
    store = open_store()
    run = producer(store)
    run.started()
    for _ in range(3):
        assert run.paused().persisted
        assert store.project_snapshot("r-1").status == "PAUSED"
        assert not run.paused().persisted
        assert run.resumed().persisted
        assert store.project_snapshot("r-1").status == "RUNNING"


def script(run: RunProducer) -> list[Callable[[], Any]]:
    """The calls of a run with retries and pauses, none of which names an attempt."""
    return [
        run.queued,
        run.started,
        lambda: run.step_started("a"),
        lambda: run.step_failed("a", code="E"),
        run.paused,
        run.resumed,
        lambda: run.step_started("a"),
        lambda: run.step_failed("a", code="E"),
        lambda: run.step_started("a"),
        lambda: run.step_completed("a"),
        run.paused,
        run.resumed,
        lambda: run.step_skipped("b", reason="not due"),
        run.completed,
    ]


def sent_by(store: EngineStore) -> list[tuple[str, int]]:
    return [(event.event_type, event.logical_attempt_id) for event in store.fetch_events("r-1")]


whole_script = [
    ("RunQueued", 1),
    ("RunStarted", 1),
    ("StepStarted", 1),
    ("StepFailed", 1),
    ("RunPaused", 1),
    ("RunResumed", 1),
    ("StepStarted", 2),
    ("StepFailed", 2),
    ("StepStarted", 3),
    ("StepCompleted", 3),
    ("RunPaused", 2),
    ("RunResumed", 2),
    ("StepSkipped", 1),
    ("RunCompleted", 1),
]


@pytest.mark.parametrize("crash_after", range(len(whole_script) + 1))
def test_a_script_that_is_started_again_derives_the_same_attempts(open_store: Open, crash_after: int) -> None:
    store = open_store()
    for call in script(producer(store))[:crash_after]:
        call()
    answers = [call() for call in script(producer(store))]
    assert sent_by(store) == whole_script
    assert [answer.persisted for answer in answers] == [place >= crash_after for place in range(len(answers))]
    assert store.project_snapshot("r-1").inconsistent is False


def test_a_call_that_is_repeated_at_once_changes_nothing(open_store: Open) -> None:
    store = open_store()
    for call in script(producer(store)):
        call()
        assert not call().persisted
    assert sent_by(store) == whole_script


def test_two_producers_may_pause_and_resume_a_run_in_turn(open_store: Open) -> None:
    store = open_store()
    one, other = producer(store), producer(store)
    one.started()
    for pausing, resuming in ((one, other), (other, other), (producer(store), producer(store)), (other, one)):
        assert pausing.paused().persisted
        assert store.project_snapshot("r-1").status == "PAUSED"
        assert resuming.resumed().persisted
        assert store.project_snapshot("r-1").status == "RUNNING"


def test_pausing_a_run_that_another_producer_has_paused_is_a_retry(open_store: Open) -> None:
    store = open_store()
    one, other = producer(store), producer(store)
    one.started()
    one.paused()
    assert not other.paused().persisted
    assert types(store) == ["RunStarted", "RunPaused"]


def test_a_step_that_another_producer_has_failed_is_retried(open_store: Open) -> None:
    store = open_store()
    one, other = producer(store), producer(store)
    one.step_started("a")
    other.step_failed("a", code="E")
    assert one.step_started("a").persisted
    one.step_completed("a")
    assert sent_by(store)[-1] == ("StepCompleted", 2)


def test_two_producers_that_retry_a_step_share_the_attempt(open_store: Open) -> None:
    store = open_store()
    one, other = producer(store), producer(store)
    one.step_started("a")
    one.step_failed("a", code="E")
    assert [other.step_started("a").persisted, one.step_started("a").persisted] == [True, False]
    one.step_failed("a", code="E")
    other.step_started("a")
    assert sent_by(store)[-2:] == [("StepFailed", 2), ("StepStarted", 3)]


def test_starting_a_step_that_had_failed_before_is_refused_with_how_to_retry(open_store: Open) -> None:
    store = open_store()
    first = producer(store)
    first.step_started("a")
    first.step_failed("a", code="E")
    fresh = producer(store)
    with pytest.raises(InvalidTransition, match=r"attempt=2 to retry.*attempt=1 to repeat"):
        fresh.step_started("a")
    assert not fresh.step_started("a", attempt=1).persisted
    assert fresh.step_started("a", attempt=2).persisted
    fresh.step_completed("a")
    assert store.project_snapshot("r-1").steps[0].status == "SUCCESS"


def test_an_event_that_was_ignored_does_not_stand_for_one_that_happened(open_store: Open) -> None:
    store = open_store()
    run = producer(store)
    store.append_event(run._event("RunCompleted", None, 1, 1, {}))  # Impossible in a run that has not started.
    run.started()
    assert run.completed().persisted
    assert store.project_snapshot("r-1").status == "COMPLETED"


def test_the_end_of_a_step_that_was_ignored_is_refused(open_store: Open) -> None:
    store = open_store()
    run = producer(store)
    store.append_event(run._event("StepCompleted", "a", 1, 1, {}))
    run.step_started("a")
    with pytest.raises(InvalidTransition, match=r"changed nothing.*attempt=2"):
        run.step_completed("a")
    with pytest.raises(InvalidTransition):
        run.step_completed("a", attempt=1)
    assert store.project_snapshot("r-1").steps[0].status == "RUNNING"


def test_two_processes_never_hear_of_a_success_that_is_not_so(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/log.db"
    program = (
        "import sys, runstate\n"
        "with runstate.open(sys.argv[1]) as store:\n"
        "    run = store.run('r-1', tenant='acme', plan='nightly')\n"
        "    for call in sys.argv[2:]:\n"
        "        getattr(run, call)()\n"
        "        print(run.state.status)\n"
    )
    said = []
    for calls in (["started", "paused"], ["resumed", "paused"], ["resumed"], ["paused"], ["resumed", "completed"]):
        done = subprocess.run([sys.executable, "-c", program, url, *calls], capture_output=True, text=True, check=True)
        said += done.stdout.split()
    assert said == ["RUNNING", "PAUSED", "RUNNING", "PAUSED", "RUNNING", "PAUSED", "RUNNING", "COMPLETED"]


def test_a_skip_and_a_failure_say_why(open_store: Open) -> None:
    store = open_store()
    run = producer(store)
    run.step_skipped("a", reason="not due")
    run.failed(code="BUDGET", message="spent")
    snapshot = store.project_snapshot("r-1")
    assert snapshot.steps[0].skip_reason == "not due"
    assert snapshot.root_cause is not None
    assert snapshot.root_cause.error == StepError("BUDGET", "spent", False)


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

        def append_event(self, event: RunEventWrite, *, expected_seq: int | None = None) -> Any:
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


def test_a_script_that_goes_on_after_its_restart_is_not_answered_for_the_past() -> None:
    with runstate.open("memory:") as store:
        run = store.run("r-1", tenant="acme", plan="p")
        run.started()
        run.paused()
        again = store.run("r-1", tenant="acme", plan="p")  # Killed while it was paused.
        again.started()
        again.resumed()
        assert again.paused().persisted
        assert store.project_snapshot("r-1").status == "PAUSED"


def test_a_producer_that_is_out_of_date_stores_nothing_impossible(log_url: str) -> None:
    with runstate.open(log_url, "engine") as store:
        one, other = (store.run("r-1", tenant="acme", plan="p") for _ in range(2))
        one.started()
        other.started()
        one.completed()
        for event_type in ("RunPaused", "RunCancelled", "RunFailed"):
            with pytest.raises(InvalidTransition):
                other.emit(event_type)
        assert [event.event_type for event in store.fetch_events("r-1")] == ["RunStarted", "RunCompleted"]
        assert other.state.status == "COMPLETED"


def test_producers_that_write_at_once_all_get_through(log_url: str) -> None:
    with runstate.open(log_url, "engine") as store:
        store.run("r-1", tenant="acme", plan="p").started()

        def work(number: int) -> None:
            run = store.run("r-1", tenant="acme", plan="p")
            for turn in range(5):
                run.step_started(f"s{number}-{turn}")
                run.step_completed(f"s{number}-{turn}")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        state = store.project_snapshot("r-1")
        assert (state.last_event_seq, {step.status for step in state.steps}) == (41, {"SUCCESS"})


def test_a_refusal_says_what_is_missing(open_store: Open) -> None:
    run = producer(open_store())
    with pytest.raises(InvalidTransition, match=r"the run is PENDING at attempt 1\. Call started\(\) first"):
        run.completed()
    run.started()
    with pytest.raises(InvalidTransition, match=r"Call step_started\('extract'\) first"):
        run.step_completed("extract")
    run.completed()
    with pytest.raises(InvalidTransition, match=r"the run is COMPLETED"):
        run.cancelled()


def test_a_store_of_another_model_says_how_to_get_a_producer(tmp_path: Path) -> None:
    with (
        runstate.open(f"wal:{tmp_path}/log") as store,
        pytest.raises(TypeError, match=r"this store has 'daemon': open it with runstate\.open\(url, 'engine'\)"),
    ):
        store.run("r-1", tenant="acme", plan="nightly")
