"""What the driver of the live projection does with what tasks have sent: never twice, never for what is gone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.pipeline.live_drivers import append, event, place

from runstate.errors import LogBusy, LogNotFound
from runstate.logbook import Logbook
from runstate.logs.log import Position
from runstate.models.engine import ENGINE
from runstate.models.model import Alert
from runstate.pipeline.live.feed_reader import Part, Place, open_feed, read_part
from runstate.pipeline.live.fold import Folded, Gathering, Progress, Target, _folded, received, schema
from runstate.pipeline.live.followed_log import KeptLog
from runstate.pipeline.live.parquet_sink import ParquetSink, read_version
from runstate.pipeline.source.rows import pack
from runstate.sinks import Projected
from runstate.store import Store
from runstate.store import open as open_store

beginning = Place()


class Batches:
    """A log whose batches are folded and kept step by step, so that a test can step in between."""

    def __init__(self, directory: Path) -> None:
        self.url, self.table = f"sqlite:{directory}/fleet.db", directory / "table"
        self.store: Store[Any, Any, Any] = open_store(self.url, "engine", snapshot_every=0)
        (directory / "state").mkdir()
        self.book, self.target = (
            Logbook(directory / "state"),
            Target(f"parquet:{self.table}", "engine", str(directory / "state")),
        )
        self.told: list[Projected] = []
        self.kept = self.restarted()

    def restarted(self) -> KeptLog:
        return KeptLog(self.url, self.store, self.book, self.target, self.told.append)

    def folded(self, after: Place = beginning) -> Folded:
        page = self.store.log.feed(after=after.position, limit=1000)
        part = Part(self.url, after, Place(page.next, after.events + len(page.records)))
        return self.folded_part(part)

    def folded_part(self, part: Part) -> Folded:
        import pyarrow as pa

        with open_feed(self.url) as log:
            found = read_part(log, part)
            rows = list(pack(schema, _folded(log, part, found.records, found.vanished, self.target)))
        return received(pa.Table.from_batches(rows))[self.url]

    def rows(self) -> dict[str, int]:
        table = read_version(self.table)
        return dict(zip(table["stream"].to_pylist(), table["last_event_seq"].to_pylist(), strict=True))


@pytest.fixture
def batches(tmp_path: Path) -> Iterator[Batches]:
    made = Batches(tmp_path)
    yield made
    made.store.close()
    made.book.close()


def test_a_batch_that_is_kept_twice_counts_once_and_tells_once(batches: Batches) -> None:
    append(batches.url, event("r-1", 1, "RunResumed"), event("r-2", 1))
    folded = batches.folded()
    assert [batches.kept.keep(folded), batches.kept.keep(folded)] == [2, 0]
    assert [batches.restarted().keep(folded), batches.kept.entry.events] == [0, 2]
    assert [alert.code for alert in batches.book.alerts()] == ["INVALID_TRANSITION"]
    assert batches.rows() == {"r-1": 1, "r-2": 1}


def test_a_stream_that_is_deleted_while_its_events_are_under_way_is_dropped_and_told(
    batches: Batches, caplog: pytest.LogCaptureFixture
) -> None:
    append(batches.url, event("r-1", 1), event("r-2", 1))
    batches.kept.keep(batches.folded())
    append(batches.url, event("r-1", 2), event("r-2", 2))
    folded = batches.folded(Place(batches.kept.entry.position, 2))
    batches.store.log.delete_stream("r-1")
    batches.kept.keep(folded)
    assert batches.rows() == {"r-2": 2}
    assert "r-1 was deleted, and is dropped" in caplog.text


def test_a_row_of_the_stream_that_was_there_before_does_not_take_the_place_of_the_new_one(batches: Batches) -> None:
    append(batches.url, *(event("r-1", number) for number in range(1, 6)))
    old = batches.folded()
    batches.store.log.delete_stream("r-1")
    append(batches.url, event("r-1", 9))
    batches.kept.keep(batches.folded(Place(old.progress[0].until, 5)))
    batches.kept.keep(old)
    assert batches.rows() == {"r-1": 1}


def test_events_that_are_gone_before_they_are_read_are_told(batches: Batches, caplog: pytest.LogCaptureFixture) -> None:
    append(batches.url, event("r-1", 1), event("r-1", 2), event("r-2", 1))
    part = Part(batches.url, Place(), Place(batches.store.log.feed(limit=10).next, 3))
    batches.store.log.delete_stream("r-1")
    batches.kept.keep(batches.folded_part(part))
    assert "2 events are gone before they were read" in caplog.text
    assert batches.rows() == {"r-2": 1}


def test_what_is_stale_is_swept_though_nothing_comes_and_after_a_restart_too(batches: Batches) -> None:
    append(batches.url, event("r-1", 1), event("r-2", 1))
    batches.kept.keep(batches.folded())
    row = ParquetSink(batches.table, batches.store.model).load("r-1")
    assert row is not None
    # A feed has shown the third event, and the log did not give it yet.
    stale = msgspec.structs.replace(row, observed=3, stale=True)
    batches.kept.keep(Folded(rows=[stale], progress=[Progress(Position("2"))]))
    assert (batches.kept.entry.stale, batches.kept.stale) == (0, {"r-1"})
    batches.kept.sweep()
    assert (batches.kept.entry.stale, read_version(batches.table)["stale"].to_pylist()) == (1, [True, False])
    again = batches.restarted()
    place(batches.url, 3, event("r-1", 3))
    again.sweep()
    assert (again.entry.stale, again.stale, batches.rows()) == (0, set(), {"r-1": 3, "r-2": 1})


def test_a_stale_stream_that_is_deleted_is_dropped_by_the_sweep(batches: Batches) -> None:
    append(batches.url, event("r-1", 1), event("r-2", 1))
    batches.kept.keep(batches.folded())
    batches.kept.stale = {"r-1"}
    row = ParquetSink(batches.table, batches.store.model).load("r-1")
    assert row is not None
    ParquetSink(batches.table, batches.store.model).keep([msgspec.structs.replace(row, stale=True, observed=3)])
    batches.store.log.delete_stream("r-1")
    batches.kept.sweep()
    assert (batches.rows(), batches.kept.stale) == ({"r-2": 1}, set())


def test_a_heartbeat_measures_the_lag_of_a_projection_that_is_stuck(
    batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(batches.url, event("r-1", 1))
    monkeypatch.setattr("runstate.projector.Projector._age_s", lambda self, record: 7.0)
    batches.kept.beat()
    assert batches.kept.entry.lag_s == 7.0
    assert [alert.code for alert in batches.book.alerts(open_only=True)] == ["PROJECTOR_LAG_HIGH"]
    batches.kept.keep(batches.folded())
    batches.kept.beat()
    assert (batches.kept.entry.lag_s, batches.kept.is_caught_up) == (0.0, True)
    assert batches.book.alerts(open_only=True) == []


def test_a_log_that_does_not_answer_for_a_while_is_told_once(
    batches: Batches, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(batches.store.log, "feed", _busy)
        for _ in range(3):
            batches.kept.beat()
        assert batches.kept.entry.lag_s > 0
    batches.kept.beat()
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 2
    assert "trying again until it is back" in told[0]
    assert "back after" in told[1]


def _busy(**_: object) -> None:
    raise LogBusy("somebody has it")


def test_a_log_that_is_gone_is_noticed_though_it_is_open(batches: Batches, tmp_path: Path) -> None:
    (tmp_path / "fleet.db").rename(tmp_path / "away.db")
    with pytest.raises(LogNotFound):
        batches.kept.beat()


def test_the_console_is_told_of_each_row_once(tmp_path: Path) -> None:
    batches = Batches(tmp_path)
    batches.target = msgspec.structs.replace(batches.target, to="console")
    with closing(batches.store), closing(batches.book):
        kept = batches.restarted()
        append(batches.url, event("r-1", 1))
        folded = batches.folded()
        kept.keep(folded)
        kept.keep(folded)
        batches.restarted().keep(folded)
        append(batches.url, event("r-1", 2))
        kept.keep(batches.folded(Place(kept.entry.position, 1)))
    assert [(row.stream, row.last_event_seq) for row in batches.told] == [("r-1", 1), ("r-1", 2)]


def test_what_is_gathered_is_seen_by_whoever_gathers(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path, ENGINE)
    row = Projected(
        stream="r-1",
        model="engine",
        version=1,
        last_event_seq=1,
        applied=1,
        observed=1,
        born="b",
        status="",
        body=b"{}",
    )
    sink.keep([row])
    gathering = Gathering(sink)
    gathering.expect(["r-1", "r-2"])
    newer = msgspec.structs.replace(row, last_event_seq=2)
    assert gathering.load("r-1") == row
    gathering.keep([newer])
    assert gathering.load("r-1") == newer
    gathering.drop("r-1")
    assert (gathering.load("r-1"), gathering.load("r-2"), list(gathering.dropped)) == (None, None, ["r-1"])
    assert sink.load("r-1") == row


def test_what_tasks_send_arrives_as_it_was(batches: Batches) -> None:
    append(batches.url, event("r-1", 1, "RunResumed"))
    folded = batches.folded()
    (row,) = folded.rows
    assert (row.stream, row.last_event_seq, row.stale) == ("r-1", 1, False)
    assert (row.model, row.version) == ("engine", ENGINE.version)
    assert row.body == batches.store.fresh_snapshot("r-1").body
    (alert,) = folded.alerts
    assert isinstance(alert, Alert)
    assert (alert.code, alert.details["runSeq"]) == ("INVALID_TRANSITION", 1)
    assert [(each.events, each.until) for each in folded.progress] == [(1, Position("1"))]
