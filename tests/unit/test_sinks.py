"""Sinks: the newest row of every stream, never taken back, and a way to project a new version aside."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import runstate
from runstate.contracts import EngineStore
from runstate.errors import LogFailed
from runstate.logs.log import StoredSnapshot
from runstate.logs.saving import together_max
from runstate.models.canonical import digest
from runstate.models.engine import ENGINE, RunEventWrite
from runstate.sinks import Projected, StoreSink, TellingSink

Open = Callable[..., EngineStore]
Write = Callable[..., RunEventWrite]


@pytest.fixture
def store(write: Write) -> EngineStore:
    made = runstate.open("memory:", snapshot_every=0)
    made.append_events([write("Note", attempt=n) for n in range(1, 6)])
    return made


def row(
    seq: int, *, applied: int | None = None, version: int = ENGINE.version, stale: bool = False, body: bytes = b""
) -> Projected:
    return Projected(
        stream="r-1",
        model="engine",
        version=version,
        last_event_seq=seq,
        applied=seq if applied is None else applied,
        observed=seq,
        born="",
        status="RUNNING",
        stale=stale,
        projected_at="2026-11-15T12:00:01.000Z",
        body=body or b'{"seq":%d}' % seq,
    )


def test_a_row_comes_back_as_it_was_kept(store: EngineStore) -> None:
    sink = StoreSink(store.log, "engine")
    assert sink.load("r-1") is None
    sink.keep([row(3, applied=2, stale=True)])
    assert sink.load("r-1") == row(3, applied=2, stale=True)


def test_its_state_is_where_readers_of_the_store_look(store: EngineStore) -> None:
    StoreSink(store.log, "engine").keep([row(3)])
    found = store.snapshots.stored("r-1")
    assert found is not None
    assert (found.seq, found.body, found.digest) == (3, row(3).body, digest(row(3).body))


def test_an_older_row_is_passed_over(store: EngineStore) -> None:
    sink = StoreSink(store.log, "engine")
    sink.keep([row(3)])
    sink.keep([row(2)])
    assert sink.load("r-1") == row(3)


def test_a_row_that_knows_more_of_the_same_end_takes_its_place(store: EngineStore) -> None:
    sink = StoreSink(store.log, "engine")
    sink.keep([row(3, applied=2, stale=True)])
    sink.keep([row(3, applied=3, body=b"{}")])
    assert sink.load("r-1") == row(3, applied=3, body=b"{}")


def test_a_changed_state_is_not_projected_on(tmp_path: Path, write: Write) -> None:
    with runstate.open(f"sqlite:{tmp_path / 'runs.db'}", snapshot_every=0) as store:
        store.append_events([write("Note", attempt=n) for n in range(1, 6)])
        sink = StoreSink(store.log, "engine")
        sink.keep([row(3)])
        with sqlite3.connect(tmp_path / "runs.db") as connection:
            connection.execute("UPDATE snapshots SET body = CAST('{\"seq\":4}' AS BLOB) WHERE model = 'engine'")
        connection.close()
        assert sink.load("r-1") is None


def test_a_row_of_an_earlier_stream_of_that_id_is_passed_over(store: EngineStore) -> None:
    sink = StoreSink(store.log, "engine")
    sink.keep([msgspec.structs.replace(row(3), born="2001-01-01T00:00:00.000Z")])
    assert sink.load("r-1") is None


def test_a_row_of_a_stream_that_is_gone_is_passed_over(store: EngineStore) -> None:
    sink = StoreSink(store.log, "engine")
    store.delete_stream("r-1")
    sink.keep([row(3)])
    assert sink.load("r-1") is None


def test_rows_of_a_log_with_transactions_are_kept_all_or_none(tmp_path: Path, write: Write) -> None:
    with runstate.open(f"sqlite:{tmp_path}/fleet.db", snapshot_every=0) as opened:
        opened.append_events([write("Note", run=run) for run in ("r-1", "r-2")])
        sink = StoreSink(opened.log, "engine")
        # No number that SQLite can hold.
        impossible = msgspec.structs.replace(row(2**70), stream="r-2")
        with pytest.raises(LogFailed):
            sink.keep([row(1), impossible])
        assert sink.load("r-1") is None
        sink.keep([row(1)])
        assert sink.load("r-1") == row(1)


def test_more_rows_than_share_a_transaction_are_all_kept(tmp_path: Path, write: Write) -> None:
    runs = [f"r-{number}" for number in range(together_max)]
    with runstate.open(f"sqlite:{tmp_path}/fleet.db", snapshot_every=0) as opened:
        opened.append_events([write("Note", run=run) for run in runs])
        sink = StoreSink(opened.log, "engine")
        kept = [msgspec.structs.replace(row(1), stream=run) for run in runs]
        sink.keep(kept)
        assert [sink.load(run) for run in runs] == kept


def test_a_state_that_somebody_else_has_kept_counts_no_events(store: EngineStore) -> None:
    store.log.save_snapshot("r-1", StoredSnapshot("engine", 1, 4, digest(b"{}"), b"{}"))
    found = StoreSink(store.log, "engine").load("r-1")
    assert found is not None
    assert (found.last_event_seq, found.applied, found.observed, found.stale, found.body) == (4, 0, 4, False, b"{}")


def test_what_is_known_of_another_state_is_not_believed(store: EngineStore) -> None:
    sink = StoreSink(store.log, "engine")
    sink.keep([row(3)])
    store.log.save_snapshot("r-1", StoredSnapshot("engine", 1, 5, digest(b"{}"), b"{}"))
    found = sink.load("r-1")
    assert found is not None
    assert (found.last_event_seq, found.applied) == (5, 0)


def test_readers_do_not_see_what_is_aside_until_it_is_switched_to(store: EngineStore) -> None:
    seen, aside = StoreSink(store.log, "engine"), StoreSink(store.log, "engine", aside="v2")
    seen.keep([row(5)])
    aside.keep([row(2, version=ENGINE.version + 1)])
    assert seen.load("r-1") == row(5)
    assert aside.load("r-1") == row(2, version=ENGINE.version + 1)
    aside.keep([row(4, version=ENGINE.version + 1)])
    aside.switch()
    # Another version's state takes its place, also one that is not as far: nothing else could read it.
    assert seen.load("r-1") == row(4, version=ENGINE.version + 1)
    aside.keep([row(5, version=ENGINE.version + 1)])
    assert seen.load("r-1") == row(5, version=ENGINE.version + 1)


def test_every_new_row_is_told_and_no_old_one() -> None:
    told: list[Projected] = []
    sink = TellingSink(told.append)
    sink.keep([row(2), row(3)])
    sink.keep([row(1)])
    assert [each.last_event_seq for each in told] == [2, 3]
    assert sink.load("r-1") == row(3)
    again = msgspec.structs.replace(row(1), born="2026-11-16T12:00:00.000Z")
    sink.keep([again])
    assert sink.load("r-1") == again
    sink.drop("r-1")
    assert sink.load("r-1") is None
