"""The shapes that cross into Spark: Arrow schemas of the views, and rows packed into batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from runstate.logs.log import Record

rows_max = 8192
bytes_max = 1 << 20
"""A batch is closed at so many rows, or once the longest texts of its rows have so many bytes.

Few enough that they are still in the processor's caches when they are packed, and that each batch gets the memory which
the last one has given back."""

_text = pa.string()
_sized = (str, bytes)

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
    """Rows, each with a value for every column, as record batches. A text may be given as bytes that are UTF-8."""
    waiting: list[Sequence[Any]] = []
    size = 0
    for row in rows:
        waiting.append(row)
        size += max([len(value) for value in row if isinstance(value, _sized)], default=0)
        if len(waiting) >= rows_max or size >= bytes_max:
            yield _packed(schema, waiting)
            waiting, size = [], 0
    if waiting:
        yield _packed(schema, waiting)


def _packed(schema: pa.Schema, rows: list[Sequence[Any]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for field, values in zip(schema, columns, strict=True)], schema=schema
    )


def pack_records(records: list[Record], schema: pa.Schema) -> pa.RecordBatch:
    """Records as the columns that a schema asks for, column by column, which is faster than row by row."""
    columns = dict(zip(Record.__struct_fields__, zip(*map(msgspec.structs.astuple, records), strict=True), strict=True))
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(len(records), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
