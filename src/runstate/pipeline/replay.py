"""The view `snapshots`: the state of every stream, folded where its events are read.

It is the very fold that runs in one process, so the bytes are the same. A stream that cannot be folded, because it is
damaged or not of this model, has no body, and a finding that says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import msgspec
import pyarrow as pa

from runstate.errors import LogDamaged, RunstateError
from runstate.logs.log import Finding
from runstate.models.canonical import digest
from runstate.models.model import Model
from runstate.pipeline.events import plan_streams
from runstate.pipeline.origins import Origins, StreamReader, finding_of
from runstate.pipeline.rows import finding_field, pack
from runstate.pipeline.views import Task, View

snapshot_schema = pa.schema(
    [
        ("stream", pa.string()),
        ("seq", pa.int64()),
        ("model", pa.string()),
        ("version", pa.int64()),
        ("status", pa.string()),
        ("digest", pa.string()),
        ("body", pa.string()),
        ("last_line", pa.string()),
        finding_field,
    ]
)
"""`last_line` is the SHA-256 of the last event's line: it tells whether a stream has only grown since."""

Row = tuple[str, int, str, int, str | None, str | None, bytes | None, str | None, str | None]


def _rows(task: Task) -> Iterator[pa.RecordBatch]:
    model = task.model
    with Origins(task.request.urls) as origins:
        folded = (fold_stream(reader, model) for reader in origins.streams(task.shard))
        yield from pack(task.schema, (row for row in folded if row is not None))


def fold_stream(reader: StreamReader, model: Model[Any, Any, Any]) -> Row | None:
    """A stream's row; None where there is no event."""
    lines = reader.lines()
    try:
        state = model.fold(model.initial(reader.head.stream), lines)
        body = model.dump(state)
    except Exception as error:  # noqa: BLE001 - whatever a model raises, the rest of the fleet has its snapshots
        return failed(reader.head.stream, model, error)
    if not lines.last:
        return None
    return snapshot_row(reader.head.stream, model, lines.seq, model.status(state), body, lines.last)


def snapshot_row(stream: str, model: Model[Any, Any, Any], seq: int, status: str, body: bytes, last_line: bytes) -> Row:
    return stream, seq, model.name, model.version, status, digest(body), body, sha256(last_line).hexdigest(), None


def failed(stream: str, model: Model[Any, Any, Any], error: Exception) -> Row:
    if isinstance(error, LogDamaged):
        finding = finding_of(stream, error)
    else:
        code = error.code if isinstance(error, RunstateError) else "model.failed"
        message = f"The model {model.name!r} cannot fold the stream: {error!r}; is it the right model?"
        finding = Finding(code=code, message=message, stream=stream)
    told = msgspec.json.encode(finding).decode()
    return stream, finding.seq or 0, model.name, model.version, None, None, None, None, told


view = View(lambda request: snapshot_schema, _rows, plan_streams)
