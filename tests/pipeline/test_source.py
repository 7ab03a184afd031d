"""The data source: what it reads, what it leaves unread, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.fleet_logs import filled, spanning_readable_pairs

from runstate.errors import LogDamaged
from runstate.pipeline import events, origins
from runstate.pipeline.failures import PipelineFailed, readable
from runstate.pipeline.jobs import ingest, read_view
from runstate.pipeline.shards import Shard
from runstate.pipeline.source import RunstateSource, StreamsReader, register
from runstate.pipeline.views import Request, Task
from runstate.store import open as open_store


def as_told(url: str, model: str) -> list[tuple[Any, ...]]:
    """Every event as its log gives it."""
    with open_store(url, model, create=False) as store:
        records = [record for head in store.log.heads() for record in store.log.read(head.stream)]
    return sorted(
        (r.stream, r.seq, r.event_id, r.type, r.key, r.tenant, r.emitted_at, r.persisted_at, r.body.decode())
        for r in records
    )


def as_read(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.parametrize(("scheme", "model"), spanning_readable_pairs())
def test_every_event_comes_once_as_its_log_gives_it(
    spark: SparkSession, tmp_path: Path, scheme: str, model: str
) -> None:
    """For every log with every model, test_parity.py holds what is made of the events against one process."""
    url = filled(scheme, model, tmp_path, runs=7)
    expected = as_told(url, model)
    for shards in (1, 5):
        assert as_read(read_view(spark, url, model=model, shards=shards)) == expected
    ingest(spark, url, tmp_path / "events", model=model, shards=3)
    assert as_read(read_view(spark, f"table:{tmp_path}/events", shards=4)) == expected


conditions = [
    "type = 'RunStarted'",
    "type in ('StepStarted', 'StepCompleted') and seq > 3",
    "stream = 'engine-0-0002'",
    "stream in ('engine-0-0002', 'nowhere')",
    "stream like 'engine-0-000%' and stream > 'engine-0-0003'",
    "tenant = 'globex' and seq <= 2",
    "persisted_at >= '2000' and persisted_at < '2100'",
    "persisted_at < '2000'",
    "seq between 2 and 4",
    "type = 'RunStarted' or seq = 2",
    "tenant is not null and key is not null",
    "body like '%quo%' and type = 'StepStarted'",
    "seq = 2.5",
]


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, DataFrame]:
    """A log, and all of its events as a frame of Spark's own, which hands no filter down."""
    url = filled("sqlite", "engine", tmp_path_factory.mktemp("filters"), runs=6)
    frame = read_view(spark, url, model="engine")
    return url, spark.createDataFrame(frame.collect(), frame.schema)


@pytest.mark.parametrize("condition", conditions)
def test_a_filter_gives_what_it_gives_on_all_events(
    spark: SparkSession, whole: tuple[str, DataFrame], condition: str
) -> None:
    url, expected = whole
    frame = read_view(spark, url, model="engine")
    assert as_read(frame.where(condition)) == as_read(expected.where(condition))


def test_filters_on_the_envelope_are_taken_over(spark: SparkSession, tmp_path: Path) -> None:
    url = filled("sqlite", "engine", tmp_path, runs=2)
    frame = read_view(spark, url, model="engine")
    plan = frame.where("type = 'RunStarted' and stream = 'x' and tenant = 'y'")._jdf.queryExecution().toString()
    physical = plan.partition("Physical Plan")[2]
    assert "Filter" not in physical.replace("RuntimeFilters", "")


def test_a_question_about_one_stream_reads_that_stream_alone(tmp_path: Path) -> None:
    from pyspark.sql.datasource import EqualTo

    url = filled("ndjson", "rundir", tmp_path, runs=3)
    # Another run's file cannot even be opened; nobody must try.
    (tmp_path / "ndjson-rundir" / "rundir-0-0000" / "events.ndjson").unlink()
    (tmp_path / "ndjson-rundir" / "rundir-0-0000" / "events.ndjson").mkdir()
    source = RunstateSource({"url": url})
    reader = source.reader(source.schema())
    assert isinstance(reader, StreamsReader)
    assert list(reader.pushFilters([EqualTo(("stream",), "rundir-0-0001")])) == []
    (partition,) = reader.partitions()
    batches = list(reader.read(partition))
    assert {stream for batch in batches for stream in batch.column("stream").to_pylist()} == {"rundir-0-0001"}


