"""How a group of appends becomes rows, inside a transaction that the writer has begun.

Nearly every key is new, so `append_new` looks none of them up: it moves the heads of the streams, writes all rows, and
the unique index refuses the whole group if a key is known after all. Then the writer rolls back, and `append_checked`
looks up each key.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial

import msgspec

from runstate.errors import RunstateError, StreamNotFound
from runstate.logs.adoption import key_taken, new_records
from runstate.logs.log import (
    AppendResult,
    Record,
    check_expected,
    check_same_stream,
)
from runstate.logs.planning import StreamPlan
from runstate.logs.snapshotting import MakeSnapshot, StreamEnd
from runstate.logs.sqlite.snapshots import save_with_events
from runstate.logs.stored_rows import checksums, read_records, record_columns
from runstate.logs.stream_models import model_after
from runstate.logs.tombstones import Tombstone, if_counting
from runstate.models.canonical import digest
from runstate.models.model import Draft

_move_head = """
UPDATE streams SET last_seq = ?, events = events + ?, last_persisted_at = ?
WHERE id = ? AND stream = ? AND last_seq = ? AND tenant = ? AND model = ?
    AND NOT EXISTS (SELECT 1 FROM tombstones t WHERE t.stream = streams.stream)
"""
_insert_head = """
INSERT INTO streams (stream, tenant, last_seq, events, first_persisted_at, last_persisted_at, model)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_select_head = "SELECT id, last_seq, tenant, model FROM streams WHERE stream = ?"
_select_ends = "SELECT id, last_seq, first_persisted_at FROM streams WHERE stream = ?"
_put_head = f"""{_insert_head}
ON CONFLICT (stream) DO UPDATE SET last_seq = excluded.last_seq, events = events + excluded.events,
    last_persisted_at = excluded.last_persisted_at
RETURNING id
"""
insert_event = """
INSERT INTO events (stream_id, seq, event_id, type, key, tenant, emitted_at, persisted_at, crc, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_select_end = """
SELECT first_persisted_at, body FROM streams, events WHERE streams.id = ? AND stream_id = streams.id AND seq = ?
"""
_select_body = "SELECT body FROM events WHERE stream_id = ? AND seq = ?"
_select_range = """
SELECT seq, event_id, type, key, tenant, emitted_at, persisted_at, body FROM events
WHERE stream_id = ? AND seq BETWEEN ? AND ?
"""
_select_key = f"SELECT {record_columns} FROM events e WHERE stream_id = ? AND key = ?"

_select_tombstone = "SELECT stream, last_seq, digest, archive, deleted_at FROM tombstones WHERE stream = ?"
_put_tombstone = (
    "INSERT OR REPLACE INTO tombstones (stream, last_seq, digest, archive, deleted_at) VALUES (?, ?, ?, ?, ?)"
)
_drop_tombstone = "DELETE FROM tombstones WHERE stream = ?"

Row = tuple[int, int, str, str, str, str, str, str, int, bytes]


heads_max = 10_000


class KnownKey(Exception):
    """Perhaps a key of this group is known already: roll back, and look up each of them."""


class Heads:
    """Where the streams stand, as far as this process knows: a guess that is checked whenever it is used."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int, str, str]] = {}

    def claim(
        self, connection: sqlite3.Connection, stream: str, drafts: Sequence[Draft], persisted_at: str
    ) -> tuple[int, StreamPlan]:
        """Move a stream's head by the number of drafts, or make it. Returns its number, and where it was before.

        Raises:
            KnownKey: the stream has a tombstone.
        """
        count = len(drafts)
        known = self._known.get(stream)
        # Another process may have moved the head since, or deleted the stream: then this changes no row.
        if known is None or not _move(connection, stream, known, count, persisted_at):
            if find_tombstone(connection, stream) is not None:
                raise KnownKey
            known = connection.execute(_select_head, (stream,)).fetchone()
            if known is None:
                tenant, model = drafts[0].tenant, drafts[0].model
                opening = (stream, tenant, count, count, persisted_at, persisted_at, model)
                known = connection.execute(_insert_head, opening).lastrowid or 0, 0, tenant, model
            else:
                _move(connection, stream, known, count, persisted_at)
        stream_id, seq, tenant, model = known
        if len(self._known) >= heads_max:
            self._known.clear()
        self._known[stream] = (stream_id, seq + count, tenant, model)
        previous = _previous(connection, stream_id, seq, drafts)
        return stream_id, StreamPlan(stream, seq, tenant, model, find=_find_nothing, previous=previous)

    def forget(self) -> None:
        """A transaction was rolled back: what it told us never happened."""
        self._known.clear()


