"""Streams that are deleted or begun while a job is at work are no reason to fail it; those that a task misses are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.pipeline.fleet_logs import filled
from tests.tables import new_table

from runstate.logs.registry import open_log
from runstate.pipeline.audit.job import audit, summary
from runstate.pipeline.jobs import planned_view, read_view, seen_in
from runstate.pipeline.source.census import Planned, Seen, SourceNotShared, check_seen
from runstate.pipeline.source.data_source import RunstateSource, StreamsReader
from runstate.pipeline.spark.failures import PipelineFailed
from runstate.store import open as open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def begin(url: str, stream: str) -> None:
    with open_store(url, "engine") as store:
        store.run(stream, tenant="acme", plan="nightly").started()


def test_streams_that_are_deleted_and_begun_after_the_plan_are_no_failure(spark: SparkSession, tmp_path: Path) -> None:
    url = filled("sqlite", "engine", tmp_path)
    frame = audit(spark, url, shards=3)
    with open_log(url) as log:
        for info in log.streams(limit=5):
            log.delete_stream(info.stream)
    for number in range(5):
        begin(url, f"engine-1-{number}")  # Behind all others: the last task sees more than was planned, others fewer.
    found = summary(frame)
    assert (found.ok, found.streams) == (True, 12)


def test_a_stream_that_begins_after_a_task_has_looked_does_not_stand_in_for_one_that_was_deleted(
    spark: SparkSession, tmp_path: Path
) -> None:
    url = filled("sqlite", "engine", tmp_path)
    new_table(tmp_path / "events")
    frame = planned_view(spark, url, "ingest", model="engine", shards=1, to=str(tmp_path / "events"))
    with open_log(url) as log:
        log.delete_stream(log.streams(limit=1)[0].stream)
    told = seen_in(frame.collect())
    assert [(seen.planned, seen.seen) for seen in told if seen is not None] == [(12, 11)]
    begin(url, "engine-0-new")
    check_seen("ingest", [url], told)


def test_a_task_that_has_seen_fewer_streams_than_the_driver_sees_fails_the_stage(tmp_path: Path) -> None:
    url = filled("sqlite", "engine", tmp_path)
    late = "2100-01-01T00:00:00.000Z"
    check_seen("audit", [url], [None, Seen("w-1", "", None, 12, 12, late)])
    with pytest.raises(PipelineFailed, match=r"stage audit failed: w-1 sees 11 streams of .* driver sees 12"):
        check_seen("audit", [url], [Seen("w-1", "", None, 12, 11, late)])
    with pytest.raises(PipelineFailed, match=r"w-2 sees 3 streams .* after 'engine-0-0002' up to 'engine-0-0006'"):
        check_seen("audit", [url], [Seen("w-2", "engine-0-0002", "engine-0-0006", 4, 3, late)])


def test_a_query_fails_where_a_task_finds_an_empty_log(tmp_path: Path) -> None:
    """No driver compares what a query reads; an empty log where there were streams is told by the task itself."""
    url = filled("ndjson", "rundir", tmp_path)
    for options in ({}, {"streams": "rundir-0-0001"}):
        source = RunstateSource({"url": url, **options})
        reader = source.reader(source.schema())
        assert isinstance(reader, StreamsReader)
        (partition, *_) = reader.partitions()
        assert partition.value.streams > 0
        assert sum(batch.num_rows for batch in reader.read(partition)) > 0
        Path(url.removeprefix("ndjson:")).rename(tmp_path / "elsewhere")
        Path(url.removeprefix("ndjson:")).mkdir()
        with pytest.raises(SourceNotShared, match="finds no stream in ndjson:"):
            list(reader.read(partition))
        Path(url.removeprefix("ndjson:")).rmdir()
        (tmp_path / "elsewhere").rename(url.removeprefix("ndjson:"))


def test_a_query_over_a_log_that_has_lost_some_streams_reads_the_others(spark: SparkSession, tmp_path: Path) -> None:
    url = filled("sqlite", "engine", tmp_path)
    frame = read_view(spark, url, "snapshots", shards=12)
    assert frame.count() == 12
    with open_log(url) as log:
        log.delete_stream(log.streams(limit=1)[0].stream)
    assert frame.count() == 11


def test_shards_are_planned_with_the_numbers_of_their_streams(tmp_path: Path) -> None:
    urls = [filled("sqlite", "engine", tmp_path), filled("ndjson", "engine", tmp_path)]
    options = {"url": msgspec.json.encode(urls).decode(), "shards": "5"}
    planned = msgspec.json.decode(RunstateSource(options).planned(), type=Planned)
    assert sum(shard.streams for shard in planned.shards) == 24
    for shard in planned.shards:
        # Both logs hold the same streams.
        with open_log(urls[0]) as log:
            assert 2 * len(list(log.heads(after=shard.after, until=shard.until))) == shard.streams
