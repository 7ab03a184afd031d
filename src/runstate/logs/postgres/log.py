"""The port over a schema of a Postgres database: many writers at once, one at a time per stream.

The append authority is the lock of the stream's head row. The feed is ordered by transaction, then position, and ends
before the oldest transaction that is still running: nothing can commit behind what it has handed out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from psycopg.types.numeric import Int8

from runstate.errors import (
    AppendOutcomeUnknown,
    InvalidJson,
    InvalidPosition,
    LogFailed,
    StreamNotFound,
)
from runstate.logs.adoption import check_records
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
    blob_digest,
    check_limit,
    checked_blob,
    refuse,
)
from runstate.logs.pending import Blocker, Pending
from runstate.logs.postgres.appends import Append
from runstate.logs.postgres.bell import Bell
from runstate.logs.postgres.connections import Connection, ConnectionLost, Connections
from runstate.logs.postgres.deletion import delete_rows, find_tombstones
from runstate.logs.postgres.schema import check_migrated, prepare
from runstate.logs.postgres.verify import verify_rest, verify_schema
from runstate.logs.postgres.writer import Writer
from runstate.models.canonical import digest
from runstate.models.model import Draft, check_stream

Row = tuple[Any, ...]

schema_default = "runstate"
pool_max_default = 10
busy_timeout_default_s = 30.0
held_back_max_s = 0.2
"""How long the feed, or whoever opens the log, waits for a transaction that is about to end."""
_pause_s = 0.002

_record_columns = "e.seq, e.event_id, e.type, e.key, e.tenant, e.emitted_at, e.persisted_at, e.body"
_of_stream = "stream_id = (SELECT id FROM streams WHERE stream = %s)"
_read = f"SELECT {_record_columns} FROM events e WHERE {_of_stream} AND seq > %s ORDER BY seq LIMIT %s"
_find = f"SELECT {_record_columns} FROM events e WHERE {_of_stream} AND key = %s"
_lines = f"SELECT seq, body FROM events WHERE {_of_stream} AND seq > %s AND seq <= %s ORDER BY seq LIMIT %s"
_lines_page = 1024
_feed = f"""
SELECT e.transaction::text, e.position, s.stream, {_record_columns} FROM events e JOIN streams s ON s.id = e.stream_id
WHERE (e.transaction, e.position) > (%s::xid8, %s) AND e.transaction < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY e.transaction, e.position LIMIT %s
"""
# Ordered, and not in EXISTS, which drops the order: without it Postgres may look through the whole table.
_is_more = """
SELECT transaction < pg_snapshot_xmin(pg_current_snapshot()) FROM events
WHERE (transaction, position) > (%s::xid8, %s) ORDER BY transaction, position LIMIT 1
"""
_oldest_pending = """
SELECT persisted_at, transaction < pg_snapshot_xmin(pg_current_snapshot()) FROM events
WHERE (transaction, position) > (%s::xid8, %s) ORDER BY transaction, position LIMIT 1
"""
# Of the whole server: a transaction of another database, or a prepared one, holds the feed back too. A role that may
# not see the activity of others finds the session without its details.
_oldest_transaction = """
SELECT pid, extract(epoch FROM clock_timestamp() - xact_start)::float8, coalesce(application_name, ''),
    coalesce(datname, ''), coalesce(usename, '')