class Append:
    """One caller's append: what it asks for, and what came of it."""

    __slots__ = ("drafts", "error", "expected_seq", "make", "result", "stream")

    def __init__(
        self, stream: str, drafts: Sequence[Draft], expected_seq: int | None, make: MakeSnapshot | None = None
    ) -> None:
        self.stream, self.drafts, self.expected_seq, self.make = stream, drafts, expected_seq, make
        self.result: list[AppendResult] = []
        self.error: RunstateError | None = None


def append_new(connection: sqlite3.Connection, heads: Heads, appends: Sequence[Append], persisted_at: str) -> None:
    """Write a group in which no key is known, and give each append its result.

    Raises:
        KnownKey: one is; or an append must be refused, unless it is a retry.
    """
    by_stream: dict[str, list[Append]] = {}
    for append in appends:
        by_stream.setdefault(append.stream, []).append(append)
    rows: list[Row] = []
    snapshots: list[tuple[int, int, MakeSnapshot | None, list[Record]]] = []
    for stream, group in by_stream.items():
        drafts = [draft for append in group for draft in append.drafts]
        stream_id, plan = heads.claim(connection, stream, drafts, persisted_at)
        seq_before = plan.last_seq
        try:
            for append in group:
                append.result = plan.add(append.drafts, append.expected_seq, persisted_at)
        except RunstateError as error:
            raise KnownKey from error
        if len(plan.new) < len(drafts):
            raise KnownKey
        new = list(plan.new.values())
        rows += _rows(stream_id, stream, new)
        make = next((append.make for append in reversed(group) if append.make is not None), None)
        snapshots.append((stream_id, seq_before, make, new))
    try:
        connection.executemany(insert_event, rows)
    except sqlite3.IntegrityError as error:
        raise KnownKey from error
    for snapshot in snapshots:
        _save_snapshot(connection, *snapshot)


def append_checked(connection: sqlite3.Connection, appends: Sequence[Append], persisted_at: str) -> None:
    """Write a group, looking up every key. Each append gets its result, or the error that refuses it."""
    for append in appends:
        stream, drafts = append.stream, append.drafts
        stream_id, seq, tenant, model = connection.execute(_select_head, (stream,)).fetchone() or (0, 0, "", "")
        previous = _previous(connection, stream_id, seq, drafts)
        tombstone = find_tombstone(connection, stream)
        find = partial(_find_first, connection, stream, stream_id)
        plan = StreamPlan(stream, seq, tenant, model, find=find, previous=previous, tombstone=tombstone)
        append.error = None
        try:
            append.result = plan.add(drafts, append.expected_seq, persisted_at)
        except RunstateError as error:
            append.error = error
        else:
            new = list(plan.new.values())
            stream_id = _write_records(connection, stream, new, plan.model)
            _save_snapshot(connection, stream_id, seq, append.make, new)


def _save_snapshot(
    connection: sqlite3.Connection, stream_id: int, last_seq: int, make: MakeSnapshot | None, new: Sequence[Record]
) -> None:
    """Save the snapshot that includes new records of a stream which ended with `last_seq` before."""
    if make is None or not new:
        return
    end = StreamEnd()
    if last_seq:
        row = connection.execute(_select_end, (stream_id, last_seq)).fetchone()
        if row is None or not isinstance(row[1], bytes):
            return  # The stream is damaged, and a reader finds out how.
        end = StreamEnd(row[0], last_seq, digest(row[1]))
    if (snapshot := make(end, new)) is not None:
        save_with_events(connection, stream_id, snapshot)


