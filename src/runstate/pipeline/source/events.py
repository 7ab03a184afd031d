"""The view `events`: every event with its envelope and its line, as the log holds it.

A damaged stream fails the query, which names it. With the option `damage=report` there is a column more, `finding`:
the intact events of the stream come first, and then one row that says where and why it cannot be read on.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from runstate.errors import LogDamaged
from runstate.logs.log import Record
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.source.origins import Origins, finding_of
from runstate.pipeline.source.rows import bytes_max, event_schema, finding_field, pack_records, rows_max
from runstate.pipeline.source.selection import event_options
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.source.views import Request, Task, View
from runstate.pipeline.tables.event_table import TableOrigin


def _schema(request: Request) -> pa.Schema:
    return event_schema.append(finding_field) if _reports(request) else event_schema


def _reports(request: Request) -> bool:
    damage = request.options.get("damage", "fail")
    if damage not in ("fail", "report"):
        raise InvalidOption(f"damage is 'fail' or 'report', not {damage[:40]!r}")
    return damage == "report"


def plan_streams(request: Request, count: int) -> list[Shard]:
    """Shards over all streams, or those that are selected."""
    with Origins(request.urls) as origins:
        only = request.selection.streams
        if only is None:
            shards = origins.shards(count, request.shard_weight_min)
        else:
            shards = [Shard(only=only, streams=origins.streams_in_logs(only))]
    return request.selection.within(shards)


def _rows(task: Task) -> Iterator[pa.RecordBatch]:
    schema, reports, selection = task.schema, _reports(task.request), task.request.selection
    waiting: list[Record] = []
    size = 0
    with Origins(task.request.urls) as origins:
        table = origins.table()
        if table is not None and selection.takes_all_events:
            yield from _by_columns(table, task.shard, schema)
            return
        for reader in origins.streams(task.shard):
            records = reader.records()
            try:
                for record in records if selection.takes_all_events else filter(selection.takes, records):
                    waiting.append(record)
                    size += len(record.body)
                    if len(waiting) >= rows_max or size > bytes_max:
                        yield pack_records(waiting, schema)
                        waiting, size = [], 0
            except LogDamaged as error:
                if not reports:
                    raise
                if waiting:
                    yield pack_records(waiting, schema)
                    waiting, size = [], 0
                yield _damage_row(reader.head.stream, error, schema)
    if waiting:
        yield pack_records(waiting, schema)


def _by_columns(table: TableOrigin, shard: Shard, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A table's columns as they are: no event becomes an object on its way."""
    wanted = [name for name in schema.names if name != finding_field.name]
    for piece in table.table.pieces(table.files, shard, list(dict.fromkeys(["stream", "seq", *wanted]))):
        rows = piece.select(wanted)
        if finding_field.name in schema.names:
            rows = rows.append_column(finding_field, pa.nulls(rows.num_rows, finding_field.type)).select(schema.names)
        yield from rows.cast(schema).to_batches(max_chunksize=rows_max)


def _damage_row(stream: str, error: LogDamaged, schema: pa.Schema) -> pa.RecordBatch:
    """Damage is reported whatever is selected: a question about some events must not hide that others are lost."""
    finding = finding_of(stream, error)
    known = {"stream": stream, "seq": finding.seq, "finding": msgspec.json.encode(finding).decode()}
    return pa.RecordBatch.from_arrays([pa.array([known.get(f.name)], f.type) for f in schema], schema=schema)


view = View(_schema, _rows, plan_streams, frozenset({"damage"}), event_options, narrows=True)
