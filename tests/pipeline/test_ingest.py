"""Ingest: exactly once under reruns, and what cannot be taken is told once."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.fleets import histories
from tests.pipeline.fleet_logs import event_lines, filled, local_snapshots

from runstate.errors import LogBusy, LogNotFound, ModelMismatch, NotALog
from runstate.logs.registry import open_log
from runstate.pipeline.jobs import ingest, read_view
from runstate.pipeline.spark.failures import PipelineFailed
from runstate.pipeline.tables.event_table import open_event_table
from runstate.pipeline.tables.quarantine import quarantined, reasons
from runstate.store import open as open_store


def lines_in(table: Path) -> list[tuple[str, bytes]]:
    return sorted(event_lines(f"table:{table}"))


def test_running_it_again_adds_nothing_and_new_events_once(spark: SparkSession, tmp_path: Path) -> None:
    url, to = filled("sqlite", "engine", tmp_path, runs=5), tmp_path / "events"
    first = ingest(spark, url, to, model="engine")
    assert ingest(spark, url, to, model="engine").commit == first.commit == 1
    assert lines_in(to) == sorted(event_lines(url))
    filled("sqlite", "engine", tmp_path, seed=4, runs=2)
    again = ingest(spark, url, to, model="engine")
    assert (again.commit, again.counts["streams"], again.counts["unchanged"]) == (2, 2, 5)
    assert lines_in(to) == sorted(event_lines(url))
    table = DeltaTable(to / "events")
    assert table.transaction_version("runstate") == table.version() == 2
    assert sorted(table.to_pyarrow_table()["body"].to_pylist()) == sorted(line.decode() for _, line in lines_in(to))


def test_a_job_that_fails_leaves_nothing_to_be_seen(spark: SparkSession, tmp_path: Path) -> None:
    url, to = filled("ndjson", "rundir", tmp_path, runs=4), tmp_path / "events"
    victim = tmp_path / "ndjson-rundir" / "rundir-0-0003" / "events.ndjson"
    kept = victim.read_bytes()
    victim.unlink()
    victim.mkdir()  # A run that cannot be read at all, behind three that can.
    with pytest.raises(PipelineFailed, match="The stage ingest failed"):
        ingest(spark, url, to, model="rundir", shards=1)
    with pytest.raises(LogNotFound, match="never finished"):
        lines_in(to)
    victim.rmdir()
    victim.write_bytes(kept)
    ingest(spark, url, to, model="rundir", shards=1)
    assert lines_in(to) == sorted(event_lines(url))
    named = {entry.name for commit in open_event_table(to).commits() for entry in commit.files}
    assert {path.name for path in to.glob("*/*.parquet")} == named


def test_a_stream_in_two_logs_is_taken_from_one_and_told_once(spark: SparkSession, tmp_path: Path) -> None:
    urls = [filled(scheme, "engine", tmp_path, runs=3) for scheme in ("sqlite", "ndjson")]
    to = tmp_path / "events"
    ingest(spark, urls, to, model="engine")
    assert reasons(to) == {"stream.in_two_logs": 3}
    assert lines_in(to) == sorted(event_lines(urls[0]))
    assert ingest(spark, urls, to, model="engine").commit == 1
    assert reasons(to) == {"stream.in_two_logs": 3}
    assert {row["url"] for row in quarantined(to)} == {urls[1]}


def test_a_stream_in_three_logs_is_told_once_for_each_that_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    urls = [filled("sqlite", "engine", tmp_path / name, runs=1) for name in ("a", "b", "c")]
    for _ in range(3):
        assert ingest(spark, urls, tmp_path / "events", model="engine").commit == 1
    assert sorted(row["url"] for row in quarantined(tmp_path / "events")) == urls[1:]


def test_a_table_is_taken_into_another_one_and_what_is_new_in_it_too(spark: SparkSession, tmp_path: Path) -> None:
    url, source, to = f"sqlite:{tmp_path}/log.db", tmp_path / "source", tmp_path / "copy"
    for count in (3, None):
        with open_store(url, "engine", on_alert=lambda alert: None) as store:
            for lines in histories("engine", runs=3).values():
                store.append_events([store.model.parse(line) for line in lines[:count]])
        ingest(spark, url, source, model="engine")
        made = ingest(spark, f"table:{source}", to).commit
        assert lines_in(to) == sorted(event_lines(url))
        assert ingest(spark, f"table:{source}", to).commit == made
    assert reasons(to) == {}


def test_a_stream_that_was_begun_again_is_refused_and_told_once(spark: SparkSession, tmp_path: Path) -> None:
    url, to = filled("sqlite", "engine", tmp_path, runs=2), tmp_path / "events"
    ingest(spark, url, to, model="engine")
    before = lines_in(to)
    (stream, lines), _ = histories("engine", runs=2).items()
    with open_store(url, "engine", on_alert=lambda alert: None) as store:
        store.delete_stream(stream, forget=True)
        store.append_events([store.model.parse(line) for line in lines[1:]])
    ingest(spark, url, to, model="engine")
    assert ingest(spark, url, to, model="engine").commit == 2
    assert reasons(to) == {"stream.rewritten": 1}
    assert lines_in(to) == before


def test_of_a_damaged_stream_what_is_intact_is_taken_and_the_rest_once_it_is_repaired(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, to = filled("ndjson", "rundir", tmp_path, runs=3), tmp_path / "events"
    path = tmp_path / "ndjson-rundir" / "rundir-0-0001" / "events.ndjson"
    whole = path.read_bytes()
    lines = whole.split(b"\n")
    path.write_bytes(b"\n".join([*lines[:4], *lines[5:]]))
    for _ in range(2):
        assert ingest(spark, url, to, model="rundir").commit == 1
    assert reasons(to) == {"log.damaged": 1}
    (told,) = quarantined(to)
    assert (told["stream"], told["seq"]) == ("rundir-0-0001", 5)
    assert len([line for stream, line in lines_in(to) if stream == "rundir-0-0001"]) == 4
    path.write_bytes(whole)
    assert ingest(spark, url, to, model="rundir").counts["streams"] == 1
    assert lines_in(to) == sorted(event_lines(url))
    rows = read_view(spark, f"table:{to}", "snapshots").collect()
    assert {row["stream"]: (row["seq"], row["body"].encode()) for row in rows} == local_snapshots(url, "rundir")


def test_a_target_or_a_source_that_cannot_be_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    url = filled("sqlite", "engine", tmp_path, runs=1)
    with pytest.raises(LogNotFound):
        ingest(spark, "sqlite:/nowhere/x.db", tmp_path / "typo")
    assert not (tmp_path / "typo").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotALog, match="is a file"):
        ingest(spark, url, tmp_path / "file" / "events")
    ingest(spark, url, tmp_path / "events")
    with pytest.raises(ModelMismatch, match="'engine', not of 'rundir'"):
        ingest(spark, url, tmp_path / "events", model="rundir")
    with pytest.raises(NotALog, match="choose another directory"):
        ingest(spark, filled("sqlite", "rundir", tmp_path, runs=1), tmp_path / "events")
    with open_event_table(tmp_path / "events").writing(), pytest.raises(LogBusy, match="Another job"):
        ingest(spark, url, tmp_path / "events")
    with open_log(url) as log:
        assert len(list(log.heads())) == 1
