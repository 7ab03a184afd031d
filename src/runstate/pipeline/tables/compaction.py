"""A table's many small files written anew as few large ones. Nothing else about the table changes.

Of an event table, each task writes a range of streams, and the commit that names the new files takes the place of all
earlier ones. What these have named stays until a vacuum, so that nobody is cut off in the middle, and earlier versions
can be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa

from runstate.logs.log import now
from runstate.pipeline.replay.fold import snapshot_schema
from runstate.pipeline.replay.snapshot_table import open_snapshot_table, snapshot_writer
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.source.rows import pack, rows_max
from runstate.pipeline.source.shards import Shard, cut
from runstate.pipeline.source.views import Request, Task, View
from runstate.pipeline.tables.event_table import event_schemas, open_event_table, without_secrets
from runstate.pipeline.tables.ingest import known_heads, written, written_schema
from runstate.pipeline.tables.sorted_files import FileEntry, SortedWriter
from runstate.pipeline.tables.table import Commit, Table


def check_compactable(table: Table, model_version: int) -> None:
    """
    Raises:
        InvalidOption: its columns were made for another version of the model.
    """
    if table.info.model_version != model_version:
        raise InvalidOption(
            f"{table.directory} was made for version {table.info.model_version} of the model {table.info.model!r}, "
            f"which is at {model_version}; ingest its logs into another directory"
        )


def compact_snapshots(directory: Path) -> int:
    """Write the files of a snapshot table anew. How many rows it has; 0 if there is nothing to be gained.

    Raises:
        LogBusy: another job is writing to the table.
        LogNotFound, NotALog: there is no table of snapshots.
    """
    table = open_snapshot_table(directory)
    with table.writing():
        commits, files = table.commits(), table.files("snapshots")
        if not commits or commits[-1].consumed.get("compacts"):
            return 0
        with snapshot_writer(table) as writer:
            for piece in table.pieces(files, Shard(), snapshot_schema.names):
                for batch in piece.combine_chunks().to_batches(max_chunksize=rows_max):
                    writer.write(batch)
        consumed = {**commits[-1].consumed, "compacts": commits[-1].number}
        table.commit(
            Commit(number=table.next_number(), at=now(), files=writer.entries, replaces=True, consumed=consumed)
        )
        return sum(entry.rows for entry in writer.entries)


def _rows(task: Task) -> Iterator[pa.RecordBatch]:
    table = open_event_table(Path(task.request.options["to"]))
    files: list[FileEntry] = []
    for kind, schema in event_schemas(task.model).items():
        with SortedWriter(table.place(kind), kind, schema) as writer:
            for batch in _batches(table, kind, schema, task.shard):
                writer.write(batch)
        files += writer.entries
    yield from written(files, {"rows": sum(entry.rows for entry in files)})


def _batches(table: Table, kind: str, schema: pa.Schema, shard: Shard) -> Iterator[pa.RecordBatch]:
    files = table.files(kind)
    if kind == "heads":  # The newest of a stream says all that the others have said.
        heads = known_heads(table, files, shard)
        yield from pack(schema, ((stream, *msgspec.structs.astuple(known)) for stream, known in heads))
        return
    for piece in table.pieces(files, shard, schema.names):
        kept = piece if kind == "events" else without_secrets(piece)
        yield from kept.combine_chunks().to_batches()


def _plan(request: Request, count: int) -> list[Shard]:
    table = open_event_table(Path(request.options["to"]))
    chunks = (chunk for entry in table.files("events") for chunk in entry.chunks)
    return cut(sorted((chunk.last, chunk.rows) for chunk in chunks), count, request.shard_weight_min) or [Shard()]


view = View(lambda request: written_schema, _rows, _plan, frozenset({"to"}))
