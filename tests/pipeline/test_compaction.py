"""A table's many files written anew as few: it holds what it held, and whoever has read from it goes on."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.fleets import histories
from tests.pipeline.fleet_logs import event_lines, filled, local_snapshots, table_snapshots
from tests.tables import change_info, new_table

from runstate.errors import LogBusy, LogNotFound
from runstate.pipeline.jobs import compact, ingest, replay
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.spark.failures import PipelineFailed
from runstate.pipeline.tables.event_table import open_event_table
from runstate.pipeline.tables.ingest import known_heads
from runstate.pipeline.tables.quarantine import quarantined, reasons
from runstate.pipeline.tables.sorted_files import FileEntry
from runstate.store import open as open_store


def files_of(table: Path, kind: str = "events") -> list[FileEntry]:
    return open_event_table(table).files(kind)


def overlapping(files: list[FileEntry]) -> int:
    """How many files begin before the one in front of them has ended."""
    ranges = sorted((entry.chunks[0].first, entry.chunks[-1].last) for entry in files)
    return sum(one[1] >= other[0] for one, other in pairwise(ranges))


def many_files(spark: SparkSession, directory: Path) -> str:
    """A log that was ingested while it grew, stream by stream and event by event."""
    url = f"sqlite:{directory}/log.db"
    for count in (2, 4, 6, None):
        with open_store(url, "engine", snapshot_every=0, on_alert=lambda alert: None) as store:
            for lines in histories("engine", runs=8).values():
                store.append_events([store.model.parse(line) for line in lines[:count]])
        ingest(spark, url, directory / "events", model="engine", shards=3)
    return url


def test_it_holds_the_same_in_few_files_that_do_not_overlap(spark: SparkSession, tmp_path: Path) -> None:
    url, to = many_files(spark, tmp_path), tmp_path / "events"
    before = files_of(to)
    assert overlapping(before) > 3
    heads = list(known_heads(open_event_table(to), files_of(to, "heads"), Shard()))
    assert compact(spark, to, shards=2).commit == 5
    after = files_of(to)
    assert (len(after), overlapping(after)) == (2, 0)
    assert list(event_lines(f"table:{to}")) == sorted(event_lines(url), key=lambda line: line[0])
    assert list(known_heads(open_event_table(to), files_of(to, "heads"), Shard())) == heads
    assert sum(entry.rows for entry in files_of(to, "heads")) == len(heads)
    # There is nothing to be gained from a second one.
    assert compact(spark, to).commit == 5


def test_ingest_and_replay_go_on_where_they_were(spark: SparkSession, tmp_path: Path) -> None:
    url, to = many_files(spark, tmp_path), tmp_path / "events"
    current, behind = tmp_path / "current", tmp_path / "behind"
    replay(spark, f"table:{to}", behind)
    filled_more(url, seed=4)
    ingest(spark, url, to, model="engine")
    replay(spark, f"table:{to}", current)
    old = {entry.name for entry in files_of(to)}
    compact(spark, to)
    assert replay(spark, f"table:{to}", current).counts.get("streams", 0) == 0
    assert ingest(spark, url, to, model="engine").counts["events"] == 0
    # What was replaced is still there for whoever is reading it, until a vacuum.
    assert old <= {path.name for path in (to / "events").iterdir()}
    filled_more(url, seed=5)
    assert ingest(spark, url, to, model="engine").counts["streams"] == 2
    assert replay(spark, f"table:{to}", current).counts["streams"] == 2
    replay(spark, f"table:{to}", behind)
    assert table_snapshots(current) == table_snapshots(behind) == local_snapshots(url, "engine")


def filled_more(url: str, seed: int) -> None:
    with open_store(url, "engine", snapshot_every=0, on_alert=lambda alert: None) as store:
        for lines in histories("engine", seed=seed, runs=2).values():
            store.append_events([store.model.parse(line) for line in lines])


def test_what_was_set_aside_stays_set_aside_and_is_not_told_again(spark: SparkSession, tmp_path: Path) -> None:
    to = tmp_path / "events"
    urls = [filled(scheme, "engine", tmp_path, runs=3) for scheme in ("sqlite", "ndjson")]
    (lines,) = histories("engine", seed=9, runs=1).values()
    (tmp_path / "a.ndjson").write_bytes(b"\n".join([lines[0], b"no event", lines[1], lines[2][:40]]))
    ingest(spark, urls, to, model="engine")
    ingest(spark, f"files:{tmp_path}/a.ndjson", to, model="engine")
    before = sorted(map(repr, quarantined(to)))
    assert reasons(to) == {"json.invalid": 1, "line.unfinished": 1, "stream.in_two_logs": 3}
    made = compact(spark, to).commit
    assert sorted(map(repr, quarantined(to))) == before
    assert ingest(spark, urls, to, model="engine").commit == made
    assert ingest(spark, f"files:{tmp_path}/a.ndjson", to, model="engine").commit == made
    with (tmp_path / "a.ndjson").open("ab") as file:
        file.write(lines[2][40:] + b"\n")
    assert ingest(spark, f"files:{tmp_path}/a.ndjson", to, model="engine").counts["events"] == 1
    assert reasons(to) == {"json.invalid": 1, "stream.in_two_logs": 3}


def test_one_that_fails_leaves_the_table_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    many_files(spark, tmp_path)
    to = tmp_path / "events"
    victim, before = to / "events" / files_of(to)[0].name, files_of(to)
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-9])
    with pytest.raises(PipelineFailed, match=f"The stage compact failed.*{victim.name}"):
        compact(spark, to)
    victim.write_bytes(whole)
    assert files_of(to) == before
    assert compact(spark, to).commit == 5


def test_a_table_that_cannot_be_compacted_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LogNotFound):
        compact(spark, tmp_path / "nowhere")
    table = new_table(tmp_path / "events")
    with table.writing(), pytest.raises(LogBusy):
        compact(spark, tmp_path / "events")
    change_info(tmp_path / "events", model_version=0)
    with pytest.raises(InvalidOption, match="ingest its logs into another directory"):
        compact(spark, tmp_path / "events")


def test_the_files_that_one_ingest_of_plain_files_makes_do_not_overlap(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runstate.pipeline.tables.file_progress._bytes_per_task", 4096)
    by_stream = histories("engine", seed=1, runs=30)
    rounds = max(map(len, by_stream.values()))
    taking_turns = [lines[n] for n in range(rounds) for lines in by_stream.values() if n < len(lines)]
    (tmp_path / "a.ndjson").write_bytes(b"".join(line + b"\n" for line in [*taking_turns, *[b"no event"] * 9]))
    done = ingest(spark, f"files:{tmp_path}/a.ndjson", tmp_path / "events", model="engine", shards=4)
    assert (done.counts["events"], done.counts["quarantined"]) == (len(taking_turns), 9)
    found = files_of(tmp_path / "events")
    assert (len(found), overlapping(found)) == (4, 0)
    # Of about one size: none has twice its share.
    assert max(entry.rows for entry in found) < 2 * len(taking_turns) / 4
    # Lines without a stream are spread.
    assert len(files_of(tmp_path / "events", "quarantine")) > 1
