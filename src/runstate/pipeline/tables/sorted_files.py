"""Parquet files whose rows are sorted by stream and seq, in chunks that can be read one by one.

Which streams a chunk holds is kept beside the file, so a reader of some streams opens only what may hold them. Any
number of such files is read as one: their rows come merged, a chunk's worth at a time.
"""

from __future__ import annotations

import io
import os
import secrets
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Self
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Meta

from runstate.errors import LogFailed, RunstateError
from runstate.pipeline.source.shards import Shard
from runstate.storage.disk import open_private

chunk_rows = 1 << 16
chunk_bytes = 64 << 20
"""A chunk is closed at so many rows, or once its columns have so many bytes: what a reader holds in memory at once."""
file_bytes_max = 512 << 20
DATA_FILE = r"[a-z]+-[0-9a-f]{16}\.parquet"
"""The names of files that a `SortedWriter` writes, as a regular expression: kind and random digits."""
_ranged = {"stream", "seq", "type", "tenant", "emitted_at", "persisted_at", "status"}
"""Columns whose least and greatest values a commit tells, for engines that leave out files by them."""
_repetitive = ["stream", "type", "tenant", "step_id", "model", "status", "url", "code"]


class TableDamaged(RunstateError):
    """A file of a table is not what was written; the table can be made again from the logs, into another directory."""

    code = "table.damaged"


class Section(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stretch of a file, and the CRC-32 of its bytes."""

    start: int
    end: int
    crc: int

    def fits(self, path: Path) -> bool:
        with open(path, "rb") as file:
            file.seek(self.start)
            return crc32(file.read(self.end - self.start)) == self.crc


class Chunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    first: str
    last: str
    rows: int
    section: Section


class Stats(msgspec.Struct, frozen=True, rename="camel"):
    """What a file holds of its columns, in the words of Delta."""

    null_count: dict[str, int] = {}
    min_values: dict[str, str | int] = {}
    max_values: dict[str, str | int] = {}


class FileEntry(msgspec.Struct, frozen=True):
    """A file of a table, as its commit tells of it."""

    name: Annotated[str, Meta(pattern=rf"^{DATA_FILE}\Z")]
    """Of a file in the table's own directory. A commit that names any other file is damaged."""
    kind: str
    bytes: int
    footer: Section
    """What stands behind the chunks: the file's own table of contents."""
    chunks: list[Chunk]
    stats: Stats = Stats()

    @property
    def rows(self) -> int:
        return sum(chunk.rows for chunk in self.chunks)


def _create_parquet(sink: Any, schema: pa.Schema, collected: list[pq.FileMetaData]) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in _repetitive if name in schema.names],
        # A checksum in every page: a flipped bit is found when the page is read, not when its text looks odd.
        write_page_checksum=True,
        metadata_collector=collected,
    )


