"""Spark's snapshots are those of one process, byte for byte: for every model, from every log, and from event tables."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.fleets import histories, models
from tests.pipeline.fleet_logs import (
    event_lines,
    filled,
    local_snapshots,
    readable_pairs,
    spanning_pairs,
    table_snapshots,
)
from tests.tables import new_table

from runstate.errors import RunstateError
from runstate.logs.registry import open_log
from runstate.models.registry import find_model
from runstate.models.rundir import RUNDIR
from runstate.pipeline.jobs import ingest, read_view, replay
from runstate.pipeline.replay import fold as replays
from runstate.pipeline.source.frames import fold_frame
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.source.origins import Origins
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.source.views import Request, Task, view_named
from runstate.pipeline.spark import small_jobs as in_place
from runstate.pipeline.spark.failures import PipelineFailed, readable
from runstate.pipeline.tables import ingest as ingests
from runstate.pipeline.tables import sorted_files
from runstate.pipeline.tables.sorted_files import FileEntry, TableDamaged
from runstate.pipeline.tables.table import Commit
from runstate.store import open as open_store


def view_snapshots(spark: SparkSession, url: str, model: str) -> dict[str, tuple[int, bytes]]:
    rows = read_view(spark, url, "snapshots", model=model, shards=3).collect()
    assert all(row["finding"] is None for row in rows)
    assert len({row["stream"] for row in rows}) == len(rows)
    return {row["stream"]: (row["seq"], row["body"].encode()) for row in rows}


@pytest.mark.parametrize(("scheme", "model"), readable_pairs())
def test_snapshots_from_a_log_and_from_its_table_are_those_of_one_process(
    spark: SparkSession, tmp_path: Path, scheme: str, model: str
) -> None:
    url = filled(scheme, model, tmp_path)
    expected = local_snapshots(url, model)
    assert len(expected) == 12
    assert view_snapshots(spark, url, model) == expected
    ingest(spark, url, tmp_path / "events", model=model, shards=3)
    assert view_snapshots(spark, f"table:{tmp_path}/events", model) == expected


@pytest.mark.parametrize(("scheme", "model"), spanning_pairs())
def test_a_replay_of_what_is_new_gives_what_a_full_one_gives(
    spark: SparkSession, tmp_path: Path, scheme: str, model: str
) -> None:
    url = filled(scheme, model, tmp_path, seed=1, runs=6)
    from_log, events, from_table = tmp_path / "from-log", tmp_path / "events", tmp_path / "from-table"

    def bring_up_to_date() -> tuple[int, int]:
        ingest(spark, url, events, model=model, shards=2)
        folded = replay(spark, f"table:{events}", from_table, shards=2).counts.get("streams", 0)
        return replay(spark, url, from_log, model=model, shards=2).counts["streams"], folded

    with open_store(url, model, snapshot_every=0, on_alert=lambda alert: None) as store:
        for lines in histories(model, seed=2, runs=4).values():
            store.append_events([store.model.parse(line) for line in lines[:5]])
    assert bring_up_to_date() == (10, 10)
    assert bring_up_to_date() == (0, 0)
    with open_store(url, model, snapshot_every=0, on_alert=lambda alert: None) as store:
        for lines in histories(model, seed=2, runs=4).values():
            store.append_events([store.model.parse(line) for line in lines])
        for lines in histories(model, seed=3, runs=2).values():
            store.append_events([store.model.parse(line) for line in lines])
    assert bring_up_to_date() == (6, 6)
    expected = local_snapshots(url, model)
    assert table_snapshots(from_log) == expected
    assert table_snapshots(from_table) == expected


def test_a_little_that_is_new_starts_no_job_and_much_does(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, snapshots = filled("sqlite", "engine", tmp_path, runs=6), tmp_path / "snapshots"
    tracker = spark.sparkContext.statusTracker()

    def jobs_of_a_replay() -> int:
        before = set(tracker.getJobIdsForGroup(None))  # Spark forgets old jobs, so their number may also fall.
        replay(spark, f"table:{tmp_path}/events", snapshots)
        return len(set(tracker.getJobIdsForGroup(None)) - before)

    for seed, count in ((1, 1), (2, 0), (3, 1)):
        if seed == 3:
            monkeypatch.setattr(in_place, "shards_max", 0)
        filled("sqlite", "engine", tmp_path, seed=seed, runs=12)
        ingest(spark, url, tmp_path / "events", model="engine")
        assert jobs_of_a_replay() == count
        assert table_snapshots(snapshots) == local_snapshots(url, "engine")


def test_another_version_of_the_model_folds_everything_anew(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = filled("sqlite", "engine", tmp_path, runs=4)
    replay(spark, url, tmp_path / "snapshots", model="engine")
    monkeypatch.setattr(type(find_model("engine")), "version", 999)
    done = replay(spark, url, tmp_path / "snapshots", model="engine")
    # The workers of Spark have the old version; that all streams were asked for again is what counts here.
    assert done.counts["streams"] == 4


def test_a_stream_that_was_begun_again_is_folded_from_its_beginning(spark: SparkSession, tmp_path: Path) -> None:
    url = filled("sqlite", "engine", tmp_path, runs=3)
    replay(spark, url, tmp_path / "snapshots", model="engine", shards=1)
    # Neither the first nor the last of its file, and now with fewer events than before.
    _, (stream, lines), _ = histories("engine", runs=3).items()
    with open_store(url, "engine", snapshot_every=0, on_alert=lambda alert: None) as store:
        store.delete_stream(stream, forget=True)
        store.append_events([store.model.parse(line) for line in lines[2:]])
        # More that is new, behind it: the files of both replays then have to be merged.
        for later in histories("engine", seed=7, runs=2).values():
            store.append_events([store.model.parse(line) for line in later])
    assert replay(spark, url, tmp_path / "snapshots", model="engine", shards=1).counts["streams"] == 3
    assert table_snapshots(tmp_path / "snapshots") == local_snapshots(url, "engine")


def test_a_table_that_was_made_again_is_replayed_from_its_beginning(spark: SparkSession, tmp_path: Path) -> None:
    url = filled("sqlite", "engine", tmp_path, runs=3)
    events, snapshots = tmp_path / "events", tmp_path / "snapshots"
    ingest(spark, url, events, model="engine")
    replay(spark, f"table:{events}", snapshots)
    # As whoever has lost a file of it: as many commits as before, and more events in them.
    shutil.rmtree(events)
    filled("sqlite", "engine", tmp_path, seed=4, runs=2)
    ingest(spark, url, events, model="engine")
    replay(spark, f"table:{events}", snapshots)
    assert table_snapshots(snapshots) == local_snapshots(url, "engine")


def test_a_table_beside_a_log_is_replayed_with_all_that_is_new(spark: SparkSession, tmp_path: Path) -> None:
    url, other = filled("sqlite", "engine", tmp_path, runs=3), filled("ndjson", "engine", tmp_path, seed=1, runs=2)
    urls, snapshots = [f"table:{tmp_path}/events", other], tmp_path / "snapshots"
    ingest(spark, url, tmp_path / "events", model="engine")
    replay(spark, urls, snapshots, model="engine")
    filled("sqlite", "engine", tmp_path, seed=4, runs=2)
    ingest(spark, url, tmp_path / "events", model="engine")
    replay(spark, urls, snapshots, model="engine")
    assert table_snapshots(snapshots) == local_snapshots(url, "engine") | local_snapshots(other, "engine")


def test_a_stream_in_two_logs_is_folded_from_the_first_however_often(spark: SparkSession, tmp_path: Path) -> None:
    first, second = filled("sqlite", "engine", tmp_path, runs=1), f"sqlite:{tmp_path}/second.db"
    (lines,) = histories("engine", runs=1).values()
    with open_store(second, "engine", snapshot_every=0, on_alert=lambda alert: None) as store:
        store.append_events([store.model.parse(line) for line in lines[:2]])
    assert len(read_view(spark, [first, second], "snapshots", model="engine").collect()) == 1
    for _ in range(3):
        replay(spark, [first, second], tmp_path / "snapshots", model="engine")
        assert table_snapshots(tmp_path / "snapshots") == local_snapshots(first, "engine")


def test_damage_in_what_was_folded_before_is_told_and_the_others_go_on(spark: SparkSession, tmp_path: Path) -> None:
    url, snapshots = filled("ndjson", "rundir", tmp_path, runs=3), tmp_path / "snapshots"
    replay(spark, url, snapshots, model="rundir")
    path = tmp_path / "ndjson-rundir" / "rundir-0-0001" / "events.ndjson"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:4], *lines[5:]]))
    filled("ndjson", "rundir", tmp_path, seed=4, runs=1)
    assert replay(spark, url, snapshots, model="rundir").counts == {"streams": 2, "failed": 1}


def test_a_stream_too_long_to_gather_is_folded_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    url = filled("sqlite", "engine", tmp_path, runs=6)
    ingest(spark, url, tmp_path / "events", model="engine", shards=1)
    from runstate.pipeline.tables import event_table

    monkeypatch.setattr(event_table, "whole_rows_max", 5)
    with Origins([f"table:{tmp_path}/events"]) as origins:
        folded = list(replays.fold_all(origins, Shard(), find_model("engine")))
    found = {snapshot.stream: (snapshot.seq, snapshot.body) for snapshot in folded}
    assert found == local_snapshots(url, "engine")


def test_a_damaged_stream_has_a_finding_and_the_others_their_snapshots(spark: SparkSession, tmp_path: Path) -> None:
    url = filled("ndjson", "rundir", tmp_path, runs=3)
    expected = local_snapshots(url, "rundir")
    victim = sorted(expected)[1]
    path = tmp_path / "ndjson-rundir" / victim / "events.ndjson"
    first, second, _, *rest = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([first, second, *rest]))
    rows = {row["stream"]: row for row in read_view(spark, url, "snapshots", model="rundir").collect()}
    assert rows[victim]["body"] is None
    assert "log.damaged" in rows[victim]["finding"]
    assert {s: rows[s]["body"].encode() for s in expected if s != victim} == {
        s: body for s, (_, body) in expected.items() if s != victim
    }


def test_a_damaged_table_fails_the_replay_and_leaves_no_stream_out(spark: SparkSession, tmp_path: Path) -> None:
    url = filled("sqlite", "rundir", tmp_path, runs=9)
    ingest(spark, url, tmp_path / "events", model="rundir", shards=1)
    (path,) = (tmp_path / "events" / "events").glob("*.parquet")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    with pytest.raises(PipelineFailed, match=f"The stage replay failed.*{path.name}"):
        replay(spark, f"table:{tmp_path}/events", tmp_path / "snapshots")
    assert table_snapshots(tmp_path / "snapshots") == {}
    with pytest.raises(PipelineFailed, match=path.name), readable("spans"):
        read_view(spark, f"table:{tmp_path}/events", "spans").count()


def test_a_stream_of_another_model_has_a_finding(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/log.db"
    with open_log(url) as log:  # As an older version has stored them, without the name of their model.
        for lines in histories("rundir", runs=2).values():
            for line in lines:
                stream, draft = RUNDIR.draft(RUNDIR.parse(line))
                log.append(stream, [msgspec.structs.replace(draft, model="")])
    rows = read_view(spark, url, "snapshots", model="engine").collect()
    assert len(rows) == 2
    assert all(row["body"] is None and "is it the right model" in row["finding"] for row in rows)


def test_a_log_in_memory_is_refused(spark: SparkSession) -> None:
    with pytest.raises((PipelineFailed, RunstateError), match="memory of one process"), readable("events"):
        read_view(spark, "memory:", model="engine").count()


@pytest.mark.parametrize("model", models())
def test_a_frame_in_any_order_folds_to_the_same(spark: SparkSession, tmp_path: Path, model: str) -> None:
    url = filled("sqlite", model, tmp_path, runs=5)
    shuffled = read_view(spark, url, model=model).orderBy("event_id")
    found = {row["stream"]: (row["seq"], row["body"].encode()) for row in fold_frame(shuffled, model, 3).collect()}
    assert found == local_snapshots(url, model)


def test_a_frame_without_its_columns_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidOption, match="no column 'seq'"):
        fold_frame(spark.createDataFrame([("s", "{}")], "stream string, body string"), "engine")


def test_damage_met_in_the_middle_of_a_stream_is_no_matter_of_that_stream_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, to = filled("sqlite", "rundir", tmp_path, runs=4), tmp_path / "events"
    table = new_table(to, model="rundir")
    monkeypatch.setattr(sorted_files, "chunk_rows", 5)
    monkeypatch.setattr(ingests, "_batch", 1)
    with table.writing():
        (done,) = view_named("ingest").rows(Task(Request((url,), "ingest", "rundir", options={"to": str(to)}), Shard()))
        files = msgspec.json.decode(done.column("files")[0].as_py(), type=list[FileEntry])
        table.commit(Commit(number=1, files=files))
    (entry,) = [file for file in files if file.kind == "events"]
    path, middle = to / "events" / entry.name, entry.chunks[2].section
    data = bytearray(path.read_bytes())
    data[middle.end - 40] ^= 4
    path.write_bytes(data)
    with pytest.raises(TableDamaged), Origins([f"table:{to}"]) as origins:
        list(replays.fold_all(origins, Shard(), find_model("rundir")))


def test_streams_with_gaps_fold_as_in_one_process(spark: SparkSession, tmp_path: Path) -> None:
    url, model = filled("sqlite", "engine", tmp_path, runs=6), find_model("engine")
    kept = [(stream, line) for number, (stream, line) in enumerate(event_lines(url)) if number % 5]
    (tmp_path / "export.ndjson").write_bytes(b"".join(line + b"\n" for _, line in kept))
    ingest(spark, f"files:{tmp_path}/export.ndjson", tmp_path / "events", model="engine")
    found = view_snapshots(spark, f"table:{tmp_path}/events", "engine")
    for stream in {stream for stream, _ in kept}:
        lines = [line for each, line in kept if each == stream]
        assert found[stream][1] == model.dump(model.fold(model.initial(stream), lines))
        assert found[stream][0] == model.decode(lines[-1]).run_seq
