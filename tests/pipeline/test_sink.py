"""Appending from Spark: each stream in order, once however often it is tried, and nothing that is no event."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.fleets import histories
from tests.log_urls import durable_schemes, url_at
from tests.pipeline.fleet_logs import local_snapshots, spanning_pairs

from runstate.errors import InvalidUrl, LogBusy, RunstateError, Unsupported
from runstate.logs.pairing import default_model
from runstate.logs.registry import open_log
from runstate.models.engine import ENGINE
from runstate.pipeline.source import sink
from runstate.pipeline.source.data_source import register
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.source.sink import Appended, ContentMismatch, EventWriter, append_events
from runstate.pipeline.spark.failures import PipelineFailed, readable
from runstate.store import open as open_store

text = StructType([StructField("body", StringType())])


def frame_of(spark: SparkSession, lines: Iterable[bytes]) -> DataFrame:
    return spark.createDataFrame([(line.decode(),) for line in lines], text)


def in_turn(by_stream: dict[str, list[bytes]]) -> list[bytes]:
    """The first event of each stream, then the second of each, and so on."""
    longest = max(map(len, by_stream.values()))
    return [lines[n] for n in range(longest) for lines in by_stream.values() if n < len(lines)]


def expected(model: str, tmp_path: Path, by_stream: dict[str, list[bytes]]) -> dict[str, tuple[int, bytes]]:
    url = f"sqlite:{tmp_path}/expected"
    with open_store(url, model, snapshot_every=0, on_alert=lambda alert: None) as store:
        for lines in by_stream.values():
            store.append_events([store.model.parse(line) for line in lines])
    return local_snapshots(url, model)


def timed(by_stream: dict[str, list[bytes]], model: str) -> dict[str, list[bytes]]:
    """With times of their own where the log's clock would otherwise be part of the state."""
    if model != "rundir":
        return by_stream
    at = b',"ts":"2026-11-15T09:30:00.000Z"}'
    return {stream: [line[:-1] + at for line in lines] for stream, lines in by_stream.items()}


