"""The feed of logs as a stream of Spark: where it is, how much comes at once, and what it refuses."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.fleets import histories
from tests.log_urls import durable_schemes
from tests.pipeline.fleet_logs import filled

from runstate.errors import InvalidPosition, LogNotFound, Unsupported
from runstate.logs.log import FeedPage, Position
from runstate.logs.memory import MemoryLog
from runstate.logs.registry import open_log
from runstate.models.engine import ENGINE
from runstate.models.model import stable_uuid
from runstate.pipeline.live.feed_reader import FeedReader, Offset, Part, Place, open_feed, read_part
from runstate.pipeline.source.data_source import RunstateSource, register
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.source.rows import event_schema
from runstate.pipeline.spark.failures import explain
from runstate.store import open as open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


without_feed = {"ndjson", "segments", "wal"}


def reader(*urls: str, events_per_batch: int = 10_000, tasks: int = 4) -> FeedReader:
    return FeedReader(urls, event_schema, events_per_batch=events_per_batch, tasks=tasks)


def batches(made: FeedReader, start: Offset | None = None) -> list[Offset]:
    """The offsets of all batches up to the end, with the first one's beginning before them."""
    found = [made.initialOffset() if start is None else start]
    while (end := made.latestOffset(found[-1], made.getDefaultReadLimit())) != found[-1]:
        found.append(end)
    return found


def events(made: FeedReader, offsets: list[Offset]) -> list[tuple[str, int]]:
    read = []
    for start, end in pairwise(offsets):
        for partition in made.partitions(start, end):
            for batch in made.read(partition):
                read += list(zip(batch["stream"].to_pylist(), batch["seq"].to_pylist(), strict=True))
    return read


def all_events(url: str) -> list[tuple[str, int]]:
    with open_log(url) as log:
        return [(record.stream, record.seq) for record in log.feed(limit=100_000).records]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return filled("sqlite", "engine", tmp_path, runs=12)


# --- offsets and parts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("events_per_batch", [1, 7, 50, 10_000])
def test_every_event_comes_once_whatever_the_limit(url: str, events_per_batch: int) -> None:
    made = reader(url, events_per_batch=events_per_batch)
    offsets = batches(made)
    assert events(made, offsets) == all_events(url)
    counts = [offset[url]["events"] for offset in offsets]
    assert max(after - before for before, after in pairwise(counts)) <= events_per_batch


@pytest.mark.parametrize("scheme", [scheme for scheme in durable_schemes() if scheme not in without_feed])
def test_every_log_with_a_feed_can_be_followed(scheme: str, tmp_path: Path) -> None:
    url = filled(scheme, "engine", tmp_path, runs=4)
    made = reader(url, events_per_batch=20)
    offsets = batches(made)
    assert events(made, offsets) == all_events(url)
    assert len(offsets) > 2


