"""A row of a database that was changed behind its log's back: no job takes it for an event, all name its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.changed_rows import change_rows
from tests.pipeline.fleet_logs import filled

from runstate.logs.registry import open_log
from runstate.pipeline.audit.job import audit, summary
from runstate.pipeline.jobs import ingest, read_view, replay
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.spark.failures import PipelineFailed, readable
from runstate.pipeline.tables.event_table import open_event_table
from runstate.pipeline.tables.quarantine import quarantined

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.parametrize("scheme", ["sqlite", "postgresql"])
changed_seq = 3


class Changed(NamedTuple):
    url: str
    stream: str
    streams: list[str]
    """All of them, the changed one too."""


@pytest.fixture
def changed(scheme: str, tmp_path: Path) -> Changed:
    """A log in which the body of one event is another one, still a valid event of the model."""
    url = filled(scheme, "engine", tmp_path)
    with open_log(url) as log:
        infos = log.streams(limit=100)
        stream = next(info.stream for info in infos if info.events > changed_seq)
        (record,) = log.read(stream, after_seq=changed_seq - 1, limit=1)
        event_id = record.event_id
        other = record.body.decode().replace(event_id, event_id[::-1]).replace("'", "''")
        assert other != record.body.decode().replace("'", "''")
        where = f"seq = {changed_seq} AND stream_id = (SELECT id FROM streams WHERE stream = '{stream}')"
        value = f"'{other}'" if scheme == "postgresql" else f"CAST('{other}' AS BLOB)"
        value = f"convert_to({value}, 'UTF8')" if scheme == "postgresql" else value
        change_rows(log, url, f"UPDATE events SET body = {value} WHERE {where}")
    return Changed(url, stream, [info.stream for info in infos])


def test_ingest_quarantines_the_stream_from_there_on(spark: SparkSession, tmp_path: Path, changed: Changed) -> None:
    ingest(spark, changed.url, tmp_path / "events", shards=2)
    (aside,) = quarantined(tmp_path / "events")
    assert (aside["stream"], aside["seq"]) == (changed.stream, changed_seq)
    assert aside["code"].startswith("log.")
    table = open_event_table(tmp_path / "events")
    pieces = table.pieces(table.files("events"), Shard(), ["stream", "seq"])
    rows = [(row["stream"], row["seq"]) for piece in pieces for row in piece.to_pylist()]
    assert [seq for stream, seq in rows if stream == changed.stream] == [1, 2]
    assert {stream for stream, _ in rows} == set(changed.streams)


def test_a_query_on_events_fails_and_names_the_stream(spark: SparkSession, changed: Changed) -> None:
    with pytest.raises(PipelineFailed) as failed, readable("events"):
        read_view(spark, changed.url, shards=2).count()
    cause = failed.value.details["cause"]
    assert (cause["details"]["stream"], cause["details"]["seq"]) == (changed.stream, changed_seq)


def test_a_query_that_reports_damage_gives_what_is_intact_and_a_finding(spark: SparkSession, changed: Changed) -> None:
    rows = read_view(spark, changed.url, shards=2, damage="report").collect()
    (finding,) = [json.loads(row["finding"]) for row in rows if row["finding"] is not None]
    assert (finding["stream"], finding["seq"]) == (changed.stream, changed_seq)
    intact = [row["seq"] for row in rows if row["stream"] == changed.stream and row["finding"] is None]
    assert intact == [1, 2]


def test_no_snapshot_is_made_of_the_changed_event(spark: SparkSession, tmp_path: Path, changed: Changed) -> None:
    rows = {row["stream"]: row for row in read_view(spark, changed.url, "snapshots", shards=2).collect()}
    assert [stream for stream, row in rows.items() if row["body"] is None] == [changed.stream]
    assert json.loads(rows[changed.stream]["finding"])["seq"] == changed_seq
    assert replay(spark, changed.url, tmp_path / "snapshots", shards=2).counts == {
        "streams": len(changed.streams),
        "failed": 1,
    }


def test_an_audit_calls_it_damage(spark: SparkSession, changed: Changed) -> None:
    found = summary(audit(spark, changed.url, shards=2))
    assert not found.ok
    damage = [code for code in found.codes if code.severity == "damage"]
    assert changed.stream in {code.example["stream"] for code in damage}
    assert changed_seq in {code.example["seq"] for code in damage}
