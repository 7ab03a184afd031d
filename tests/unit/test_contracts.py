"""One test for each rule of the state store contracts v1 and v2, on every log that is installed.

The names say the section and the rule; docs/contracts.md lists them all, with those that are tested elsewhere.
"""

from __future__ import annotations

import ast
import inspect
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.log_urls import take_no_events, url_at

import runstate
from runstate.contracts import AppendResultV1, AppendResultV2, EngineStore, RunStateStoreV1, RunStateStoreV2
from runstate.errors import InvalidEvent, StreamNotFound
from runstate.logs.log import EventLog
from runstate.logs.registry import installed_schemes
from runstate.models.canonical import parse
from runstate.models.engine import ENGINE, CanonicalEngineEvent, RunEventRecord, RunEventWrite
from runstate.models.engine.events import members_json
from runstate.models.model import Alert
from runstate.projector import Projector
from runstate.sinks import Projected, StoreSink

root = Path(__file__).parents[2]
Write = Callable[..., RunEventWrite]
V1 = Callable[..., CanonicalEngineEvent]


@pytest.fixture
def store(log_url: str) -> Iterator[EngineStore]:
    with runstate.open(log_url, "engine") as opened:
        yield opened


@pytest.fixture
def old(store: EngineStore) -> RunStateStoreV1:
    return RunStateStoreV1(store)


@pytest.fixture
def new(store: EngineStore) -> RunStateStoreV2:
    return RunStateStoreV2(store)


def notes(write: Write, count: int, run: str = "r-1") -> list[RunEventWrite]:
    return [write("Note", attempt=number, run=run) for number in range(1, count + 1)]


# --- v1, section 1: the interface ------------------------------------------------------------------------


def test_v1_1_an_append_answers_with_run_seq_idempotent_and_persisted(old: RunStateStoreV1, v1: V1) -> None:
    assert old.append_event(v1()) == AppendResultV1(run_seq=1, idempotent=False, persisted=True)


@pytest.mark.parametrize("run_seq", [0, 1, 99])
def test_v1_1_the_authority_assigns_run_seq_whatever_the_caller_sends(
    old: RunStateStoreV1, v1: V1, run_seq: int
) -> None:
    result = old.append_event(v1(run_seq=run_seq, persisted_at="2000-01-01T00:00:00Z"))
    (found,) = old.fetch_events("r-1")
    assert result.run_seq == found.run_seq == 1
    assert found.persisted_at != "2000-01-01T00:00:00Z"


def test_v1_1_an_event_comes_back_with_every_member_it_was_sent_with(old: RunStateStoreV1, v1: V1) -> None:
    sent = v1(
        "StepFailed",
        step_id="extract",
        engine_attempt_id="3",
        logical_attempt_id="2",
        event_data=[1, {"a": None}],
        adapter_version="1.4",
        engine_run_ref={"workflowId": "w"},
        caused_by_signal_id="123e4567-e89b-12d3-a456-426614174000",
        parent_event_id="123e4567-e89b-12d3-a456-426614174001",
    )
    old.append_event(sent)
    (found,) = old.fetch_events("r-1")
    assert msgspec.structs.replace(found, run_seq=msgspec.UNSET, persisted_at=msgspec.UNSET) == sent


def test_v1_1_events_are_fetched_after_a_sequence_number(
    old: RunStateStoreV1, store: EngineStore, write: Write
) -> None:
    store.append_events(notes(write, 5))
    assert [event.run_seq for event in old.fetch_events("r-1", after_seq=3)] == [4, 5]


def test_v1_1_a_fetch_gives_at_most_its_limit_and_a_thousand_by_default(
    old: RunStateStoreV1, store: EngineStore, write: Write
) -> None:
    store.append_events(notes(write, 1001))
    assert [len(old.fetch_events("r-1", limit=7)), len(old.fetch_events("r-1"))] == [7, 1000]


def test_v1_1_there_is_no_snapshot_before_the_first_event(old: RunStateStoreV1) -> None:
    assert old.get_snapshot("r-1") is None


def test_v1_1_the_latest_snapshot_is_kept(old: RunStateStoreV1, v1: V1) -> None:
    old.append_event(v1())
    kept = old.get_snapshot("r-1")
    assert kept is not None
    assert (kept.status, kept.last_event_seq) == ("RUNNING", 1)


