"""Appending from Spark: `frame.write.format("runstate").option("url", …).mode("append").save()`, into any log.

The column `body` holds lines as producers write them; other columns are left alone. Each task opens the log for itself
and appends through the log's own authority, so a task that runs twice, or a frame that is written twice, changes
nothing the second time. A job that fails has appended a part; run it again.

The rows of one stream should stand in one partition, in their order: a partition is appended in the order of its
rows, and nothing is promised about the order between partitions. `append_events` sees to that.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from runstate.errors import AppendOutcomeUnknown, EventTooLarge, InvalidUrl, LogBusy, RunstateError, Unsupported
from runstate.logs.log import AppendResult, EventLog
from runstate.logs.registry import installed_schemes, open_log
from runstate.models.model import AnyModel, Draft
from runstate.models.registry import find_model
from runstate.pipeline.source.data_source import register
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.source.origins import model_of
from runstate.pipeline.source.plain_files import event_bytes_max
from runstate.pipeline.spark.failures import readable, told_to_driver

busy_seconds_max = 60.0
"""How long a task waits for a log that another writer holds."""
_wait_seconds_min, _wait_seconds_max = 0.02, 0.5
_options = frozenset({"url", "path", "model", "event_bytes_max"})
_append_bytes = 8 << 20
_append_rows = 8192
_begins_bytes = 200

R = TypeVar("R")


class ContentMismatch(RunstateError):
    """The log holds another event under this key; the first one stays."""

    code = "event.content_mismatch"


@dataclass
class Appended(WriterCommitMessage):
    """What a task has done."""

    appended: int
    known: int
    """Rows that the log held already."""


def append_events(frame: DataFrame, url: str, *, model: str | None = None) -> None:
    """Append the lines in the column `body` to a log, those of each stream in their order.

    They are brought together by the column `stream`, or by what the model says if there is none. Their order is that
    of the column `seq`, if there is one, and then that of the frame. Run it again as often as you like.

    Raises:
        PipelineFailed: a task failed, for instance on a line that is no event; what was appended before stays.
        InvalidOption, Unsupported, InvalidUrl, UnknownModel: nothing was appended.
    """
    name = model_of([url], model)
    EventWriter(url, {"url": url, "model": name}, frame.schema)
    with readable("append"):
        register(frame.sparkSession)
        numbered = frame.withColumn("_place", sql.monotonically_increasing_id())
        columns = ["body", *(["seq"] if "seq" in frame.columns else []), "_place"]
        if "stream" in frame.columns:
            numbered = numbered.select(*columns, "stream")
        else:
            numbered = _with_streams(numbered.select(*columns), name)
        ordered = numbered.repartition("stream").sortWithinPartitions("stream", *columns[1:])
        ordered.select("body").write.format("runstate").options(url=url, model=name).mode("append").save()


def _with_streams(frame: DataFrame, model: str) -> DataFrame:
    """The frame, and what the model says which stream each body belongs to."""

    def with_streams(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with told_to_driver():
            found = find_model(model)
            for batch in batches:
                streams = [drafted(found, line)[0] for line in _bodies(batch)]
                yield batch.append_column("stream", pa.array(streams, pa.string()))

    fields = [StructField(field.name, field.dataType) for field in frame.schema]
    return frame.mapInArrow(with_streams, StructType([*fields, StructField("stream", StringType())]))


class EventWriter(DataSourceArrowWriter):
    """Appends the rows of a frame to a log, a task for each partition."""

    def __init__(self, url: str, options: Mapping[str, str], schema: StructType) -> None:
        """
        Raises:
            InvalidOption: the frame has no lines in a column `body`, or there is no such option.
            InvalidUrl, Unsupported: there is no such log, or it lives in one process.
            UnknownModel: there is no such model.
        """
        super().__init__()
        if unknown := sorted(options.keys() - _options):
            raise InvalidOption(f"Appending to a log has no option {unknown[0]!r}")
        if "body" not in schema.names:
            raise InvalidOption(
                "The frame has no column 'body', which holds an event's line; it has: " + ", ".join(schema.names)
            )
        kind = schema["body"].dataType
        if not isinstance(kind, StringType | BinaryType):
            raise InvalidOption(f"The column 'body' holds lines, as string or binary, not {kind.simpleString()}")
        if url.partition(":")[0] not in installed_schemes():
            raise InvalidUrl(f"{url[:80]!r} names no log that can be appended to")
        if url.startswith("memory:"):
            raise Unsupported(f"{url[:80]!r} lives in the memory of one process; Spark's executors cannot append to it")
        self._url, self._model = url, model_of([url], options.get("model"))
        self._bytes_max = event_bytes_max(dict(options))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Appended:
        """Append one partition.

        Raises:
            InvalidJson, InvalidEvent, InvalidStream, EventTooLarge: a line is no event; those before it may be stored.
            ContentMismatch: the log holds another event under the key of a row.
            LogBusy: another writer held the log for too long.
        """
        with told_to_driver():
            done = Appended(0, 0)
            target = _Target(self._url)
            try:
                for waiting in self._gathered(iterator):
                    for stream, drafts in waiting.items():
                        _count(done, stream, drafts, target.append(stream, drafts))
            finally:
                target.close()
            return done

    def _gathered(self, batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, list[Draft]]]:
        """Drafts by stream, as many at a time as fit into little memory."""
        model = find_model(self._model)
        waiting: dict[str, list[Draft]] = {}
        rows = size = 0
        for batch in batches:
            for line in _bodies(batch):
                stream, draft = drafted(model, line)
                if len(draft.tail) > self._bytes_max:
                    raise EventTooLarge(
                        f"The event has {len(draft.tail)} bytes, the limit is {self._bytes_max}; {_begins(line)}"
                    )
                waiting.setdefault(stream, []).append(draft)
                rows, size = rows + 1, size + len(draft.tail)
                if rows >= _append_rows or size >= _append_bytes:
                    yield waiting
                    waiting, rows, size = {}, 0, 0
        if waiting:
            yield waiting


def _bodies(batch: pa.RecordBatch) -> Iterator[bytes]:
    for number, line in enumerate(batch.column("body").to_pylist()):
        if line is None:
            raise InvalidOption(f"The column 'body' is null in row {number} of a batch; every row needs its line")
        yield line.encode() if isinstance(line, str) else line


def drafted(model: AnyModel, line: bytes) -> tuple[str, Draft]:
    """The stream and the draft of a line, as a producer writes it.

    Raises:
        InvalidJson, InvalidEvent, InvalidStream: what is wrong with it, and how it begins.
    """
    try:
        return model.draft(model.parse(line))
    except RunstateError as error:
        raise type(error)(f"{error}; {_begins(line)}", **error.details) from error


def _begins(line: bytes) -> str:
    return f"the line begins with {line[:_begins_bytes]!r}"


def _count(done: Appended, stream: str, drafts: list[Draft], results: list[AppendResult]) -> None:
    for draft, result in zip(drafts, results, strict=True):
        if result.mismatch:
            raise ContentMismatch(
                f"The stream {stream!r} holds another event under the key {draft.key!r}, with the seq {result.seq}; "
                "the first one stays. Leave this row out, or give it a key of its own",
                stream=stream,
                key=draft.key,
                seq=result.seq,
            )
        done.appended += result.persisted
        done.known += not result.persisted


class _Target:
    """The log that a task appends to, opened again whenever another writer is in the way."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._log: EventLog | None = None

    def append(self, stream: str, drafts: list[Draft]) -> list[AppendResult]:
        return self._patiently(lambda log: log.append(stream, drafts))

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _patiently(self, work: Callable[[EventLog], R]) -> R:
        waited_until = time.monotonic() + busy_seconds_max
        wait = _wait_seconds_min
        while True:
            try:
                if self._log is None:
                    self._log = open_log(self._url, create=True)
                return work(self._log)
            except (LogBusy, AppendOutcomeUnknown):
                # Closed, since a log may hold the locks of streams that the other writer is waiting for.
                self.close()
                if time.monotonic() >= waited_until:
                    raise
            time.sleep(random.uniform(0, wait))  # noqa: S311 - it keeps no secret
            wait = min(2 * wait, _wait_seconds_max)
