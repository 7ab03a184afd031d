"""Going through a fleet whatever stands in the way: every stream with all of its copies, beside its kept snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from runstate.errors import LogNotFound, NotALog, RunstateError, shown_url
from runstate.logs.log import Finding
from runstate.models.model import AnyModel, ColumnFold
from runstate.pipeline.audit.checks import Kept
from runstate.pipeline.audit.stream_findings import Told
from runstate.pipeline.replay.fold import column_fold
from runstate.pipeline.replay.snapshot_table import open_snapshot_table, snapshot_rows
from runstate.pipeline.source.census import excuse
from runstate.pipeline.source.origins import Origin, StreamReader, open_origin
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.tables.event_table import TableOrigin
from runstate.pipeline.tables.sorted_files import FileEntry, TableDamaged


class Source:
    """The streams of one origin in a shard. What stands in the way is told, and if possible gone around."""

    def __init__(self, url: str, shard: Shard) -> None:
        self.url, self._url, self.findings = shown_url(url), url, list[Finding]()
        self._all, self._shard, self._again = shard, shard, False
        self._origin: Origin | None = None
        self._lost: list[str] = []
        self._lost_ranges: list[tuple[str, str]] = []

    def readers(self) -> Iterator[StreamReader]:
        try:
            self._origin = open_origin(self._url)
        except Exception as error:  # noqa: BLE001 - the other origins are still to be audited
            self._cut_short(error)
            return
        try:
            self._again = True
            while self._again:
                yield from self._walk()
        finally:
            self._origin.close()

    def rest(self) -> Iterator[Finding]:
        """What is wrong beyond single streams."""
        try:
            origin = open_origin(self._url)
        except Exception:  # noqa: BLE001 - `readers` has met it too, and has told it
            return
        try:
            yield from origin.verify_rest()
        except Exception as error:  # noqa: BLE001 - what was found in the streams must be told all the same
            yield Finding(code="audit.failed", message=f"The log's own check has failed: {error!r}")
        finally:
            origin.close()

    def fresh(self, stream: str) -> StreamReader | None:
        """The stream as it is now."""
        return None if self._origin is None else next(iter(self._origin.streams(Shard(only=(stream,)))), None)

    def has_all_of(self, stream: str) -> bool:
        """Whether no file that may hold events of the stream was left out."""
        return not any(first <= stream <= last for first, last in self._lost_ranges)

    def goes_around(self, error: Exception) -> bool:
        """Leave out the table's file that an error tells of, and begin again with the stream that met it."""
        damaged = next((entry for entry in self._files() if entry.name in str(error)), None)
        if damaged is None or not isinstance(error, TableDamaged):
            return False
        first, last = damaged.chunks[0].first, damaged.chunks[-1].last
        self._lost.append(damaged.name)
        self._lost_ranges += [(chunk.first, chunk.last) for chunk in damaged.chunks]
        self.findings.append(
            Finding(
                code=error.code,
                message=f"{error}. What it holds of the streams {first!r} to {last!r} was not audited",
                details={"file": damaged.name, "first": first, "last": last, "rows": damaged.rows},
            )
        )
        self._again = True
        return True

    def column_findings(self, model: AnyModel) -> Iterator[Finding]:
        """What is wrong with the columns that a table has for the model's column-wise fold, which believes them."""
        if not isinstance(self._origin, TableOrigin) or (columns := column_fold(self._origin, model)) is None:
            return
        told = Told(None)
        names = ["stream", "seq", "body", *columns.schema.names]
        # File by file: no damage in one of them is in the way of another.
        for entry in self._files():
            try:
                for piece in self._origin.table.pieces([entry], self._all, names):
                    for stream, seq, column in _differing(piece, columns):
                        message = f"The column {column} of {entry.name} is not what the event's line says"
                        told.pass_on(Finding(code="audit.column_differs", message=message, stream=stream, seq=seq))
            except Exception as error:  # noqa: BLE001 - the other files are still to be looked at
                told.failed(error)
        yield from told.findings()

    def _walk(self) -> Iterator[StreamReader]:
        self._again = False
        try:
            for reader in self._streams():
                yield reader
                if self._again:
                    return
                self._shard = msgspec.structs.replace(self._shard, after=reader.head.stream)
        except Exception as error:  # noqa: BLE001 - the other origins are still to be audited
            if not self.goes_around(error):
                self._cut_short(error)

    def _streams(self) -> Iterator[StreamReader]:
        if isinstance(self._origin, TableOrigin):
            return self._origin.streams_of(self._files(), self._shard)
        return iter(()) if self._origin is None else self._origin.streams(self._shard)

    def _files(self) -> list[FileEntry]:
        files = self._origin.files if isinstance(self._origin, TableOrigin) else []
        return [entry for entry in files if entry.name not in self._lost]

    def _cut_short(self, error: Exception) -> None:
        if not isinstance(error, LogNotFound | NotALog):  # What the driver has found may be on another disk.
            excuse()
        after, until = self._shard.after, self._shard.until
        streams = f"after {after!r}" + ("" if until is None else f" up to {until!r}") if after or until else "in all"
        code = error.code if isinstance(error, RunstateError) else type(error).__name__
        message = f"The streams {streams} cannot be gone through, and were not audited: {error}"
        details = {"error": code, "after": after, "until": until}
        self.findings.append(Finding(code="audit.cut_short", message=message, details=details))


