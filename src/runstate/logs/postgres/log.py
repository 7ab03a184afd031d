"""The port over a schema of a Postgres database: many writers at once, one at a time per stream.

The append authority is the lock of the stream's head row. The feed is ordered by transaction, then position, and ends
before the oldest transaction that is still running: nothing can commit behind what it has handed out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from psycopg.types.numeric import Int8

from runstate.errors import (
    AppendOutcomeUnknown,
    InvalidJson,
    LogFailed,
    RunstateError,
    StreamNotFound,
)
from runstate.logs.adoption import check_records
from runstate.logs.blob_collection import Collected, mark_blobs
from runstate.logs.blob_refs import blob_digest, checked_blob
from runstate.logs.bulk import Answer, Batch
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
from runstate.logs.pending import Blocker, Pending
from runstate.logs.postgres import blobs, queries
from runstate.logs.postgres.appends import Append
from runstate.logs.postgres.bell import Bell
from runstate.logs.postgres.connections import Connections, held_back_max_s, let_settle, pause_s
from runstate.logs.postgres.deletion import delete_rows, find_tombstones
from runstate.logs.postgres.positions import no_position, parse_position
from runstate.logs.postgres.repair import repair_stream
from runstate.logs.postgres.schema import check_migrated, prepare
from runstate.logs.postgres.snapshots import save_rows, select_snapshot
from runstate.logs.postgres.transactions import Connection, ConnectionLost, Row, changes
from runstate.logs.postgres.verify import verify_rest, verify_schema
from runstate.logs.postgres.writer import Writer
from runstate.logs.snapshotting import MakeSnapshot
from runstate.logs.stored_rows import read_feed, read_lines, read_records
from runstate.models.canonical import digest
from runstate.models.model import Draft, check_stream

schema_default = "runstate"
pool_max_default = 10
busy_timeout_default_s = 30.0

_lines_page = 1024
_heads_page = 10_000
_seq_max = 2**63 - 1
T = TypeVar("T")


class PostgresLog(Handle):
    """A log in one schema. Threads, processes and machines may share it; a forked child must open its own."""

    capabilities = frozenset(Capability)

    def __init__(
        self,
        conninfo: str,
        *,
        schema: str = schema_default,
        create: bool = True,
        pool_max: int = pool_max_default,
        busy_timeout_s: float = busy_timeout_default_s,
        partitions: int | None = None,
    ) -> None:
        """Connect, and make the schema and its tables if they are not there, the events in so many partitions.

        Raises:
            LogNotFound: they are not there, and `create` is false.
            NotALog: something else is in the schema.
            LogTooNew: a newer Runstate wrote it.
            LogFailed: the server cannot be reached, refuses the connection, or is too old.
            InvalidUrl: the log is there, with another number of partitions.
        """
        super().__init__()
        self._connections = Connections(conninfo, schema, pool_max=pool_max, busy_timeout_s=busy_timeout_s)

        self._bell = Bell(self._connections, schema)
        self._writer = Writer(self._connections, busy_timeout_s, self._bell.ring)

        def first(connection: Connection) -> int:
            version = prepare(connection, schema, create=create, partitions=partitions)
            let_settle(connection)
            self._writer.guesses.ask_time(connection)
            return version

        self._version = self._connections.first(first)
        self._model = "model" if self._version > 1 else "''"
        """What a query selects for the model of a stream: version 1 has no such column."""

    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        check_stream(stream)
        self._check_open()
        if not drafts:
            return []
        check_migrated(self._version)
        return self._writer.append(Append(stream, drafts, expected_seq))

    def append_many(self, batches: Sequence[Batch]) -> list[Answer]:
        self._check_open()
        check_migrated(self._version)
        appends = [Append(stream, drafts, None) for stream, drafts in batches]
        self._writer.append_many(appends)
        return [append.error or append.results or [] for append in appends]

    def append_with_snapshots(
        self, batches: Sequence[Batch], make: MakeSnapshot, *, expected_seq: int | None = None
    ) -> list[Answer]:
        for stream, _ in batches:
            check_stream(stream)
        self._check_open()
        check_migrated(self._version)
        appends = [Append(stream, drafts, expected_seq, make) for stream, drafts in batches]
        if len(appends) > 1:
            self._writer.append_many(appends)
            return [append.error or append.results or [] for append in appends]
        try:
            return [self._writer.append(append) for append in appends]
        except RunstateError as error:
            return [error]

    def submit(
        self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None
    ) -> Future[list[AppendResult]]:
        check_stream(stream)
        self._check_open()
        check_migrated(self._version)
        return self._writer.submit(Append(stream, tuple(drafts), expected_seq))

    def adopt(self, stream: str, records: Sequence[Record], *, model: str = "") -> int:
        check_stream(stream)
        check_records(stream, records)
        self._check_open()
        check_migrated(self._version)
        return self._writer.adopt(stream, records, model) if records else 0

    def read(self, stream: str, *, after_seq: int = 0, limit: int = 1000) -> list[Record]:
        check_stream(stream)
        check_limit(limit)
        return read_records(stream, self._rows(queries.select_records, stream, _place(after_seq), _place(limit)))

    def lines(self, stream: str, *, after_seq: int = 0, until_seq: int | None = None) -> Iterator[bytes]:
        check_stream(stream)
        until = _place(_seq_max if until_seq is None else until_seq)
        after = _place(after_seq)
        while True:
            # Page by page: a caller that reads on later must not keep a connection from the others.
            page = self._rows(queries.select_lines, stream, after, until, Int8(_lines_page))
            lines = read_lines(stream, page)
            if lines is None:
                lines = [record.body for record in self.read(stream, after_seq=int(after), limit=len(page))]
            yield from lines
            if len(page) < _lines_page:
                return
            after = Int8(page[-1][0])

    def find(self, stream: str, key: str) -> Record | None:
        check_stream(stream)
        # No stored text holds NUL, and the driver refuses to ask for it.
        rows = self._rows(queries.select_by_key, stream, None if "\0" in key else key)
        return read_records(stream, rows)[0] if rows else None

    def feed(self, *, after: Position | None = None, limit: int = 1000) -> FeedPage:
        check_limit(limit)
        self._check_open()
        place = parse_position(after)
        deadline = time.monotonic() + held_back_max_s

        def page(connection: Connection) -> tuple[bool, list[Row], bool]:
            with connection.pipeline():
                known = connection.execute(queries.select_is_handed_out, place)
                rows = connection.execute(queries.select_feed, (*place, _place(limit)), binary=True)
                more = connection.execute(queries.select_is_more, place)
            return after is None or _truth(known.fetchone()), rows.fetchall(), more.fetchone() is not None

        while True:
            is_known, rows, is_held_back = self._connections.run(page)
            if not is_known:
                raise no_position(after)
            if rows or not is_held_back or time.monotonic() > deadline:
                break
            # Something is committed, but an older transaction still runs. Most end within a moment.
            time.sleep(pause_s)
        if not rows:
            return FeedPage([], after)
        records = read_feed([row[2:] for row in rows])
        transaction, position, *_ = rows[len(records) - 1]
        return FeedPage(records, Position(f"{transaction}-{position}"))

    def wait(self, after: Position | None, timeout_s: float) -> None:
        """Wait until there may be something after that place of the feed, but no longer than `timeout_s`."""
        self._check_open()
        place = parse_position(after)

        def is_more() -> bool | None:
            row = self._connections.run(lambda c: c.execute(queries.select_is_more, place).fetchone())
            return None if row is None else bool(row[0])

        self._bell.wait(is_more, timeout_s)

    def oldest_pending(self, after: Position | None) -> Pending | None:
        rows = self._rows(queries.select_oldest_pending, *parse_position(after))
        if not rows:
            return None
        persisted_at, is_handed_out = rows[0]
        if is_handed_out:
            return Pending(persisted_at)
        blockers = self._rows(queries.select_oldest_transaction)
        return Pending(persisted_at, Blocker(*blockers[0]) if blockers else Blocker(None, None, "", "", ""))

    def streams(self, *, after: str = "", limit: int = 1000) -> list[StreamInfo]:
        check_limit(limit)
        return [
            StreamInfo(*row) for row in self._rows(queries.select_infos.format(model=self._model), after, _place(limit))
        ]

    def stream(self, stream: str) -> StreamInfo | None:
        check_stream(stream)
        rows = self._rows(f"{queries.select_info.format(model=self._model)} WHERE stream = %s", stream)
        return StreamInfo(*rows[0]) if rows else None

    def heads(self, *, after: str = "", until: str | None = None, versions: bool = True) -> Iterator[Head]:
        query = queries.select_heads.format(model=self._model)
        while True:
            page = self._rows(query, after, until, until, Int8(_heads_page))
            for stream, last_seq, version, model in page:
                # No number of a stream is given twice, and what changes it, an append or a repair, is a transaction.
                yield Head(stream, last_seq, f"{version}-{last_seq}" if versions else "", last_seq, model)
            if len(page) < _heads_page:
                return
            after = page[-1][0]

    def load_snapshot(self, stream: str, model: str) -> StoredSnapshot | None:
        check_stream(stream)
        rows = self._rows(select_snapshot, stream, model)
        return StoredSnapshot(*rows[0]) if rows else None

    def save_snapshot(self, stream: str, snapshot: StoredSnapshot) -> None:
        check_stream(stream)
        self._check_open()
        (saved,) = self._connections.run(lambda connection: save_rows(connection, [(stream, snapshot)]))
        if not saved and self.stream(stream) is None:
            raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)

    def save_snapshots(self, snapshots: Sequence[tuple[str, StoredSnapshot]]) -> None:
        for stream, _ in snapshots:
            check_stream(stream)
        self._check_open()
        # In one order for all: two that save the same streams would wait for each other otherwise.
        in_order = sorted(snapshots, key=lambda each: (each[0], each[1].model))
        self._connections.run(lambda connection: save_rows(connection, in_order))

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
        check_migrated(self._version)
        self._change_stream(lambda c: delete_rows(c, stream, expected_seq, first_persisted_at, tombstone), "deleted")

    def tombstone(self, stream: str) -> Tombstone | None:
        check_stream(stream)
        self._check_open()
        if self._version == 1:
            return None
        return self._connections.run(lambda connection: find_tombstones(connection, [stream])).get(stream)

    def verify(self, stream: str | None = None) -> Iterator[Finding]:
        if stream is not None:
            check_stream(stream)
        self._check_open()
        yield from self._verified(lambda connection: verify_schema(connection, stream))

    def verify_rest(self) -> Iterator[Finding]:
        self._check_open()
        yield from self._verified(verify_rest)

    def _verified(self, look: Callable[[Connection], Iterator[Finding]]) -> Iterator[Finding]:
        try:
            with self._connections.one() as connection:
                yield from look(connection)
        except ConnectionLost as lost:
            raise LogFailed(str(lost)) from lost

    def repair(
        self, stream: str, *, dry_run: bool = False, salvage: bool = False, quarantine: int = 0
    ) -> list[Finding]:
        check_stream(stream)
        self._check_open()
        check_migrated(self._version)
        repair = partial(repair_stream, stream=stream, dry_run=dry_run, salvage=salvage, quarantine=quarantine)
        return self._change_stream(repair, "repaired")

    def put_blob(self, data: bytes) -> BlobRef:
        self._check_open()
        check_migrated(self._version)
        name = digest(data)
        self._connections.run(lambda connection: blobs.put_row(connection, name, bytes(data)))
        return BlobRef(f"sha256:{name}")

    def get_blob(self, ref: BlobRef) -> bytes:
        self._check_open()
        rows = self._rows("SELECT data FROM $schema.blobs WHERE digest = %s", blob_digest(ref))
        return checked_blob(ref, rows[0][0] if rows else None)

    def collect_blobs(self, *, dry_run: bool = False, grace_s: float | None = None) -> Collected:
        self._check_open()
        check_migrated(self._version)
        self._connections.run(blobs.check_sees_all)
        marked = mark_blobs(self, grace_s)
        self._connections.run(lambda connection: blobs.mark_set_aside(connection, marked))
        if dry_run:
            return self._connections.run(lambda connection: blobs.collect(connection, marked, dry_run=True))
        return self._connections.run(lambda connection: blobs.remove(connection, marked))

    def _release(self) -> None:
        self._writer.close()
        self._bell.close()
        self._connections.close()

    def _change_stream(self, change: Callable[[Connection], T], done: str) -> T:
        """
        Raises:
            AppendOutcomeUnknown: the connection went away meanwhile, or the standby may not have it.
        """
        try:
            with self._connections.one() as connection, changes(connection):
                return change(connection)
        except ConnectionLost as lost:
            raise AppendOutcomeUnknown(f"The stream may or may not be {done} ({lost}); look, and try again") from lost

    def _rows(self, query: str, *values: object) -> list[Row]:
        """What a query finds."""
        self._check_open()
        try:
            return self._connections.run(lambda c: c.execute(query, values, binary=True).fetchall())
        except UnicodeEncodeError as error:  # A lone surrogate, which no stored text can hold.
            raise InvalidJson(f"{error.object[:40]!r} is no text: it has a lone surrogate") from error


def _truth(row: Row | None) -> bool:
    return row is not None and bool(row[0])


def _place(number: int) -> Int8:
    """A number that Postgres can hold; there is nothing beyond it."""
    return Int8(max(-_seq_max, min(number, _seq_max)))