def test_v1_4_2_a_snapshot_says_that_its_run_is_stale_until_the_projector_has_resynced(
    store: EngineStore, old: RunStateStoreV1, new: RunStateStoreV2, v1: V1
) -> None:
    old.append_event(v1())
    row = Projected(
        stream="r-1",
        model="engine",
        version=ENGINE.version,
        last_event_seq=1,
        applied=1,
        observed=3,
        born="",
        status="",
    )
    for stale, projection in ((True, "STALE"), (False, "LIVE")):
        state = store.fresh_snapshot("r-1")
        StoreSink(store.log, "engine").keep([msgspec.structs.replace(row, stale=stale, body=state.body)])
        for contract in (old, new):
            found = contract.get_snapshot("r-1")
            assert found is not None
            assert (found.projection, found.status, found.last_event_seq) == (projection, "RUNNING", 1)


def test_v1_1_a_snapshot_is_projected_from_the_log_on_demand(old: RunStateStoreV1, v1: V1) -> None:
    old.append_event(v1())
    old.append_event(v1("RunCompleted"))
    assert old.project_snapshot("r-1").status == "COMPLETED"


def test_v1_1_there_is_nothing_to_project_of_a_run_that_is_not_there(old: RunStateStoreV1) -> None:
    with pytest.raises(StreamNotFound):
        old.project_snapshot("r-1")


# --- v1, section 2: constraints --------------------------------------------------------------------------


def test_v1_2_1_no_two_events_of_a_run_share_a_run_seq(store: EngineStore, write: Write) -> None:
    barrier = threading.Barrier(4)

    def produce(worker: int) -> list[int]:
        barrier.wait()
        return [store.append_event(write("StepStarted", f"{worker}-{number}")).seq for number in range(8)]

    with ThreadPoolExecutor(4) as pool:
        seqs = [seq for own in pool.map(produce, range(4)) for seq in own]
    assert len(seqs) == len(set(seqs)) == 32


def test_v1_2_1_one_key_is_one_event_however_many_send_it(store: EngineStore, write: Write) -> None:
    barrier = threading.Barrier(4)

    def produce(_: int) -> runstate.AppendResult:
        barrier.wait()
        return store.append_event(write())

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(produce, range(4)))
    assert ([r.persisted for r in results].count(True), len(store.fetch_events("r-1"))) == (1, 1)


def test_v1_2_1_a_key_is_unique_within_its_run_alone(old: RunStateStoreV1, v1: V1) -> None:
    old.append_event(v1(idempotency_key="abc123"))
    assert old.append_event(v1(run="r-2", idempotency_key="abc123")).persisted


def test_v1_2_2_run_seq_is_strictly_increasing_per_run(old: RunStateStoreV1, v1: V1) -> None:
    seqs: dict[str, list[int]] = {"r-1": [], "r-2": []}
    for number in range(6):
        run = f"r-{1 + number % 2}"
        seqs[run].append(old.append_event(v1("Note", run=run, idempotency_key=str(number))).run_seq)
    assert all(own == sorted(set(own)) for own in seqs.values())


def test_v1_2_2_clocks_do_not_order_events(old: RunStateStoreV1, v1: V1) -> None:
    for year in (2030, 2020, 2025):
        old.append_event(v1("Note", idempotency_key=str(year), emitted_at=f"{year}-01-01T00:00:00Z"))
    assert [event.emitted_at[:4] for event in old.fetch_events("r-1")] == ["2030", "2020", "2025"]


def test_v1_2_2_gaps_in_run_seq_are_no_error_to_the_fold(line: Callable[..., bytes]) -> None:
    state = ENGINE.fold(ENGINE.initial("r-1"), [line(3, "RunStarted"), line(9, "RunCompleted")])
    assert (state.status, state.last_event_seq, state.inconsistent) == ("COMPLETED", 9, False)


def test_v1_2_3_events_are_never_updated(store: EngineStore, write: Write) -> None:
    store.append_event(write(payload={"a": 1}))
    before = store.log.read("r-1")
    store.append_events([write(payload={"a": 2}), write("RunPaused"), write(project_id="other")])
    assert store.log.read("r-1", limit=1) == before


def test_v1_2_3_the_port_offers_no_way_to_change_or_delete_an_event() -> None:
    offered = {name for name, _ in inspect.getmembers(EventLog, inspect.isfunction) if not name.startswith("_")}
    writing = {
        name for name in offered if re.match("append|adopt|save|put|delete|update|set|replace|write|remove", name)
    }
    assert writing == {"append", "adopt", "save_snapshot", "put_blob", "delete_stream"}
    of_a_deletion = list(inspect.signature(EventLog.delete_stream).parameters)
    assert of_a_deletion == ["self", "stream", "expected_seq", "first_persisted_at", "tombstone"]


