"""The view `spans`: what ran from when to when, put together stream by stream where the events are read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import msgspec
import pyarrow as pa

from runstate.errors import LogDamaged
from runstate.models.activity import Activity
from runstate.models.model import AnyModel
from runstate.pipeline.report.spans import Span, span_fields, spans
from runstate.pipeline.source.events import plan_streams
from runstate.pipeline.source.origins import Origins, StreamReader
from runstate.pipeline.source.rows import pack
from runstate.pipeline.source.selection import stream_options
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.source.views import Task, View
from runstate.pipeline.tables.event_table import TableOrigin, runs_of

_types = {"string": pa.string(), "int64": pa.int64(), "double": pa.float64()}
span_schema = pa.schema([(name, _types[kind]) for name, kind in span_fields])


class _Event(NamedTuple):
    """As much of an event as spans are made of."""

    tenant: str
    emitted_at: str
    persisted_at: str
    body: bytes


def _rows(task: Task) -> Iterator[pa.RecordBatch]:
    model = task.model
    with Origins(task.request.urls) as origins:
        table = origins.table()
        streams = _log_streams(origins, task.shard) if table is None else _table_streams(table, task.shard)
        found = (span for stream, events in streams for span in _spans(stream, events, model))
        yield from pack(span_schema, map(msgspec.structs.astuple, found))


def _log_streams(origins: Origins, shard: Shard) -> Iterator[tuple[str, Iterator[_Event]]]:
    for reader in origins.streams(shard):
        yield reader.head.stream, _log_events(reader)


def _log_events(reader: StreamReader) -> Iterator[_Event]:
    try:
        for record in reader.records():
            yield _Event(record.tenant, record.emitted_at, record.persisted_at, record.body)
    except LogDamaged:
        # The audit reports damage. What was intact before it has happened all the same.
        return


def _table_streams(origin: TableOrigin, shard: Shard) -> Iterator[tuple[str, Iterator[_Event]]]:
    """By the column: of a table, nothing else is read."""
    pieces = origin.table.pieces(origin.files, shard, ["stream", "seq", *_Event._fields])
    runs = ((stream, piece.slice(start, stop - start)) for piece in pieces for stream, start, stop in runs_of(piece))
    # A stream may go on in the next piece.
    for stream, parts in groupby(runs, key=itemgetter(0)):
        yield stream, (event for _, rows in parts for event in _table_events(rows))


def _table_events(rows: pa.Table) -> Iterator[_Event]:
    bodies = rows.column("body").cast(pa.binary()).to_pylist()
    columns = (rows.column(name).to_pylist() for name in _Event._fields[:-1])
    return map(_Event._make, zip(*columns, bodies, strict=True))


def _spans(stream: str, events: Iterator[_Event], model: AnyModel) -> Iterator[Span]:
    tenant = ""

    def activities() -> Iterator[tuple[str, str, list[Activity]]]:
        nonlocal tenant
        for event in events:
            tenant = tenant or event.tenant
            yield event.emitted_at, event.persisted_at, _activities(model, event.body)

    # The tenant is known once an event was read that has one; contract v1 knows none.
    for span in spans(stream, "", activities()):
        span.tenant = tenant
        yield span


def _activities(model: AnyModel, body: bytes) -> list[Activity]:
    try:
        return model.activities(model.decode(body))
    except Exception:  # noqa: BLE001 - an event of another model tells nothing; that it is there, the audit tells
        return []


view = View(lambda request: span_schema, _rows, plan_streams, selects=stream_options)
