"""The view `snapshots`: the state of every stream, folded where its events are read.

The bytes are those of the fold that runs in one process. Where the model knows how, events are folded by the column,
many streams at once; whatever is unusual about a stream sends it the plain way. A stream that cannot be folded, because
it is damaged or not of this model, has no body, and a finding that says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import accumulate
from typing import NamedTuple

import msgspec
import pyarrow as pa

from runstate.errors import LogDamaged, RunstateError, Truncated
from runstate.logs.log import Finding, Head
from runstate.models.canonical import digest
from runstate.models.model import AnyModel, ColumnFold, Folded
from runstate.pipeline.source.events import plan_streams
from runstate.pipeline.source.origins import Lines, NumberedLines, Origins, StreamReader, finding_of, gathered_max
from runstate.pipeline.source.rows import finding_field, pack
from runstate.pipeline.source.selection import stream_options
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.source.views import Task, View
from runstate.pipeline.tables.event_table import TableOrigin, Window, windows
from runstate.pipeline.tables.sorted_files import FileEntry, TableDamaged

snapshot_schema = pa.schema(
    [
        ("stream", pa.string()),
        ("seq", pa.int64()),
        ("model", pa.string()),
        ("version", pa.int64()),
        ("status", pa.string()),
        ("digest", pa.string()),
        ("body", pa.string()),
        ("head", pa.string()),
        ("last_line", pa.string()),
        finding_field,
    ]
)
"""`head` is the version of the stream that was folded, and `last_line` the SHA-256 of its last line: they tell whether
a stream has changed since, and whether it has only grown. A table only grows: its streams need neither."""


class Snapshot(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A row of the view."""

    stream: str
    seq: int
    model: str
    version: int
    status: str | None = None
    digest: str | None = None
    body: bytes | str | None = None
    head: str | None = None
    last_line: str | None = None
    finding: str | None = None


_together_bytes = 4 << 20
"""Streams are folded by the column once they have so many bytes of lines together: few enough for the caches."""
Before = Callable[[Sequence[str]], dict[str, Snapshot]]
"""The snapshots that earlier replays have kept of some streams: a fold may go on from there."""


def _rows(task: Task) -> Iterator[pa.RecordBatch]:
    with Origins(task.request.urls) as origins:
        yield from packed(fold_all(origins, task.shard, task.model))


def packed(snapshots: Iterable[Snapshot]) -> Iterator[pa.RecordBatch]:
    return pack(snapshot_schema, map(msgspec.structs.astuple, snapshots))


def fold_all(origins: Origins, shard: Shard, model: AnyModel) -> Iterator[Snapshot]:
    """The snapshots of a shard, in the order of the streams."""
    table = origins.table()
    if table is not None:
        return fold_table(table, table.files, shard, model)
    return _fold_logs(origins, shard, model)


def _fold_logs(origins: Origins, shard: Shard, model: AnyModel) -> Iterator[Snapshot]:
    """Of a stream that several logs have, the first that has events counts; the audit tells of the others."""
    readers, columns = origins.streams(shard), model.column_fold()
    folded = ""
    # Looked at as each reader comes: what is folded already is not even read.
    plainly = (fold_stream(reader, model) for reader in readers if reader.head.stream != folded)
    for snapshot in plainly if columns is None else _fold_together(readers, model, columns):
        if snapshot is not None and snapshot.stream != folded:
            folded = snapshot.stream
            yield snapshot


class _Gathered(NamedTuple):
    """A stream that waits to be folded with others: all its lines, and what they have told on their way."""

    head: Head
    lines: Lines
    bodies: list[bytes]


def _fold_together(readers: Iterator[StreamReader], model: AnyModel, columns: ColumnFold) -> Iterator[Snapshot | None]:
    """Many streams at once, by the column; those that are large, or cannot be read, alone."""
    waiting: list[_Gathered] = []
    size = 0
    for reader in readers:
        gathered = _gathered(reader)
        if gathered is not None:
            waiting.append(gathered)
            size += sum(map(len, gathered.bodies))
        if waiting and (gathered is None or size >= _together_bytes):
            yield from _folded_together(waiting, model, columns)
            waiting, size = [], 0
        if gathered is None:
            yield fold_stream(reader, model)
    if waiting:
        yield from _folded_together(waiting, model, columns)


def _gathered(reader: StreamReader) -> _Gathered | None:
    if reader.head.weight > gathered_max:
        return None
    try:
        lines = reader.lines()
        return _Gathered(reader.head, lines, list(lines))
    except TableDamaged:
        raise
    except Exception:  # noqa: BLE001 - it is met again, and told, by whoever folds the stream alone
        return None


def _folded_together(waiting: Sequence[_Gathered], model: AnyModel, columns: ColumnFold) -> Iterator[Snapshot | None]:
    filled = [each for each in waiting if each.bodies]
    starts = list(accumulate((len(each.bodies) for each in filled), initial=0))[:-1]
    batch = columns.rows([body for each in filled for body in each.bodies])
    for each, folded in zip(filled, columns.fold([each.head.stream for each in filled], starts, batch), strict=True):
        stream, lines = each.head.stream, each.lines
        if folded is not None and folded.seq == lines.seq == len(each.bodies):
            yield _made(stream, model, folded, each.head.version, lines)
            continue
        yield _folded_plainly(stream, model, each.bodies, lines, each.head.version)


