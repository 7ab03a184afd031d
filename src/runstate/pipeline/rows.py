"""The shapes that cross into Spark: Arrow schemas of the views, and rows packed into batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from runstate.logs.log import Record

rows_max = 8192
bytes_max = 8 << 20
"""A batch is closed at so many rows, or once the longest texts of its rows have so many bytes."""

_text = pa.string()

event_schema = pa.schema(
    [
        ("stream", _text),
        ("seq", pa.int64()),
        ("event_id", _text),
        ("type", _text),
        ("key", _text),
        ("tenant", _text),
        ("emitted_at", _text),
        ("persisted_at", _text),
        ("body", _text),
    ]
)
finding_field = pa.field("finding", _text)
"""JSON of a `Finding` where a stream cannot be read on; null in every other row."""


def pack(schema: pa.Schema, rows: Iterable[Sequence[Any]]) -> Iterator[pa.RecordBatch]:
    """Rows, each with a value for every column, as record batches."""
    waiting: list[Sequence[Any]] = []
    size = 0
    for row in rows:
        waiting.append(row)
        size += max((len(value) for value in row if isinstance(value, str | bytes)), default=0)
        if len(waiting) >= rows_max or size >= bytes_max:
            yield _packed(schema, waiting)
            waiting, size = [], 0
    if waiting:
        yield _packed(schema, waiting)


def _packed(schema: pa.Schema, rows: list[Sequence[Any]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [column_of(field, values) for field, values in zip(schema, columns, strict=True)], schema=schema
    )


def column_of(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    """Values as a column of the field's own type. What is called `body` may be bytes that are UTF-8."""
    if field.name == "body" and any(isinstance(value, bytes) for value in values):
        return pa.array(values, pa.binary()).cast(field.type)
    return pa.array(values, field.type)


def pack_records(records: list[Record], schema: pa.Schema) -> pa.RecordBatch:
    """Records as the columns that a schema asks for, column by column, which is faster than row by row."""
    columns = dict(zip(Record.__struct_fields__, zip(*map(msgspec.structs.astuple, records), strict=True), strict=True))
    arrays = [
        column_of(field, columns[field.name]) if field.name in columns else pa.nulls(len(records), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
