"""A model of one's own on Spark: tables record its name, never where it was loaded from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runstate.errors import ModelMismatch, NotALog, RunstateError, UnknownModel
from runstate.pipeline import jobs
from runstate.pipeline.audit.job import audit, summary
from runstate.pipeline.tables.quarantine import quarantined
from runstate.store import open as open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

door = """
import msgspec
from runstate import TaggedModel

class Opened(msgspec.Struct, tag="opened", frozen=True): ...

class Hall(msgspec.Struct):
    count: int = 0

class Door(TaggedModel[Opened, Hall]):
    name, version = "door", 1
    events, state = Opened, Hall

    def evolve(self, state, fact):
        return Hall(state.count + 1)

class Gate(Door):
    name = "gate"
"""
opened = b'{"stream":"front","key":"k1","event":{"type":"opened"}}'


@pytest.fixture
def place(tmp_path: Path) -> str:
    (tmp_path / "door.py").write_text(door)
    return f"{tmp_path}/door.py:Door"


@pytest.fixture
def ingested(spark: SparkSession, tmp_path: Path, place: str) -> Path:
    """An event table of the model, from plain files."""
    (tmp_path / "events.ndjson").write_bytes(opened + b"\n")
    jobs.ingest(spark, f"files:{tmp_path}/events.ndjson", tmp_path / "events", model=place)
    return tmp_path / "events"


def test_a_table_records_the_name_of_its_model(spark: SparkSession, tmp_path: Path, place: str, ingested: Path) -> None:
    jobs.replay(spark, f"table:{ingested}", tmp_path / "snapshots", model=place)
    for table in (ingested, tmp_path / "snapshots"):
        assert json.loads((table / "table.json").read_text())["model"] == "door"
        written = [path.read_bytes() for path in table.rglob("*") if path.is_file()]
        assert not any(b"door.py" in data for data in written)


def test_a_table_of_a_model_that_is_not_installed_is_read_with_the_given_one_alone(
    spark: SparkSession, tmp_path: Path, place: str, ingested: Path
) -> None:
    url = f"table:{ingested}"
    with pytest.raises(UnknownModel, match=r"'door', which is not installed. Pass --model FILE\.py:CLASS"):
        jobs.replay(spark, url, tmp_path / "snapshots")
    with pytest.raises(ModelMismatch, match="'door', not of 'gate'"):
        jobs.replay(spark, url, tmp_path / "snapshots", model=place.replace("Door", "Gate"))
    with pytest.raises(UnknownModel):
        jobs.compact(spark, ingested)
    assert jobs.compact(spark, ingested, model=place).commit == 2
    jobs.replay(spark, url, tmp_path / "snapshots", model=place)
    found = audit(spark, url, model=place, snapshots=tmp_path / "snapshots")
    assert summary(found).ok


def test_snapshots_of_another_model_are_not_audited(
    spark: SparkSession, tmp_path: Path, place: str, ingested: Path
) -> None:
    jobs.replay(spark, f"table:{ingested}", tmp_path / "snapshots", model=place)
    open_store(f"sqlite:{tmp_path}/empty.db").close()
    found = audit(spark, f"sqlite:{tmp_path}/empty.db", model="engine", snapshots=tmp_path / "snapshots")
    with pytest.raises(RunstateError, match="'door', not of 'engine'"):
        summary(found)


def test_a_table_of_an_older_version_that_records_a_place_needs_the_given_model(
    spark: SparkSession, tmp_path: Path, place: str, ingested: Path
) -> None:
    info = json.loads((ingested / "table.json").read_text())
    (ingested / "table.json").write_text(json.dumps(info | {"model": "moved/door.py:Door"}))
    with pytest.raises(UnknownModel, match="does not load code that data names"):
        jobs.replay(spark, f"table:{ingested}", tmp_path / "snapshots")
    assert jobs.replay(spark, f"table:{ingested}", tmp_path / "snapshots", model=place).counts["streams"] == 1
    with open(tmp_path / "events.ndjson", "ab") as file:
        file.write(opened.replace(b"k1", b"k2") + b"\n")
    with pytest.raises(NotALog):
        jobs.ingest(spark, f"files:{tmp_path}/events.ndjson", ingested)
    assert jobs.ingest(spark, f"files:{tmp_path}/events.ndjson", ingested, model=place).counts["events"] == 1
    assert list(quarantined(ingested)) == []