def test_the_limit_is_shared_fairly_and_what_one_leaves_is_for_the_others(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    few, many = filled("sqlite", "engine", tmp_path / "a", runs=1), filled("sqlite", "engine", tmp_path, runs=12)
    made = reader(few, many, events_per_batch=30)
    first = made.latestOffset(made.initialOffset(), made.getDefaultReadLimit())
    count = len(all_events(few))
    assert count < 15
    assert (first[few]["events"], first[many]["events"]) == (count, 30 - count)
    assert sorted(events(made, batches(made))) == sorted(all_events(few) + all_events(many))


def test_a_batch_without_a_limit_is_all_there_is(url: str) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    made = reader(url, events_per_batch=3)
    offset = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    assert offset[url]["events"] == len(all_events(url))


def test_a_large_batch_is_divided_among_tasks_by_stream(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runstate.pipeline.live.feed_reader.part_events_min", 20)
    made = reader(url, tasks=3)
    start, end = batches(made)
    parts = made.partitions(start, end)
    streams = [{s for batch in made.read(part) for s in batch["stream"].to_pylist()} for part in parts]
    assert len(parts) == 3
    assert sum(map(len, streams)) == len(set().union(*streams)) == 12
    assert sorted(events(made, [start, end])) == sorted(all_events(url))
    assert len(reader(url, tasks=1).partitions(start, end)) == 1


def test_a_batch_without_events_has_no_tasks(url: str) -> None:
    made = reader(url)
    end = batches(made)[-1]
    assert made.partitions(end, end) == []


def test_with_available_now_a_log_that_was_read_to_its_end_is_done_with(url: str) -> None:
    made = reader(url, events_per_batch=50)
    made.prepareForTriggerAvailableNow()
    end = batches(made)[-1]
    with open_store(url, on_alert=lambda alert: None) as store:
        for lines in histories("engine", 5, 2).values():
            store.append_events([store.model.parse(line) for line in lines])
    assert made.latestOffset(end, made.getDefaultReadLimit()) == end
    assert len(events(reader(url), batches(reader(url), end))) > 0


# --- streams that are deleted ----------------------------------------------------------------------------


class Deleting(MemoryLog):
    """Deletes a stream right after the n-th look at the feed, and appends to another."""

    def __init__(self, looks: int, stream: str) -> None:
        super().__init__()
        self.looks, self.stream_to_go, self.is_armed = looks, stream, False

    def feed(self, *, after: Position | None = None, limit: int = 1000) -> FeedPage:
        if self.is_armed:
            self.looks -= 1
            if self.looks == 0:
                self.delete_stream(self.stream_to_go)
                note(self, "late", 1)
        return super().feed(after=after, limit=limit)


def note(log: MemoryLog, stream: str, count: int) -> None:
    for _ in range(count):
        number = len(log.read(stream)) + 1
        line = {
            "runId": stream,
            "eventId": stable_uuid(stream, str(number)),
            "eventType": "Note",
            "eventData": {},
            "idempotencyKey": str(number),
            "emittedAt": "2026-11-15T12:00:00.000Z",
        }
        log.append(stream, [ENGINE.draft(ENGINE.parse(msgspec.json.encode(line)))[1]])


@pytest.mark.parametrize("looks", range(1, 9))
@pytest.mark.parametrize("gone", ["a", "b", "c"])
def test_a_batch_has_exactly_its_events_though_streams_are_deleted_while_it_is_read(
    looks: int, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runstate.pipeline.live.feed_reader._page", 3)
    log = Deleting(looks, gone)
    for stream in "abcabcabcabc":
        note(log, stream, 1)
    until = log.feed(limit=8).next
    assert until is not None
    log.is_armed = True
    found = read_part(log, Part("memory:", Place(), Place(until, 8)))
    places = {(record.stream, record.seq) for record in found.records}
    expected = {(stream, seq) for stream, seq in zip("abcabcab", [1, 1, 1, 2, 2, 2, 3, 3], strict=True)}
    rest = {(record.stream, record.seq) for record in log.feed(after=until, limit=100).records}
    assert {place for place in places if place[0] != gone} == {place for place in expected if place[0] != gone}
    assert not places & rest
    assert len(places) == len(found.records)


def test_events_that_are_gone_are_counted() -> None:
    log = Deleting(0, "")
    for stream in "abcabc":
        note(log, stream, 1)
    page = log.feed(limit=6)
    log.delete_stream("b")
    note(log, "c", 3)
    found = read_part(log, Part("memory:", Place(), Place(page.next, 6)))
    assert ([record.stream for record in found.records], found.vanished) == (["a", "c", "a", "c"], 2)


def test_a_stream_that_is_begun_again_does_not_end_the_batch_of_the_first_one() -> None:
    log = Deleting(0, "")
    for stream in "abc":
        note(log, stream, 1)
    page = log.feed(limit=3)
    log.delete_stream("a")
    note(log, "a", 1)
    found = read_part(log, Part("memory:", Place(), Place(page.next, 3)))
    assert [record.stream for record in found.records] == ["b", "c"]


# --- what is refused -------------------------------------------------------------------------------------


def test_a_checkpoint_of_other_logs_is_refused_with_both_names(url: str, tmp_path: Path) -> None:
    offset = reader(url).initialOffset()
    other = reader(f"sqlite:{tmp_path}/other.db")
    with pytest.raises(InvalidPosition, match=r"that of sqlite:.*sqlite-engine, and not of sqlite:.*other\.db"):
        other.latestOffset(offset, other.getDefaultReadLimit())
    with pytest.raises(InvalidPosition, match="give this query a checkpoint of its own"):
        other.partitions(offset, offset)


def test_a_position_that_the_log_does_not_know_is_refused_with_what_to_do(url: str) -> None:
    made = reader(url)
    offset = {url: {"position": "999999", "events": 999999}}
    with pytest.raises(InvalidPosition, match=r"read up to '999999', but .* Begin again with a checkpoint of its own"):
        made.latestOffset(offset, made.getDefaultReadLimit())


@pytest.mark.parametrize(
    ("url", "told"),
    [("ndjson:{}", "offers no feed"), ("memory:", "memory of one process"), ("table:{}", "A table has no feed")],
)
def test_a_log_that_cannot_be_followed_is_refused(url: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=told):
        open_feed(url.format(tmp_path))


def test_a_log_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(LogNotFound):
        reader(f"sqlite:{tmp_path}/none.db").initialOffset()
    assert not (tmp_path / "none.db").exists()


def test_urls_that_differ_in_their_secrets_alone_are_refused() -> None:
    with pytest.raises(InvalidOption, match="look alike"):
        reader("postgresql://u:one@h/db", "postgresql://u:two@h/db")


def test_a_password_does_not_get_into_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runstate.pipeline.live.feed_reader.open_feed", lambda url: MemoryLog())
    assert list(reader("postgresql://u:geheim@h/db").initialOffset()) == ["postgresql://u@h/db"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"view": "snapshots"}, "A stream gives the view 'events'"),
        ({"damage": "report"}, "A stream gives the view 'events'"),
        ({"events_per_batch": "0"}, "events_per_batch is a number from 1"),
        ({"events_per_batch": "many"}, "events_per_batch is a number from 1"),
        ({"events_per_batch": "1", "url": '["sqlite:a","sqlite:b"]'}, "at least one for each of the 2 logs"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, str], told: str) -> None:
    source = RunstateSource({"url": "sqlite:x", **options})
    with pytest.raises(InvalidOption, match=told):
        source.streamReader(source.schema())


def test_a_query_that_ends_has_no_batches() -> None:
    source = RunstateSource({"url": "sqlite:x", "events_per_batch": "10"})
    with pytest.raises(InvalidOption, match=r"is for spark\.readStream"):
        source.reader(source.schema())


# --- on Spark --------------------------------------------------------------------------------------------


class Taken:
    """Gathers the rows of all batches of a query."""

    def __init__(self, spark: SparkSession, checkpoint: Path) -> None:
        register(spark)
        self._spark, self._checkpoint = spark, checkpoint
        self.batches: list[list[Any]] = []

    def run(self, *urls: str, **options: str) -> StreamingQuery:
        source = self._spark.readStream.format("runstate").option("url", msgspec.json.encode(urls).decode())
        writer = source.options(**options).load().writeStream.foreachBatch(self._take)
        query = writer.option("checkpointLocation", str(self._checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination(120)
        return query

    def _take(self, frame: DataFrame, batch: int) -> None:
        self.batches.append(frame.collect())


def test_a_query_reads_all_of_several_logs_in_batches_and_goes_on_from_its_checkpoint(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = filled("sqlite", "engine", tmp_path / "other", seed=3, runs=4)
    taken = Taken(spark, tmp_path / "checkpoint")
    taken.run(url, other, events_per_batch="90")
    assert max(map(len, taken.batches)) <= 90
    assert len(taken.batches) > 1
    found = sorted((row["stream"], row["seq"]) for batch in taken.batches for row in batch)
    assert found == sorted(all_events(url) + all_events(other))
    with open_log(url) as log:
        record = log.feed(limit=1).records[0]
    (first,) = (row for row in taken.batches[0] if row["event_id"] == record.event_id)
    assert (*tuple(first)[:-1], first["body"].encode()) == msgspec.structs.astuple(record)
    taken.batches.clear()
    with open_store(other, on_alert=lambda alert: None) as store:
        (lines,) = histories("engine", 9, 1).values()
        store.append_events([store.model.parse(line) for line in lines])
    taken.run(url, other, events_per_batch="90")
    assert [row["stream"] for batch in taken.batches for row in batch] == ["engine-9-0000"] * len(lines)


def test_a_query_with_the_checkpoint_of_another_log_ends_with_a_clear_error(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    taken = Taken(spark, tmp_path / "checkpoint")
    taken.run(url)
    (tmp_path / "other").mkdir()
    other = filled("sqlite", "engine", tmp_path / "other", runs=1)
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException) as failed:
        taken.run(other)
    cause = explain(failed.value)
    assert isinstance(cause, InvalidPosition)
    assert url in str(cause)
    assert other in str(cause)
