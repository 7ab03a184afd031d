"""The store: every method and option, in memory and in SQLite."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

import runstate
from runstate.contracts import EngineStore
from runstate.errors import (
    EventTooLarge,
    InvalidEvent,
    InvalidStream,
    InvalidTransition,
    KeyMismatch,
    LogBusy,
    LogClosed,
    LogFull,
    LogNotFound,
    ModelMismatch,
    RunstateError,
    SequenceConflict,
    StreamDeleted,
    StreamNotFound,
    TenantMismatch,
    Truncated,
    UnknownModel,
)
from runstate.logs.log import AppendResult, Record, StoredSnapshot
from runstate.logs.sqlite.writer import Writer
from runstate.logs.wal import WalLog
from runstate.models.canonical import digest, parse
from runstate.models.engine import ENGINE, CanonicalEngineEvent, EngineModel, RunEventWrite, RunSnapshot
from runstate.models.model import Alert, AlertSink
from runstate.models.tagged import Fact, TaggedModel

Open = Callable[..., EngineStore]
Write = Callable[..., RunEventWrite]
V1 = Callable[..., CanonicalEngineEvent]

saving_separately = ["ndjson"]
"""Logs that save a snapshot after the commit of its events. The others save it in the same one."""


class NewerEngine(EngineModel):
    """The same fold, of which somebody has raised the version."""

    version = EngineModel.version + 1


class Tick(msgspec.Struct, tag="tick", frozen=True):
    pass


class Ticks(msgspec.Struct):
    count: int = 0


class Clock(TaggedModel[Tick, Ticks]):
    name, version = "clock", 1
    events, state = Tick, Ticks

    def evolve(self, state: Ticks, fact: Fact[Tick]) -> Ticks:
        return Ticks(state.count + 1)


def a_run(write: Write, run: str = "r-1") -> list[RunEventWrite]:
    return [
        write("RunStarted", run=run),
        write("StepStarted", "extract", run=run),
        write("StepCompleted", "extract", run=run, payload={"artifacts": ["rows.parquet"]}),
        write("RunCompleted", run=run),
    ]


def stored_seq(store: EngineStore, run: str = "r-1") -> int | None:
    stored = store.snapshots.stored(run)
    return None if stored is None else stored.seq


def same_as_replay(store: EngineStore, run: str = "r-1") -> bool:
    stored = store.snapshots.stored(run)
    return stored is not None and stored == store.fresh_snapshot(run)


# --- append and fetch ------------------------------------------------------------------------------------


def test_an_append_says_where_and_when_the_event_was_stored(
    open_store: Open, write: Write, set_clock: Callable[[str], None]
) -> None:
    set_clock("2026-11-15T11:00:00.123Z")
    event = write()
    assert open_store().append_event(event) == AppendResult(event.event_id, 1, "2026-11-15T11:00:00.123Z")


def test_events_come_back_typed_and_in_order(open_store: Open, write: Write) -> None:
    store = open_store()
    sent = a_run(write)
    for event in sent:
        store.append_event(event)
    found = store.fetch_events("r-1")
    assert [(e.run_seq, e.event_type, e.event_id) for e in found] == [
        (seq, e.event_type, e.event_id) for seq, e in enumerate(sent, 1)
    ]


def test_fetching_begins_after_a_place_and_ends_at_a_limit(open_store: Open, write: Write) -> None:
    store = open_store()
    store.append_events(a_run(write))
    assert [e.run_seq for e in store.fetch_events("r-1", after_seq=1, limit=2)] == [2, 3]


def test_fetching_gives_a_thousand_events_unless_told_otherwise(open_store: Open, write: Write) -> None:
    store = open_store(snapshot_every=0)
    store.append_events([write("Note", attempt=number) for number in range(1, 1003)])
    assert [len(store.fetch_events("r-1")), len(store.fetch_events("r-1", limit=1002))] == [1000, 1002]


def test_a_stream_that_is_not_there_has_no_events(open_store: Open) -> None:
    assert open_store().fetch_events("r-1") == []


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(open_store: Open, limit: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        open_store().fetch_events("r-1", limit=limit)


def test_a_retry_gets_the_first_answer(open_store: Open, write: Write, set_clock: Callable[[str], None]) -> None:
    store = open_store()
    first = store.append_event(write())
    set_clock("2026-11-15T12:00:00.000Z")
    again = store.append_event(write(event_id="123e4567-e89b-42d3-a456-426614174000"))
    assert (again.event_id, again.seq, again.persisted_at) == (first.event_id, first.seq, first.persisted_at)
    assert (again.idempotent, again.persisted, again.mismatch) == (True, False, False)


def test_an_append_at_the_expected_place_goes_through(open_store: Open, write: Write) -> None:
    store = open_store()
    store.append_event(write(), expected_seq=0)
    assert store.append_event(write("RunPaused"), expected_seq=1).seq == 2


def test_an_append_at_another_place_is_refused_and_writes_nothing(open_store: Open, write: Write) -> None:
    store = open_store()
    store.append_event(write())
    with pytest.raises(SequenceConflict) as refused:
        store.append_event(write("RunPaused"), expected_seq=0)
    assert (refused.value.details["actual_seq"], len(store.fetch_events("r-1"))) == (1, 1)


def test_a_retry_need_not_know_how_far_the_stream_has_come(open_store: Open, write: Write) -> None:
    store = open_store()
    store.append_event(write(), expected_seq=0)
    store.append_event(write("RunPaused"))
    assert store.append_event(write(), expected_seq=0).idempotent


def test_text_of_every_kind_comes_back_as_it_was(open_store: Open, write: Write) -> None:
    store = open_store()
    odd = "\u2028\0\x7f\ufeff\U0001f600e\u0301"
    tenant = odd.replace("\0", "")  # No log takes a NUL in an event's envelope.
    store.append_event(write(run="ключ\u2028", tenant_id=tenant, plan_id=odd, payload={odd: [odd]}, extra={odd: odd}))
    (found,) = store.fetch_events("ключ\u2028")
    assert (found.tenant_id, found.plan_id, found.payload, found.extra) == (tenant, odd, {odd: [odd]}, {odd: odd})


def test_an_event_is_checked_without_a_look_into_the_log(open_store: Open, write: Write) -> None:
    store = open_store()
    assert store.check_event(write(run="r-7")) == "r-7"
    assert store.log.stream("r-7") is None


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"run_id": "a\nb"}, InvalidStream),
        ({"tenant_id": ""}, InvalidEvent),
        ({"tenant_id": "a\0b"}, InvalidEvent),
        ({"event_type": "Note\0"}, InvalidEvent),
        ({"idempotency_key": "\0" * 64}, InvalidEvent),
        ({"payload": {"a": float("nan")}}, RunstateError),
    ],
    ids=str,
)
def test_an_invalid_event_is_refused_and_nothing_written(
    open_store: Open, write: Write, change: dict[str, Any], error: type[RunstateError]
) -> None:
    store = open_store()
    event = write()
    for name, value in change.items():
        setattr(event, name, value)
    with pytest.raises(error):
        store.append_event(event)
    with pytest.raises(error):
        store.check_event(event)
    assert store.log.streams() == []


# --- many at once ----------------------------------------------------------------------------------------


def test_results_stand_in_the_order_of_the_events(open_store: Open, write: Write) -> None:
    runs = ["a", "b", "a", "c", "b", "a"]
    events = [write("Note", attempt=place, run=run) for place, run in enumerate(runs, 1)]
    results = open_store().append_events(events)
    assert [(r.event_id, r.seq) for r in results] == [
        (e.event_id, seq) for e, seq in zip(events, [1, 1, 2, 1, 2, 3], strict=True)
    ]


def test_no_events_are_no_work(open_store: Open) -> None:
    assert open_store().append_events([]) == []


def test_a_key_that_stands_twice_in_one_batch_is_stored_once(open_store: Open, write: Write) -> None:
    store = open_store()
    results = store.append_events([write(), write("RunPaused"), write()])
    assert [(r.seq, r.persisted) for r in results] == [(1, True), (2, True), (1, False)]


@pytest.mark.parametrize(
    ("options", "bad", "error"),
    [
        ({}, {"event_type": "StepStarted", "step": None, "idempotency_key": "k"}, InvalidEvent),
        ({}, {"run": "a\0b"}, InvalidStream),
        ({"event_bytes_max": 1000}, {"payload": {"a": "x" * 1000}}, EventTooLarge),
        ({"strict_keys": True}, {"idempotency_key": "abc123"}, KeyMismatch),
        ({"check_transitions": True}, {"event_type": "RunResumed"}, InvalidTransition),
    ],
    ids=["invalid", "stream", "too large", "key", "transition"],
)
@pytest.mark.parametrize("run", ["r-1", "r-2"])
def test_one_bad_event_in_a_batch_is_named_by_its_index_and_nothing_is_written(
    open_store: Open, write: Write, options: Any, bad: dict[str, Any], error: type[RunstateError], run: str
) -> None:
    store = open_store(**options)
    with pytest.raises(error) as refused:
        store.append_events([write(), write("StepStarted", "a"), write(**({"run": run} | bad)), write("RunCompleted")])
    assert refused.value.details["index"] == 2
    assert store.log.streams() == []


# --- snapshots -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "seqs"), [(0, [None] * 4), (1, [1, 2, 3, 4]), (2, [None, 2, 2, 4]), (3, [None, None, 3, 3])]
)
def test_a_snapshot_is_kept_as_often_as_asked(
    open_store: Open, write: Write, every: int, seqs: list[int | None]
) -> None:
    store = open_store(snapshot_every=every)
    kept = []
    for event in a_run(write):
        store.append_event(event)
        kept.append(stored_seq(store))
    assert kept == seqs


@pytest.mark.parametrize("every", [1, 2, 3])
def test_every_snapshot_that_is_kept_is_what_a_replay_to_its_place_gives(
    open_store: Open, write: Write, every: int
) -> None:
    store = open_store(snapshot_every=every)
    for event in a_run(write):
        store.append_event(event)
        stored = store.snapshots.stored("r-1")
        if stored is not None:
            assert stored.body == ENGINE.dump(store.snapshot_at("r-1", seq=stored.seq))


def test_a_batch_counts_event_by_event(open_store: Open, write: Write) -> None:
    store = open_store(snapshot_every=3)
    store.append_events(a_run(write))
    assert (stored_seq(store), same_as_replay(store)) == (4, True)


def test_another_store_goes_on_counting_from_the_snapshot_on_file(open_store: Open, write: Write) -> None:
    store = open_store(snapshot_every=3)
    store.append_events(a_run(write)[:3])
    other = runstate.Store(store.log, ENGINE, snapshot_every=3)
    seqs = []
    for number in (1, 2, 3):
        other.append_event(write("Note", attempt=number))
        seqs.append(stored_seq(other))
    assert (seqs, same_as_replay(other)) == ([3, 3, 6], True)


def test_a_retry_saves_the_snapshot_that_a_killed_append_did_not(open_store: Open, write: Write) -> None:
    store = open_store(snapshot_every=0)
    store.append_event(write())
    other = runstate.Store(store.log, ENGINE)
    other.append_event(write())
    assert stored_seq(other) == 1


def test_a_read_saves_the_snapshot_that_a_killed_append_did_not(open_store: Open, write: Write) -> None:
    store = open_store(snapshot_every=0)
    store.append_events(a_run(write))
    other = runstate.Store(store.log, ENGINE)
    found = other.get_snapshot("r-1")
    assert found is not None
    assert (found.status, stored_seq(other)) == ("COMPLETED", 4)


# --- snapshots in the commit of their events ------------------------------------------------------------------------


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[EngineStore]:
    with runstate.open(f"sqlite:{tmp_path}/log.db") as store:
        yield store


@pytest.mark.parametrize("streams", [1, 3])
def test_a_snapshot_needs_no_save_of_its_own(
    sqlite_store: EngineStore, write: Write, monkeypatch: pytest.MonkeyPatch, streams: int
) -> None:
    for save in ("save_snapshot", "save_snapshots"):
        monkeypatch.setattr(sqlite_store.log, save, raise_disk_full)
    events = [write(kind, run=f"r-{number}") for kind in ("RunStarted", "Note") for number in range(streams)]
    sqlite_store.append_events(events[:streams])
    sqlite_store.append_events(events[streams:])
    kept = [sqlite_store.stored_snapshot(f"r-{number}") for number in range(streams)]
    assert [(found.seq, found.behind) for found in kept if found is not None] == [(2, 0)] * streams


def test_the_next_append_goes_on_from_the_snapshot_of_another_process(
    sqlite_store: EngineStore, write: Write, tmp_path: Path
) -> None:
    sqlite_store.append_event(write())
    with runstate.open(f"sqlite:{tmp_path}/log.db") as other:
        other.append_event(write("StepStarted", "a"))
    sqlite_store.append_event(write("StepCompleted", "a"))
    assert (stored_seq(sqlite_store), same_as_replay(sqlite_store)) == (3, True)


def test_a_state_of_a_transaction_that_was_rolled_back_is_not_kept(
    sqlite_store: EngineStore, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_store.append_event(write())
    with monkeypatch.context() as patched:
        patched.setattr("runstate.logs.sqlite.appends.save_with_events", raise_disk_full)
        with pytest.raises(LogFull):
            sqlite_store.append_event(write("RunCompleted"))
    sqlite_store.append_event(write("StepStarted", "a"))
    assert (stored_seq(sqlite_store), same_as_replay(sqlite_store)) == (2, True)


def raise_disk_full(*_: object) -> None:
    error = sqlite3.OperationalError("disk full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    raise error


def test_an_alert_is_raised_once_the_event_is_stored(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[Alert] = []
    with runstate.open(f"sqlite:{tmp_path}/log.db", on_alert=raised.append) as store:
        store.append_events([write(), write("RunCompleted")])
        with monkeypatch.context() as patched:
            patched.setattr("runstate.logs.sqlite.appends.save_with_events", raise_disk_full)
            with pytest.raises(LogFull):
                store.append_event(write("RunCancelled"))
        assert raised == []
        store.append_event(write("RunCancelled"))
        assert [alert.code for alert in raised] == ["INVALID_TRANSITION"]


def test_threads_on_one_run_leave_the_snapshot_of_its_last_event(sqlite_store: EngineStore, write: Write) -> None:
    events = [write("StepStarted", f"step-{number}") for number in range(200)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(sqlite_store.append_event, events))
    assert (stored_seq(sqlite_store), same_as_replay(sqlite_store)) == (200, True)


def test_a_run_that_was_begun_again_gets_a_snapshot_of_its_own(sqlite_store: EngineStore, write: Write) -> None:
    sqlite_store.append_events(a_run(write))
    sqlite_store.log.delete_stream("r-1")  # Behind the store's back, as another process would.
    sqlite_store.append_event(write("StepStarted", "other"))
    assert (stored_seq(sqlite_store), same_as_replay(sqlite_store)) == (1, True)


# --- snapshots saved after their events -----------------------------------------------------------------------------


@pytest.mark.parametrize("open_store", saving_separately, indirect=True)
def test_a_read_heals_a_snapshot_that_contention_left_behind(
    open_store: Open, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(snapshot_every=1)
    store.append_event(write())

    def refuse(stream: str, snapshot: StoredSnapshot) -> None:
        raise LogBusy

    with monkeypatch.context() as patched:
        patched.setattr(store.log, "save_snapshot", refuse)
        store.append_event(write("RunCompleted"))
        assert stored_seq(store) == 1
        found = store.get_snapshot("r-1")
        assert found is not None
        assert found.status == "COMPLETED"
    store.get_snapshot("r-1")
    assert stored_seq(store) == 2
    assert same_as_replay(store)


def test_a_snapshot_that_was_changed_is_not_believed_and_raises_an_alert(open_store: Open, write: Write) -> None:
    alerts: list[Alert] = []
    store = open_store(on_alert=alerts.append)
    store.append_events(a_run(write))
    stored = store.snapshots.stored("r-1")
    assert stored is not None
    edited = stored.body.replace(b"COMPLETED", b"FAILED")
    store.log.save_snapshot("r-1", msgspec.structs.replace(stored, body=edited))
    found = store.get_snapshot("r-1")
    assert found is not None
    assert found.status == "COMPLETED"
    assert [alert.code for alert in alerts] == ["SNAPSHOT_DAMAGED"]
    assert same_as_replay(store)


def test_a_negative_number_of_events_is_refused(open_store: Open) -> None:
    with pytest.raises(ValueError, match="snapshot_every"):
        open_store(snapshot_every=-1)


def test_a_store_that_could_not_be_made_leaves_nothing_running(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="snapshot_every"):
        runstate.open(f"sqlite:{tmp_path / 'log'}", snapshot_every=-1)
    assert set(threading.enumerate()) <= before


def test_stored_snapshot_gives_what_is_stored_and_how_far_it_is_behind(open_store: Open, write: Write) -> None:
    store = open_store(snapshot_every=2)
    store.append_event(write())
    assert store.stored_snapshot("r-1") is None
    store.append_event(write("RunPaused"))
    store.append_event(write("RunResumed"))
    stored = store.stored_snapshot("r-1")
    assert stored is not None
    assert (stored.state.status, stored.seq, stored.behind) == ("PAUSED", 2, 1)


def test_get_snapshot_is_never_behind_the_log(open_store: Open, write: Write) -> None:
    store = open_store(snapshot_every=2)
    for kind, status in (("RunStarted", "RUNNING"), ("RunPaused", "PAUSED"), ("RunResumed", "RUNNING")):
        store.append_event(write(kind))
        found = store.get_snapshot("r-1")
        assert found is not None
        assert found.status == status


def test_get_snapshot_of_a_stream_that_is_not_there_is_none(open_store: Open) -> None:
    assert open_store().get_snapshot("r-1") is None


def test_project_snapshot_reads_the_log_alone(open_store: Open, write: Write) -> None:
    store = open_store()
    store.append_events(a_run(write))
    store.log.save_snapshot("r-1", store.snapshots.of(RunSnapshot("r-1", status="FAILED", last_event_seq=4), 4))
    assert store.project_snapshot("r-1").status == "COMPLETED"


def test_there_is_nothing_to_project_of_a_stream_that_is_not_there(open_store: Open) -> None:
    with pytest.raises(StreamNotFound):
        open_store().project_snapshot("r-1")


def test_a_snapshot_of_another_version_of_the_model_is_not_read(open_store: Open, write: Write) -> None:
    store = open_store()
    store.append_events(a_run(write))
    assert runstate.Store(store.log, NewerEngine()).stored_snapshot("r-1") is None


def test_a_snapshot_of_another_version_is_rebuilt_from_the_whole_log(open_store: Open, write: Write) -> None:
    store = open_store()
    store.append_events(a_run(write))
    newer = runstate.Store(store.log, NewerEngine())
    newer.append_event(write("Note"))
    stored = newer.snapshots.stored("r-1")
    assert stored is not None
    assert (stored.version, stored.seq, stored == newer.fresh_snapshot("r-1")) == (NewerEngine.version, 5, True)


def test_an_older_version_of_the_model_may_write_again(open_store: Open, write: Write) -> None:
    store = open_store()
    newer = runstate.Store(store.log, NewerEngine())
    newer.append_events(a_run(write))
    store.append_event(write("Note"))
    assert same_as_replay(store)


def test_rebuilding_puts_a_wrong_snapshot_right(open_store: Open, write: Write) -> None:
    store = open_store()
    store.append_events(a_run(write))
    store.log.save_snapshot("r-1", StoredSnapshot("engine", ENGINE.version, 4, "wrong", b"{}"))
    rebuilt = store.rebuild_snapshot("r-1")
    assert (rebuilt.seq, store.snapshots.stored("r-1")) == (4, store.fresh_snapshot("r-1"))


def test_a_state_that_the_model_no_longer_reads_is_folded_again(open_store: Open, write: Write) -> None:
    store = open_store()
    store.append_events(a_run(write))
    body = b'{"of": "another class"}'
    store.log.save_snapshot("r-1", StoredSnapshot("engine", ENGINE.version, 4, digest(body), body))
    assert store.get_snapshot("r-1") == store.current_state("r-1") == store.project_snapshot("r-1")
    assert store.stored_snapshot("r-1") is None
    store.append_event(write("Note"))
    assert same_as_replay(store)


def test_events_of_many_runs_share_commits(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[Writer] = []
    finish = Writer._finish

    def count(writer: Writer, connection: sqlite3.Connection) -> RunstateError | None:
        commits.append(writer)
        return finish(writer, connection)

    monkeypatch.setattr(Writer, "_finish", count)
    with runstate.open(f"sqlite:{tmp_path / 'runs.db'}", snapshot_every=0) as store:
        results = store.append_events([write(run=f"r-{number}") for number in range(50)])
        assert ([result.seq for result in results], len(commits)) == ([1] * 50, 1)
        assert len(store.log.streams()) == 50


def test_a_fresh_snapshot_changes_nothing_on_file(open_store: Open, write: Write) -> None:
    store = open_store(snapshot_every=0)
    store.append_events(a_run(write))
    assert (store.fresh_snapshot("r-1").seq, stored_seq(store)) == (4, None)


@pytest.mark.parametrize("method", ["rebuild_snapshot", "fresh_snapshot"])
def test_nothing_can_be_rebuilt_of_a_stream_that_is_not_there(open_store: Open, method: str) -> None:
    with pytest.raises(StreamNotFound):
        getattr(open_store(), method)("r-1")


def test_the_current_state_is_the_snapshot_brought_up_to_date(open_store: Open, write: Write) -> None:
    store = open_store(snapshot_every=3)
    for event in a_run(write):
        store.append_event(event)
    assert ENGINE.dump(store.current_state("r-1")) == ENGINE.dump(store.project_snapshot("r-1"))


def test_the_current_state_of_a_stream_that_is_not_there_is_the_initial_one(open_store: Open) -> None:
    assert open_store().current_state("r-1") == RunSnapshot("r-1")


@pytest.mark.parametrize("open_store", saving_separately, indirect=True)
def test_a_snapshot_that_cannot_be_kept_is_an_alert_and_no_failure_of_the_append(
    open_store: Open, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[Alert] = []
    store = open_store(snapshot_every=1, on_alert=raised.append)

    def full(stream: str, snapshot: StoredSnapshot) -> None:
        raise LogFull()

    with monkeypatch.context() as patched:
        patched.setattr(store.log, "save_snapshot", full)
        assert store.append_event(write()).persisted
    assert [(alert.code, alert.subject) for alert in raised] == [("SNAPSHOT_FAILED", "r-1")]


@pytest.mark.parametrize("open_store", saving_separately, indirect=True)
@pytest.mark.parametrize(("error", "alerts"), [(LogBusy, 0), (LogFull, 1)])
def test_the_snapshot_catches_up_once_it_can_be_kept_again_and_mere_contention_is_no_alert(
    open_store: Open, write: Write, monkeypatch: pytest.MonkeyPatch, error: type[RunstateError], alerts: int
) -> None:
    raised: list[Alert] = []
    store = open_store(snapshot_every=2, on_alert=raised.append)

    def refuse(stream: str, snapshot: StoredSnapshot) -> None:
        raise error()

    with monkeypatch.context() as patched:
        patched.setattr(store.log, "save_snapshot", refuse)
        store.append_events(a_run(write)[:2])
    assert stored_seq(store) is None
    store.append_event(a_run(write)[2])
    assert (same_as_replay(store), len(raised)) == (True, alerts)


@pytest.mark.parametrize("every", [1, 3])
def test_another_history_under_the_same_name_is_not_taken_for_the_one_that_is_kept(
    open_store: Open, write: Write, every: int
) -> None:
    """Deleted and taken over again from elsewhere: ids and times of the beginning are the same, what follows is not."""
    store = open_store(snapshot_every=every)
    store.append_events([write("RunStarted"), write("StepStarted", "a"), write("StepFailed", "a")])
    held = store.log.read("r-1")
    with runstate.open("memory:") as elsewhere:
        elsewhere.log.adopt("r-1", held[:2])
        elsewhere.append_events([write("StepCompleted", "a"), write("StepStarted", "b")])
        store.log.delete_stream("r-1")  # Behind the store's back, as another process would.
        store.log.adopt("r-1", elsewhere.log.read("r-1"))
    for number in range(every):
        store.append_event(write("Note", attempt=number + 1))
    stored = store.snapshots.stored("r-1")
    assert stored is not None
    assert (stored.seq, stored.body) == (5, ENGINE.dump(store.snapshot_at("r-1", seq=5)))


@pytest.mark.parametrize("open_store", saving_separately, indirect=True)
def test_a_snapshot_that_was_saved_of_a_history_that_is_gone_is_put_right_by_the_next_append(
    open_store: Open, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream is deleted and begun again between an append and the save that follows it."""
    store = open_store(snapshot_every=1)
    save = store.log.save_snapshot

    def late(stream: str, snapshot: StoredSnapshot) -> None:
        store.log.delete_stream("r-1")
        store.log.append("r-1", [store.model.draft(write("Note", attempt=number))[1] for number in (1, 2, 3)])
        save(stream, snapshot)

    with monkeypatch.context() as patched:
        patched.setattr(store.log, "save_snapshot", late)
        store.append_events(a_run(write)[:2])
    store.append_event(write("StepStarted", "other"))
    assert (stored_seq(store), same_as_replay(store)) == (4, True)


