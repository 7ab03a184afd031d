"""Plain files into an event table: the lines of each stream in order, exactly once, and what is wrong beside them.

Lines come grouped by stream. A line that a log has stored keeps its bytes and its place; lines as producers write them
go behind, in the order of their files' names and of their places in them. What the table has already is not added
twice, and nothing is added before what it has.

In memory are a batch of lines, what the table holds of just these, and the keys of one stream's new lines.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from runstate.errors import RunstateError
from runstate.logs.log import Record, now
from runstate.models.model import AnyModel, Draft
from runstate.models.registry import find_model
from runstate.pipeline.source.file_lines import LineNumbers, content_bytes_max, opened_lines
from runstate.pipeline.source.plain_files import body_of, line_schema, no_stream, scheme
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.spark.failures import told_to_driver
from runstate.pipeline.spark.shared_storage import check_shared
from runstate.pipeline.tables.event_table import open_event_table
from runstate.pipeline.tables.ingest import Known, NewFiles, known_heads, written, written_schema
from runstate.pipeline.tables.table import Table

_byte_order_mark_bytes = 3
file_counts = ("lines", "events", "quarantined", "streams", "missing")
"""What a job counts: `lines` are `events` and `quarantined`; `missing` are places that stored lines leave free."""


# --- grouped by stream ----------------------------------------------------------------------------------------


def assembled(lines: DataFrame, table: Table, model: str, tasks: int, marker: str) -> DataFrame:
    """The view `lines` written into new files of the table: one shuffle, and a row for each task."""
    directory, persisted_at = str(table.directory.absolute()), now()

    def assemble(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with told_to_driver():
            check_shared(marker)
            assembly = _Assembly(open_event_table(Path(directory)), find_model(model), persisted_at)
            for batch in batches:
                assembly.add(batch)
            yield from assembly.close()

    named = sql.coalesce("stream", sql.lit(no_stream))
    order = [named, sql.asc_nulls_last("seq"), sql.asc("file"), sql.asc("offset")]
    # The files of two tasks then have no stream between them: a reader of some streams needs few of them.
    grouped = lines.repartitionById(tasks, "task").sortWithinPartitions(*order)
    return grouped.mapInArrow(assemble, from_arrow_schema(written_schema))


class _Row(NamedTuple):
    """A row of the view `lines`."""

    stream: str | None
    seq: int | None
    event_id: str
    type: str
    key: str
    tenant: str
    emitted_at: str
    persisted_at: str | None
    body: bytes
    file: str
    offset: int
    line: int | None
    code: str | None
    reason: str
    content: bytes


def _rows_of(batch: pa.RecordBatch) -> list[_Row]:
    columns = []
    for name in line_schema.names:
        column = batch.column(name)
        columns.append((column.cast(pa.binary()) if name == "body" else column).to_pylist())
    return [_Row(*values) for values in zip(*columns, strict=True)]


class _Stored(NamedTuple):
    """What the table holds of the lines in a batch."""

    heads: dict[str, Known]
    keys: dict[tuple[str, str], int]
    """The seq under which a stream has a key."""
    seqs: set[tuple[str, int]]
    lines: dict[tuple[str, int], bytes]
    """The lines of those keys; and the last ones of streams, where new lines are chained to them."""


class _Stream:
    """The stream that is being added to."""

    def __init__(self, name: str, known: Known | None) -> None:
        self.name, self.known = name, known
        self.seq = 0 if known is None else known.seq
        self.line: bytes | None = None
        self.last_file: str | None = None
        """That of the last new event; None as long as there is none."""
        self.new_keys: dict[str, tuple[str, int, int]] = {}
        """The file of a new event, where its line begins, and the size of its body."""


class _Assembly:
    """One task's work: rows of the view `lines`, sorted by stream, into new files."""

    def __init__(self, table: Table, model: AnyModel, persisted_at: str) -> None:
        self._model, self._persisted_at, self._table = model, persisted_at, table
        self._events, self._heads = table.files("events"), table.files("heads")
        self._files = NewFiles(table, model)
        self._files.counts = dict.fromkeys(file_counts, 0)
        self._numbers = LineNumbers()
        self._stream: _Stream | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        rows = _rows_of(batch)
        stored = self._stored([row for row in rows if row.stream is not None])
        self._files.counts["lines"] += len(rows)
        for row in rows:
            if row.stream is None:
                self._quarantine(row, row.code or "", row.reason, row.content)
            else:
                self._add(row, self._at(row.stream, stored), stored)

    def close(self) -> Iterator[pa.RecordBatch]:
        self._leave()
        return written(self._files.close(), self._files.counts)

    def _at(self, name: str, stored: _Stored) -> _Stream:
        if self._stream is None or self._stream.name != name:
            self._leave()
            self._stream = _Stream(name, stored.heads.get(name))
        stream = self._stream
        if stream.line is None and stream.known is not None:
            # Looked at with every batch: the one that the stream begins in may have had no need of its last line.
            stream.line = stored.lines.get((name, stream.known.seq))
        return stream

    def _leave(self) -> None:
        stream = self._stream
        if stream is not None and stream.last_file is not None:
            digest = sha256(stream.line or b"").hexdigest()
            known = Known(stream.seq, scheme + stream.last_file, str(stream.seq), digest)
            self._files.head(stream.name, known)

    def _add(self, row: _Row, stream: _Stream, stored: _Stored) -> None:
        if stream.known is not None and not stream.known.url.startswith(scheme):
            reason = f"The table has this stream from {stream.known.url} already"
            self._quarantine(row, "stream.in_two_logs", reason)
        elif (twin := self._twin(row, stream, stored)) is not None:
            where, line = twin
            if same_event(self._model, row.body, line):
                self._quarantine(row, "event.duplicate", f"The same event is {where}")
            else:
                reason = f"Another event with the key {row.key[:300]!r} is {where}; the first one stays"
                self._quarantine(row, "IDEMPOTENCY_CONTENT_MISMATCH", reason)
        elif row.seq is not None and row.seq <= stream.seq:
            if row.seq == stream.seq or (stream.name, row.seq) in stored.seqs:
                self._quarantine(row, "seq.duplicate", f"Another event of the stream has the seq {row.seq}")
            else:
                reason = f"The table has the stream up to seq {stream.seq}, and nothing is added before that"
                self._quarantine(row, "seq.late", reason)
        else:
            self._accept(row, stream)

    def _accept(self, row: _Row, stream: _Stream) -> None:
        seq = row.seq or stream.seq + 1
        if row.persisted_at is None:
            draft = self._model.draft(self._model.parse(row.body))[1]
            persisted_at, line = self._persisted_at, draft.render(seq, self._persisted_at, stream.line)
        else:
            persisted_at, line = row.persisted_at, row.body
        self._files.counts["missing"] += seq - stream.seq - 1
        self._files.add(
            Record(stream.name, seq, row.event_id, row.type, row.key, row.tenant, row.emitted_at, persisted_at, line)
        )
        stream.seq, stream.line, stream.last_file = seq, line, row.file
        stream.new_keys[row.key] = sys.intern(row.file), row.offset, len(row.body)

    def _twin(self, row: _Row, stream: _Stream, stored: _Stored) -> tuple[str, bytes] | None:
        """The event that has the key already: where it is, and its line."""
        if (place := stream.new_keys.get(row.key)) is not None:
            file, offset, size = place
            where = f"in line {self._numbers.of(file, offset)} of {file}"
            with opened_lines(file) as source:
                source.seek(offset)
                return where, body_of(source.read(size + _byte_order_mark_bytes), offset)[:size]
        seq = stored.keys.get((stream.name, row.key))
        return None if seq is None else (f"in the table, with the seq {seq}", stored.lines[stream.name, seq])

    def _quarantine(self, row: _Row, code: str, reason: str, content: bytes | None = None) -> None:
        number = self._numbers.of(row.file, row.offset) if row.line is None else row.line
        kept = row.body[:content_bytes_max] if content is None else content
        name, url = row.stream or no_stream, scheme + row.file
        self._files.quarantine(name, url, code, reason, row.seq, kept, file=row.file, line=number)

    # --- what the table has of it ---

    def _stored(self, rows: list[_Row]) -> _Stored:
        stored = _Stored({}, {}, set(), {})
        streams = {row.stream or "" for row in rows}
        if not streams or not self._heads:
            return stored
        stored.heads.update(known_heads(self._table, self._heads, Shard(only=tuple(sorted(streams)))))
        ours = [row for row in rows if row.stream in stored.heads]
        if not ours:
            return stored
        keys, seqs = {(row.stream, row.key) for row in ours}, {(row.stream, row.seq) for row in ours}
        some_keys = pa.array(sorted({row.key for row in ours}), pa.string())
        some_seqs = pa.array(sorted({row.seq for row in ours if row.seq is not None}), pa.int64())
        only = Shard(only=tuple(sorted(stored.heads)))
        for piece in self._table.pieces(self._events, only, ["stream", "seq", "key"]):
            wanted = pc.or_(pc.is_in(piece["key"], some_keys), pc.is_in(piece["seq"], some_seqs))
            for stream, seq, key in _tuples(piece.filter(wanted)):
                if (stream, key) in keys:
                    stored.keys[stream, key] = seq
                if (stream, seq) in seqs:
                    stored.seqs.add((stream, seq))
        places = {(stream, seq) for (stream, _), seq in stored.keys.items()}
        if self._is_chained(ours):
            places |= {(stream, known.seq) for stream, known in stored.heads.items()}
        stored.lines.update(self._lines_at(places))
        return stored

    def _is_chained(self, rows: list[_Row]) -> bool:
        written_by_producers = (row for row in rows if row.persisted_at is None)
        first = next(written_by_producers, None)
        return first is not None and self._model.draft(self._model.parse(first.body))[1].chained

    def _lines_at(self, places: set[tuple[str, int]]) -> Iterator[tuple[tuple[str, int], bytes]]:
        if not places:
            return
        seqs = pa.array(sorted({seq for _, seq in places}), pa.int64())
        only = Shard(only=tuple(sorted({stream for stream, _ in places})))
        for piece in self._table.pieces(self._events, only, ["stream", "seq", "body"]):
            for stream, seq, body in _tuples(piece.filter(pc.is_in(piece["seq"], seqs))):
                if (stream, seq) in places:
                    yield (stream, seq), body.encode()


def _tuples(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def same_event(model: AnyModel, first: bytes, second: bytes) -> bool:
    """Whether two lines of either shape say the same, apart from what a retry may change.

    Two lines that logs have stored are the same only if their bytes are, unless the model takes stored lines, too.
    """
    if first == second:
        return True
    one, other = _drafted(model, first), _drafted(model, second)
    if one is None:
        one, other, second = other, None, first
    if one is None:
        return False
    return one.same_content(second if other is None else other.render(1, now(), None))


def _drafted(model: AnyModel, line: bytes) -> Draft | None:
    try:
        draft: Draft = model.draft(model.parse(line))[1]
    except RunstateError:
        return None
    return draft