FROM (
    SELECT pid, xact_start, application_name, datname, usename, age(backend_xid) AS age
    FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
    UNION ALL
    SELECT NULL, prepared, 'prepared transaction ' || gid, database, owner, age(transaction) FROM pg_prepared_xacts
) AS open_transactions ORDER BY age DESC LIMIT 1
"""
_is_handed_out = """
SELECT %s::xid8 < pg_snapshot_xmin(pg_current_snapshot()) AND %s <= (SELECT last_value FROM events_position_seq)
"""
_position_pattern = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")
_info = "SELECT stream, tenant, last_seq, events, first_persisted_at, last_persisted_at, {model} FROM streams"
_infos = f"{_info} WHERE stream > %s ORDER BY stream LIMIT %s"
_heads = """
SELECT stream, last_seq, id, {model} FROM streams
WHERE stream > %s AND (%s::text IS NULL OR stream <= %s) ORDER BY stream LIMIT %s
"""
_heads_page = 10_000
_load_snapshot = f"SELECT model, version, seq, digest, body FROM snapshots WHERE {_of_stream} AND model = %s"
# The share lock keeps the stream from being deleted in between, which would leave the snapshot to nobody.
_save_snapshot = """
INSERT INTO snapshots AS kept (stream_id, model, version, seq, digest, body)
SELECT id, %s, %s, %s, %s, %s FROM streams WHERE stream = %s FOR KEY SHARE
ON CONFLICT (stream_id, model) DO UPDATE
SET version = excluded.version, seq = excluded.seq, digest = excluded.digest, body = excluded.body
WHERE excluded.version <> kept.version OR excluded.seq >= kept.seq
"""
_seq_max = 2**63 - 1


class PostgresLog(Handle):
    """A log in one schema. Threads, processes and machines may share it; a forked child must open its own."""

    capabilities = frozenset(Capability) - {Capability.REPAIR}

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
            _let_settle(connection)
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
        wanted = Append(stream, drafts, expected_seq)
        self._writer.append(wanted)
        return wanted.results or []

    def adopt(self, stream: str, records: Sequence[Record], *, model: str = "") -> int:
        check_stream(stream)
        check_records(stream, records)
        self._check_open()
        check_migrated(self._version)
        return self._writer.adopt(stream, records, model) if records else 0

    def read(self, stream: str, *, after_seq: int = 0, limit: int = 1000) -> list[Record]:
        check_stream(stream)
        check_limit(limit)
        return [Record(stream, *row) for row in self._rows(_read, stream, _place(after_seq), _place(limit))]

    def lines(self, stream: str, *, after_seq: int = 0, until_seq: int | None = None) -> Iterator[bytes]:
        check_stream(stream)
        until = _place(_seq_max if until_seq is None else until_seq)
        after = _place(after_seq)
        while True:
            # Page by page: a caller that reads on later must not keep a connection from the others.
            page = self._rows(_lines, stream, after, until, Int8(_lines_page))
            for _, body in page:
                yield body
            if len(page) < _lines_page:
                return
            after = Int8(page[-1][0])

    def find(self, stream: str, key: str) -> Record | None:
        check_stream(stream)
        # No stored text holds NUL, and the driver refuses to ask for it.
        rows = self._rows(_find, stream, None if "\0" in key else key)
        return Record(stream, *rows[0]) if rows else None

    def feed(self, *, after: Position | None = None, limit: int = 1000) -> FeedPage:
        check_limit(limit)
        self._check_open()
        place = _parsed(after)
        deadline = time.monotonic() + held_back_max_s

        def page(connection: Connection) -> tuple[bool, list[Row], bool]:
            with connection.pipeline():
                known = connection.execute(_is_handed_out, place)
                rows = connection.execute(_feed, (*place, _place(limit)), binary=True)
                more = connection.execute(_is_more, place)
            return after is None or _truth(known.fetchone()), rows.fetchall(), more.fetchone() is not None

        while True:
            is_known, rows, is_held_back = self._connections.run(page)
            if not is_known:
                raise _no_position(after)
            if rows or not is_held_back or time.monotonic() > deadline:
                break
            # Something is committed, but an older transaction still runs. Most end within a moment.
            time.sleep(_pause_s)
        return FeedPage([Record(*row[2:]) for row in rows], Position(f"{rows[-1][0]}-{rows[-1][1]}") if rows else after)

    def wait(self, after: Position | None, timeout_s: float) -> None:
        """Wait until there may be something after that place of the feed, but no longer than `timeout_s`."""
        self._check_open()
        place = _parsed(after)

        def is_more() -> bool | None:
            row = self._connections.run(lambda c: c.execute(_is_more, place).fetchone())
            return None if row is None else bool(row[0])

        self._bell.wait(is_more, timeout_s)

    def oldest_pending(self, after: Position | None) -> Pending | None:
        rows = self._rows(_oldest_pending, *_parsed(after))
        if not rows:
            return None
        persisted_at, is_handed_out = rows[0]
        if is_handed_out:
            return Pending(persisted_at)
        blockers = self._rows(_oldest_transaction)
        return Pending(persisted_at, Blocker(*blockers[0]) if blockers else Blocker(None, None, "", "", ""))

    def streams(self, *, after: str = "", limit: int = 1000) -> list[StreamInfo]:
        check_limit(limit)
        return [StreamInfo(*row) for row in self._rows(_infos.format(model=self._model), after, _place(limit))]

    def stream(self, stream: str) -> StreamInfo | None:
        check_stream(stream)
        rows = self._rows(f"{_info.format(model=self._model)} WHERE stream = %s", stream)
        return StreamInfo(*rows[0]) if rows else None

    def heads(self, *, after: str = "", until: str | None = None, versions: bool = True) -> Iterator[Head]:
        query = _heads.format(model=self._model)
        while True:
            page = self._rows(query, after, until, until, Int8(_heads_page))
            for stream, last_seq, stream_id, model in page:
                # No number of a stream is given twice, and nothing but an append changes a stream.
                yield Head(stream, last_seq, f"{stream_id}-{last_seq}" if versions else "", last_seq, model)
            if len(page) < _heads_page:
                return
            after = page[-1][0]

    def load_snapshot(self, stream: str, model: str) -> StoredSnapshot | None:
        check_stream(stream)
        rows = self._rows(_load_snapshot, stream, model)
        return StoredSnapshot(*rows[0]) if rows else None

    def save_snapshot(self, stream: str, snapshot: StoredSnapshot) -> None:
        check_stream(stream)
        self._check_open()
        (saved,) = self._save([(stream, snapshot)])
        if not saved and self.stream(stream) is None:
            raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)

    def save_snapshots(self, snapshots: Sequence[tuple[str, StoredSnapshot]]) -> None:
        for stream, _ in snapshots:
            check_stream(stream)
        self._check_open()
        # In one order for all: two that save the same streams would wait for each other otherwise.
        self._save(sorted(snapshots, key=lambda each: (each[0], each[1].model)))

    def _save(self, snapshots: Sequence[tuple[str, StoredSnapshot]]) -> list[int]:
        """How many rows each has changed."""
        values = [
            (new.model, Int8(new.version), Int8(new.seq), new.digest, new.body, stream) for stream, new in snapshots
        ]

        def save(connection: Connection) -> list[int]:
            with connection.pipeline():
                connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
                # Not synced: a snapshot that a power cut takes away is rebuilt from the log.
                connection.execute("SET LOCAL synchronous_commit = off")
                saved = [connection.execute(_save_snapshot, each) for each in values]
                connection.execute("COMMIT")
            return [each.rowcount for each in saved]

        return self._connections.run(save)

    def delete_stream(
        self, stream: str, *, expected_seq: int | None = None, tombstone: Tombstone | None = None
    ) -> None:
        check_stream(stream)
        self._check_open()
        check_migrated(self._version)
        try:
            with self._connections.one() as connection, connection.transaction():
                delete_rows(connection, stream, expected_seq, tombstone)
        except ConnectionLost as lost:
            raise AppendOutcomeUnknown(f"The stream may or may not be deleted ({lost}); look, and try again") from lost

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
            raise LogFailed(f"The connection to the server was lost: {lost}") from lost

    def repair(self, stream: str, *, dry_run: bool = False) -> list[Finding]:
        raise refuse(Capability.REPAIR, "Postgres")

    def put_blob(self, data: bytes) -> BlobRef:
        self._check_open()
        name = digest(data)
        put = "INSERT INTO blobs VALUES (%s, %s) ON CONFLICT (digest) DO NOTHING"
        self._connections.run(lambda connection: connection.execute(put, (name, bytes(data))).rowcount)
        return BlobRef(f"sha256:{name}")

    def get_blob(self, ref: BlobRef) -> bytes:
        self._check_open()
        rows = self._rows("SELECT data FROM blobs WHERE digest = %s", blob_digest(ref))
        return checked_blob(ref, rows[0][0] if rows else None)

    def _release(self) -> None:
        self._bell.close()
        self._connections.close()

    def _rows(self, query: str, *values: object) -> list[Row]:
        """What a query finds."""
        self._check_open()
        try:
            return self._connections.run(lambda c: c.execute(query, values, binary=True).fetchall())
        except UnicodeEncodeError as error:  # A lone surrogate, which no stored text can hold.
            raise InvalidJson(f"{error.object[:40]!r} is no text: it has a lone surrogate") from error


def _let_settle(connection: Connection) -> None:
    """Wait a moment for the transactions that run now.

    After a writer was killed, its server process may still be about to commit: whoever opens the log next should find
    either all of that append, or know that it will never come.
    """
    began = connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text").fetchone()
    deadline = time.monotonic() + held_back_max_s
    over = "SELECT pg_snapshot_xmin(pg_current_snapshot()) >= %s::xid8"
    while not _truth(connection.execute(over, began).fetchone()) and time.monotonic() < deadline:
        time.sleep(_pause_s)


def _parsed(after: Position | None) -> tuple[str, Int8]:
    """The transaction and the position in a place of the feed."""
    if after is None:
        return "0", Int8(0)
    found = _position_pattern.fullmatch(after)
    if found is None:
        raise _no_position(after)
    return found[1], Int8(int(found[2]))


def _no_position(after: str | None) -> InvalidPosition:
    return InvalidPosition(f"{str(after)[:40]!r} is no position that this log has handed out", position=after)


def _truth(row: Row | None) -> bool:
    return row is not None and bool(row[0])


def _place(number: int) -> Int8:
    """A number that Postgres can hold; there is nothing beyond it."""
    return Int8(max(-_seq_max, min(number, _seq_max)))
