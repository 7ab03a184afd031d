"""The live projectors that are measured, each a process of its own: `python -m benchmarks.live_sides SIDE URL STATE`.

All keep rows in the log's own snapshots. `transform` is the other way to do it on Spark: `transformWithState` on
RocksDB instead of a fold that goes on from the sink's rows.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.live import held_name
from runstate.logs.log import now
from runstate.logs.registry import open_log
from runstate.models.engine import ENGINE
from runstate.pipeline.live.stream import live_projection, settle
from runstate.pipeline.source.data_source import register
from runstate.pipeline.spark.session import spark_session
from runstate.projector import Projector
from runstate.sinks import Projected, StoreSink

heap = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
_row = "stream string, seq long, status string, body binary"
_rocksdb = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def in_process(url: str, state: Path, stop: threading.Event) -> None:
    from contextlib import closing

    from runstate.following import Follower
    from runstate.logbook import Logbook
    from runstate.store import open as open_store

    with open_store(url, "engine", create=False, snapshot_every=0) as store, closing(Logbook(state)) as book:
        follower = Follower(url, store, book)
        telling = threading.Thread(target=_tell_held, args=(follower.projector, state / held_name, stop))
        telling.start()
        follower.run(stop)
        telling.join()


def _tell_held(projector: Projector, path: Path, stop: threading.Event) -> None:
    while not stop.wait(1):
        path.write_text(str(projector.held))


def on_spark(url: str, state: Path, stop: threading.Event) -> None:
    with (
        spark_session(master="local[2]", conf=heap) as spark,
        live_projection(spark, url, "store", state) as projection,
    ):
        while not stop.is_set() and not projection.wait(0.2):
            pass


def transform(url: str, state: Path, stop: threading.Event) -> None:
    conf = {**heap, "spark.sql.streaming.stateStore.providerClass": _rocksdb}
    with spark_session(master="local[2]", conf=conf) as spark, open_log(url) as log:
        sink = StoreSink(log, ENGINE.name)

        def keep(frame: DataFrame, batch: int) -> None:
            sink.keep([_projected(row) for row in frame.collect()])

        settle(spark)
        query = _states(spark, url).writeStream.foreachBatch(keep).outputMode("update")
        running = (
            query.option("checkpointLocation", str(state / "checkpoint"))
            .trigger(processingTime="100 milliseconds")
            .start()
        )
        while not stop.wait(0.2) and running.isActive:
            pass
        if not running.isActive:
            running.awaitTermination()
        running.stop()


def _states(spark: SparkSession, url: str) -> DataFrame:
    register(spark)
    events = (
        spark.readStream.format("runstate").option("url", url).schema("stream string, seq long, body string").load()
    )
    return events.groupBy("stream").transformWithState(Folding(), _row, "Update", "None")


class Folding(StatefulProcessor):
    """The fold with its state in RocksDB: of the projector's promises it has none but the order of events."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("state", "seq long, body binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any = None) -> Iterator[Row]:  # noqa: N802, N803
        (stream,) = key
        seq, body = (self._state.get() or (0, None)) if self._state.exists() else (0, None)
        state = ENGINE.initial(stream) if body is None else ENGINE.load(bytes(body))
        new = sorted((row["seq"], row["body"].encode()) for row in rows if row["seq"] > seq)
        state = ENGINE.fold(state, [line for _, line in new])
        seq, body = (new[-1][0] if new else seq), ENGINE.dump(state)
        if ENGINE.is_over(state):
            self._state.clear()
        else:
            self._state.update((seq, body))
        yield Row(stream=stream, seq=seq, status=ENGINE.status(state), body=body)

    def close(self) -> None:
        """It holds nothing open."""


def _projected(row: Row) -> Projected:
    seq = row["seq"]
    return Projected(
        stream=row["stream"],
        model=ENGINE.name,
        version=ENGINE.version,
        last_event_seq=seq,
        applied=seq,
        observed=seq,
        born="",
        status=row["status"],
        projected_at=now(),
        body=bytes(row["body"]),
    )


sides = {"in_process": in_process, "spark": on_spark, "transform": transform}


def main(side: str, url: str, state: str) -> None:
    stop = threading.Event()
    if side == "in_process":
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
    else:
        # Spark takes SIGINT over when it starts; SIGTERM stays ours.
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
    sides[side](url, Path(state), stop)


if __name__ == "__main__":
    main(*sys.argv[1:])
