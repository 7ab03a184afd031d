"""Snapshots on file: a replay writes a table of them, and the next one folds only what has come since.

The newest row of a stream counts. A table whose snapshots were folded by another version of the model, or from other
logs, is folded anew as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path

import msgspec
import pyarrow as pa

from runstate.errors import LogDamaged, NotALog, Truncated
from runstate.models.model import AnyModel
from runstate.pipeline.events import plan_streams
from runstate.pipeline.ingest import written, written_schema
from runstate.pipeline.origins import Origins, StreamReader
from runstate.pipeline.replay import (
    Before,
    Snapshot,
    failed,
    fold_all,
    fold_stream,
    fold_table,
    packed,
    snapshot_schema,
)
from runstate.pipeline.shards import Shard, cut
from runstate.pipeline.sorted_files import FileEntry, SortedWriter
from runstate.pipeline.table import Table
from runstate.pipeline.views import Request, Task, View

chunk_bytes = 4 << 20
"""Smaller than a table's usual chunks: a replay of what is new looks up a few snapshots among many."""
_group = 512
"""Streams whose earlier snapshots are looked up at once."""


def open_snapshot_table(directory: Path) -> Table:
    """
    Raises:
        LogNotFound: there is no table.
        NotALog: the table holds no snapshots.
    """
    table = Table.open(directory)
    if table.info.kind != "snapshots":
        raise NotALog(f"{directory} holds {table.info.kind}, not snapshots")
    return table


def latest(
    table: Table, files: Sequence[FileEntry], shard: Shard, columns: Sequence[str] = tuple(snapshot_schema.names)
) -> Iterator[dict[str, object]]:
    """The newest row of every stream of a shard, with those columns, in the order of the streams."""
    newest: dict[str, object] | None = None
    for piece in table.pieces(files, shard, columns):
        for row in piece.to_pylist():
            if newest is not None and newest["stream"] != row["stream"]:
                yield newest
            newest = row
    if newest is not None:
        yield newest


def snapshot_counts(directory: Path) -> tuple[int, int]:
    """How many streams a table has snapshots of, and of how many it could not make one."""
    table = open_snapshot_table(directory)
    rows = latest(table, table.files("snapshots"), Shard(), ("stream", "seq", "finding"))
    findings = [row["finding"] for row in rows]
    return len(findings), sum(finding is not None for finding in findings)


def lookup(table: Table, files: Sequence[FileEntry], model: AnyModel) -> Before:
    """Earlier snapshots that a fold by this model can go on from."""

    def before(streams: Sequence[str]) -> dict[str, Snapshot]:
        found = (Snapshot(**row) for row in latest(table, files, Shard(only=tuple(streams))))  # type: ignore[arg-type]
        return {s.stream: s for s in found if s.body is not None and s.version == model.version}

    return before


def _rows(task: Task) -> Iterator[pa.RecordBatch]:
    options, model = task.request.options, task.model
    table = open_snapshot_table(Path(options["to"]))
    files = table.files("snapshots") if options["since"] else []
    counts = {"streams": 0, "failed": 0}
    with (
        Origins(task.request.urls) as origins,
        SortedWriter(table.data, "snapshots", snapshot_schema, table.info.file_format, chunk_bytes) as writer,
    ):
        for batch in packed(_counted(_changed(origins, task, model, table, files), counts)):
            writer.write(batch)
    yield from written(writer.entries, counts)


def _counted(snapshots: Iterator[Snapshot], counts: dict[str, int]) -> Iterator[Snapshot]:
    for snapshot in snapshots:
        counts["streams"] += 1
        counts["failed"] += snapshot.body is None
        yield snapshot


def _changed(
    origins: Origins, task: Task, model: AnyModel, table: Table, files: Sequence[FileEntry]
) -> Iterator[Snapshot]:
    since = task.request.options["since"]
    if not since:
        return fold_all(origins, task.shard, model)
    before, events = lookup(table, files, model), origins.table()
    if events is not None:
        return fold_table(events, events.table.files("events", after=int(since)), task.shard, model, before)
    return _grown(origins, task.shard, model, before, latest(table, files, task.shard, ("stream", "seq", "head")))


def _grown(
    origins: Origins, shard: Shard, model: AnyModel, before: Before, kept: Iterator[dict[str, object]]
) -> Iterator[Snapshot]:
    """The streams of logs that are not as they were, folded on from where they were."""
    changed = _not_as_kept(origins.streams(shard), kept)
    folded = ""
    while group := list(islice(changed, _group)):
        known = before([reader.head.stream for reader in group])
        for reader in group:
            if reader.head.stream == folded:
                continue
            snapshot = _gone_on(reader, model, known.get(reader.head.stream))
            if snapshot is not None:
                folded = snapshot.stream
                yield msgspec.structs.replace(snapshot, head=reader.head.version)


def _gone_on(reader: StreamReader, model: AnyModel, earlier: Snapshot | None) -> Snapshot | None:
    try:
        if earlier is not None and not _has_only_grown(reader, earlier):
            earlier = None
    except LogDamaged as damage:
        return failed(reader.head.stream, model, damage)
    except Truncated:  # What it ended with is no longer there to tell; the log's own snapshot stands in for it.
        earlier = None
    return fold_stream(reader, model, earlier)


def _not_as_kept(readers: Iterator[StreamReader], kept: Iterator[dict[str, object]]) -> Iterator[StreamReader]:
    """The streams to look at. Of one that several logs have, the first that has events counts."""
    row, as_kept = next(kept, None), ""
    for reader in readers:
        stream = reader.head.stream
        while row is not None and str(row["stream"]) < stream:
            row = next(kept, None)
        if row is not None and (row["stream"], row["head"]) == (stream, reader.head.version):
            as_kept = stream
        elif stream != as_kept:
            yield reader


def _has_only_grown(reader: StreamReader, before: Snapshot) -> bool:
    """Whether the event that the snapshot ended with is still there; else the stream was begun again."""
    for record in islice(reader.records(before.seq - 1), 1):
        return record.seq == before.seq and sha256(record.body).hexdigest() == before.last_line
    return False


def _plan(request: Request, count: int) -> list[Shard]:
    since = request.options["since"]
    with Origins(request.urls) as origins:
        table = origins.table()
        if not since or table is None:
            return plan_streams(request, count)
        chunks = [chunk for entry in table.table.files("events", after=int(since)) for chunk in entry.chunks]
        return cut(sorted((chunk.last, chunk.rows) for chunk in chunks), count, request.shard_weight_min)


view = View(lambda request: written_schema, _rows, _plan, frozenset({"to", "since"}))
