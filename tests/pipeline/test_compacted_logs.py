"""A log that was compacted: replayed from its own snapshot, audited from where it begins, ingested not at all."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.fleets import histories
from tests.pipeline.fleet_logs import local_snapshots, table_snapshots

from runstate.logs.wal import WalLog
from runstate.pipeline.audit.job import audit, summary
from runstate.pipeline.jobs import ingest, read_view, replay
from runstate.pipeline.spark.failures import PipelineFailed
from runstate.store import open as open_store


def compacted(directory: Path) -> str:
    """A daemon's log of two streams; of the first, a checkpoint has dropped all but the last few events."""
    url = f"wal:{directory}"
    with open_store(url, "daemon", on_alert=lambda alert: None) as store:
        fleet = histories("daemon", runs=2)
        for lines in fleet.values():
            store.append_events([store.model.parse(line) for line in lines[:-3]])
        first, lines = next(iter(fleet.items()))
        assert isinstance(store.log, WalLog)
        for _ in range(2):  # A checkpoint removes the entries before the previous one.
            store.log.checkpoint(first, store.fresh_snapshot(first))
        store.append_events([store.model.parse(line) for line in lines[-3:]])
    return url


def test_a_replay_begins_with_the_snapshot_and_goes_on_from_an_earlier_one(spark: SparkSession, tmp_path: Path) -> None:
    url, snapshots = compacted(tmp_path / "logs"), tmp_path / "snapshots"
    assert replay(spark, url, snapshots, shards=1).counts == {"streams": 2, "failed": 0}
    assert table_snapshots(snapshots) == local_snapshots(url, "daemon")
    rows = read_view(spark, url, "snapshots", shards=1).collect()
    assert {row["stream"]: (row["seq"], row["body"].encode()) for row in rows} == local_snapshots(url, "daemon")
    with open_store(url, "daemon", on_alert=lambda alert: None) as store:
        stream = next(iter(histories("daemon", runs=2)))
        store.append_event(
            store.model.parse(msgspec.json.encode({"type": "shutdown", "daemon": stream, "event_id": "x"}))
        )
        assert isinstance(store.log, WalLog)
        # What the last replay ended with is dropped as well.
        for _ in range(2):
            store.log.checkpoint(stream, store.fresh_snapshot(stream))
    replay(spark, url, snapshots, shards=1)
    assert table_snapshots(snapshots) == local_snapshots(url, "daemon")


def test_an_audit_says_what_it_could_not_see_and_that_is_no_damage(spark: SparkSession, tmp_path: Path) -> None:
    found = summary(audit(spark, compacted(tmp_path / "logs")))
    assert found.ok
    assert [code.count for code in found.codes if code.code == "audit.compacted"] == [1]


def test_an_ingest_of_half_a_stream_is_refused_with_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineFailed, match="history=archive"):
        ingest(spark, compacted(tmp_path / "logs"), tmp_path / "events")
