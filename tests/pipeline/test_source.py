"""The data source: what it reads, what it leaves unread, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.fleet_logs import filled, spanning_readable_pairs

from runstate.errors import LogDamaged
from runstate.pipeline.jobs import ingest, read_view
from runstate.pipeline.source import events, origins
from runstate.pipeline.source.data_source import RunstateSource, StreamsReader, register
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.source.views import Request, Task
from runstate.pipeline.spark.failures import PipelineFailed, readable
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


def test_every_query_of_one_frame_is_answered_by_itself(spark: SparkSession, tmp_path: Path) -> None:
    """A source that takes filters over would answer a query with the rows of the one before it."""
    url = filled("sqlite", "engine", tmp_path, runs=6)
    ingest(spark, url, tmp_path / "events", model="engine")
    for each in (url, f"table:{tmp_path}/events"):
        frame = read_view(spark, each, model="engine")
        expected = as_told(url, "engine")
        one = [row for row in expected if row[0] == "engine-0-0002"]
        started = [row for row in expected if row[3] == "RunStarted"]
        assert frame.count() == len(expected)
        assert frame.where("stream = 'engine-0-0002'").count() == len(one)
        assert frame.count() == len(expected)
        both = frame.where("stream = 'engine-0-0002'").union(frame.where("type = 'RunStarted'"))
        assert as_read(both) == sorted([*one, *started])
        joined = frame.where("type = 'RunStarted'").alias("a").join(frame.alias("b"), "stream")
        assert joined.count() == sum(sum(row[0] == first[0] for row in expected) for first in started)
        frame.createOrReplaceTempView("told")
        counts = "select (select count(*) from told where seq = 1), (select count(*) from told)"
        assert tuple(spark.sql(counts).collect()[0]) == (6, len(expected))
        cached = frame.where("type = 'RunStarted'").cache()
        assert (cached.count(), frame.count(), cached.count()) == (len(started), len(expected), len(started))
        cached.unpersist()


Row = tuple[Any, ...]
selections: list[tuple[dict[str, str], Callable[[Row], bool]]] = [
    ({"streams": "engine-0-0002"}, lambda row: row[0] == "engine-0-0002"),
    ({"streams": '["engine-0-0004","nowhere","a/b","engine-0-0002"]'}, lambda row: row[0][-1] in "24"),
    ({"stream_from": "engine-0-0003"}, lambda row: row[0] >= "engine-0-0003"),
    ({"stream_to": "engine-0-0003"}, lambda row: row[0] <= "engine-0-0003"),
    ({"stream_from": "engine-0-0001", "stream_to": "engine-0-0003x"}, lambda row: row[0][-1] in "123"),
    ({"streams": '["engine-0-0001","engine-0-0005"]', "stream_from": "engine-0-0002"}, lambda row: row[0][-1] == "5"),
    ({"stream_from": "z"}, lambda row: False),
    ({"types": "RunStarted"}, lambda row: row[3] == "RunStarted"),
    (
        {"types": '["RunStarted","StepStarted"]', "stream_to": "engine-0-0001"},
        lambda row: row[3] in ("RunStarted", "StepStarted") and row[0][-1] in "01",
    ),
    ({"tenant": "globex"}, lambda row: row[5] == "globex"),
    ({"after_time": "2000-01-01T00:00:00Z"}, lambda row: True),
    ({"after_time": "2100-01-01T01:00:00+01:00"}, lambda row: False),
]


@pytest.fixture(scope="module")
def both(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A log, and a table of its events."""
    root = tmp_path_factory.mktemp("selections")
    url = filled("sqlite", "engine", root, runs=6)
    ingest(spark, url, root / "events", model="engine")
    return url, f"table:{root}/events"


@pytest.mark.parametrize(
    ("options", "takes"), selections, ids=lambda value: " ".join(value) if value and isinstance(value, dict) else ""
)
def test_a_selection_gives_what_it_says(
    spark: SparkSession, both: tuple[str, str], options: dict[str, str], takes: Callable[[Row], bool]
) -> None:
    expected = [row for row in as_told(both[0], "engine") if takes(row)]
    for url in both:
        assert as_read(read_view(spark, url, model="engine", shards=3, **options)) == expected