def adopt_rows(connection: sqlite3.Connection, stream: str, records: Sequence[Record], model: str) -> int:
    """Write those of a log's records that are new to the stream; how many they are.

    Raises:
        ModelMismatch: the stream records another model; nothing was written.
        SequenceConflict: the stream holds something else in their place; nothing was written.
    """
    stream_id, last_seq, _, recorded = connection.execute(_select_head, (stream,)).fetchone() or (0, 0, "", "")
    model = model_after(stream, recorded, model, last_seq)
    held = connection.execute(_select_range, (stream_id, records[0].seq, records[-1].seq))
    new = new_records(stream, records, last_seq, (Record(stream, *row) for row in held))
    for record in new if stream_id else ():
        if _find_first(connection, stream, stream_id, record.key) is not None:
            raise key_taken(record, last_seq)
    _write_records(connection, stream, new, model)
    if new and if_counting(find_tombstone(connection, stream), new[-1].seq) is None:
        connection.execute(_drop_tombstone, (stream,))
    return len(new)


def find_tombstone(connection: sqlite3.Connection, stream: str) -> Tombstone | None:
    row = connection.execute(_select_tombstone, (stream,)).fetchone()
    return None if row is None else Tombstone(*row)


def delete_rows(
    connection: sqlite3.Connection,
    stream: str,
    expected_seq: int | None,
    first_persisted_at: str,
    tombstone: Tombstone | None,
) -> None:
    """
    Raises:
        StreamNotFound: there is no such stream, and no tombstone to forget.
        SequenceConflict: the stream is not at `expected_seq`, or began at another time; nothing was deleted.
    """
    row = connection.execute(_select_ends, (stream,)).fetchone()
    if row is None and (tombstone is not None or find_tombstone(connection, stream) is None):
        raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
    if row is not None:
        stream_id, last_seq, began_at = row
        check_expected(stream, last_seq, expected_seq)
        check_same_stream(stream, began_at, first_persisted_at)
        connection.execute("DELETE FROM streams WHERE id = ?", (stream_id,))
        connection.execute("DELETE FROM snapshots WHERE stream_id = ?", (stream_id,))
        connection.execute("DELETE FROM events WHERE stream_id = ?", (stream_id,))
    if tombstone is None:
        connection.execute(_drop_tombstone, (stream,))
    else:
        connection.execute(_put_tombstone, msgspec.structs.astuple(tombstone))


def _rows(stream_id: int, stream: str, records: Sequence[Record]) -> list[Row]:
    return [
        (stream_id, r.seq, r.event_id, r.type, r.key, r.tenant, r.emitted_at, r.persisted_at, crc, r.body)
        for r, crc in zip(records, checksums(stream, records), strict=True)
    ]


def _previous(connection: sqlite3.Connection, stream_id: int, seq: int, drafts: Sequence[Draft]) -> bytes | None:
    """The last line of a stream, where one of the drafts is chained to it."""
    if not any(draft.chained for draft in drafts):
        return None
    row = connection.execute(_select_body, (stream_id, seq)).fetchone()
    return None if row is None else bytes(row[0])


def _move(
    connection: sqlite3.Connection, stream: str, head: tuple[int, int, str, str], count: int, persisted_at: str
) -> bool:
    stream_id, seq, tenant, model = head
    moved = (seq + count, count, persisted_at, stream_id, stream, seq, tenant, model)
    return connection.execute(_move_head, moved).rowcount > 0


def _write_records(connection: sqlite3.Connection, stream: str, new: Sequence[Record], model: str) -> int:
    """Write records behind the stream's last one, and move or make its head. `model` is that of a new stream.

    Returns the stream's number; 0 where nothing is new.
    """
    if not new:
        return 0
    first, last = new[0], new[-1]
    head = (stream, first.tenant, last.seq, len(new), first.persisted_at, last.persisted_at, model)
    (stream_id,) = connection.execute(_put_head, head).fetchone()
    connection.executemany(insert_event, _rows(stream_id, stream, new))
    return int(stream_id)


def _find_first(connection: sqlite3.Connection, stream: str, stream_id: int, key: str) -> Record | None:
    """
    Raises:
        LogDamaged: the event of that key is not what was appended.
    """
    rows = connection.execute(_select_key, (stream_id, key)).fetchall()
    return read_records(stream, rows)[0] if rows else None


def _find_nothing(_key: str) -> None:
    """For streams whose keys are not looked up: the unique index refuses those that are known."""
