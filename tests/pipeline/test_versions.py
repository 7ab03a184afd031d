"""Versions of tables: what other engines see after every operation, going back, and replays of what has been."""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.commands import Cli
from tests.fleets import histories
from tests.pipeline.fleet_logs import event_lines, filled, local_snapshots, table_snapshots

from runstate.errors import LogNotFound
from runstate.pipeline.jobs import compact, ingest, read_view, replay
from runstate.pipeline.tables.compaction import compact_snapshots
from runstate.pipeline.tables.table import Table
from runstate.pipeline.tables.versions import restore
from runstate.store import open as open_store


def grow(url: str, seed: int, count: int | None = None) -> None:
    with open_store(url, "engine", snapshot_every=0, on_alert=lambda alert: None) as store:
        for lines in histories("engine", seed=seed, runs=6).values():
            store.append_events([store.model.parse(line) for line in lines[:count]])


def check_engines(spark: SparkSession, directory: Path) -> int:
    """All engines count the same rows of all kinds. How many of the first."""
    table = Table.open(directory)
    for kind in table.kinds:
        place, expected = table.place(kind), sum(entry.rows for entry in table.files(kind))
        files = DeltaTable(place).file_uris()
        assert DeltaTable(place).to_pyarrow_table().num_rows == expected
        assert pl.scan_delta(str(place)).select(pl.len()).collect().item() == expected
        if files:
            assert duckdb.execute(f"SELECT count(*) FROM read_parquet({files})").fetchone() == (expected,)
            assert spark.read.parquet(*files).count() == expected
    return sum(entry.rows for entry in table.files(table.kinds[0]))


def test_all_engines_count_the_same_after_every_operation(spark: SparkSession, tmp_path: Path, cli: Cli) -> None:
    url, events, snapshots = f"sqlite:{tmp_path}/log.db", tmp_path / "events", tmp_path / "snapshots"
    counts = []
    for seed, count in ((1, 4), (1, None), (2, None)):
        grow(url, seed, count)
        ingest(spark, url, events, shards=2)
        replay(spark, f"table:{events}", snapshots, shards=2)
        counts.append(check_engines(spark, events))
        assert check_engines(spark, snapshots) == len(local_snapshots(url, "engine"))
        assert table_snapshots(snapshots) == local_snapshots(url, "engine")
    assert counts[-1] == len(list(event_lines(url)))
    compact(spark, events, shards=2)
    assert compact_snapshots(snapshots) == 12
    assert compact_snapshots(snapshots) == 0, "there is nothing to be gained from a second one"
    assert (check_engines(spark, events), check_engines(spark, snapshots)) == (counts[-1], 12)
    assert replay(spark, f"table:{events}", snapshots).counts.get("streams", 0) == 0
    restore(events, 1)
    assert check_engines(spark, events) == counts[0]
    # The heads went back, too: what the table lost is ingested again, once.
    ingest(spark, url, events)
    assert check_engines(spark, events) == counts[-1]
    replay(spark, f"table:{events}", snapshots)
    assert table_snapshots(snapshots) == local_snapshots(url, "engine")
    done = cli("pipeline", "vacuum", str(events), "--older-than", "0h")
    assert done.code == 0, done.err
    assert "files deleted" in done.err
    assert check_engines(spark, events) == counts[-1]
    assert cli("pipeline", "vacuum", str(events), "--older-than", "0h").err == "0 files deleted\n"
    assert cli("pipeline", "restore", str(events), "--version", "4").code == 3


def test_a_replay_of_an_earlier_version_gives_what_was_then(spark: SparkSession, tmp_path: Path) -> None:
    url, events = f"sqlite:{tmp_path}/log.db", tmp_path / "events"
    grow(url, 1, 4)
    ingest(spark, url, events)
    then, lines = local_snapshots(url, "engine"), len(list(event_lines(url)))
    grow(url, 1)
    ingest(spark, url, events)
    compact(spark, events)
    replay(spark, f"table:{events}?version=1", tmp_path / "then")
    assert table_snapshots(tmp_path / "then") == then
    assert read_view(spark, f"table:{events}?version=1").count() == lines
    with pytest.raises(LogNotFound, match="has no version 9; it has 1, 2, 3"):
        replay(spark, f"table:{events}?version=9", tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_a_frame_that_was_planned_before_a_compaction_can_still_be_read(spark: SparkSession, tmp_path: Path) -> None:
    url, events = filled("sqlite", "engine", tmp_path, runs=6), tmp_path / "events"
    ingest(spark, url, events)
    frame = read_view(spark, f"table:{events}")
    count = frame.count()
    grow(url, 3)
    ingest(spark, url, events)
    compact(spark, events)
    assert frame.count() >= count
    pinned = read_view(spark, f"table:{events}?version=1")
    compact(spark, events)
    assert pinned.count() == count


def test_only_files_with_a_changed_stream_are_written_anew(spark: SparkSession, tmp_path: Path) -> None:
    url, snapshots = f"sqlite:{tmp_path}/log.db", tmp_path / "snapshots"
    for seed in (1, 2, 3):
        grow(url, seed, 5)
    replay(spark, url, snapshots, model="engine", shards=4)
    before = Table.open(snapshots).files("snapshots")
    assert len(before) == 4
    with open_store(url, "engine", snapshot_every=0, on_alert=lambda alert: None) as store:
        stream, lines = next(iter(histories("engine", seed=2, runs=6).items()))
        store.append_events([store.model.parse(line) for line in lines])
        # And one that comes before all others.
        first = [
            line.replace(b"engine-1-0000", b"aaa") for line in histories("engine", seed=1, runs=1)["engine-1-0000"]
        ]
        store.append_events([store.model.parse(line) for line in first])
    assert replay(spark, url, snapshots, model="engine").counts["streams"] == 2
    after = Table.open(snapshots).files("snapshots")
    kept = {entry.name for entry in before} & {entry.name for entry in after}
    assert (len(after), len(kept)) == (4, 2)
    assert stream in table_snapshots(snapshots)
    assert table_snapshots(snapshots) == local_snapshots(url, "engine")