@pytest.mark.parametrize("open_store", saving_separately, indirect=True)
def test_a_state_is_gone_on_with_at_the_cost_of_one_line(
    open_store: Open, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(snapshot_every=1)
    store.append_events(a_run(write))
    asked: list[tuple[int, int | None]] = []
    lines = store.log.lines

    def counted(stream: str, *, after_seq: int = 0, until_seq: int | None = None) -> Iterator[bytes]:
        asked.append((after_seq, until_seq))
        return lines(stream, after_seq=after_seq, until_seq=until_seq)

    other = runstate.Store(store.log, ENGINE, snapshot_every=1)
    other.snapshots.appended("r-1", [(4, next(lines("r-1", after_seq=3)))])  # Overtaken: its snapshot is on file.
    monkeypatch.setattr(store.log, "lines", counted)
    store.append_event(write("Note"))
    assert asked == [(3, 4)]
    other.append_event(write("Note", attempt=2))
    assert asked[1:] == [(3, 4), (4, 6)]
    assert same_as_replay(other)


def checkpoint(store: runstate.Store[Any, Any, Any], snapshot: StoredSnapshot) -> None:
    """Compact a stream, so that it begins where the snapshot stands."""
    assert isinstance(store.log, WalLog)
    for _ in range(2):  # A checkpoint removes the entries before the previous one.
        store.log.checkpoint("s", snapshot)
    with pytest.raises(Truncated):
        store.log.read("s")


def test_a_state_whose_line_was_compacted_away_is_loaded_again(tmp_path: Path) -> None:
    raised: list[Alert] = []
    with runstate.open(f"wal:{tmp_path / 'log'}", Clock(), on_alert=raised.append) as store:
        store.append_event(Fact("s", Tick(), "1"))
        runstate.Store(store.log, Clock()).append_events([Fact("s", Tick(), key) for key in "234"])
        checkpoint(store, store.fresh_snapshot("s"))
        store.append_event(Fact("s", Tick(), "5"))
        assert (store.get_snapshot("s"), raised) == (Ticks(5), [])


def test_a_compacted_stream_begun_again_is_gone_on_with_from_its_own_snapshot(tmp_path: Path) -> None:
    raised: list[Alert] = []
    url = f"wal:{tmp_path / 'log'}"
    with runstate.open(url, Clock(), on_alert=raised.append) as store, runstate.open("memory:", Clock()) as elsewhere:
        store.append_events([Fact("s", Tick(), "1"), Fact("s", Tick(), "2")])
        store.log.delete_stream("s")
        elsewhere.append_events([Fact("s", Tick(), key) for key in "abc"])
        store.log.adopt("s", elsewhere.log.read("s"))
        checkpoint(store, elsewhere.fresh_snapshot("s"))
        store.append_event(Fact("s", Tick(), "4"))
        assert (store.get_snapshot("s"), raised) == (Ticks(4), [])


def test_a_snapshot_of_a_large_double_can_be_brought_up_to_date(open_store: Open, write: Write) -> None:
    # Its canonical text is a run of digits: read back as an integer, it had no canonical form any more.
    store = open_store()
    store.append_events([write("StepStarted", "a"), write("StepFailed", "a", payload={"artifacts": [1e17, 0.5]})])
    other = runstate.Store(store.log, ENGINE)
    other.append_event(write("RunStarted"))
    assert (stored_seq(other), same_as_replay(other)) == (3, True)


def test_a_year_that_python_does_not_know_stops_no_snapshot(open_store: Open, write: Write) -> None:
    store = open_store()
    store.append_events([write("RunStarted", emitted_at="0000-01-01T00:00:00Z"), write("RunCompleted")])
    assert (stored_seq(store), store.project_snapshot("r-1").total_duration_ms) == (2, None)


def test_a_fold_that_failed_half_way_is_begun_again_from_what_is_on_file() -> None:
    class Stumbling(Clock):
        """Folds in place, as a model may, and fails at the third event the first time."""

        stumbled = False

        def fold(self, state: Ticks, lines: Iterable[bytes], alert: AlertSink | None = None) -> Ticks:
            for line in lines:
                if not self.stumbled and b'"key":"3"' in line:
                    self.stumbled = True
                    raise MemoryError
                state.count += 1
            return state

    store = runstate.open("memory:", Stumbling(), on_alert=lambda alert: None)
    store.append_event(Fact("s", Tick(), "1"))
    store.append_events([Fact("s", Tick(), "2"), Fact("s", Tick(), "3")])
    store.append_event(Fact("s", Tick(), "4"))
    assert store.snapshots.stored("s") == store.fresh_snapshot("s")


def test_an_append_that_was_overtaken_on_the_way_to_its_snapshot_is_counted_once() -> None:
    store = runstate.open("memory:", Clock())
    drafts = [store.model.draft(Fact("s", Tick(), key))[1] for key in ("1", "2")]
    first, second = store.log.append("s", drafts)
    for result, draft in ((second, drafts[1]), (first, drafts[0])):
        store.snapshots.appended("s", [(result.seq, draft.render(result.seq, result.persisted_at))])
    store.append_event(Fact("s", Tick(), "3"))
    assert store.snapshots.stored("s") == store.fresh_snapshot("s")


# --- snapshots and threads -------------------------------------------------------------------------------


def test_concurrent_appends_end_with_the_snapshot_of_a_replay(open_store: Open, write: Write) -> None:
    store = open_store()
    barrier = threading.Barrier(4)

    def produce(worker: int) -> None:
        barrier.wait()
        for number in range(12):
            store.append_event(write("StepStarted", f"s-{worker}-{number}"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(produce, range(4)))
    assert (stored_seq(store), same_as_replay(store)) == (48, True)


def test_concurrent_stores_on_one_log_end_with_the_snapshot_of_a_replay(open_store: Open, write: Write) -> None:
    store = open_store()
    barrier = threading.Barrier(3)

    def produce(worker: int) -> None:
        own = runstate.Store(store.log, ENGINE)
        barrier.wait()
        for number in range(12):
            own.append_event(write("StepStarted", f"s-{worker}-{number}"))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(produce, range(3)))
    assert (stored_seq(store), same_as_replay(store)) == (36, True)


def test_a_snapshot_is_never_ahead_of_the_log(open_store: Open, write: Write) -> None:
    store = open_store()
    done = threading.Event()
    ahead: list[tuple[int, int]] = []

    def watch() -> None:
        while not done.is_set():
            seq = stored_seq(store) or 0
            info = store.log.stream("r-1")  # After the snapshot: the log can only have grown since.
            last = 0 if info is None else info.last_seq
            if seq > last:
                ahead.append((seq, last))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for number in range(1, 40):
        store.append_event(write("Note", attempt=number))
    done.set()
    watcher.join()
    assert ahead == []


# --- looking back ----------------------------------------------------------------------------------------


def test_the_state_at_any_place_is_the_fold_up_to_it(open_store: Open, write: Write) -> None:
    store = open_store()
    store.append_events(a_run(write))
    seen = [(s.status, s.last_event_seq) for s in (store.snapshot_at("r-1", seq=seq) for seq in range(6))]
    assert seen == [("PENDING", 0), *[("RUNNING", seq) for seq in (1, 2, 3)], ("COMPLETED", 4), ("COMPLETED", 4)]


def test_the_state_at_a_negative_place_is_the_initial_one(open_store: Open, write: Write) -> None:
    store = open_store()
    store.append_events(a_run(write))
    assert store.snapshot_at("r-1", seq=-1) == RunSnapshot("r-1")


def at_ten_eleven_and_twelve(store: EngineStore, write: Write, set_clock: Callable[[str], None]) -> None:
    for hour, event in zip((10, 11, 12), a_run(write), strict=False):
        set_clock(f"2026-11-15T{hour}:00:00.000Z")
        store.append_event(event)


@pytest.mark.parametrize(
    ("at", "seq"),
    [
        ("2026-11-15T09:59:59.999Z", 0),
        ("2026-11-15T10:00:00Z", 1),
        ("2026-11-15T11:59:59.999999Z", 2),
        ("2026-11-15T12:00:00+01:00", 2),
        ("2030-01-01T00:00:00Z", 3),
        (datetime(2026, 11, 15, 11, tzinfo=UTC), 2),
        (datetime(2026, 11, 15, 7, tzinfo=timezone(timedelta(hours=-3))), 1),
    ],
    ids=str,
)
def test_the_state_at_a_time_holds_what_was_stored_by_then(
    open_store: Open, write: Write, set_clock: Callable[[str], None], at: str | datetime, seq: int
) -> None:
    store = open_store()
    at_ten_eleven_and_twelve(store, write, set_clock)
    assert store.snapshot_at("r-1", at=at) == store.snapshot_at("r-1", seq=seq)


def test_the_state_at_a_time_asks_when_it_was_stored_and_not_when_it_was_sent(
    open_store: Open, write: Write, set_clock: Callable[[str], None]
) -> None:
    store = open_store()
    set_clock("2026-11-15T10:00:00.000Z")
    store.append_event(write(emitted_at="2020-01-01T00:00:00Z"))
    assert store.snapshot_at("r-1", at="2025-01-01T00:00:00Z").last_event_seq == 0


def test_a_clock_that_went_backwards_orders_nothing(
    open_store: Open, write: Write, set_clock: Callable[[str], None]
) -> None:
    store = open_store()
    for at, event in zip(("12:00", "10:00", "13:00"), a_run(write), strict=False):
        set_clock(f"2026-11-15T{at}:00.000Z")
        store.append_event(event)
    assert [e.run_seq for e in store.fetch_events("r-1")] == [1, 2, 3]
    assert same_as_replay(store)


def test_the_state_at_a_time_is_a_prefix_though_the_clock_went_backwards(
    open_store: Open, write: Write, set_clock: Callable[[str], None]
) -> None:
    store = open_store()
    for at, event in zip(("12:00", "10:00", "13:00"), a_run(write), strict=False):
        set_clock(f"2026-11-15T{at}:00.000Z")
        store.append_event(event)
    assert store.snapshot_at("r-1", at="2026-11-15T11:00:00Z") == store.snapshot_at("r-1", seq=2)


def test_the_state_at_a_time_is_found_beyond_the_first_page(
    open_store: Open, write: Write, set_clock: Callable[[str], None]
) -> None:
    store = open_store(snapshot_every=0)
    store.append_events([write("Note", attempt=number) for number in range(1, 1002)])
    set_clock("2026-11-15T12:00:00.000Z")
    store.append_event(write())
    assert store.snapshot_at("r-1", at="2026-11-15T11:00:00Z").last_event_seq == 1001


@pytest.mark.parametrize(
    "question",
    [
        {"seq": 1, "at": "2026-11-15T10:00:00Z"},
        {"at": "2026-11-15T10:00:00"},
        {"at": datetime(2026, 11, 15)},
        {"at": "yesterday"},
    ],
    ids=str,
)
def test_an_ambiguous_question_is_refused(open_store: Open, write: Write, question: dict[str, Any]) -> None:
    store = open_store()
    store.append_event(write())
    with pytest.raises(ValueError, match=r".+"):
        store.snapshot_at("r-1", **question)


def test_there_is_nothing_to_look_back_on_in_a_stream_that_is_not_there(open_store: Open) -> None:
    with pytest.raises(StreamNotFound):
        open_store().snapshot_at("r-1", seq=1)


def test_a_diff_tells_what_changed_between_two_places(open_store: Open, write: Write) -> None:
    store = open_store()
    store.append_events(a_run(write))
    changed = {c.path: (c.before, c.after) for c in store.diff("r-1", from_seq=2, to_seq=3) if c.path != "/hash"}
    assert changed == {
        "/artifacts/0": (None, "rows.parquet"),
        "/lastEventSeq": (2, 3),
        "/steps/0/artifacts/0": (None, "rows.parquet"),
        "/steps/0/completedAt": (None, "2026-11-15T09:30:00.000Z"),
        "/steps/0/status": ("RUNNING", "SUCCESS"),
    }


def test_a_diff_between_one_place_and_itself_is_empty(open_store: Open, write: Write) -> None:
    store = open_store()
    store.append_events(a_run(write))
    assert store.diff("r-1", from_seq=3, to_seq=3) == []


def test_a_diff_may_go_backwards(open_store: Open, write: Write) -> None:
    store = open_store()
    store.append_events(a_run(write))
    assert ("removed", "/steps/0") in [(c.kind, c.path) for c in store.diff("r-1", from_seq=2, to_seq=1)]


def test_a_known_key_is_found_in_its_stream_alone(open_store: Open, write: Write) -> None:
    store = open_store()
    event = write()
    store.append_event(event)
    assert store.holds_key("r-1", event.idempotency_key)
    assert not store.holds_key("r-1", "other")
    assert not store.holds_key("r-2", event.idempotency_key)


# --- check_transitions -----------------------------------------------------------------------------------


def test_an_impossible_event_is_kept_and_flagged_unless_told_otherwise(open_store: Open, write: Write) -> None:
    raised: list[Alert] = []
    store = open_store(on_alert=raised.append)
    assert store.append_event(write("RunResumed")).persisted
    assert store.project_snapshot("r-1").inconsistent
    assert [alert.code for alert in raised] == ["INVALID_TRANSITION"]


def test_an_impossible_event_is_refused_and_nothing_written(open_store: Open, write: Write) -> None:
    store = open_store(check_transitions=True)
    with pytest.raises(InvalidTransition) as refused:
        store.append_event(write("RunResumed"))
    details = refused.value.details
    assert (details["priorState"], details["attemptedState"], details["eventType"]) == (
        "PENDING",
        "RUNNING",
        "RunResumed",
    )
    assert store.log.stream("r-1") is None


def test_a_refused_event_gets_the_same_answer_on_every_retry(open_store: Open, write: Write) -> None:
    store = open_store(check_transitions=True)
    store.append_event(write("RunCancelled"))
    answers = []
    for turn in range(3):
        store.append_event(write("Note", attempt=turn + 1))
        with pytest.raises(InvalidTransition) as refused:
            store.append_event(write("RunStarted"))
        answers.append(refused.value.as_data())
    assert answers == [answers[0]] * 3


def test_a_refusal_is_not_worth_a_retry() -> None:
    assert not InvalidTransition.retryable


def test_a_retry_of_an_accepted_event_is_accepted_though_the_run_has_moved_on(open_store: Open, write: Write) -> None:
    store = open_store(check_transitions=True)
    for event in a_run(write):
        store.append_event(event)
    again = store.append_event(write("RunStarted"))
    assert (again.seq, again.idempotent) == (1, True)


def test_a_checked_batch_is_judged_event_by_event(open_store: Open, write: Write) -> None:
    store = open_store(check_transitions=True)
    assert [r.seq for r in store.append_events(a_run(write))] == [1, 2, 3, 4]


def test_a_retry_within_a_checked_batch_is_no_second_event(open_store: Open, write: Write) -> None:
    store = open_store(check_transitions=True)
    results = store.append_events([write(), write(), write("RunCompleted")])
    assert [(r.seq, r.persisted) for r in results] == [(1, True), (1, False), (2, True)]


def test_a_checked_batch_that_is_sent_again_is_answered_again(open_store: Open, write: Write) -> None:
    store = open_store(check_transitions=True)
    first = store.append_events(a_run(write))
    again = store.append_events(a_run(write))
    assert [(r.seq, r.persisted) for r in again] == [(r.seq, False) for r in first]


def test_what_changes_no_state_is_always_possible(open_store: Open, write: Write) -> None:
    store = open_store(check_transitions=True)
    store.append_event(write("RunCancelled"))
    assert store.append_event(write("SignalAccepted")).persisted
    assert store.append_event(write("StepCorrected", "extract")).persisted


def test_the_check_looks_again_when_another_writer_was_faster(
    open_store: Open, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(check_transitions=True)
    store.append_event(write())
    find = store.log.find
    overtaken: list[list[AppendResult]] = []

    def overtaking(stream: str, key: str) -> Record | None:
        if not overtaken:
            overtaken.append(store.log.append(stream, [ENGINE.draft(write("RunCancelled"))[1]]))
        return find(stream, key)

    monkeypatch.setattr(store.log, "find", overtaking)
    with pytest.raises(InvalidTransition):
        store.append_event(write("RunCompleted"))
    assert [e.event_type for e in store.fetch_events("r-1")] == ["RunStarted", "RunCancelled"]


def test_of_two_ends_of_a_run_one_is_accepted(open_store: Open, write: Write) -> None:
    store = open_store(check_transitions=True)
    store.append_event(write())
    barrier = threading.Barrier(2)

    def end(kind: str) -> bool:
        barrier.wait()
        try:
            return store.append_event(write(kind)).persisted
        except InvalidTransition:
            return False

    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(end, ["RunCompleted", "RunCancelled"]))
    assert (sum(ended), store.project_snapshot("r-1").inconsistent) == (1, False)


def test_a_checked_append_still_minds_the_expected_place(open_store: Open, write: Write) -> None:
    store = open_store(check_transitions=True)
    store.append_event(write(), expected_seq=0)
    with pytest.raises(SequenceConflict):
        store.append_event(write("RunPaused"), expected_seq=0)


# --- strict_keys and event_bytes_max ---------------------------------------------------------------------


def test_a_store_takes_the_key_that_it_is_given(open_store: Open, write: Write) -> None:
    assert open_store().append_event(write(idempotency_key="abc123")).persisted


def test_a_strict_store_refuses_a_key_that_its_fields_do_not_give(open_store: Open, write: Write) -> None:
    store = open_store(strict_keys=True)
    with pytest.raises(KeyMismatch, match=write().idempotency_key):
        store.append_event(write(idempotency_key="abc123"))
    assert store.log.streams() == []


def test_a_strict_store_takes_a_key_that_its_fields_give(open_store: Open, write: Write) -> None:
    assert open_store(strict_keys=True).append_event(write("StepStarted", "extract", 3)).persisted


def test_a_strict_store_takes_any_key_of_v1(open_store: Open, v1: V1) -> None:
    # The event does not carry the plan version, which is part of its key.
    assert open_store(strict_keys=True).append_event(v1(idempotency_key="abc123")).persisted


def test_an_event_of_the_largest_size_is_taken(open_store: Open, write: Write) -> None:
    size = len(ENGINE.draft(write())[1].tail)
    assert open_store(event_bytes_max=size).append_event(write()).persisted


def test_an_event_of_one_byte_more_is_refused_with_its_size(open_store: Open, write: Write) -> None:
    size = len(ENGINE.draft(write())[1].tail)
    store = open_store(event_bytes_max=size - 1)
    with pytest.raises(EventTooLarge) as refused:
        store.append_event(write())
    assert (refused.value.details["bytes"], store.log.streams()) == (size, [])


def test_an_event_beyond_a_mebibyte_is_refused_unless_told_otherwise(open_store: Open, write: Write) -> None:
    with pytest.raises(EventTooLarge):
        open_store().append_event(write(payload={"a": "x" * 1024 * 1024}))


# --- content under a known key ---------------------------------------------------------------------------


def test_other_content_under_a_known_key_is_told_once(open_store: Open, write: Write) -> None:
    raised: list[Alert] = []
    store = open_store(on_alert=raised.append)
    first = store.append_event(write(payload={"a": 1}))
    for _ in range(3):
        assert store.append_event(write(payload={"a": 2})).mismatch
    (alert,) = raised
    assert (alert.code, alert.level, alert.subject) == ("IDEMPOTENCY_CONTENT_MISMATCH", "P2", "r-1")
    assert (alert.details["key"], alert.details["storedSeq"]) == (write().idempotency_key, 1)
    assert alert.details["storedEventId"] == first.event_id


def test_other_content_under_a_known_key_changes_nothing(open_store: Open, write: Write) -> None:
    store = open_store(on_alert=lambda alert: None)
    store.append_event(write(payload={"a": 1}))
    before = store.log.read("r-1")
    store.append_event(write(payload={"a": 2}))
    assert store.log.read("r-1") == before


def test_an_honest_retry_raises_no_alert(open_store: Open, write: Write) -> None:
    raised: list[Alert] = []
    store = open_store(on_alert=raised.append)
    store.append_event(write(engine_attempt_id=1, payload={"a": [1, {}]}))
    store.append_event(write(engine_attempt_id=2, payload={"a": [1, {}]}, emitted_at="2026-11-15T10:00:00Z"))
    assert raised == []


def test_alerts_go_to_the_log_of_the_program_by_default(
    open_store: Open, write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "runstate.alerts"):
        open_store().append_event(write("RunResumed"))
    (entry,) = caplog.records
    assert parse(entry.getMessage())["code"] == "INVALID_TRANSITION"


def test_an_impossible_event_is_told_once_however_often_it_is_read(open_store: Open, write: Write) -> None:
    raised: list[Alert] = []
    store = open_store(on_alert=raised.append)
    store.append_event(write("RunResumed"))
    store.append_event(write("RunResumed"))
    store.append_event(write("RunStarted"))
    store.project_snapshot("r-1")
    store.rebuild_snapshot("r-1")
    assert [alert.details["runSeq"] for alert in raised] == [1]


# --- deleting --------------------------------------------------------------------------------------------


def test_a_deleted_stream_is_gone_with_its_snapshot(open_store: Open, write: Write) -> None:
    store = open_store()
    store.append_events([*a_run(write), *a_run(write, "r-2")])
    store.delete_stream("r-1")
    assert (store.fetch_events("r-1"), store.get_snapshot("r-1")) == ([], None)
    assert len(store.fetch_events("r-2")) == 4


def test_a_stream_that_is_not_there_cannot_be_deleted(open_store: Open) -> None:
    with pytest.raises(StreamNotFound):
        open_store().delete_stream("r-1")


def test_a_stream_begun_again_is_a_new_one(open_store: Open, write: Write) -> None:
    store = open_store()
    store.append_events(a_run(write))
    store.delete_stream("r-1", forget=True)
    store.append_event(write("RunCancelled"))
    assert (stored_seq(store), same_as_replay(store)) == (1, True)


def test_a_stream_begun_again_behind_the_stores_back_is_a_new_one(
    open_store: Open, write: Write, set_clock: Callable[[str], None]
) -> None:
    store = open_store()
    store.append_events(a_run(write)[:2])
    set_clock("2026-11-15T10:00:00.000Z")
    store.log.delete_stream("r-1")
    runstate.Store(store.log, ENGINE, snapshot_every=0).append_events(
        [write("RunQueued"), write("RunApproved"), write("RunStarted")]
    )
    store.append_event(write("RunPaused"))
    assert (stored_seq(store), same_as_replay(store)) == (4, True)


# --- opening and closing ---------------------------------------------------------------------------------


def test_a_closed_store_refuses_everything(open_store: Open, write: Write) -> None:
    with open_store() as store:
        store.append_event(write())
    with pytest.raises(LogClosed):
        store.append_event(write("RunPaused"))
    with pytest.raises(LogClosed):
        store.fetch_events("r-1")


def test_a_store_may_be_closed_twice(open_store: Open) -> None:
    store = open_store()
    store.close()
    store.close()


def test_what_was_appended_is_there_when_the_log_is_opened_again(tmp_path: Path, write: Write) -> None:
    url = f"sqlite:{tmp_path / 'log'}"
    with runstate.open(url) as store:
        store.append_events(a_run(write))
    with runstate.open(url, create=False) as again:
        assert same_as_replay(again)
        assert again.append_event(write()).idempotent


def test_a_log_that_is_not_there_is_not_made_if_told_so(tmp_path: Path) -> None:
    with pytest.raises(LogNotFound):
        runstate.open(f"sqlite:{tmp_path / 'log'}", create=False)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_model_opens_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel):
        runstate.open(f"sqlite:{tmp_path / 'log'}", "nothing")
    assert list(tmp_path.iterdir()) == []