def test_a_narrower_schema_reads_those_columns_in_that_order(spark: SparkSession, tmp_path: Path) -> None:
    url = filled("sqlite", "engine", tmp_path, runs=2)
    ingest(spark, url, tmp_path / "events", model="engine")
    register(spark)
    for each in (url, f"table:{tmp_path}/events"):
        frame = spark.read.format("runstate").schema("type string, seq bigint").option("url", each).load()
        whole = read_view(spark, each, model="engine").select("type", "seq")
        assert frame.columns == ["type", "seq"]
        assert as_read(frame) == as_read(whole)


def damaged(tmp_path: Path) -> str:
    url = filled("ndjson", "rundir", tmp_path, runs=3)
    path = tmp_path / "ndjson-rundir" / "rundir-0-0001" / "events.ndjson"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:4], *lines[5:]]))
    return url


def test_a_damaged_stream_fails_the_query_and_is_named(spark: SparkSession, tmp_path: Path) -> None:
    frame = read_view(spark, damaged(tmp_path), model="rundir")
    with pytest.raises(PipelineFailed, match=r"rundir-0-0001.*line 5.*4 events before it are intact"), readable("read"):
        frame.count()


def test_a_question_about_one_stream_meets_damage_right_behind_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = damaged(tmp_path)
    # Without its index, a run is as long as it is intact.
    (tmp_path / "ndjson-rundir" / "rundir-0-0001" / "index.json").unlink()
    monkeypatch.setattr(origins, "_page", 4)
    (reader,) = origins.LogOrigin(url).streams(Shard(only=("rundir-0-0001",)))
    with pytest.raises(LogDamaged, match="4 events before it are intact"):
        list(reader.records())


def test_no_log_has_a_stream_of_an_impossible_name(spark: SparkSession, tmp_path: Path) -> None:
    url = filled("sqlite", "engine", tmp_path, runs=1)
    assert read_view(spark, url, model="engine").where("stream in ('a/b', 'engine-0-0000', '')").count() > 1


def test_a_batch_has_a_bound_over_all_of_its_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "bytes_max", 5000)
    url = filled("sqlite", "engine", tmp_path, runs=9)
    batches = list(events.view.rows(Task(Request((url,), "events", "engine"), Shard())))
    largest = max(len(body) for batch in batches for body in batch.column("body").to_pylist())
    assert len(batches) > 1
    assert max(sum(map(len, batch.column("body").to_pylist())) for batch in batches) <= 5000 + largest


@pytest.mark.parametrize("condition", ["true", "type = 'RUN_CREATED'"])
def test_damage_is_reported_whatever_is_asked_for(spark: SparkSession, tmp_path: Path, condition: str) -> None:
    frame = read_view(spark, damaged(tmp_path), model="rundir", damage="report")
    rows = frame.where(condition).collect()
    (finding,) = [row for row in rows if row["finding"] is not None]
    assert (finding["stream"], finding["seq"], finding["body"]) == ("rundir-0-0001", 5, None)
    assert len([row for row in rows if row["stream"] == "rundir-0-0001" and row["body"]]) == (
        4 if condition == "true" else 1
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "Say where the log is"),
        ({"url": "nonsense:x"}, "is not a log URL"),
        ({"url": "sqlite:/nowhere/at/all.db"}, "There is no file /nowhere/at/all.db"),
        ({"url": "sqlite:x", "view": "nonsense"}, "There is no view 'nonsense'; there are: events"),
        ({"url": "sqlite:x", "model": "nonsense"}, "nonsense"),
        ({"url": "sqlite:x", "shards": "many"}, "shards is a number"),
        ({"url": "sqlite:x", "damage": "hide"}, "damage is 'fail' or 'report'"),
        ({"url": "sqlite:x", "colour": "red"}, "has no option 'colour'"),
        ({"url": "[1]"}, "no JSON list of URLs"),
        ({"url": "table:/nowhere"}, "There is no table in /nowhere"),
    ],
)
def test_a_bad_option_is_refused_with_what_is_wrong(spark: SparkSession, options: dict[str, str], told: str) -> None:
    register(spark)
    for _ in range(3):
        with pytest.raises(PipelineFailed, match="The stage read failed") as failure, readable("read"):
            spark.read.format("runstate").options(**options).load().count()
        # The worker ends once it has refused. If Spark still writes to it then, it reports that instead.
        if "Broken pipe" not in str(failure.value):
            break
    assert told in str(failure.value)


def test_a_column_that_is_not_there_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    url = filled("sqlite", "engine", tmp_path, runs=1)
    for schema, told in (("colour string", "no column 'colour'"), ("seq string", "'seq' has the type bigint")):
        with pytest.raises(PipelineFailed) as failure, readable("read"):
            spark.read.format("runstate").schema(schema).option("url", url).load().count()
        assert told in str(failure.value)
