"""The port over one SQLite file in WAL mode: one writer at a time, readers never blocked.

The append authority is the write lock: inside it, a stream's head row gives the next `seq`. Positions are
handed out under the same lock, so the order of the feed is the order of the commits.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from runstate.errors import (
    InvalidUrl,
    LogDamaged,
    LogFailed,
    LogNotFound,
    NotALog,
)
from runstate.logs.adoption import check_records
from runstate.logs.blob_collection import Collected, mark_blobs
from runstate.logs.blob_refs import blob_digest, checked_blob
from runstate.logs.bulk import Answer, Batch
from runstate.logs.decimal_positions import decimal_position
from runstate.logs.handle import Handle
from runstate.logs.log import (
    AppendResult,
    BlobRef,
    Capability,
    FeedPage,
    Finding,
    Head,
    Position,
    Record,
    StoredSnapshot,
    StreamInfo,
    Tombstone,
    check_limit,
)
from runstate.logs.snapshotting import MakeSnapshot
from runstate.logs.sqlite import blobs, queries
from runstate.logs.sqlite.appends import Append, adopt_rows, delete_rows, find_tombstone
from runstate.logs.sqlite.damaged_text import fetch_rows
from runstate.logs.sqlite.lock_proof import check_locks
from runstate.logs.sqlite.readers import (
    Readers,
    ReadOnlyReaders,
    can_write,
    create_private,
    is_directory,
    is_empty,
    is_there,
)
from runstate.logs.sqlite.repair import repair_stream
from runstate.logs.sqlite.schema import check, prepare
from runstate.logs.sqlite.snapshots import save, save_all, select_snapshot
from runstate.logs.sqlite.verify import verify_file, verify_rest
from runstate.logs.sqlite.writer import Writer, primary_code, translate, translated
from runstate.logs.stored_rows import read_feed, read_lines, read_records
from runstate.models.canonical import digest
from runstate.models.model import Draft, check_stream
from runstate.storage.permissions import not_writable

T = TypeVar("T")
busy_timeout_default_s = 30.0

_lines_page = 1024
_heads_page = 10_000
_seq_max = 2**63 - 1
_glance_s = 0.005


def open_url(url: str, *, create: bool = True) -> SqliteLog:
    """`sqlite:PATH`, or `sqlite:PATH?busy_timeout_s=5`."""
    path, mark, query = url.removeprefix("sqlite:").partition("?")
    if path.startswith("//"):
        # sqlite://PATH is what other tools write; three slashes make an absolute path there.
        path = path.removeprefix("//")
    if not path or "\0" in path:
        raise InvalidUrl(f"{url[:80]!r} names no file: write sqlite:PATH")
    name, _, value = query.partition("=")
    if mark and (name != "busy_timeout_s" or not value.replace(".", "", 1).isdecimal()):
        raise InvalidUrl(f"{query[:80]!r} is no option of a SQLite log: write ?busy_timeout_s=SECONDS")
    return SqliteLog(path, create=create, busy_timeout_s=float(value) if mark else busy_timeout_default_s)


class SqliteLog(Handle):
    """A log in one file. Threads and processes may share it; a forked child must open its own."""

    capabilities = frozenset(Capability)

    def __init__(
        self, path: str | Path, *, create: bool = True, busy_timeout_s: float = busy_timeout_default_s
    ) -> None:
        """Open the file, and create it if it is not there. A file that this process may not write is opened to read.

        Raises:
            LogNotFound: it is not there, and `create` is false.
            LogDamaged: it is empty, and `create` is false.
            NotALog: something else is in the file.
            LogTooNew: a newer Runstate wrote it.
            NotWritable: it cannot be created.
            LogFailed: it cannot be opened: no such directory, no read permission, a file system without locks.
        """
        self.path = Path(path)
        self._file = Path(os.path.realpath(path))  # SQLite follows links; and the process may go to another directory.
        self._busy_timeout_s = busy_timeout_s
        super().__init__()
        if create:
            create_private(self._file)
        elif not is_there(self.path):
            raise LogNotFound(f"There is no file {self.path}", path=str(self.path))
        elif is_empty(self.path):
            raise LogDamaged(
                f"The file {self.path} is empty: it was cut to nothing, or its creation was never finished. Restore it "
                "from a backup, or append to it to begin a new log",
                path=str(self.path),
            )
        self._writer: Writer | None = None
        self._readers: Readers | ReadOnlyReaders
        if can_write(self.path):
            check_locks(self._file.parent)
            first = self._connect()
            try:
                self._prepare(first)
            finally:
                first.close()
            self._writer = Writer(self._connect, busy_timeout_s, self._file)
            self._readers = Readers(self._connect)
        else:
            self._readers = ReadOnlyReaders(self.path, busy_timeout_s)
            try:
                self._read(check)
            except BaseException:
                self._readers.close()
                raise

    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        check_stream(stream)
        self._check_open()
        if not drafts:
            return []
        return self._writing().append(Append(stream, drafts, expected_seq))

    def append_many(self, batches: Sequence[Batch]) -> list[Answer]:
        return self._append_many([Append(stream, drafts, None) for stream, drafts in batches])

    def append_with_snapshots(
        self, batches: Sequence[Batch], make: MakeSnapshot, *, expected_seq: int | None = None
    ) -> list[Answer]:
        return self._append_many([Append(stream, drafts, expected_seq, make) for stream, drafts in batches])

    def _append_many(self, appends: list[Append]) -> list[Answer]:
        for append in appends:
            check_stream(append.stream)
        self._check_open()
        return self._writing().append_many(appends)

    def submit(
        self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None
    ) -> Future[list[AppendResult]]:
        check_stream(stream)
        self._check_open()
        return self._writing().submit(Append(stream, tuple(drafts), expected_seq))

    def adopt(self, stream: str, records: Sequence[Record], *, model: str = "") -> int:
        check_stream(stream)
        self._check_open()
        check_records(stream, records)
        new = 0

        def adopt(connection: sqlite3.Connection) -> None:
            nonlocal new
            new = adopt_rows(connection, stream, records, model)

        if records:
            self._writing().work(adopt)
        return new

    def read(self, stream: str, *, after_seq: int = 0, limit: int = 1000) -> list[Record]:
        check_stream(stream)
        check_limit(limit)
        rows = self._event_rows(queries.select_records, stream, _place(after_seq), _place(limit))
        return read_records(stream, rows)

    def lines(self, stream: str, *, after_seq: int = 0, until_seq: int | None = None) -> Iterator[bytes]:
        check_stream(stream)
        until = _seq_max if until_seq is None else _place(until_seq)
        after = _place(after_seq)
        while True:
            # Page by page: a cursor left open by a caller that reads on later would keep SQLite from cleaning up.
            page = self._query(queries.select_lines, (stream, after, until, _lines_page))
            lines = read_lines(stream, page)
            if lines is None:
                lines = [record.body for record in self.read(stream, after_seq=after, limit=len(page))]
            yield from lines
            if len(page) < _lines_page:
                return
            after = page[-1][0]

    def find(self, stream: str, key: str) -> Record | None:
        check_stream(stream)
        rows = self._event_rows(queries.select_by_key, stream, key)
        return read_records(stream, rows)[0] if rows else None

    def feed(self, *, after: Position | None = None, limit: int = 1000) -> FeedPage:
        check_limit(limit)
        position = 0
        if after is not None:
            ((last,),) = self._query(queries.select_last_position)
            position = decimal_position(after, last)
        rows = self._event_rows(queries.select_feed, position, _place(limit))
        records = read_feed([row[1:] for row in rows])
        return FeedPage(records, Position(str(rows[len(records) - 1][0])) if rows else after)

    def wait(self, after: Position | None, timeout_s: float) -> None:
        """Return once there may be something after `after`, or after `timeout_s`.

        SQLite does not notify of another process's commit, so the log is asked often; that costs next to nothing.
        """
        self._check_open()
        until = time.monotonic() + timeout_s
        with translated(), self._readers.watching() as has_changed:
            if self.feed(after=after, limit=1).records:
                return
            while (left_s := until - time.monotonic()) > 0:
                time.sleep(min(_glance_s, left_s))
                self._check_open()
                if has_changed():
                    return

    def streams(self, *, after: str = "", limit: int = 1000) -> list[StreamInfo]:
        check_limit(limit)
        rows = self._query(f"{queries.select_info} WHERE stream > ? ORDER BY stream LIMIT ?", (after, _place(limit)))
        return [StreamInfo(*row) for row in rows]

    def stream(self, stream: str) -> StreamInfo | None:
        check_stream(stream)
        rows = self._query(f"{queries.select_info} WHERE stream = ?", (stream,))
        return StreamInfo(*rows[0]) if rows else None

    def heads(self, *, after: str = "", until: str | None = None, versions: bool = True) -> Iterator[Head]:
        query = queries.select_heads.format(version=queries.last_position_of_stream if versions else "''")
        while True:
            page = self._query(query, (after, until, until, _heads_page))
            for stream, last_seq, version, model in page:
                yield Head(stream, last_seq, str(version), last_seq, model)
            if len(page) < _heads_page:
                return
            after = page[-1][0]

    def load_snapshot(self, stream: str, model: str) -> StoredSnapshot | None:
        check_stream(stream)
        rows = self._query(select_snapshot, (stream, model))
        return StoredSnapshot(*rows[0]) if rows else None

    def save_snapshot(self, stream: str, snapshot: StoredSnapshot) -> None:
        check_stream(stream)
        self._check_open()
        # Not synced: a snapshot that a power cut takes away is rebuilt from the log.
        self._writing().work(lambda connection: save(connection, stream, snapshot), durable=False)

    def save_snapshots(self, snapshots: Sequence[tuple[str, StoredSnapshot]]) -> None:
        for stream, _ in snapshots:
            check_stream(stream)
        self._check_open()
        self._writing().work(lambda connection: save_all(connection, snapshots), durable=False)

    def delete_stream(
        self,
        stream: str,
        *,
        expected_seq: int | None = None,
        first_persisted_at: str = "",
        tombstone: Tombstone | None = None,
    ) -> None:
        check_stream(stream)
        self._check_open()
        self._writing().work(
            lambda connection: delete_rows(connection, stream, expected_seq, first_persisted_at, tombstone)
        )

    def tombstone(self, stream: str) -> Tombstone | None:
        check_stream(stream)
        return self._read(lambda reader: find_tombstone(reader, stream))

    def verify(self, stream: str | None = None) -> Iterator[Finding]:
        if stream is not None:
            check_stream(stream)
        yield from self._read(lambda reader: list(verify_file(reader, stream)))

    def verify_rest(self) -> Iterator[Finding]:
        yield from self._read(lambda reader: list(verify_rest(reader)))

    def repair(
        self, stream: str, *, dry_run: bool = False, salvage: bool = False, quarantine: int = 0
    ) -> list[Finding]:
        check_stream(stream)
        self._check_open()
        repair = partial(repair_stream, stream=stream, dry_run=dry_run, salvage=salvage, quarantine=quarantine)
        if dry_run:
            return self._read(repair)
        done: list[Finding] = []
        self._writing().work(lambda connection: done.extend(repair(connection)))
        return done

    def put_blob(self, data: bytes) -> BlobRef:
        self._check_open()
        name = digest(data)
        self._writing().work(lambda connection: blobs.put(connection, name, bytes(data)))
        return BlobRef(f"sha256:{name}")

    def get_blob(self, ref: BlobRef) -> bytes:
        rows = self._query("SELECT data FROM blobs WHERE digest = ?", (blob_digest(ref),))
        return checked_blob(ref, rows[0][0] if rows else None)

    def collect_blobs(self, *, dry_run: bool = False, grace_s: float | None = None) -> Collected:
        self._check_open()
        marked = mark_blobs(self, grace_s)
        self._read(lambda reader: blobs.mark_set_aside(reader, marked))
        if dry_run:
            return self._read(lambda reader: blobs.collect(reader, marked, dry_run=True))
        done: list[Collected] = []
        self._writing().work(lambda connection: done.append(blobs.collect(connection, marked, dry_run=False)))
        return done[-1]

    def _release(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._readers.close()

    def _writing(self) -> Writer:
        """
        Raises:
            NotWritable: this process may only read the file.
        """
        if self._writer is None:
            raise not_writable(self._file)
        return self._writer

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Bring the file up to date, together with whoever else opens it now."""
        deadline = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                prepare(connection)
                return
            except sqlite3.Error as error:
                # SQLite does not wait by itself for the lock that changing to WAL mode needs.
                if primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise translate(error) from error
            time.sleep(random.uniform(0.001, 0.01))  # noqa: S311 - no secret, a pause

    def _query(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        return self._read(lambda reader: reader.execute(query, values).fetchall())

    def _event_rows(self, query: str, *values: object) -> list[Any]:
        return self._read(lambda reader: fetch_rows(reader, query, values))

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        self._check_open()
        with translated():
            return self._readers.run(work)

    def _connect(self) -> sqlite3.Connection:
        connection = None
        try:
            connection = sqlite3.connect(
                self._file, timeout=self._busy_timeout_s, isolation_level=None, check_same_thread=False
            )
            # The writer waits in its own way; readers meet a lock only while the file is made or recovered.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA cache_size = -65536")
        except sqlite3.DatabaseError as error:
            if connection is not None:
                connection.close()
            if primary_code(error) == sqlite3.SQLITE_NOTADB:
                raise NotALog(f"{self.path} is no SQLite database; it was left untouched") from error
            if primary_code(error) == sqlite3.SQLITE_CANTOPEN:
                if self.path.is_dir():
                    raise is_directory(self.path) from error
                raise LogFailed(f"{self.path} cannot be opened: {error}") from error
            raise translate(error) from error
        return connection


def _place(number: int) -> int:
    """A number that SQLite can hold; there is nothing beyond it."""
    return max(-_seq_max, min(number, _seq_max))