def test_the_model_may_be_handed_over(open_store: Open) -> None:
    store = runstate.open("memory:", Clock())
    store.append_event(Fact("s", Tick(), "k"))
    assert store.project_snapshot("s").count == 1


def test_only_the_engine_model_has_runs() -> None:
    store: runstate.Store[Any, Any, Any] = runstate.open("memory:", Clock())
    with pytest.raises(TypeError, match="clock"):
        store.run("r-1", tenant="acme", plan="nightly")


def test_a_stream_is_neither_read_nor_written_through_another_model(open_store: Open, write: Write) -> None:
    class Audit(EngineModel):
        name = "audit"

    store = open_store()
    store.append_event(write())
    audit = runstate.Store(store.log, Audit())
    refused: list[Callable[[], object]] = [
        lambda: audit.fetch_events("r-1"),
        lambda: audit.get_snapshot("r-1"),
        lambda: audit.stored_snapshot("r-1"),
        lambda: audit.project_snapshot("r-1"),
        lambda: audit.current_state("r-1"),
        lambda: audit.diff("r-1", from_seq=0, to_seq=1),
        lambda: audit.rebuild_snapshot("r-1"),
        lambda: audit.append_event(write("RunPaused")),
    ]
    for call in refused:
        with pytest.raises(ModelMismatch, match="'engine', not of 'audit'"):
            call()
    assert stored_seq(store) == 1