class _SummedFile(io.FileIO):
    """A new file that sums up what is written to it, section by section."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "xb", opener=open_private)
        self._start = self._end = self._crc = 0

    def write(self, data: Any) -> int:
        rest = memoryview(data)
        self._crc, self._end, size = crc32(rest, self._crc), self._end + len(rest), len(rest)
        while rest:
            rest = rest[super().write(rest) :]
        return size

    def section(self) -> Section:
        """What was written since the last section was asked for."""
        section = Section(self._start, self._end, self._crc)
        self._start, self._crc = self._end, 0
        return section


class SortedWriter:
    """Writes rows that come sorted into one or more new files of a directory, each synced before it is told of."""

    def __init__(
        self,
        directory: Path,
        kind: str,
        schema: pa.Schema,
        chunk_bytes_max: int = chunk_bytes,
        file_bytes_max: int = file_bytes_max,
    ) -> None:
        self._directory, self._kind, self._schema = directory, kind, schema
        self._chunk_bytes_max, self._file_bytes_max = chunk_bytes_max, file_bytes_max
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._path: Path | None = None
        self._sink: _SummedFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self._metadata: list[pq.FileMetaData] = []
        self._chunks: list[Chunk] = []
        self.entries: list[FileEntry] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= chunk_rows or self._bytes >= self._chunk_bytes_max:
            self._write_chunk()

    def close(self) -> list[FileEntry]:
        """Finish the files.

        Raises:
            LogFailed: the disk refused. Nothing was told of, so nothing is there.
        """
        self._write_chunk()
        self._finish_file()
        return self.entries

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        elif self._sink is not None:
            self._sink.close()

    def _write_chunk(self) -> None:
        if not self._rows:
            return
        table = pa.Table.from_batches(self._waiting, self._schema).combine_chunks()
        self._waiting, self._rows, self._bytes = [], 0, 0
        try:
            if self._writer is None or self._sink is None:
                self._path = self._directory / f"{self._kind}-{secrets.token_hex(8)}.parquet"
                self._sink, self._metadata = _SummedFile(self._path), []
                self._writer = _create_parquet(self._sink, self._schema, self._metadata)
            # One call, one chunk: readers count on it.
            self._writer.write_table(table, row_group_size=table.num_rows)
        except OSError as error:
            raise LogFailed(f"{self._directory} cannot be written: {error}") from error
        streams, section = table.column("stream"), self._sink.section()
        self._chunks.append(Chunk(streams[0].as_py(), streams[-1].as_py(), table.num_rows, section))
        if section.end >= self._file_bytes_max:
            self._finish_file()

    def _finish_file(self) -> None:
        if self._writer is None or self._path is None or self._sink is None:
            return
        try:
            self._writer.close()
            footer = self._sink.section()
            self._sink.flush()
            os.fsync(self._sink.fileno())
            self._sink.close()
        except OSError as error:
            raise LogFailed(f"{self._path} cannot be written: {error}") from error
        stats = _stats(self._metadata[0])
        self.entries.append(FileEntry(self._path.name, self._kind, footer.end, footer, self._chunks, stats))
        self._writer = self._sink = self._path = None
        self._chunks = []


def _stats(metadata: pq.FileMetaData) -> Stats:
    stats = Stats({}, {}, {})
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    for place, name in enumerate(metadata.schema.names):
        found = [group.column(place).statistics for group in groups]
        if all(each is not None and each.has_null_count for each in found):
            stats.null_count[name] = sum(each.null_count for each in found)
        ranges = [each for each in found if each is not None and each.has_min_max]
        if name in _ranged and len(ranges) == len(found):
            stats.min_values[name] = min(each.min for each in ranges)
            stats.max_values[name] = max(each.max for each in ranges)
    return stats


# --- reading -------------------------------------------------------------------------------------------------


def pieces(directory: Path, files: Sequence[FileEntry], shard: Shard, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of a shard in order, in pieces of about a chunk. A stream may go on in the next piece.

    A file is in the directory of its kind.
    `files` come in the order of their commits: where two hold events of one stream, the earlier holds the earlier ones.
    `columns` begin with `stream` and `seq`.

    Raises:
        TableDamaged: a file is not what was written.
    """
    cursors = [cursor for entry in files if (cursor := _Cursor(directory, entry, shard, columns)).ready()]
    while cursors:
        bound = min(cursor.last for cursor in cursors)
        if all(cursor.first > bound for cursor in cursors):
            raise TableDamaged(f"{directory} has rows that are not sorted by stream; {_advice}", path=str(directory))
        parts, owner = [], None
        for cursor in cursors:
            if cursor.first > bound:
                continue
            parts.append(cursor.take(bound, inclusive=False))
            # What later files hold of the bound's own stream must wait until the earliest has given all of it.
            if owner is None and cursor.ready() and cursor.first == bound:
                owner = cursor
                parts.append(cursor.take(bound, inclusive=True))
        cursors = [cursor for cursor in cursors if cursor.ready()]
        if filled := [part for part in parts if part.num_rows]:
            yield filled[0] if len(filled) == 1 else _merged(filled)


