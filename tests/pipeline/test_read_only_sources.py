"""Jobs whose sources cannot be written: they read them all the same, and leave no trace there."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.quick_java import quick_java
from tests.shared_logs import Request, can_mount_read_only, fill, listing, read

from runstate.pipeline.jobs import ingest

pytestmark = pytest.mark.skipif(
    not can_mount_read_only(), reason="needs `unshare -m` and `mount --bind`: CAP_SYS_ADMIN"
)


def test_logs_and_tables_on_a_read_only_mount_are_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in quick_java.items():
        monkeypatch.setenv(name, value)
    directory, scratch = tmp_path / "sources", tmp_path / "scratch"
    directory.mkdir()
    fill(directory)
    ingest(spark, f"sqlite:{directory}/sqlite/log", directory / "table", model="engine")
    before = listing(directory)
    commands = [
        ["pipeline", "ingest", "sqlite:sqlite/log", "--to", f"{scratch}/events"],
        ["pipeline", "audit", "table:table"],
    ]
    request = Request(str(directory), str(scratch), [], str(directory), commands)
    ingested, audited = read(request, is_mount=True).found
    assert (ingested.code, ingested.out.split()[4:]) == (0, ["35", "0", "3", "0"]), ingested
    assert (audited.code, audited.err) == (0, "3 streams, 35 events: intact\n"), audited
    assert listing(directory) == before
