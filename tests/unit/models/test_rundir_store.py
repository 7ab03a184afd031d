"""Runs in a store: the chain holds across appends, batches and threads, and a snapshot is what a replay gives."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

import runstate
from runstate.errors import InvalidEvent, SequenceConflict
from runstate.logs.registry import installed_schemes
from runstate.models.model import Alert
from runstate.models.rundir import RUNDIR, RunDirectory, RunEvent
from runstate.store import Store

RunStore = Store[RunEvent, RunEvent, RunDirectory]
Opener = Callable[..., RunStore]

serverless = ["memory", "ndjson", "sqlite"]
"""The logs that need nothing but this machine."""


@pytest.fixture(params=[scheme for scheme in serverless if scheme in installed_schemes()])
def open_runs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """`open_runs(**options)`: a store of runs over a new log; closed when the test ends."""
    url = "memory:" if request.param == "memory" else f"{request.param}:{tmp_path / 'log'}"
    with ExitStack() as opened:
        yield lambda **options: opened.enter_context(runstate.open(url, RUNDIR, **options))


def event(number: int, kind: str = "SITE_PUBLISHED", payload: Any = None, **fields: Any) -> RunEvent:
    members: dict[str, Any] = {"trace_id": "0" * 32, "span_id": "0" * 16, "payload": payload or {}}
    return RunEvent(event_id=f"e-{number}", run_id="r-1", type=kind, **members | fields)


def history() -> list[RunEvent]:
    """A run with three work items, each with an artifact; one of them fails."""
    kinds: list[tuple[str, Any]] = [("RUN_CREATED", {"parameters": {"é": 1e21}})]
    for name in ("z", "a", "über"):
        item = f"r-1:render:1:{name}"
        queued = {"work_item_id": item, "worker": "render", "attempt": 1, "scope_key": name, "outputs": [name]}
        status = "failed" if name == "a" else "finished"
        kinds += [("WORK_ITEM_QUEUED", queued), ("WORK_ITEM_STARTED", {"work_item_id": item})]
        kinds += [("ARTIFACT_WRITTEN", {"name": name, "path": name, "sha256": "ab" * 32})]
        kinds += [("WORK_ITEM_FINISHED", {"work_item_id": item, "status": status, "error": {"at": 1e20}})]
        kinds += [("ISSUE_OPENED", {"issue": {"issue_id": name, "severity": "warn", "message": "m"}})]
    kinds += [("RUN_COMPLETED", {"result": None})]
    return [event(number, kind, payload) for number, (kind, payload) in enumerate(kinds)]


def lines_of(store: RunStore) -> list[Any]:
    return [json.loads(line) for line in store.log.lines("r-1")]


def is_chained(events: list[Any]) -> bool:
    """Whether every link fits, by the formula and nothing of ours. For payloads whose numbers have one form."""
    previous = ""
    for found in events:
        payload = json.dumps(found["payload"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        text = found["event_id"] + found["ts"] + found["type"] + payload + previous
        if (found["prev_hash"], found["event_hash"]) != (previous, hashlib.sha256(text.encode()).hexdigest()):
            return False
        previous = found["event_hash"]
    return True


def kept_and_replayed(store: RunStore) -> tuple[bytes, bytes]:
    kept = store.log.load_snapshot("r-1", "rundir")
    assert kept is not None
    return kept.body, store.fresh_snapshot("r-1").body


def test_what_is_appended_is_read_back_with_its_time_and_hashes(open_runs: Opener) -> None:
    store = open_runs()
    done = store.append_event(event(1, payload={"a": 1}))
    (stored,) = store.fetch_events("r-1")
    assert (stored.event_id, stored.payload, stored.ts, stored.prev_hash) == ("e-1", {"a": 1}, done.persisted_at, "")


def test_a_time_that_a_producer_gives_is_kept(open_runs: Opener) -> None:
    store = open_runs()
    store.append_event(event(1, ts="2020-01-01T00:00:00+01:00"))
    assert store.fetch_events("r-1")[0].ts == "2020-01-01T00:00:00+01:00"


def test_the_chain_continues_across_appends(open_runs: Opener) -> None:
    store = open_runs()
    for number in range(5):
        store.append_event(event(number, payload={"b": number, "a": "é"}))
    assert (is_chained(lines_of(store)), len(lines_of(store))) == (True, 5)


def test_the_chain_continues_within_and_across_batches(open_runs: Opener) -> None:
    store = open_runs()
    store.append_events([event(number) for number in range(4)])
    store.append_events([event(number) for number in range(2, 9)])
    assert (is_chained(lines_of(store)), len(lines_of(store))) == (True, 9)


def test_the_chain_continues_across_threads(open_runs: Opener) -> None:
    store = open_runs(snapshot_every=0)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.append_event(event(number)), range(64)))
    found = lines_of(store)
    assert (is_chained(found), {line["event_id"] for line in found}) == (True, {f"e-{n}" for n in range(64)})


def test_each_run_has_a_chain_of_its_own(open_runs: Opener) -> None:
    store = open_runs()
    store.append_events([event(1), other_run(event(2)), event(3)])
    assert is_chained(lines_of(store))
    assert store.fetch_events("r-2")[0].prev_hash == ""


def other_run(of: RunEvent) -> RunEvent:
    return msgspec.structs.replace(of, run_id="r-2")


def test_a_retry_is_answered_with_the_first_result(open_runs: Opener) -> None:
    store = open_runs()
    first = store.append_event(event(1))
    store.append_event(event(2))
    again = store.append_event(event(1))
    assert (again.seq, again.persisted_at, again.idempotent, again.persisted) == (1, first.persisted_at, True, False)
    assert len(lines_of(store)) == 2


def test_a_retry_after_a_retry_leaves_the_chain_whole(open_runs: Opener) -> None:
    store = open_runs()
    for number in (1, 1, 2, 1, 3, 2):
        store.append_event(event(number))
    assert (is_chained(lines_of(store)), len(lines_of(store))) == (True, 3)


def test_a_retry_of_a_whole_history_changes_no_byte(open_runs: Opener) -> None:
    store = open_runs()
    store.append_events(history())
    before = list(store.log.lines("r-1")), kept_and_replayed(store)
    store.append_events(history())
    assert (list(store.log.lines("r-1")), kept_and_replayed(store)) == before


def test_other_content_under_a_known_id_raises_an_alert_and_stores_nothing(open_runs: Opener) -> None:
    raised: list[Alert] = []
    store = open_runs(on_alert=raised.append)
    store.append_event(event(1, payload={"a": 1}))
    assert store.append_event(event(1, payload={"a": 2})).mismatch
    assert [(alert.code, alert.subject, alert.event_id) for alert in raised] == [
        ("IDEMPOTENCY_CONTENT_MISMATCH", "r-1", "e-1")
    ]
    assert [stored.payload for stored in store.fetch_events("r-1")] == [{"a": 1}]


def test_a_retry_that_is_stamped_anew_raises_no_alert(open_runs: Opener) -> None:
    raised: list[Alert] = []
    store = open_runs(on_alert=raised.append)
    store.append_event(event(1, payload={"a": 1}))
    assert not store.append_event(event(1, payload={"a": 1.0}, ts="2020-01-01T00:00:00Z")).mismatch
    assert raised == []


def test_a_conflict_leaves_the_chain_whole(open_runs: Opener) -> None:
    store = open_runs()
    store.append_event(event(1))
    with pytest.raises(SequenceConflict):
        store.append_event(event(2), expected_seq=7)
    store.append_event(event(3), expected_seq=1)
    assert is_chained(lines_of(store))


@pytest.mark.parametrize("every", [1, 3])
def test_the_snapshot_is_byte_for_byte_what_a_replay_gives(every: int, open_runs: Opener) -> None:
    store = open_runs(snapshot_every=every)
    for found in history()[:15]:
        store.append_event(found)
    kept, replayed = kept_and_replayed(store)
    assert kept == replayed


def test_the_snapshot_after_every_event_is_what_a_replay_gives(open_runs: Opener) -> None:
    store = open_runs(snapshot_every=1)
    for found in history():
        store.append_event(found)
        kept, replayed = kept_and_replayed(store)
        assert kept == replayed


def test_the_state_of_a_run_is_what_its_history_says(open_runs: Opener) -> None:
    store = open_runs()
    store.append_events(history())
    state = store.current_state("r-1")
    assert (state.run_state, [item.status for item in state.work_items]) == (
        "COMPLETED",
        ["finished", "failed", "finished"],
    )
    assert [issue.issue_id for issue in state.issues] == ["a", "z", "über"]


def test_the_state_of_an_earlier_place_can_be_seen(open_runs: Opener) -> None:
    store = open_runs()
    store.append_events(history())
    assert [item.status for item in store.snapshot_at("r-1", seq=3).work_items] == ["running"]


def test_a_malformed_event_is_refused_and_nothing_is_written(open_runs: Opener) -> None:
    store = open_runs()
    with pytest.raises(InvalidEvent):
        store.append_events([event(1), event(2, "WORK_ITEM_STARTED")])
    assert lines_of(store) == []


def spoil(store: RunStore) -> None:
    """Put a line there that no append lets through: an item is started that has no name."""
    stream, draft = RUNDIR.draft(event(2, "WORK_ITEM_STARTED", {"work_item_id": "w"}))
    tail = draft.tail.replace(b'{"work_item_id":"w"}', b"{}")
    store.log.append(stream, [msgspec.structs.replace(draft, tail=tail, payload="{}")])


def test_a_malformed_line_in_the_log_fails_the_replay(open_runs: Opener) -> None:
    store = open_runs()
    store.append_event(event(1, "RUN_CREATED"))
    spoil(store)
    with pytest.raises(InvalidEvent, match="WORK_ITEM_STARTED"):
        store.rebuild_snapshot("r-1")


def test_a_malformed_line_in_the_log_never_fails_an_append(open_runs: Opener) -> None:
    raised: list[Alert] = []
    store = open_runs(on_alert=raised.append)
    store.append_event(event(1, "RUN_CREATED"))
    spoil(store)
    assert store.append_event(event(3)).persisted
    assert [alert.code for alert in raised] == ["SNAPSHOT_FAILED"]
