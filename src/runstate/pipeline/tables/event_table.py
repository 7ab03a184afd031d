"""The event table: `table:DIR`, every event of any number of logs in sorted columnar files.

Beside the envelope and the line it has the columns that the model's column-wise fold wants, so that a replay of usual
streams never looks at a line. How far each stream was ingested stands in files of its own, of the kind `heads`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from runstate.errors import InvalidUrl, LogNotFound, NotALog, redact, shown_url
from runstate.logs.log import Finding, Head, Record, StoredSnapshot
from runstate.models.model import AnyModel
from runstate.pipeline.source.origins import Lines, NumberedLines, StreamReader
from runstate.pipeline.source.relative_urls import located
from runstate.pipeline.source.rows import event_schema
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.tables.sorted_files import FileEntry
from runstate.pipeline.tables.table import Table

head_schema = pa.schema(
    [
        ("stream", pa.string()),
        ("seq", pa.int64()),
        ("url", pa.string()),
        ("version", pa.string()),
        ("last_line", pa.string()),
    ]
)
"""How far a stream was ingested, from where, which version of it that was, and the SHA-256 of its last line."""

quarantine_schema = pa.schema(
    [
        ("stream", pa.string()),
        ("seq", pa.int64()),
        ("url", pa.string()),
        ("file", pa.string()),
        ("line", pa.int64()),
        ("code", pa.string()),
        ("reason", pa.string()),
        ("content", pa.binary()),
    ]
)
"""What could not be ingested: where it stands, why, and its bytes."""

whole_rows_max = 1 << 18
"""A stream of more rows is never gathered in memory; it is folded line by line."""


def event_table_schema(model: AnyModel) -> pa.Schema:
    """The columns of a table for a model."""
    columns = model.column_fold()
    return event_schema if columns is None else pa.schema([*event_schema, *columns.schema])


def event_schemas(model: AnyModel) -> dict[str, pa.Schema]:
    """Those of all kinds of files."""
    return {
        "events": event_table_schema(model),
        "heads": head_schema,
        "refusals": head_schema,
        "quarantine": quarantine_schema,
    }


def open_event_table(directory: Path, as_of: int | None = None) -> Table:
    """
    Raises:
        LogNotFound: there is no table, or not that version of it.
        NotALog: the table holds no events.
    """
    table = Table.open(directory, as_of)
    if table.info.kind != "events":
        raise NotALog(f"{directory} holds {table.info.kind}, not events")
    return table


def without_secrets(rows: pa.Table) -> pa.Table:
    """Rows of the kinds `refusals` and `quarantine`. Earlier versions stored URLs in them with their passwords."""
    for name in {"url", "reason"} & set(rows.column_names):
        texts = [None if text is None else redact(text) for text in rows.column(name).to_pylist()]
        rows = rows.set_column(rows.column_names.index(name), name, pa.array(texts, pa.string()))
    return rows


class TableStream:
    """A stream of an event table; its rows come from the pieces that are being gone through."""

    def __init__(self, url: str, stream: str, rows: Iterator[tuple[str, _Piece, int, int]]) -> None:
        self.url, self.head, self._rows = url, Head(stream, 0, ""), rows

    def lines(self, after_seq: int = 0) -> Lines:
        numbered = (
            zip(piece.seqs[start:stop], piece.bodies[start:stop], strict=True) for _, piece, start, stop in self._rows
        )
        return NumberedLines(chain.from_iterable(numbered), after_seq)

    def records(self, after_seq: int = 0) -> Iterator[Record]:
        for _, piece, start, stop in self._rows:
            for row in piece.table.slice(start, stop - start).select(event_schema.names).to_pylist():
                if row["seq"] > after_seq:
                    row["body"] = row["body"].encode()
                    yield Record(**row)

    def begins_after(self) -> int:
        return 0

    def snapshot(self, model: str) -> StoredSnapshot | None:
        return None

    def verify(self) -> Iterator[Finding]:
        """Nothing more than reading has found: every page of a file has its checksum."""
        return iter(())


class _Piece:
    """A piece of the table, its columns as lists once they are asked for."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self._seqs: list[int] | None = None
        self._bodies: list[bytes] | None = None

    @property
    def seqs(self) -> list[int]:
        if self._seqs is None:
            self._seqs = self.table.column("seq").to_pylist()
        return self._seqs

    @property
    def bodies(self) -> list[bytes]:
        if self._bodies is None:
            self._bodies = self.table.column("body").cast(pa.binary()).to_pylist()
        return self._bodies