def batches_of(lines: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    return iter([pa.RecordBatch.from_pydict({"body": [line.decode() for line in lines]})])


@pytest.mark.parametrize(("scheme", "model"), spanning_pairs())
def test_a_frame_is_appended_in_order_and_a_second_time_changes_nothing(
    spark: SparkSession, tmp_path: Path, scheme: str, model: str
) -> None:
    by_stream = timed(histories(model, seed=1, runs=5), model)
    url = url_at(scheme, tmp_path / "log")
    frame = frame_of(spark, in_turn(by_stream))
    for _ in range(2):
        append_events(frame, url, model=model)
        assert local_snapshots(url, model) == expected(model, tmp_path, by_stream)


def test_the_order_of_a_frame_outlives_the_shuffle(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_stream = histories("engine", seed=1, runs=8)
    with_streams = sink._with_streams

    def backwards(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in reversed(list(batches)):
            yield batch.take(pa.array(range(batch.num_rows - 1, -1, -1)))

    def arriving_backwards(frame: DataFrame, model: str) -> DataFrame:
        found = with_streams(frame, model)
        return found.mapInArrow(backwards, found.schema)

    monkeypatch.setattr(sink, "_with_streams", arriving_backwards)
    append_events(frame_of(spark, in_turn(by_stream)), f"sqlite:{tmp_path}/log")
    assert local_snapshots(f"sqlite:{tmp_path}/log", "engine") == expected("engine", tmp_path, by_stream)


def test_columns_that_say_stream_and_seq_decide(spark: SparkSession, tmp_path: Path) -> None:
    by_stream = histories("engine", seed=1, runs=4)
    rows = [
        (line.decode(), stream, seq)
        for stream, lines in by_stream.items()
        for seq, line in reversed(list(enumerate(lines)))
    ]
    schema = StructType([*text.fields, StructField("stream", StringType()), StructField("seq", LongType())])
    append_events(spark.createDataFrame(rows, schema), f"sqlite:{tmp_path}/log")
    assert local_snapshots(f"sqlite:{tmp_path}/log", "engine") == expected("engine", tmp_path, by_stream)


def test_the_format_writes_a_binary_body_and_leaves_other_columns_alone(spark: SparkSession, tmp_path: Path) -> None:
    by_stream = histories("engine", seed=1, runs=2)
    register(spark)
    frame = frame_of(spark, in_turn(by_stream)).selectExpr("1 as other", "cast(body as binary) as body").coalesce(1)
    url = f"sqlite:{tmp_path}/log"
    frame.write.format("runstate").option("url", url).option("event_bytes_max", "10000").mode("append").save()
    assert local_snapshots(url, "engine") == expected("engine", tmp_path, by_stream)


def test_a_job_whose_task_was_killed_is_run_again_and_nothing_is_there_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    by_stream = histories("engine", seed=1, runs=2)
    marker, url = str(tmp_path / "died"), f"sqlite:{tmp_path}/log"
    (_, first), (_, second) = by_stream.items()

    def dies_once(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.column("body")[0].as_py() == second[0].decode() and not os.path.exists(marker):
                os.close(os.open(marker, os.O_CREAT))
                give_up_at = time.monotonic() + 60
                while time.monotonic() < give_up_at and not _streams(url):
                    time.sleep(0.05)
                os._exit(9)
            yield batch

    rows = [(line.decode(), number) for number, lines in enumerate((first, second)) for line in lines]
    schema = StructType([*text.fields, StructField("number", LongType())])
    # A task for each stream, side by side: one of them dies when the other has appended.
    frame = spark.createDataFrame(rows, schema).repartitionByRange(2, "number").select("body")
    assert frame.rdd.glom().map(len).collect() == [len(first), len(second)]
    register(spark)
    writing = frame.mapInArrow(dies_once, text).write.format("runstate").option("url", url).mode("append")
    with pytest.raises(PipelineFailed), readable("append"):
        writing.save()
    assert len(_streams(url)) == 1
    writing.save()
    assert local_snapshots(url, "engine") == expected("engine", tmp_path, by_stream)


def _streams(url: str) -> list[str]:
    with open_log(url) as log:
        return [head.stream for head in log.heads()]


killed_half_way = """
import os, sys
import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType
from runstate.pipeline.source import sink

url, *lines = sys.argv[1:]
sink._append_rows = 3

def batches():
    for number, line in enumerate(lines):
        if number == len(lines) - 2:
            os._exit(9)
        yield pa.RecordBatch.from_pydict({"body": [line]})

sink.EventWriter(url, {}, StructType([StructField("body", StringType())])).write(batches())
"""


@pytest.mark.parametrize("scheme", durable_schemes())
def test_a_partition_that_was_half_appended_is_appended_to_its_end(tmp_path: Path, scheme: str) -> None:
    url = url_at(scheme, tmp_path / "log")
    writer = EventWriter(url, {}, text)
    by_stream = histories(default_model(url), seed=1, runs=2)
    lines = in_turn(by_stream)
    script = [sys.executable, "-c", killed_half_way, url, *(line.decode() for line in lines)]
    assert subprocess.run(script, check=False, timeout=120).returncode == 9
    before = 3 * ((len(lines) - 2) // 3)
    assert writer.write(batches_of(lines)) == Appended(len(lines) - before, before)
    with open_log(url) as log:
        assert {stream: len(log.read(stream)) for stream in by_stream} == {s: len(ls) for s, ls in by_stream.items()}


def test_what_was_appended_and_what_was_known_is_counted(tmp_path: Path) -> None:
    lines = in_turn(histories("engine", seed=1, runs=2))
    writer = EventWriter(f"sqlite:{tmp_path}/log", {}, text)
    assert writer.write(batches_of(lines[:5])) == Appended(5, 0)
    assert writer.write(batches_of(lines)) == Appended(len(lines) - 5, 5)
    assert writer.write(batches_of([])) == Appended(0, 0)


# --- what is refused ------------------------------------------------------------------------------------------


def test_a_line_that_is_no_event_fails_the_job_with_its_reason(spark: SparkSession, tmp_path: Path) -> None:
    lines = in_turn(histories("engine", seed=1, runs=1))
    stored = ENGINE.draft(ENGINE.parse(lines[1]))[1].render(1, "2026-11-15T09:30:00.000Z")
    for bad, words in ((b'{"no":"event"}', "eventId"), (stored, "assigned by the store")):
        with pytest.raises(PipelineFailed, match=words) as caught:
            append_events(frame_of(spark, [lines[0], bad]), f"sqlite:{tmp_path}/log")
        assert caught.value.details["cause"]["code"] == "event.invalid"
        assert f"the line begins with {bad[:200]!r}" in str(caught.value)


def test_an_event_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    lines = in_turn(histories("engine", seed=1, runs=1))
    writer = EventWriter(f"sqlite:{tmp_path}/log", {"event_bytes_max": "100"}, text)
    with pytest.raises(RunstateError, match="limit is 100") as caught:
        writer.write(batches_of(lines))
    assert caught.value.code == "event.too_large"


def test_another_event_under_a_known_key_is_told_and_the_first_one_stays(tmp_path: Path) -> None:
    (line, *_) = in_turn(histories("engine", seed=1, runs=1))
    other = line[:-1] + b',"payload":{"other":1}}'
    writer = EventWriter(f"sqlite:{tmp_path}/log", {}, text)
    writer.write(batches_of([line]))
    with pytest.raises(ContentMismatch) as caught:
        writer.write(batches_of([other]))
    assert caught.value.details["key"] == msgspec.json.decode(line)["idempotencyKey"]
    with open_log(f"sqlite:{tmp_path}/log") as log:
        (stored,) = log.read(caught.value.details["stream"])
    assert b"other" not in stored.body


def test_frames_and_urls_that_make_no_sense_are_refused_before_anything_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = frame_of(spark, [])
    with pytest.raises(InvalidOption, match=r"no column 'body'.*it has: line"):
        append_events(frame.withColumnRenamed("body", "line"), f"sqlite:{tmp_path}/log")
    with pytest.raises(InvalidOption, match="not bigint"):
        append_events(spark.range(1).withColumnRenamed("id", "body"), f"sqlite:{tmp_path}/log")
    with pytest.raises(Unsupported, match="memory of one process"):
        append_events(frame, "memory:")
    with pytest.raises(InvalidUrl):
        append_events(frame, f"parquet:{tmp_path}")
    with pytest.raises(InvalidOption, match="no option 'modle'"):
        EventWriter(f"sqlite:{tmp_path}/log", {"modle": "engine"}, text)
    assert list(tmp_path.iterdir()) == []


def test_a_row_without_a_line_is_refused(tmp_path: Path) -> None:
    writer = EventWriter(f"sqlite:{tmp_path}/log", {}, text)
    with pytest.raises(InvalidOption, match="null in row 0"):
        writer.write(iter([pa.RecordBatch.from_pydict({"body": pa.array([None], pa.string())})]))


# --- other writers --------------------------------------------------------------------------------------------


def test_a_busy_log_is_waited_for(tmp_path: Path) -> None:
    by_stream = histories("rundir", seed=1, runs=1)
    ((stream, lines),) = by_stream.items()
    url = f"ndjson:{tmp_path}/log"
    holder = open_log(url)
    with open_store(f"ndjson:{tmp_path}/other") as store:
        drafts = [store.model.draft(store.model.parse(line))[1] for line in lines]
    holder.append(stream, drafts[:1])
    letting_go = threading.Timer(0.3, holder.close)
    letting_go.start()
    try:
        assert EventWriter(url, {}, text).write(batches_of(lines)) == Appended(len(lines) - 1, 1)
    finally:
        letting_go.join()
    with open_log(url) as log:
        assert [record.key for record in log.read(stream)] == [draft.key for draft in drafts]


def test_a_log_that_stays_busy_is_told_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "busy_seconds_max", 0.2)
    ((stream, lines),) = histories("rundir", seed=1, runs=1).items()
    url = f"ndjson:{tmp_path}/log"
    with open_store(url) as store:
        store.append_event(store.model.parse(lines[0]))
        with pytest.raises(LogBusy):
            EventWriter(url, {}, text).write(batches_of(lines))
        assert [record.seq for record in store.log.read(stream)] == [1]


def test_two_writers_of_the_same_runs_never_wait_for_each_other_for_ever(tmp_path: Path) -> None:
    by_stream = histories("rundir", seed=1, runs=6)
    url = f"ndjson:{tmp_path}/log"
    open_log(url).close()
    done: list[Any] = []

    def write(order: list[bytes]) -> None:
        # A row at a time: each writer then holds many runs while it asks for the next.
        done.append(EventWriter(url, {}, text).write(batch for line in order for batch in batches_of([line])))

    opening = [lines_of[0] for lines_of in by_stream.values()]
    threads = [threading.Thread(target=write, args=(order,)) for order in (opening, opening[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted((each.appended + each.known) for each in done) == [6, 6]
    assert sum(each.appended for each in done) == 6