def _merged(parts: list[pa.Table]) -> pa.Table:
    table = pa.concat_tables(parts)
    # Stable: of one stream, the rows of an earlier commit come before those of a later one, whatever their seq.
    return table.take(pc.sort_indices(table.column("stream")))


class _Cursor:
    """A place in one file. `first` and `last` are the ends of what it has loaded, or of the chunk that comes next."""

    def __init__(self, directory: Path, entry: FileEntry, shard: Shard, columns: Sequence[str]) -> None:
        self._path, self._entry, self._shard, self._columns = directory / entry.kind / entry.name, entry, shard, columns
        self._chunks = [number for number, chunk in enumerate(entry.chunks) if _overlaps(chunk, shard)]
        self._file: pq.ParquetFile | None = None
        self._table: pa.Table | None = None
        self.first = self.last = ""

    def ready(self) -> bool:
        """Whether there is more, and if so, its ends are known."""
        if self._table is not None and self._table.num_rows:
            streams = self._table.column("stream")
            self.first, self.last = streams[0].as_py(), streams[-1].as_py()
            return True
        self._table = None
        if not self._chunks:
            return False
        chunk = self._entry.chunks[self._chunks[0]]
        self.first, self.last = chunk.first, chunk.last
        return True

    def take(self, bound: str, *, inclusive: bool) -> pa.Table:
        """The rows that come before `bound`, or with it, as far as they are loaded."""
        table = self._loaded()
        compare = pc.less_equal if inclusive else pc.less
        count = table.num_rows if bound > self.last else pc.sum(compare(table.column("stream"), bound)).as_py() or 0
        self._table = table.slice(count)
        return table.slice(0, count)

    def _loaded(self) -> pa.Table:
        if self._table is None:
            self._table = _within(self._load(self._chunks.pop(0)), self._shard)
            if self._table.num_rows:
                self.ready()
        return self._table

    def _load(self, number: int) -> pa.Table:
        try:
            if self._file is None:
                if self._path.stat().st_size != self._entry.bytes or not self._entry.footer.fits(self._path):
                    raise TableDamaged(f"{self._path} is not what was written; {_advice}", path=str(self._path))
                self._file = pq.ParquetFile(str(self._path), page_checksum_verification=True, memory_map=False)
            table = self._file.read_row_group(number, columns=list(self._columns), use_threads=False)
        except (OSError, pa.ArrowException, KeyError) as error:
            raise TableDamaged(f"{self._path} cannot be read: {error}; {_advice}", path=str(self._path)) from error
        if missing := [name for name in self._columns if name not in table.column_names]:
            raise TableDamaged(
                f"{self._path} has no column {missing[0]!r}: another version has written it; {_advice}",
                path=str(self._path),
            )
        if table.num_rows != self._entry.chunks[number].rows:
            raise TableDamaged(f"{self._path} has other rows than were written; {_advice}", path=str(self._path))
        return table.combine_chunks()


_advice = "the table can be made again from the logs, into another directory"


def _overlaps(chunk: Chunk, shard: Shard) -> bool:
    if shard.only is not None:
        place = bisect_left(shard.only, chunk.first)
        return place < len(shard.only) and shard.only[place] <= chunk.last
    return chunk.last > shard.after and (shard.until is None or chunk.first <= shard.until)


def _within(table: pa.Table, shard: Shard) -> pa.Table:
    """The rows of a chunk that belong to the shard."""
    streams = table.column("stream")
    if shard.only is not None:
        return table.filter(pc.is_in(streams, pa.array(shard.only, pa.string())))
    first, last = streams[0].as_py(), streams[-1].as_py()
    if first > shard.after and (shard.until is None or last <= shard.until):
        return table
    start = pc.sum(pc.less_equal(streams, shard.after)).as_py()
    stop = table.num_rows if shard.until is None else pc.sum(pc.less_equal(streams, shard.until)).as_py()
    return table.slice(start, max(0, stop - start))