def test_after_time_leaves_out_what_was_stored_by_then(spark: SparkSession, both: tuple[str, str]) -> None:
    rows = as_told(both[0], "engine")
    moment = sorted(row[7] for row in rows)[len(rows) // 2]
    expected = [row for row in rows if row[7] > moment]
    for url in both:
        assert as_read(read_view(spark, url, model="engine", after_time=moment)) == expected


@pytest.mark.parametrize("view", ["snapshots", "spans"])
def test_views_of_whole_streams_take_streams_alone(spark: SparkSession, both: tuple[str, str], view: str) -> None:
    for url in both:
        whole = read_view(spark, url, view, model="engine").where("stream > 'engine-0-0002'")
        some = read_view(spark, url, view, model="engine", stream_from="engine-0-0003", columns='["stream"]')
        assert some.columns == ["stream"]
        assert as_read(some) == as_read(whole.select("stream"))
        with pytest.raises(InvalidOption, match="has no option 'types'"):
            read_view(spark, url, view, model="engine", types="RunStarted")


def test_a_question_about_one_stream_reads_that_stream_alone(tmp_path: Path) -> None:
    url = filled("ndjson", "rundir", tmp_path, runs=3)
    # Another run's file cannot even be opened; nobody must try.
    (tmp_path / "ndjson-rundir" / "rundir-0-0000" / "events.ndjson").unlink()
    (tmp_path / "ndjson-rundir" / "rundir-0-0000" / "events.ndjson").mkdir()
    source = RunstateSource({"url": url, "streams": "rundir-0-0001"})
    reader = source.reader(source.schema())
    assert isinstance(reader, StreamsReader)
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


def test_a_batch_has_a_bound_over_all_of_its_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "bytes_max", 5000)
    url = filled("sqlite", "engine", tmp_path, runs=9)
    batches = list(events.view.rows(Task(Request((url,), "events", "engine"), Shard())))
    largest = max(len(body) for batch in batches for body in batch.column("body").to_pylist())
    assert len(batches) > 1
    assert max(sum(map(len, batch.column("body").to_pylist())) for batch in batches) <= 5000 + largest


@pytest.mark.parametrize("types", ["RUN_CREATED", None])
def test_damage_is_reported_whatever_is_asked_for(spark: SparkSession, tmp_path: Path, types: str | None) -> None:
    options = {} if types is None else {"types": types}
    rows = read_view(
        spark, damaged(tmp_path), "events", model="rundir", shards=None, damage="report", **options
    ).collect()
    (finding,) = [row for row in rows if row["finding"] is not None]
    assert (finding["stream"], finding["seq"], finding["body"]) == ("rundir-0-0001", 5, None)
    assert len([row for row in rows if row["stream"] == "rundir-0-0001" and row["body"]]) == (1 if options else 4)


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
        ({"url": "sqlite:x", "streams": "[1]"}, "streams: '[1]' is no JSON list of texts"),
        ({"url": "sqlite:x", "after_time": "noon"}, "after_time is a time like"),
        ({"url": "sqlite:x", "after_time": "2026-11-15T09:30:00"}, "has no zone"),
        ({"url": "sqlite:x", "columns": "colour"}, "has no column 'colour'"),
        ({"url": "[1]"}, "no JSON list of texts"),
        ({"url": "table:/nowhere"}, "There is no table in /nowhere"),
    ],
)
def test_a_bad_option_is_refused_with_what_is_wrong(spark: SparkSession, options: dict[str, str], told: str) -> None:
    register(spark)
    assert told in refusal(lambda: spark.read.format("runstate").options(**options).load())


def test_a_column_that_is_not_there_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    url = filled("sqlite", "engine", tmp_path, runs=1)
    for schema, told in (("colour string", "no column 'colour'"), ("seq string", "'seq' has the type bigint")):
        reader = spark.read.format("runstate").schema(schema).option("url", url)
        assert told in refusal(lambda: reader.load())  # noqa: B023 - called before the next one is made


def refusal(load: Callable[[], DataFrame]) -> str:
    """What a read is refused with. A worker of Spark ends when it has refused something. If Spark gives it the next
    query before it has noticed, it reports a broken pipe."""
    for _ in range(3):
        with pytest.raises(PipelineFailed, match="The stage read failed") as failure, readable("read"):
            load().count()
        if "Broken pipe" not in str(failure.value):
            break
    return str(failure.value)