def test_an_expected_seq_that_is_not_reached_yet_is_a_conflict_for_checked_appends(
    open_store: Open, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer brings the stream there after the check, with an event that makes this one impossible."""
    store = open_store(check_transitions=True)
    store.append_event(write("RunStarted"))
    append = store.log.append

    def cancel_first(stream: str, drafts: Any, *, expected_seq: int | None = None) -> Any:
        append(stream, [store.model.draft(write("RunCancelled"))[1]])
        return append(stream, drafts, expected_seq=expected_seq)

    with monkeypatch.context() as patch:
        patch.setattr(store.log, "append", cancel_first)
        with pytest.raises(SequenceConflict):
            store.append_event(write("StepStarted", step="s"), expected_seq=2)
    assert "StepStarted" not in [event.event_type for event in store.fetch_events("r-1")]
    assert store.append_event(write("RunStarted"), expected_seq=2).idempotent


def test_a_snapshot_from_beyond_the_end_of_its_stream_is_no_state(open_store: Open, write: Write) -> None:
    """A reader may save it just after the stream was deleted and begun again."""
    store = open_store()
    for event in a_run(write):
        store.append_event(event)
    kept = store.log.load_snapshot("r-1", "engine")
    assert kept is not None
    store.delete_stream("r-1", forget=True)
    store.append_event(write("RunStarted"))
    store.log.save_snapshot("r-1", kept)
    assert store.current_state("r-1").status == "RUNNING"
    run = store.run("r-1", tenant="acme", plan="p")
    with pytest.raises(InvalidTransition):
        run.resumed()


def test_a_refusal_that_can_be_foreseen_comes_before_the_first_stream_is_written(
    open_store: Open, write: Write
) -> None:
    store = open_store()
    store.append_event(write("RunStarted", run="r-2"))
    other = msgspec.structs.replace(write("RunCompleted", run="r-2"), tenant_id="somebody-else")
    with pytest.raises(TenantMismatch) as refused:
        store.append_events([write("RunStarted", run="r-1"), other])
    assert refused.value.details["index"] == 1
    assert [info.stream for info in store.log.streams()] == ["r-2"]
    store.delete_stream("r-2")
    with pytest.raises(StreamDeleted) as deleted:
        store.append_events([write("RunStarted", run="r-1"), write("RunCompleted", run="r-2")])
    assert deleted.value.details["index"] == 1
    assert store.log.streams() == []