def test_v1_2_3_a_run_is_deleted_whole(store: EngineStore, write: Write) -> None:
    store.append_events([*notes(write, 3), *notes(write, 2, "r-2")])
    store.delete_stream("r-1")
    assert (store.fetch_events("r-1"), len(store.fetch_events("r-2"))) == ([], 2)


def test_v1_2_3_a_correction_is_one_more_event(store: EngineStore, write: Write) -> None:
    store.append_events([write(), write("StepStarted", "a"), write("StepCorrected", "a", payload={"was": "wrong"})])
    found = store.fetch_events("r-1")
    assert [event.event_type for event in found] == ["RunStarted", "StepStarted", "StepCorrected"]


# --- v1, section 3: idempotency --------------------------------------------------------------------------


def test_v1_3_2_a_duplicate_key_returns_the_existing_run_seq_and_does_not_fail(old: RunStateStoreV1, v1: V1) -> None:
    for number in range(9):
        old.append_event(v1("Note", idempotency_key=f"note-{number}"))
    event = v1("StepCompleted", step_id="a", idempotency_key="abc123")
    assert [old.append_event(event), old.append_event(event)] == [
        AppendResultV1(run_seq=10, idempotent=False, persisted=True),
        AppendResultV1(run_seq=10, idempotent=True, persisted=False),
    ]


# --- v1, section 4: fetching -----------------------------------------------------------------------------


def test_v1_4_events_are_fetched_in_the_order_of_run_seq(
    old: RunStateStoreV1, store: EngineStore, write: Write
) -> None:
    for batch in (notes(write, 3), notes(write, 6)):
        store.append_events(batch)
    assert [event.run_seq for event in old.fetch_events("r-1")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_v1_4_1_a_watermark_walks_through_all_events_once(
    old: RunStateStoreV1, store: EngineStore, write: Write, limit: int
) -> None:
    store.append_events(notes(write, 7))
    watermark, seen = 0, []
    while events := old.fetch_events("r-1", after_seq=watermark, limit=limit):
        for event in events:
            assert isinstance(event.run_seq, int)
            watermark = event.run_seq
            seen.append(watermark)
    assert seen == [1, 2, 3, 4, 5, 6, 7]


# --- v1, section 5: snapshots ----------------------------------------------------------------------------


def test_v1_5_a_snapshot_is_derived_and_can_be_thrown_away(store: EngineStore, write: Write) -> None:
    store.append_events([write(), write("RunCompleted")])
    kept = store.snapshots.stored("r-1")
    assert kept == store.rebuild_snapshot("r-1") == store.fresh_snapshot("r-1")


def test_v1_5_changing_a_snapshot_changes_no_truth(store: EngineStore, write: Write) -> None:
    store.append_event(write())
    mine = store.get_snapshot("r-1")
    assert mine is not None
    mine.status = "FAILED"
    again = store.get_snapshot("r-1")
    assert again is not None
    assert (again.status, store.project_snapshot("r-1").status) == ("RUNNING", "RUNNING")


def test_v1_5_1_the_materialized_and_the_projected_snapshot_are_the_same_bytes(
    store: EngineStore, write: Write
) -> None:
    for event in [write(), write("StepStarted", "a"), write("StepFailed", "a"), write("RunFailed")]:
        store.append_event(event)
        kept = store.get_snapshot("r-1")
        assert kept is not None
        assert ENGINE.dump(kept) == ENGINE.dump(store.project_snapshot("r-1"))


@pytest.mark.parametrize("scheme", ["sqlite", "postgresql"])
def test_v1_5_2_a_projector_is_at_most_a_second_behind(scheme: str, tmp_path: Path, write: Write) -> None:
    raised: list[Alert] = []
    url = url_at(scheme, tmp_path / "log")
    with runstate.open(url, "engine", snapshot_every=0, on_alert=raised.append) as store:
        stop, projected, lags = threading.Event(), threading.Semaphore(0), []

        class TimedSink(StoreSink):
            def keep(self, rows: Sequence[Projected]) -> None:
                super().keep(rows)
                for row in rows:
                    (record,) = store.log.read(row.stream, after_seq=row.last_event_seq - 1, limit=1)
                    lags.append((datetime.now(UTC) - datetime.fromisoformat(record.persisted_at)).total_seconds())
                    projected.release()

        projector = Projector(store, sink=TimedSink(store.log, "engine"))
        thread = threading.Thread(target=projector.run, args=(stop,), kwargs={"interval_s": 0.01})
        thread.start()
        try:
            for event in notes(write, 3):
                store.append_event(event)
                assert projected.acquire(timeout=10)
        finally:
            stop.set()
            thread.join()
    assert (max(lags) <= 1.0, raised) == (True, [])


# --- v1, section 6: evolution ----------------------------------------------------------------------------


def test_v1_6_a_new_optional_field_is_kept(old: RunStateStoreV1, v1: V1) -> None:
    old.append_event(v1(extra={"region": "eu-1"}))
    assert old.fetch_events("r-1")[0].extra == {"region": "eu-1"}


def test_v1_6_an_unknown_type_is_kept_and_ignored(old: RunStateStoreV1, v1: V1) -> None:
    old.append_event(v1())
    old.append_event(v1("RunTeleported"))
    assert [event.event_type for event in old.fetch_events("r-1")] == ["RunStarted", "RunTeleported"]
    state = old.project_snapshot("r-1")
    assert (state.status, state.last_event_seq, state.inconsistent) == ("RUNNING", 2, False)


def test_v1_6_both_contracts_serve_the_same_run(
    old: RunStateStoreV1, new: RunStateStoreV2, v1: V1, write: Write
) -> None:
    old.append_event(v1())
    new.append_event(write("RunCompleted"))
    assert [event.event_type for event in new.fetch_events("r-1")] == ["RunStarted", "RunCompleted"]
    assert [event.event_type for event in old.fetch_events("r-1")] == ["RunStarted", "RunCompleted"]
    assert old.project_snapshot("r-1") == new.project_snapshot("r-1")


# --- v2, section 2: the types ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "member",
    [
        "eventId",
        "eventType",
        "emittedAt",
        "runId",
        "tenantId",
        "projectId",
        "environmentId",
        "planId",
        "planVersion",
        "idempotencyKey",
    ],
)
def test_v2_2_every_member_but_step_and_payload_is_required(member: str, write: Write) -> None:
    members = parse(members_json(write()))
    del members[member]
    with pytest.raises(InvalidEvent, match=member):
        ENGINE.parse(msgspec.json.encode(members))


