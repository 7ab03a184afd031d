"""The port over a schema of a Snowflake database: one writer at a time in the whole log, readers never blocked.

The append authority is the gate, one row that every writing transaction updates first. Positions are handed out under
it, so the order of the feed is the order of the commits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import msgspec

from runstate.errors import (
    InvalidJson,
    LogBusy,
    LogDamaged,
    StreamNotFound,
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
    check_expected,
    check_limit,
    check_same_stream,
)
from runstate.logs.snapshotting import MakeSnapshot
from runstate.logs.snowflake import blobs
from runstate.logs.snowflake.appends import (
    Append,
    adopt_records,
    checked_columns,
    drop_tombstone,
    read_row,
)
from runstate.logs.snowflake.connections import Connections, Row, Session, pauses
from runstate.logs.snowflake.repair import create_set_aside, plan_stream, repair_stream
from runstate.logs.snowflake.schema import check_migrated, prepare
from runstate.logs.snowflake.snapshots import check_size, save, select_snapshot
from runstate.logs.snowflake.verify import rest_findings, stream_findings
from runstate.logs.snowflake.writer import Writer
from runstate.models.canonical import digest
from runstate.models.model import Draft, check_stream

pool_max_default = 4
busy_timeout_default_s = 60.0

_read = f"SELECT {checked_columns} FROM events WHERE stream = ? AND seq > ? ORDER BY seq LIMIT ?"
_find = f"SELECT {checked_columns} FROM events WHERE stream = ? AND key = ? ORDER BY seq LIMIT 1"
_lines = f"SELECT {checked_columns} FROM events WHERE stream = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
_lines_page = 10_000
_feed = f"SELECT {checked_columns} FROM events WHERE position > ? ORDER BY position LIMIT ?"
_info = "SELECT stream, tenant, last_seq, events, first_persisted_at, last_persisted_at, {model} FROM streams"
_ends = "SELECT last_seq, first_persisted_at FROM streams WHERE stream = ?"
_heads_page = 10_000
_tombstone = "SELECT stream, last_seq, digest, archive, deleted_at FROM tombstones WHERE stream = ?"
_put_tombstone = """
INSERT INTO tombstones (stream, last_seq, digest, archive, deleted_at) SELECT ?, ?, ?, ?, ?
"""

_seq_max = 2**63 - 1


class SnowflakeLog(Handle):
    """A log in one schema. Threads, processes and machines may share it; a forked child must open its own."""

    capabilities = frozenset(Capability)

    def __init__(
        self,
        arguments: Mapping[str, Any],
        *,
        database: str,
        schema: str,
        create: bool = True,
        pool_max: int = pool_max_default,
        busy_timeout_s: float = busy_timeout_default_s,
    ) -> None:
        """Log in, and make the schema and its tables if they are not there. `arguments` are the driver's.

        Raises:
            LogNotFound: they are not there, and `create` is false.
            NotALog: something else is in the schema.
            LogTooNew: a newer Runstate wrote it.
            LogFailed: Snowflake cannot be reached, refuses the login, or the role may not do this.
        """
        super().__init__()
        self._connections = Connections(arguments, pool_max=pool_max, busy_timeout_s=busy_timeout_s)
        self._writer = Writer(self._connections, busy_timeout_s)
        deadline = time.monotonic() + busy_timeout_s
        for pause_s in pauses():
            try:
                self._version = self._connections.run(lambda session: prepare(session, database, schema, create=create))
                self._model = "model" if self._version > 1 else "''"
                """What a query selects for the model of a stream: version 1 has no such column."""
                return
            except LogBusy:  # Others make it at the same moment.
                if time.monotonic() > deadline:
                    self._connections.close()
                    raise
                time.sleep(pause_s)
            except BaseException:
                self._connections.close()
                raise

    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        check_stream(stream)
        self._check_open()
        return self._writer.append(self._checked(stream, drafts, expected_seq)) if drafts else []

    def append_many(self, batches: Sequence[Batch]) -> list[Answer]:
        self._check_open()
        return self._writer.append_many([self._checked(stream, drafts, None) for stream, drafts in batches])

    def append_with_snapshots(
        self, batches: Sequence[Batch], make: MakeSnapshot, *, expected_seq: int | None = None
    ) -> list[Answer]:
        self._check_open()
        return self._writer.append_many([self._checked(*batch, expected_seq, make) for batch in batches])

    def submit(
        self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None
    ) -> Future[list[AppendResult]]:
        self._check_open()
        return self._writer.submit(self._checked(stream, tuple(drafts), expected_seq))

    def _checked(
        self, stream: str, drafts: Sequence[Draft], expected_seq: int | None, make: MakeSnapshot | None = None
    ) -> Append:
        check_stream(stream)
        check_migrated(self._version)
        for draft in drafts:
            _text(draft.key)  # It is looked up before it is checked with the rest.
        return Append(stream, drafts, expected_seq, make)

    def adopt(self, stream: str, records: Sequence[Record], *, model: str = "") -> int:
        check_stream(stream)
        self._check_open()
        check_records(stream, records)
        for record in records:
            _text(record.key)
        if not records:
            return 0
        check_migrated(self._version)
        return self._writer.alone(len(records), lambda session: adopt_records(session, stream, records, model))

    def read(self, stream: str, *, after_seq: int = 0, limit: int = 1000) -> list[Record]:
        check_stream(stream)
        check_limit(limit)
        return [read_row(row) for row in self._rows(_read, stream, _place(after_seq), _place(limit))]

    def lines(self, stream: str, *, after_seq: int = 0, until_seq: int | None = None) -> Iterator[bytes]:
        check_stream(stream)
        until = _seq_max if until_seq is None else _place(until_seq)
        after = _place(after_seq)
        while True:
            # Page by page: a caller that reads on later must not keep a connection from the others.
            page = [read_row(row) for row in self._rows(_lines, stream, after, until, _lines_page)]
            yield from (record.body for record in page)
            if len(page) < _lines_page:
                return
            after = page[-1].seq

    def find(self, stream: str, key: str) -> Record | None:
        check_stream(stream)
        rows = self._rows(_find, stream, _text(key))
        return read_row(rows[0]) if rows else None

    def feed(self, *, after: Position | None = None, limit: int = 1000) -> FeedPage:
        check_limit(limit)
        self._check_open()
        # A number that is none is refused here. One that is too high can only be told by the log itself.
        place = 0 if after is None else decimal_position(after, _seq_max)
        rows = self._rows(_feed, place, _place(limit))
        if not rows and after is not None:
            ((last,),) = self._rows("SELECT MAX(last_position) FROM runstate_log")
            decimal_position(after, int(last or 0))
        records: list[Record] = []
        try:
            for row in rows:
                records.append(read_row(row))
        except LogDamaged:  # What comes before it can be handed out.
            if not records:
                raise
        return FeedPage(records, Position(str(rows[len(records) - 1][0])) if rows else after)

    def streams(self, *, after: str = "", limit: int = 1000) -> list[StreamInfo]:
        check_limit(limit)
        rows = self._rows(
            f"{_info.format(model=self._model)} WHERE stream > ? ORDER BY stream LIMIT ?", _text(after), _place(limit)
        )
        return [StreamInfo(*row) for row in rows]

    def stream(self, stream: str) -> StreamInfo | None:
        check_stream(stream)
        rows = self._rows(f"{_info.format(model=self._model)} WHERE stream = ?", stream)
        return StreamInfo(*rows[0]) if rows else None

    def heads(self, *, after: str = "", until: str | None = None, versions: bool = True) -> Iterator[Head]:
        bound, last = ("", ()) if until is None else (" AND stream <= ?", (_text(until),))
        columns = f"stream, events, first_position, last_seq, {self._model}"
        query = f"SELECT {columns} FROM streams WHERE stream > ?{bound}"
        while True:
            page = self._rows(f"{query} ORDER BY stream LIMIT ?", _text(after), *last, _heads_page)
            for stream, events, first_position, last_seq, model in page:
                # No position is given twice, and nothing but an append or an adoption changes a stream.
                yield Head(stream, events, f"{first_position}-{last_seq}" if versions else "", last_seq, model)
            if len(page) < _heads_page:
                return
            after = page[-1][0]

    def load_snapshot(self, stream: str, model: str) -> StoredSnapshot | None:
        check_stream(stream)
        rows = self._rows(select_snapshot, stream, _text(model))
        return StoredSnapshot(*rows[0]) if rows else None

    def save_snapshot(self, stream: str, snapshot: StoredSnapshot) -> None:
        check_stream(stream)
        self._check_open()
        check_size(snapshot)
        _text(snapshot.model)
        self._writer.alone(0, lambda session: save(session, stream, snapshot))

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

        def delete(session: Session) -> None:
            rows = session.rows(_ends, stream)
            if not rows and (tombstone is not None or not session.rows(_tombstone, stream)):
                raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
            if rows:
                check_expected(stream, rows[0][0], expected_seq)
                check_same_stream(stream, rows[0][1], first_persisted_at)
                for table in ("streams", "snapshots", "events"):
                    session.change(f"DELETE FROM {table} WHERE stream = ?", stream)
            session.change(drop_tombstone, stream)
            if tombstone is not None:
                session.change(_put_tombstone, *msgspec.structs.astuple(tombstone))

        self._writer.alone(0, delete)

    def tombstone(self, stream: str) -> Tombstone | None:
        check_stream(stream)
        self._check_open()
        rows = self._rows(_tombstone, stream) if self._version > 1 else []
        return Tombstone(*rows[0]) if rows else None

    def verify(self, stream: str | None = None) -> Iterator[Finding]:
        if stream is None:
            yield from self.verify_rest()
        else:
            check_stream(stream)
        self._check_open()
        after = "" if stream is None else stream
        while True:
            # Range by range, each on a connection that is given back before anything is handed out.
            last, found = self._connections.run(lambda session: stream_findings(session, after, only=stream))  # noqa: B023
            yield from found
            if last is None or stream is not None:
                return
            after = last

    def verify_rest(self) -> Iterator[Finding]:
        self._check_open()
        yield from self._connections.run(rest_findings)

    def repair(
        self, stream: str, *, dry_run: bool = False, salvage: bool = False, quarantine: int = 0
    ) -> list[Finding]:
        check_stream(stream)
        self._check_open()
        plan = self._connections.run(partial(plan_stream, stream=stream, salvage=salvage, quarantine=quarantine))
        if plan is None or dry_run:
            return [] if plan is None else [plan.finding(stream)]
        check_migrated(self._version)
        # By itself: DDL would commit the transaction.
        self._connections.run(lambda session: session.change(create_set_aside.format(table=plan.table)))
        return self._writer.alone(1, partial(repair_stream, stream=stream, salvage=salvage, quarantine=quarantine))

    def put_blob(self, data: bytes) -> BlobRef:
        self._check_open()
        check_migrated(self._version)
        name = digest(data)
        self._connections.run(lambda session: blobs.put(session, name, bytes(data)))
        return BlobRef(f"sha256:{name}")

    def get_blob(self, ref: BlobRef) -> bytes:
        self._check_open()
        return checked_blob(ref, self._connections.run(lambda session: blobs.get(session, blob_digest(ref) or "")))

    def collect_blobs(self, *, dry_run: bool = False, grace_s: float | None = None) -> Collected:
        self._check_open()
        check_migrated(self._version)
        marked = mark_blobs(self, grace_s)
        self._connections.run(lambda session: blobs.mark_set_aside(session, marked))
        return self._connections.run(lambda session: blobs.collect(session, marked, dry_run=dry_run))

    def _release(self) -> None:
        self._writer.close()
        self._connections.close()

    def _rows(self, query: str, *values: object) -> list[Row]:
        """What a query finds."""
        self._check_open()
        return self._connections.run(lambda session: session.rows(query, *values))


def _text(text: str) -> str:
    """
    Raises:
        InvalidJson: it has a lone surrogate, which no stored text can hold.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidJson(f"{text[:40]!r} is no text: it has a lone surrogate") from error
    return text


def _place(number: int) -> int:
    """A number that a log can hold; there is nothing beyond it."""
    return max(-_seq_max, min(number, _seq_max))
