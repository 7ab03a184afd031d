"""The view `spans`: what ran from when to when, put together stream by stream where the events are read."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from runstate.errors import LogDamaged
from runstate.models.activity import Activity
from runstate.models.model import AnyModel
from runstate.pipeline.events import plan_streams
from runstate.pipeline.origins import Origins, StreamReader
from runstate.pipeline.rows import pack
from runstate.pipeline.selection import stream_options
from runstate.pipeline.spans import Span, span_fields, spans
from runstate.pipeline.views import Task, View

_types = {"string": pa.string(), "int64": pa.int64(), "double": pa.float64()}
span_schema = pa.schema([(name, _types[kind]) for name, kind in span_fields])


def _rows(task: Task) -> Iterator[pa.RecordBatch]:
    model = task.model
    with Origins(task.request.urls) as origins:
        found = (span for reader in origins.streams(task.shard) for span in _spans(reader, model))
        yield from pack(span_schema, map(msgspec.structs.astuple, found))


def _spans(reader: StreamReader, model: AnyModel) -> Iterator[Span]:
    tenant = ""

    def activities() -> Iterator[tuple[str, list[Activity]]]:
        nonlocal tenant
        try:
            for record in reader.records():
                tenant = tenant or record.tenant
                yield record.persisted_at, _activities(model, record.body)
        except LogDamaged:
            # The audit tells of damage. What was intact before it has happened all the same.
            return

    # The tenant is known once an event was read that has one; contract v1 knows none.
    for span in spans(reader.head.stream, "", activities()):
        span.tenant = tenant
        yield span


def _activities(model: AnyModel, body: bytes) -> list[Activity]:
    try:
        return model.activities(model.decode(body))
    except Exception:  # noqa: BLE001 - an event of another model tells nothing; that it is there, the audit tells
        return []


view = View(lambda request: span_schema, _rows, plan_streams, selects=stream_options)