def test_v2_2_step_and_payload_may_be_left_out(new: RunStateStoreV2, write: Write) -> None:
    new.append_event(write())
    (found,) = new.fetch_events("r-1")
    assert (found.step_id, found.payload) == (msgspec.UNSET, msgspec.UNSET)


def test_v2_2_the_event_id_is_a_uuid_of_version_4(write: Write) -> None:
    with pytest.raises(InvalidEvent, match="version 4"):
        ENGINE.draft(write(event_id="123e4567-e89b-12d3-a456-426614174000"))


def test_v2_2_emitted_at_is_a_time_in_utc(write: Write) -> None:
    with pytest.raises(InvalidEvent, match="UTC"):
        ENGINE.draft(write(emitted_at="2026-11-15T10:30:00+01:00"))


def test_v2_2_persisted_at_is_a_time_in_utc(new: RunStateStoreV2, write: Write) -> None:
    result = new.append_event(write())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", result.persisted_at)
    assert datetime.fromisoformat(result.persisted_at).utcoffset() == timedelta(0)


# --- v2, section 3.1: write and record -------------------------------------------------------------------


def test_v2_3_1_an_append_takes_an_event_without_run_seq_and_persisted_at(new: RunStateStoreV2, write: Write) -> None:
    assert new.append_event(write()).persisted


@pytest.mark.parametrize(("member", "value"), [("runSeq", 1), ("persistedAt", "2026-11-15T09:30:00Z")])
def test_v2_3_1_a_write_that_claims_a_place_or_a_time_is_refused(member: str, value: Any, write: Write) -> None:
    with pytest.raises(InvalidEvent, match=member):
        ENGINE.parse(msgspec.json.encode(parse(members_json(write())) | {member: value}))


def test_v2_3_1_a_record_is_not_taken_for_a_write(
    new: RunStateStoreV2, store: EngineStore, record: Callable[..., RunEventRecord]
) -> None:
    with pytest.raises(InvalidEvent):
        new.append_event(record(7))
    assert store.log.streams() == []


def test_v2_3_1_the_answer_tells_what_was_assigned(new: RunStateStoreV2, write: Write) -> None:
    event = write()
    result = new.append_event(event)
    (found,) = new.fetch_events("r-1")
    assert result == AppendResultV2(event.event_id, 1, found.persisted_at, idempotent=False, persisted=True)