def fold_stream(reader: StreamReader, model: AnyModel, before: Snapshot | None = None) -> Snapshot | None:
    """A stream's snapshot, going on from an earlier one of it; None where there is no event."""
    stream = reader.head.stream
    try:
        lines = reader.lines(0 if before is None else before.seq)
        state = model.initial(stream) if before is None else model.load(_bytes(before.body))
        state = model.fold(state, lines)
        body = model.dump(state)
    except TableDamaged:
        raise  # It is no matter of one stream: those that come after it are as unreadable.
    except Truncated as truncated:
        kept = None if before is not None else _kept(reader, model)
        return failed(stream, model, truncated) if kept is None else fold_stream(reader, model, kept)
    except Exception as error:  # noqa: BLE001 - whatever a model raises, the rest of the fleet has its snapshots
        return failed(stream, model, error)
    if not lines.last:
        return before
    return _made(stream, model, Folded(lines.seq, model.status(state), body), reader.head.version, lines)


def _kept(reader: StreamReader, model: AnyModel) -> Snapshot | None:
    """The snapshot that a log has kept in place of the events that it has dropped, if this model can go on from it."""
    stored = reader.snapshot(model.name)
    body = None if stored is None or not stored.is_intact else model.upgrade(stored.version, stored.body)
    if stored is None or body is None:
        return None
    folded = Folded(stored.seq, model.status(model.load(body)), body)
    return _made(reader.head.stream, model, folded, reader.head.version, None)


def fold_lines(stream: str, numbered: Iterable[tuple[int, bytes]], model: AnyModel) -> Snapshot:
    """A stream's snapshot from its lines, each with its seq."""
    lines = NumberedLines(numbered)
    return _folded_plainly(stream, model, lines, lines, None)


def _folded_plainly(stream: str, model: AnyModel, bodies: Iterable[bytes], lines: Lines, head: str | None) -> Snapshot:
    """`lines` know, once the bodies are through, where they have ended."""
    try:
        state = model.fold(model.initial(stream), bodies)
        return _made(stream, model, Folded(lines.seq, model.status(state), model.dump(state)), head, lines)
    except Exception as error:  # noqa: BLE001 - whatever a model raises, the rest of the fleet has its snapshots
        return failed(stream, model, error)


def _made(stream: str, model: AnyModel, folded: Folded, head: str | None, lines: Lines | None) -> Snapshot:
    body, last_line = folded.body, None if lines is None else sha256(lines.last).hexdigest()
    return Snapshot(
        stream, folded.seq, model.name, model.version, folded.status, digest(body), body, head or None, last_line
    )


def _bytes(body: bytes | str | None) -> bytes:
    return body.encode() if isinstance(body, str) else body or b""


def failed(stream: str, model: AnyModel, error: Exception) -> Snapshot:
    """The row of a stream that cannot be folded."""
    if isinstance(error, LogDamaged):
        finding = finding_of(stream, error)
    else:
        code = error.code if isinstance(error, RunstateError) else "model.failed"
        message = f"The model {model.name!r} cannot fold the stream: {error!r}; is it the right model?"
        finding = Finding(code=code, message=message, stream=stream)
    told = msgspec.json.encode(finding).decode()
    return Snapshot(stream, finding.seq or 0, model.name, model.version, finding=told)


# --- tables ----------------------------------------------------------------------------------------------------


def fold_table(
    origin: TableOrigin, files: Sequence[FileEntry], shard: Shard, model: AnyModel, before: Before | None = None
) -> Iterator[Snapshot]:
    """The snapshots of the streams that `files` hold events of, in the order of the streams."""
    columns = column_fold(origin, model)
    names = ["stream", "seq"] if columns is None else ["stream", "seq", "type", "emitted_at", *columns.schema.names]
    for window in windows(origin.table, files, shard, names):
        streams = window.streams + ([window.oversized] if window.oversized else [])
        known = {} if before is None else before(streams)
        folded = {} if columns is None else _by_columns(columns, window, known)
        others = [stream for stream in streams if stream not in folded]
        goes_on = _plainly(origin, files, [stream for stream in others if stream in known], model, known)
        begins = _plainly(origin, origin.files, [stream for stream in others if stream not in known], model, known)
        plain = {snapshot.stream: snapshot for snapshots in (goes_on, begins) for snapshot in snapshots}
        for stream in streams:
            if (found := folded.get(stream)) is not None:
                yield _made(stream, model, found, None, None)
            elif stream in plain:
                yield plain[stream]


def column_fold(origin: TableOrigin, model: AnyModel) -> ColumnFold | None:
    """The model's column-wise fold, if the table's columns were made for it."""
    info = origin.table.info
    return model.column_fold() if (info.model, info.model_version) == (model.name, model.version) else None


def _by_columns(columns: ColumnFold, window: Window, known: dict[str, Snapshot]) -> dict[str, Folded]:
    """What the column-wise fold makes of the streams that are here from their first event on."""
    if not window.streams:
        return {}
    (batch,) = window.rows.combine_chunks().to_batches()
    first_seqs = batch.column("seq").take(pa.array(window.starts[:-1])).to_pylist()
    found = columns.fold(window.streams, window.starts[:-1], batch)
    return {
        stream: folded
        for stream, seq, folded in zip(window.streams, first_seqs, found, strict=True)
        if folded is not None and seq == 1 and stream not in known
    }


def _plainly(
    origin: TableOrigin,
    files: Sequence[FileEntry],
    streams: Sequence[str],
    model: AnyModel,
    known: dict[str, Snapshot],
) -> Iterator[Snapshot]:
    if not streams:
        return
    for reader in origin.streams_of(files, Shard(only=tuple(streams))):
        snapshot = fold_stream(reader, model, known.get(reader.head.stream))
        if snapshot is not None:
            yield snapshot


view = View(lambda request: snapshot_schema, _rows, plan_streams, selects=stream_options)
