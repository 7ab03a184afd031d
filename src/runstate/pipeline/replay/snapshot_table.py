"""Snapshots on file: a replay writes a table of them, and the next one folds only what has come since.

There is one row for each stream. Files hold ranges of streams that do not overlap; one with a stream that has changed
is written anew. A table whose snapshots were folded by another version of the model, or from other logs, is folded anew
as a whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import groupby, islice
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from runstate.errors import LogDamaged, NotALog, Truncated
from runstate.models.model import AnyModel
from runstate.pipeline.replay.fold import (
    Before,
    Snapshot,
    failed,
    fold_all,
    fold_stream,
    fold_table,
    packed,
    snapshot_schema,
)
from runstate.pipeline.source.events import plan_streams
from runstate.pipeline.source.origins import Origins, StreamReader
from runstate.pipeline.source.rows import rows_max
from runstate.pipeline.source.shards import Shard, cut_counted
from runstate.pipeline.source.views import Request, Task, View
from runstate.pipeline.tables.ingest import written, written_schema
from runstate.pipeline.tables.sorted_files import FileEntry, SortedWriter
from runstate.pipeline.tables.table import Table

chunk_bytes = 4 << 20
"""Smaller than a table's usual chunks: a replay of what is new looks up a few snapshots among many."""
file_bytes = 16 << 20
"""Smaller than a table's usual files: one is held in memory while it is written anew."""
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


def snapshot_rows(
    table: Table, files: Sequence[FileEntry], shard: Shard, columns: Sequence[str] = tuple(snapshot_schema.names)
) -> Iterator[dict[str, object]]:
    """The rows of a shard, with those columns, in the order of the streams."""
    for piece in table.pieces(files, shard, columns):
        yield from piece.to_pylist()


def snapshot_counts(directory: Path) -> tuple[int, int]:
    """How many streams a table has rows of, and of how many of them it could not make a snapshot."""
    files = open_snapshot_table(directory).files("snapshots")
    return sum(entry.rows for entry in files), sum(entry.stats.null_count.get("body", 0) for entry in files)


def lookup(table: Table, files: Sequence[FileEntry], model: AnyModel) -> Before:
    """Earlier snapshots that a fold by this model can go on from."""

    def before(streams: Sequence[str]) -> dict[str, Snapshot]:
        found = (Snapshot(**row) for row in snapshot_rows(table, files, Shard(only=tuple(streams))))  # type: ignore[arg-type]
        return {s.stream: s for s in found if s.body is not None and s.version == model.version}

    return before


def _rows(task: Task) -> Iterator[pa.RecordBatch]:
    options, model = task.request.options, task.model
    table = open_snapshot_table(Path(options["to"]))
    files = table.files("snapshots") if options["since"] else []
    counts = {"streams": 0, "failed": 0}
    new, removes = list[FileEntry](), list[str]()
    with Origins(task.request.urls) as origins:
        changed = _counted(_changed(origins, task, model, table, files), counts)
        for old, snapshots in _by_file(changed, _within(files, task.shard)):
            with snapshot_writer(table) as writer:
                for batch in packed(snapshots) if old is None else _merged(table, old, snapshots):
                    writer.write(batch)
            new += writer.entries
            removes += [] if old is None else [old.name]
    yield from written(new, counts, removes)


def snapshot_writer(table: Table) -> SortedWriter:
    return SortedWriter(table.place("snapshots"), "snapshots", snapshot_schema, chunk_bytes, file_bytes)


def _within(files: Sequence[FileEntry], shard: Shard) -> list[FileEntry]:
    """The files of a shard, in the order of their streams. None is of two: `_plan` cuts between them."""
    ours = (entry for entry in files if shard.after < entry.chunks[0].first)
    found = [entry for entry in ours if shard.until is None or entry.chunks[0].first <= shard.until]
    return sorted(found, key=lambda entry: entry.chunks[0].first)


def _by_file(
    snapshots: Iterator[Snapshot], files: Sequence[FileEntry]
) -> Iterator[tuple[FileEntry | None, Iterator[Snapshot]]]:
    """Snapshots with the file that has, or is to have, their streams; None where there is no file."""
    if not files:
        yield None, snapshots
        return
    firsts = [entry.chunks[0].first for entry in files]
    for place, group in groupby(snapshots, key=lambda snapshot: max(1, bisect_right(firsts, snapshot.stream))):
        yield files[place - 1], group


def _merged(table: Table, old: FileEntry, snapshots: Iterator[Snapshot]) -> Iterator[pa.RecordBatch]:
    """The rows of a file, those of some streams replaced or added."""
    changed = pa.Table.from_batches(packed(snapshots), snapshot_schema)
    kept = pa.concat_tables(table.pieces([old], Shard(), snapshot_schema.names))
    others = kept.filter(pc.invert(pc.is_in(kept["stream"], changed["stream"].combine_chunks())))
    rows = pa.concat_tables([others, changed])
    return iter(rows.take(pc.sort_indices(rows["stream"])).combine_chunks().to_batches(max_chunksize=rows_max))


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
    return _grown(
        origins, task.shard, model, before, snapshot_rows(table, files, task.shard, ("stream", "seq", "head"))
    )


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
    if not since:
        return plan_streams(request, count)
    ranges = sorted(
        (entry.chunks[0].first, entry.chunks[-1].last)
        for entry in open_snapshot_table(Path(request.options["to"])).files("snapshots")
    )

    def end_of_file(stream: str) -> str:
        """The last stream of the file that a stream is in: cut there, each file is written anew by one task."""
        place = bisect_right(ranges, (stream, chr(0x10FFFF)))
        return max(stream, ranges[place - 1][1]) if place else stream

    with Origins(request.urls) as origins:
        table = origins.table()
        weights = origins.weights()
        if table is not None:
            chunks = [chunk for entry in table.table.files("events", after=int(since)) for chunk in entry.chunks]
            weights = iter(sorted((chunk.last, chunk.rows, 0) for chunk in chunks))
        moved = ((end_of_file(stream), weight, streams) for stream, weight, streams in weights)
        return cut_counted(moved, count, request.shard_weight_min)


view = View(lambda request: written_schema, _rows, _plan, frozenset({"to", "since"}))
