"""A fleet in SQL: views with typed columns, tables of Spark's catalog, and damage that Spark's own reader finds."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.fleet_logs import event_lines, filled, local_snapshots

from runstate.errors import LogNotFound
from runstate.pipeline.jobs import ingest, read_view, replay
from runstate.pipeline.source.sql_views import read_table, register_views


@pytest.fixture(scope="module")
def fleet(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log, its event table and its snapshot table."""
    directory = tmp_path_factory.mktemp("sql")
    url = filled("sqlite", "engine", directory, runs=8)
    ingest(spark, url, directory / "events", model="engine")
    replay(spark, f"table:{directory}/events", directory / "snapshots")
    return directory


def log_of(fleet: Path) -> str:
    return f"sqlite:{fleet}/sqlite-engine"


def test_spark_finds_the_source_by_itself(spark: SparkSession, fleet: Path) -> None:
    session = spark.newSession()  # Nothing was registered in it.
    frame = session.read.format("runstate").option("url", log_of(fleet)).load()
    assert frame.count() == len(list(event_lines(log_of(fleet))))


def test_a_table_of_the_catalog_is_a_log(spark: SparkSession, fleet: Path) -> None:
    session = spark.newSession()
    session.sql(f"CREATE TABLE runs USING runstate OPTIONS (url '{log_of(fleet)}', view 'snapshots')")
    try:
        found = {row["stream"]: row["body"].encode() for row in session.sql("SELECT * FROM runs").collect()}
        assert found == {stream: body for stream, (_, body) in local_snapshots(log_of(fleet), "engine").items()}
        assert session.sql("SELECT count(*) FROM runs WHERE seq > 3").collect()[0][0] > 0
    finally:
        session.sql("DROP TABLE runs")


def test_no_password_is_kept_in_the_schema_of_a_table(
    spark: SparkSession, fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runstate.pipeline.source.data_source import RunstateSource

    monkeypatch.setattr("runstate.pipeline.source.data_source.model_of", lambda *_: "engine")
    made = RunstateSource({"url": "postgresql://u:hidden@h/db", "option.url": "x", "provider": "runstate"}).schema()
    assert "postgresql://u@h/db" in made.json()
    assert "hidden" not in made.json()


@pytest.mark.parametrize("of_tables", [True, False])
def test_the_views_have_types_and_the_same_rows(spark: SparkSession, fleet: Path, of_tables: bool) -> None:
    places = [f"table:{fleet}/events", f"{fleet}/snapshots"] if of_tables else [log_of(fleet)]
    views = register_views(spark, places)
    types = {name: dict(frame.dtypes) for name, frame in views.items()}
    assert types["events"]["emitted_at"] == types["spans"]["started_at"] == "timestamp"
    assert (types["events"]["event"], types["snapshots"]["state"]) == ("variant", "variant")
    assert ("quarantine" in types) == of_tables
    lines = [json.loads(line) for _, line in event_lines(log_of(fleet))]
    counted = spark.sql("SELECT type, count(*) AS n FROM events GROUP BY type").collect()
    kinds = [line["eventType"] for line in lines]
    assert {row["type"]: row["n"] for row in counted} == {kind: kinds.count(kind) for kind in kinds}
    first = spark.sql("SELECT date_format(min(emitted_at), 'yyyy-MM-dd\\'T\\'HH:mm:ss') AS t FROM events").collect()
    assert first[0]["t"] == min(line["emittedAt"] for line in lines)[:19]
    by_status = spark.sql("SELECT state:status::string AS s, status FROM snapshots").collect()
    assert len(by_status) == 8
    assert all(row["s"] == row["status"] for row in by_status)


def test_a_table_gives_what_the_source_gives_in_each_version(spark: SparkSession, fleet: Path) -> None:
    names = ["stream", "seq", "body"]
    ours = {tuple(row) for row in read_view(spark, f"table:{fleet}/events").select(names).collect()}
    assert {tuple(row) for row in read_table(spark, fleet / "events").select(names).collect()} == ours
    assert read_table(spark, fleet / "events", "quarantine").count() == 0
    with pytest.raises(LogNotFound, match="no version 7"):
        read_table(spark, fleet / "events", version=7)


def test_damage_in_any_column_fails_a_query(spark: SparkSession, fleet: Path) -> None:
    (path, *_) = (fleet / "events" / "events").glob("*.parquet")
    whole = path.read_bytes()
    group = pq.ParquetFile(str(path)).metadata.row_group(0)
    try:
        for place in range(group.num_columns):
            column = group.column(place)
            start = column.dictionary_page_offset or column.data_page_offset
            spot = start + column.total_compressed_size - 3
            path.write_bytes(whole[:spot] + bytes([whole[spot] ^ 1]) + whole[spot + 1 :])
            with pytest.raises(Exception, match=r"(?i)crc|corrupt|checksum"):
                read_table(spark, fleet / "events").select(column.path_in_schema).collect()
    finally:
        path.write_bytes(whole)