def test_v2_3_1_what_is_read_are_records_with_run_seq_and_persisted_at(new: RunStateStoreV2, write: Write) -> None:
    results = [new.append_event(event) for event in notes(write, 3)]
    found = new.fetch_events("r-1")
    assert all(type(event) is RunEventRecord for event in found)
    assert [(e.run_seq, e.persisted_at) for e in found] == [(r.run_seq, r.persisted_at) for r in results]


def test_v2_3_1_a_record_is_the_write_and_nothing_else_changed(new: RunStateStoreV2, write: Write) -> None:
    sent = write("StepFailed", "extract", 2, payload={"a": [1.5, None]}, extra={"traceId": "t"})
    new.append_event(sent)
    (found,) = new.fetch_events("r-1")
    assert all(getattr(found, name) == getattr(sent, name) for name in RunEventWrite.__struct_fields__)


# --- v2, section 3.2: collisions -------------------------------------------------------------------------


def collide(new: RunStateStoreV2, write: Write) -> tuple[AppendResultV2, AppendResultV2]:
    new.append_event(write("RunQueued"))
    first = new.append_event(write())
    new.append_event(write("RunPaused"))
    again = write(event_id="123e4567-e89b-42d3-a456-426614174000", emitted_at="2026-11-15T11:00:00Z")
    return first, new.append_event(again)


def test_v2_3_2_a_duplicate_key_returns_the_existing_event_id_seq_and_time(new: RunStateStoreV2, write: Write) -> None:
    first, again = collide(new, write)
    assert (again.event_id, again.run_seq, again.persisted_at) == (first.event_id, first.run_seq, first.persisted_at)


def test_v2_3_2_a_duplicate_key_is_idempotent_and_not_persisted(new: RunStateStoreV2, write: Write) -> None:
    first, again = collide(new, write)
    assert (first.idempotent, first.persisted, again.idempotent, again.persisted) == (False, True, True, False)


def test_v2_3_2_a_duplicate_key_inserts_no_row(new: RunStateStoreV2, write: Write) -> None:
    collide(new, write)
    assert [event.event_type for event in new.fetch_events("r-1")] == ["RunQueued", "RunStarted", "RunPaused"]


def test_v2_3_2_a_duplicate_key_with_other_content_is_answered_the_same(new: RunStateStoreV2, write: Write) -> None:
    first = new.append_event(write(payload={"a": 1}))
    again = new.append_event(write(payload={"a": 2}))
    assert again == AppendResultV2(first.event_id, 1, first.persisted_at, idempotent=True, persisted=False)
    assert new.fetch_events("r-1")[0].payload == {"a": 1}


# --- v2, section 3.3: attempts ---------------------------------------------------------------------------


@pytest.mark.parametrize("member", ["logicalAttemptId", "engineAttemptId"])
def test_v2_3_3_attempts_are_required(member: str, write: Write) -> None:
    members = parse(members_json(write()))
    del members[member]
    with pytest.raises(InvalidEvent, match=member):
        ENGINE.parse(msgspec.json.encode(members))


@pytest.mark.parametrize("member", ["logicalAttemptId", "engineAttemptId"])
@pytest.mark.parametrize("value", ["1", None, True, 1.5, [1]])
def test_v2_3_3_attempts_are_numbers(member: str, value: Any, write: Write) -> None:
    with pytest.raises(InvalidEvent, match=member):
        ENGINE.parse(msgspec.json.encode(parse(members_json(write())) | {member: value}))


@pytest.mark.parametrize(("attempt", "taken"), [(-1, False), (0, False), (1, True), (2, True)])
def test_v2_3_3_logical_attempts_start_at_1(attempt: int, taken: bool, write: Write) -> None:
    event = write(logical_attempt_id=attempt, idempotency_key="abc123")
    if taken:
        ENGINE.draft(event)
        return
    with pytest.raises(InvalidEvent, match="logicalAttemptId"):
        ENGINE.draft(event)


@pytest.mark.parametrize(("attempt", "taken"), [(-1, False), (0, False), (1, True), (2, True)])
def test_v2_3_3_engine_attempts_start_at_1(attempt: int, taken: bool, write: Write, v1: V1) -> None:
    for event in (write(engine_attempt_id=attempt), v1(engine_attempt_id=str(attempt))):
        if taken:
            ENGINE.draft(event)
            continue
        with pytest.raises(InvalidEvent, match="engineAttemptId"):
            ENGINE.draft(event)