def _differing(piece: pa.Table, columns: ColumnFold) -> Iterator[tuple[str, int, str]]:
    """The stream, the seq and the column of every value that is not what the line says."""
    facts = columns.facts(piece.column("body").cast(pa.binary()).to_pylist())
    for field in columns.schema:
        kept, said = piece.column(field.name).combine_chunks(), facts.column(field.name)
        if not kept.equals(said):
            values = zip(kept.to_pylist(), said.to_pylist(), strict=True)
            for row in [row for row, (one, other) in enumerate(values) if one != other]:
                yield piece.column("stream")[row].as_py(), piece.column("seq")[row].as_py(), field.name


def side_by_side(sources: Sequence[Source]) -> Iterator[tuple[str, list[tuple[Source, StreamReader]]]]:
    """The streams of all sources by their ids, each with all of its copies."""
    walks = [source.readers() for source in sources]
    waiting: list[tuple[str, int, StreamReader]] = []

    def go_on(number: int) -> None:
        if (reader := next(walks[number], None)) is not None:
            heappush(waiting, (reader.head.stream, number, reader))

    for number in range(len(walks)):
        go_on(number)
    while waiting:
        stream = waiting[0][0]
        group = []
        while waiting and waiting[0][0] == stream:
            group.append(heappop(waiting))
        yield stream, [(sources[number], reader) for _, number, reader in group]
        # Only now: a reader is good until its source goes on.
        for _, number, _ in group:
            go_on(number)


class KeptSnapshots:
    """The snapshots of a table, asked for in the order of the streams."""

    def __init__(self, directory: str | None, shard: Shard) -> None:
        self._place = directory or ""
        self._rows = iter(()) if directory is None else _kept_rows(directory, shard)
        self._failed: Exception | None = None
        self._is_whole = directory is not None
        self._next = self._take()

    def of(self, stream: str) -> Kept | None:
        """What is to be held against the stream; nothing if it could not be folded, or if that cannot be known."""
        if self._next is None or self._next[0] != stream:
            return Kept(self._place, 0, 0, "", None, is_current=True) if self._is_whole else None
        _, seq, version, told_digest, body = self._next
        self._next = self._take()
        return None if body is None else Kept(self._place, seq, version, told_digest, body, is_current=True)

    def passed_over(self, stream: str | None) -> Iterator[Finding]:
        """What is to be said about snapshots before a stream, which no origin has; None: about all that are left."""
        while self._next is not None and (stream is None or self._next[0] < stream):
            message = f"{self._place} holds a snapshot of a stream that was found in none of the logs"
            if self._next[4] is not None:
                yield Finding(code="audit.snapshot_orphan", message=message, severity="warning", stream=self._next[0])
            self._next = self._take()
        if self._failed is not None:
            message = f"The snapshots in {self._place} cannot be read on, and were not compared: {self._failed}"
            self._failed = None
            yield Finding(code="audit.snapshots_unreadable", message=message)

    def _take(self) -> _KeptRow | None:
        try:
            return next(self._rows, None)
        except Exception as error:  # noqa: BLE001 - the events are still to be audited
            self._failed, self._is_whole = error, False
            return None


_KeptRow = tuple[str, int, int, str, bytes | None]
"""A stream, the seq, the model's version and the digest of its snapshot, and that; None if it could not be folded."""


def _kept_rows(directory: str, shard: Shard) -> Iterator[_KeptRow]:
    table = open_snapshot_table(Path(directory))
    columns = ("stream", "seq", "version", "digest", "body")
    rows: Iterator[dict[str, Any]] = snapshot_rows(table, table.files("snapshots"), shard, columns)
    for row in rows:
        body = None if row["body"] is None else row["body"].encode()
        yield row["stream"], row["seq"], row["version"], row["digest"], body
