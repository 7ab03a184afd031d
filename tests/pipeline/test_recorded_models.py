"""The pipeline's commands without --model read each log with the model that its streams record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.commands import Cli
from tests.fleets import models
from tests.pipeline.fleet_logs import filled, local_snapshots, table_snapshots

from runstate.logs.registry import open_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("model", models())
def test_every_command_uses_the_recorded_model(spark: SparkSession, cli: Cli, tmp_path: Path, model: str) -> None:
    url = filled("sqlite", model, tmp_path, runs=3)
    expected = local_snapshots(url, model)
    with open_log(url) as log:
        events = sum(info.events for info in log.streams())
    ingested = cli("pipeline", "ingest", url, "--to", f"{tmp_path}/events", "--json")
    assert (ingested.code, ingested.rows[0]["events"]) == (0, events), ingested.err
    assert json.loads((tmp_path / "events" / "table.json").read_text())["model"] == model
    for source, to in ((url, "from-log"), (f"table:{tmp_path}/events", "from-table")):
        replayed = cli("pipeline", "replay", source, "--to", f"{tmp_path}/{to}")
        assert replayed.code == 0, replayed.err
        assert table_snapshots(tmp_path / to) == expected
    audited = cli("pipeline", "audit", url, "--json")
    assert [row for row in audited.rows if row.get("severity") == "damage"] == [], audited.out