def test_v2_3_3_a_producer_whose_runtime_has_no_attempts_says_1(store: EngineStore) -> None:
    run = store.run("r-1", tenant="acme", plan="nightly")
    run.started()
    run.step_started("extract")
    assert [event.engine_attempt_id for event in store.fetch_events("r-1")] == [1, 1]


# --- v2, section 3.4: times ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "emitted_at",
    [
        "2026-11-15T09:30:00Z",
        "2026-11-15T09:30:00.120000+00:00",
        "1999-12-31T23:59:59.999999999Z",
        "2026-11-15t09:30:00z",
        "2026-11-15t09:30:00.1Z",
        "2026-11-15T09:30:00-00:00",
    ],
)
def test_v2_3_4_emitted_at_is_kept_as_the_producer_wrote_it(
    new: RunStateStoreV2, write: Write, emitted_at: str
) -> None:
    new.append_event(write(emitted_at=emitted_at))
    assert new.fetch_events("r-1")[0].emitted_at == emitted_at


def test_v2_3_4_persisted_at_is_the_authoritys_time_of_commit(new: RunStateStoreV2, write: Write) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)  # It is written with milliseconds, cut off.
    result = new.append_event(write(emitted_at="1999-12-31T23:59:59Z"))
    assert before <= datetime.fromisoformat(result.persisted_at) <= datetime.now(UTC)


# --- v2, section 4: storage ------------------------------------------------------------------------------


def test_v2_4_run_and_sequence_are_a_unique_key(store: EngineStore, write: Write) -> None:
    store.append_events([*notes(write, 3), *notes(write, 3, "r-2"), *notes(write, 5)])
    places = [(record.stream, record.seq) for run in ("r-1", "r-2") for record in store.log.read(run)]
    assert len(places) == len(set(places)) == 8


def test_v2_4_run_and_idempotency_key_are_a_unique_key(store: EngineStore, write: Write) -> None:
    store.append_events([write(), write(), write(run="r-2", idempotency_key=write().idempotency_key), write()])
    keys = [(record.stream, record.key) for run in ("r-1", "r-2") for record in store.log.read(run)]
    assert len(keys) == len(set(keys)) == 2


def test_v2_4_a_persisted_row_is_immutable(store: EngineStore, write: Write) -> None:
    store.append_events(notes(write, 3))
    before = store.log.read("r-1")
    store.append_events([write("Note", attempt=2, payload={"other": 1}), write("RunStarted")])
    store.rebuild_snapshot("r-1")
    assert store.log.read("r-1", limit=3) == before


# --- the table of rules ----------------------------------------------------------------------------------

named_tests = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (root / "docs/contracts.md").read_text())))


@cache
def functions_in(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_the_tests_that_the_table_of_rules_names_exist() -> None:
    assert named_tests
    assert [f"{file}::{name}" for file, name in named_tests if name not in functions_in(root / file)] == []


def test_the_table_of_rules_names_every_test_of_a_rule() -> None:
    of_rules = {name for name in functions_in(Path(__file__)) if re.match(r"test_v[12]_", name)}
    assert of_rules - {name for _, name in named_tests} == set()


def test_the_table_of_rules_covers_every_section_that_lays_down_a_rule() -> None:
    v1 = ["1", "2.1", "2.2", "2.3", "3.2", "4", "4.1", "4.2", "5", "5.1", "5.2", "6"]
    v2 = ["2", "3.1", "3.2", "3.3", "3.4", "4"]
    sections = {*(f"v1 §{number}" for number in v1), *(f"v2 §{number}" for number in v2)}
    covered = set(re.findall(r"^\| (v[12] §[\d.]+) \|", (root / "docs/contracts.md").read_text(), re.MULTILINE))
    assert sections - covered == set()


def test_every_rule_that_needs_a_store_is_tested_on_sqlite_and_postgres() -> None:
    assert {"sqlite", "postgresql"} <= set(installed_schemes()) - take_no_events
    # `store`, `old` and `new` are over `log_url`, which is there once for each installed log.
    with_two_logs_alone = [
        name
        for name, function in globals().items()
        if re.match(r"test_v[12]_", name) and "open_store" in inspect.signature(function).parameters
    ]
    assert with_two_logs_alone == []


def test_every_rule_of_the_table_names_a_test() -> None:
    rows = re.findall(r"^\| v[12] §.*$", (root / "docs/contracts.md").read_text(), re.MULTILINE)
    assert [row for row in rows if "`tests/" not in row] == []