def split_version(url: str) -> tuple[str, int | None]:
    """The path of a table's URL, and the version that it names: `table:DIR?version=3`."""
    path, mark, version = url.removeprefix("table:").rpartition("?version=")
    return (path, int(version)) if mark and version.isdigit() else (url.removeprefix("table:"), None)


class TableOrigin:
    """An event table, read like a log."""

    def __init__(self, url: str) -> None:
        path, version = split_version(url)
        if not path:
            raise InvalidUrl("table: names no directory: write table:DIR")
        self.url = shown_url(url)
        self.table = open_event_table(Path(split_version(located(url))[0]), version)
        self.model_name: str | None = self.table.info.model
        if not self.table.commits():
            raise LogNotFound(f"The table in {path} was never finished; run its ingest again", path=path)
        self.files = self.table.files("events")

    def weights(self) -> Iterator[tuple[str, int]]:
        chunks = (chunk for entry in self.files for chunk in entry.chunks)
        return iter(sorted((chunk.last, chunk.rows) for chunk in chunks))

    def versions(self) -> Iterator[tuple[str, str]]:
        return ((entry.name, str(entry.bytes)) for entry in self.files)

    def streams(self, shard: Shard) -> Iterator[StreamReader]:
        return self.streams_of(self.files, shard)

    def streams_of(self, files: Sequence[FileEntry], shard: Shard) -> Iterator[StreamReader]:
        """The streams of a shard, with those of their events that some of the files hold."""
        parts = (
            (stream, piece, start, stop)
            for piece in map(_Piece, self.table.pieces(files, shard, event_schema.names))
            for stream, start, stop in runs_of(piece.table)
        )
        for stream, rows in groupby(parts, key=itemgetter(0)):
            yield TableStream(self.url, stream, rows)

    def verify_rest(self) -> Iterator[Finding]:
        return iter(())

    def close(self) -> None:
        """Nothing is held open."""


def runs_of(table: pa.Table) -> list[tuple[str, int, int]]:
    """The streams of sorted rows, each with where its rows begin and end."""
    names, starts = stream_starts(table)
    return list(zip(names, starts[:-1], starts[1:], strict=True))


def stream_starts(table: pa.Table) -> tuple[list[str], list[int]]:
    """The streams of sorted rows, and the row at which each begins, with the number of rows at the end."""
    column = table.column("stream").combine_chunks()
    encoded = column.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    changes = np.flatnonzero(np.diff(encoded.indices.to_numpy())) + 1
    starts = [0, *changes.tolist(), table.num_rows]
    return encoded.dictionary.to_pylist(), starts


class Window(NamedTuple):
    """Whole streams: all of their rows. `oversized` is one that has too many to be gathered; it has no rows here."""

    rows: pa.Table
    streams: list[str]
    starts: list[int]
    oversized: str | None = None


def windows(table: Table, files: Sequence[FileEntry], shard: Shard, columns: Sequence[str]) -> Iterator[Window]:
    """The rows of a shard in order, cut where a stream ends."""
    carried: pa.Table | None = None
    skipped = ""
    for piece in table.pieces(files, shard, columns):
        gathered = piece if carried is None else pa.concat_tables([carried, piece])
        streams, starts = stream_starts(gathered)
        if streams[0] == skipped:
            gathered, streams, starts = _without_first(gathered, starts)
            if not streams:
                carried = None
                continue
        last = starts[-2]
        carried = gathered.slice(last)
        oversized = streams[-1] if carried.num_rows > whole_rows_max else None
        if oversized is not None:
            skipped, carried = oversized, None
        if last or oversized:
            yield Window(gathered.slice(0, last), streams[:-1], starts[:-1], oversized)
    if carried is not None and carried.num_rows:
        yield Window(carried, *stream_starts(carried))


def _without_first(rows: pa.Table, starts: list[int]) -> tuple[pa.Table, list[str], list[int]]:
    rest = rows.slice(starts[1])
    return (rest, *stream_starts(rest)) if rest.num_rows else (rest, [], [0])
