"""Logs into an event table: everything that is new since the last time, exactly once, whoever was killed before.

Each task goes through a shard of the logs beside what the table knows of it, and writes sorted files of its own. They
count once the driver has committed them. What cannot be ingested is quarantined beside the good events: nothing is
dropped, nothing is silently mended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa

from runstate.errors import LogDamaged, shown_url
from runstate.logs.log import Record
from runstate.models.model import AnyModel
from runstate.pipeline.source.census import counted
from runstate.pipeline.source.events import plan_streams
from runstate.pipeline.source.origins import Origins, StreamReader
from runstate.pipeline.source.rows import bytes_max, event_schema, pack, pack_records
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.source.views import Task, View
from runstate.pipeline.tables.event_table import event_table_schema, head_schema, open_event_table, quarantine_schema
from runstate.pipeline.tables.sorted_files import FileEntry, SortedWriter
from runstate.pipeline.tables.table import Table

written_schema = pa.schema([(name, pa.string()) for name in ("files", "removes", "counts", "seen")])
"""What a task that writes files hands back, as JSON: what they are, which ones they replace, its counts, and how many
streams it has seen."""

_batch = 4096
T = TypeVar("T")


class Known(msgspec.Struct, frozen=True):
    """How far a stream was ingested before."""

    seq: int
    url: str
    version: str
    last_line: str


class NewFiles:
    """The new files of one task. Streams are added in the order of their ids."""

    def __init__(self, table: Table, model: AnyModel) -> None:
        self._columns = model.column_fold()
        self._events = SortedWriter(table.place("events"), "events", event_table_schema(model))
        self._heads = _Rows(table, "heads", head_schema)
        self._refusals = _Rows(table, "refusals", head_schema)
        self._quarantine = _Rows(table, "quarantine", quarantine_schema)
        self._waiting: list[Record] = []
        self._bytes = 0
        self.counts = {"events": 0, "quarantined": 0, "streams": 0, "unchanged": 0}

    def add(self, record: Record) -> None:
        self._waiting.append(record)
        self._bytes += len(record.body)
        self.counts["events"] += 1
        if len(self._waiting) >= _batch or self._bytes >= bytes_max:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._events.write(event_batch(self._waiting, self._columns))
            self._waiting, self._bytes = [], 0

    def head(self, stream: str, known: Known) -> None:
        self.counts["streams"] += 1
        self._heads.add((stream, known.seq, known.url, known.version, known.last_line))

    def refusal(self, stream: str, known: Known) -> None:
        self._refusals.add((stream, known.seq, known.url, known.version, known.last_line))

    def quarantine(
        self,
        stream: str,
        url: str,
        code: str,
        reason: str,
        seq: int | None,
        content: bytes = b"",
        *,
        file: str | None = None,
        line: int | None = None,
    ) -> None:
        self.counts["quarantined"] += 1
        self._quarantine.add((stream, seq or 0, url, file, line, code, reason, content))

    def close(self) -> list[FileEntry]:
        self.flush()
        return [*self._events.close(), *self._heads.close(), *self._refusals.close(), *self._quarantine.close()]


class _Rows:
    """Rows on their way into sorted files, many at a time."""

    def __init__(self, table: Table, kind: str, schema: pa.Schema) -> None:
        self._writer, self._schema = SortedWriter(table.place(kind), kind, schema), schema
        self._waiting: list[Sequence[Any]] = []
        self._bytes = 0

    def add(self, row: Sequence[Any]) -> None:
        self._waiting.append(row)
        self._bytes += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(self._waiting) >= _batch or self._bytes >= bytes_max:
            self._flush()

    def close(self) -> list[FileEntry]:
        self._flush()
        return self._writer.close()

    def _flush(self) -> None:
        for batch in pack(self._schema, self._waiting):
            self._writer.write(batch)
        self._waiting, self._bytes = [], 0


def event_batch(records: list[Record], columns: Any) -> pa.RecordBatch:
    """Records as rows of an event table: their envelopes, and what the model's column-wise fold wants of each line."""
    batch = pack_records(records, event_schema)
    if columns is None:
        return batch
    facts = columns.facts([record.body for record in records])
    schema = pa.schema([*event_schema, *columns.schema])
    return pa.RecordBatch.from_arrays([*batch.columns, *facts.columns], schema=schema)


