"""Compressed files of events: the same table as from plain ones; none that is damaged is taken for a shorter one."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.fleets import histories

from runstate.models.registry import find_model
from runstate.pipeline.jobs import ingest
from runstate.pipeline.source.file_lines import FileChanged, LineNumbers, Stretch, whole
from runstate.pipeline.source.packed_files import FileDamaged
from runstate.pipeline.source.plain_files import _stretch_rows, find_files
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.spark.failures import PipelineFailed
from runstate.pipeline.tables.event_table import open_event_table
from runstate.pipeline.tables.quarantine import quarantined

packings: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": lambda data: bytes(pa.compress(data, codec="zstd", asbytes=True)),
}
each_packing = pytest.mark.parametrize("suffix", packings)


def content() -> bytes:
    """Lines of several streams, among them one that is no event, one twice, and a torn one at the end."""
    lines = [line for stream in histories("rundir", 0, 6).values() for line in stream]
    return b"\n".join([*lines[:20], b"no event", *lines[20:], lines[3], b"{torn"])


def packed(directory: Path, suffix: str, data: bytes) -> Path:
    path = directory / f"events.ndjson.{suffix}"
    directory.mkdir(exist_ok=True)
    path.write_bytes(packings[suffix](data))
    return path


def told_by(spark: SparkSession, url: str, to: Path) -> tuple[dict[str, int], list[tuple[str, int, str]], list[Any]]:
    """Counts, events (without the times of the ingest), and what was quarantined where."""
    counts = ingest(spark, url, to, model="rundir").counts
    table = open_event_table(to)
    pieces = table.pieces(table.files("events"), Shard(), ["stream", "seq", "key"])
    events = [(row["stream"], row["seq"], row["key"]) for piece in pieces for row in piece.to_pylist()]
    aside = [(row["line"], row["code"], row["content"]) for row in quarantined(to)]
    return counts, events, sorted(aside, key=lambda row: row[0] or 0)


@each_packing
def test_a_compressed_file_is_ingested_like_a_plain_one(spark: SparkSession, tmp_path: Path, suffix: str) -> None:
    (plain := tmp_path / "plain").mkdir()
    (plain / "events.ndjson").write_bytes(content())
    file = packed(tmp_path / "packed", suffix, content())
    expected = told_by(spark, f"files:{plain}", tmp_path / "one")
    found = told_by(spark, f"files:{tmp_path / 'packed'}", tmp_path / "two")
    assert found[1] == expected[1]
    assert [row[:2] for row in found[2]] == [row[:2] for row in expected[2]]
    assert {row[1] for row in found[2]} == {"json.invalid", "event.duplicate", "line.unfinished"}
    assert found[0] == expected[0]
    # Once is enough, and it is read only whole.
    again = ingest(spark, f"files:{file}", tmp_path / "two", model="rundir")
    assert again.counts["lines"] == 0
    file.write_bytes(file.read_bytes() + packings[suffix](b"{}\n"))
    with pytest.raises(FileChanged, match="a compressed file is read only whole"):
        ingest(spark, f"files:{file}", tmp_path / "two", model="rundir")


@each_packing
def test_a_job_over_a_truncated_file_fails_with_its_name_and_line(
    spark: SparkSession, tmp_path: Path, suffix: str
) -> None:
    file = packed(tmp_path / "in", suffix, content())
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(PipelineFailed, match=r"events\.ndjson\.\w+ cannot be unpacked on from line \d+") as failed:
        ingest(spark, f"files:{file}", tmp_path / "events", model="rundir")
    cause = failed.value.details["cause"]
    assert (cause["code"], cause["details"]["path"]) == ("pipeline.file_damaged", str(file))
    assert cause["details"]["line"] >= 1
    assert open_event_table(tmp_path / "events").commits() == []
    # Written to its end, it is taken.
    packed(tmp_path / "in", suffix, content())
    assert ingest(spark, f"files:{file}", tmp_path / "events", model="rundir").counts["events"] > 0


def rows_of(file: Path) -> list[tuple[Any, ...]]:
    part = whole(str(file))
    return list(_stretch_rows(Stretch(part, 0, part.end), find_model("rundir"), 10_000))


@each_packing
def test_no_truncated_file_is_read_to_an_end(tmp_path: Path, suffix: str) -> None:
    data = random.Random(3).randbytes(3000).hex().encode() + b"\n"
    file = packed(tmp_path, suffix, data * 3)
    intact = file.read_bytes()
    for size in range(0, len(intact), 7):
        file.write_bytes(intact[:size])
        with pytest.raises(FileDamaged):
            rows_of(file)
    file.write_bytes(intact)
    assert len(rows_of(file)) == 3


@each_packing
def test_a_line_that_unpacks_to_more_than_the_limit_is_never_held(tmp_path: Path, suffix: str) -> None:
    file = packed(tmp_path, suffix, b"0" * (64 << 20) + b"\n{}\n")
    part, model = whole(str(file)), find_model("rundir")
    assert part.end < 1 << 20
    tracemalloc.start()
    rows = list(_stretch_rows(Stretch(part, 0, part.end), model, 1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(row[-4], row[-3]) for row in rows] == [(1, "event.too_large"), (2, "event.invalid")]
    assert peak < 8 << 20


@each_packing
def test_lines_of_compressed_files_are_found_and_numbered(tmp_path: Path, suffix: str) -> None:
    file = packed(tmp_path, suffix, b"a\nbb\nccc\n")
    assert [LineNumbers().of(str(file), offset) for offset in (5, 0, 2)] == [3, 1, 2]
    (tmp_path / f"other.{suffix}").write_bytes(b"not of lines")
    assert find_files(f"files:{tmp_path}") == [str(file)]