def one_row(schema: pa.Schema, values: Sequence[Any]) -> pa.RecordBatch:
    arrays = [pa.array([value], field.type) for field, value in zip(schema, values, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def known_heads(table: Table, files: Sequence[FileEntry], shard: Shard) -> Iterator[tuple[str, Known]]:
    """How far each stream of a shard was ingested, in the order of their ids. Later commits come later, and count."""
    for stream, found in _by_stream(table, files, shard):
        yield stream, found[-1]


def _by_stream(table: Table, files: Sequence[FileEntry], shard: Shard) -> Iterator[tuple[str, list[Known]]]:
    rows = (
        row
        for piece in table.pieces(files, shard, head_schema.names)
        for row in zip(*(piece.column(name).to_pylist() for name in head_schema.names), strict=True)
    )
    for stream, found in groupby(rows, key=itemgetter(0)):
        # Earlier versions stored the URL with its password.
        yield stream, [Known(seq, shown_url(url), *rest) for _, seq, url, *rest in found]


def _rows(task: Task) -> Iterator[pa.RecordBatch]:
    table = open_event_table(Path(task.request.options["to"]))
    files = NewFiles(table, task.model)
    known = _Lookup(known_heads(table, table.files("heads"), task.shard))
    refused = _Lookup(_by_stream(table, table.files("refusals"), task.shard))
    with Origins(task.request.urls) as origins:
        previous = ""
        for reader in origins.streams(task.shard):
            stream = reader.head.stream
            before = known.of(stream)
            if _is_as_it_was(reader, before) or _was_refused(reader, refused.of(stream) or []):
                files.counts["unchanged"] += 1
            elif stream == previous or (before is not None and before.url != reader.url):
                elsewhere = before.url if before is not None else shown_url(task.request.urls[0])
                _refuse(reader, files, "stream.in_two_logs", f"The table has this stream from {elsewhere} already")
            else:
                _ingest_stream(reader, before, files)
            previous = stream
    yield from written(files.close(), files.counts)


def _is_as_it_was(reader: StreamReader, before: Known | None) -> bool:
    # The streams of a table have no version: only reading them tells.
    told = reader.head.version != ""
    return told and before is not None and (before.url, before.version) == (reader.url, reader.head.version)


def _was_refused(reader: StreamReader, refusals: Sequence[Known]) -> bool:
    """Whether this very stream was; one that is in several logs is refused for each of them."""
    newest = {refusal.url: refusal.version for refusal in refusals}
    return newest.get(reader.url) == reader.head.version


class _Lookup(Generic[T]):
    """Answers for streams that are asked for in order, from pairs that come in order."""

    def __init__(self, pairs: Iterator[tuple[str, T]]) -> None:
        self._pairs = pairs
        self._next = next(pairs, None)

    def of(self, stream: str) -> T | None:
        while self._next is not None and self._next[0] < stream:
            self._next = next(self._pairs, None)
        return self._next[1] if self._next is not None and self._next[0] == stream else None


def _ingest_stream(reader: StreamReader, before: Known | None, files: NewFiles) -> None:
    head, last = reader.head, None
    # In one walk, beginning with the event that the last one has ended with: some readers can be read only once.
    records = reader.records(0 if before is None else before.seq - 1)
    try:
        if before is not None and not _goes_on(next(records, None), before):
            code, reason = "stream.rewritten", f"Its first {before.seq} events are not those that were ingested"
            _refuse(reader, files, code, reason)
            return
        for last in records:
            files.add(last)
    except LogDamaged as error:
        _refuse(reader, files, error.code, str(error), error.details.get("seq"))
    if last is not None:
        known = Known(last.seq, reader.url, head.version, sha256(last.body).hexdigest())
        files.head(head.stream, known)
    elif before is not None and before.version != head.version:
        files.head(head.stream, msgspec.structs.replace(before, version=head.version))
    elif before is not None:
        files.counts["unchanged"] += 1


def _goes_on(record: Record | None, before: Known) -> bool:
    """Whether it is the event that was ingested last."""
    return record is not None and record.seq == before.seq and sha256(record.body).hexdigest() == before.last_line


def _refuse(reader: StreamReader, files: NewFiles, code: str, reason: str, seq: int | None = None) -> None:
    """Quarantine a stream, and remember that it was, so that it is reported once and not by every run."""
    files.quarantine(reader.head.stream, reader.url, code, reason, seq)
    files.refusal(reader.head.stream, Known(seq or 0, reader.url, reader.head.version, ""))


def written(files: list[FileEntry], counts: dict[str, int], removes: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """What a task hands back."""
    yield one_row(
        written_schema, [msgspec.json.encode(value).decode() for value in (files, removes, counts, counted())]
    )


view = View(lambda request: written_schema, _rows, plan_streams, frozenset({"to"}))
