"""How a group of appends becomes rows, inside a transaction that the writer has begun.

Nearly every key is new, so `append_new` looks none of them up: it moves the heads of the streams, writes all rows, and
the unique index refuses the whole group if a key is known after all. Then the writer rolls back, and `append_checked`
looks up each key.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from runstate.errors import ModelMismatch, RunstateError, SequenceConflict, StreamDeleted, StreamNotFound
from runstate.logs.adoption import key_taken, new_records
from runstate.logs.log import AppendResult, Record, check_expected
from runstate.logs.stored_rows import checksum
from runstate.logs.stream_models import check_model, shared_model
from runstate.logs.tombstones import Tombstone, check_not_deleted
from runstate.models.model import Draft

_move_head = """
UPDATE streams SET last_seq = ?, events = events + ?, last_persisted_at = ?, model = ?
WHERE id = ? AND stream = ? AND last_seq = ? AND model = ?
"""
_insert_head = """
INSERT INTO streams (stream, tenant, last_seq, events, first_persisted_at, last_persisted_at, model)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_select_head = "SELECT id, last_seq, model FROM streams WHERE stream = ?"
_put_head = f"""{_insert_head}
ON CONFLICT (stream) DO UPDATE SET last_seq = excluded.last_seq, events = events + excluded.events,
    last_persisted_at = excluded.last_persisted_at, model = excluded.model
RETURNING id
"""
insert_event = """
INSERT INTO events (stream_id, seq, event_id, type, key, tenant, emitted_at, persisted_at, crc, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_select_body = "SELECT body FROM events WHERE stream_id = ? AND seq = ?"
_select_range = """
SELECT seq, event_id, type, key, tenant, emitted_at, persisted_at, body FROM events
WHERE stream_id = ? AND seq BETWEEN ? AND ?
"""
_select_key = "SELECT event_id, seq, persisted_at, body FROM events WHERE stream_id = ? AND key = ?"

_select_tombstone = "SELECT stream, last_seq, digest, archive, deleted_at FROM tombstones WHERE stream = ?"
_put_tombstone = (
    "INSERT OR REPLACE INTO tombstones (stream, last_seq, digest, archive, deleted_at) VALUES (?, ?, ?, ?, ?)"
)
_drop_tombstone = "DELETE FROM tombstones WHERE stream = ?"

Row = tuple[int, int, str, str, str, str, str, str, int, bytes]


heads_max = 10_000


class KnownKey(Exception):
    """Perhaps a key of this group is known already: roll back, and look."""


class Heads:
    """Where the streams stand, as far as this process knows: a guess that is checked whenever it is used."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int, str]] = {}

    def claim(
        self,
        connection: sqlite3.Connection,
        stream: str,
        drafts: Sequence[Draft],
        model: str,
        persisted_at: str,
    ) -> tuple[int, int]:
        """Move a stream's head by the number of drafts, or make it. Returns its number, and the seq that it was at.

        Raises:
            ModelMismatch: the stream records another model; nothing was changed.
            StreamDeleted: it has a tombstone; nothing was changed.
        """
        count = len(drafts)
        stream_id, seq, recorded = self._known.get(stream, (0, 0, ""))
        # Another process may have moved the head since, or deleted the stream: then this changes no row.
        moved = (seq + count, count, persisted_at, recorded, stream_id, stream, seq, recorded)
        if stream_id == 0 or recorded != model or connection.execute(_move_head, moved).rowcount == 0:
            found = connection.execute(_select_head, (stream,)).fetchone()
            if found is None:
                check_not_deleted(find_tombstone(connection, stream), drafts)
                opening = (stream, drafts[0].tenant, count, count, persisted_at, persisted_at, model)
                stream_id, seq = connection.execute(_insert_head, opening).lastrowid or 0, 0
            else:
                stream_id, seq, recorded = found
                model = check_model(stream, recorded, model)
                moved = (seq + count, count, persisted_at, model, stream_id, stream, seq, recorded)
                connection.execute(_move_head, moved)
        if len(self._known) >= heads_max:
            self._known.clear()
        self._known[stream] = (stream_id, seq + count, model)
        return stream_id, seq

    def forget(self) -> None:
        """A transaction was rolled back: what it told us never happened."""
        self._known.clear()


class Append:
    """One caller's append: what it asks for, and what came of it."""

    __slots__ = ("drafts", "error", "expected_seq", "model", "result", "stream")

    def __init__(self, stream: str, drafts: Sequence[Draft], expected_seq: int | None) -> None:
        """
        Raises:
            ModelMismatch: the drafts are of several models.
        """
        self.stream, self.drafts, self.expected_seq = stream, drafts, expected_seq
        self.model = shared_model(stream, drafts)
        self.result: list[AppendResult] = []
        self.error: RunstateError | None = None


def append_new(connection: sqlite3.Connection, heads: Heads, appends: Sequence[Append], persisted_at: str) -> None:
    """Write a group in which no key is known, and give each append its result.

    Raises:
        KnownKey: one is, or a stream is not where a caller thinks it is, which may be a retry too; or of another model,
            or deleted.
    """
    by_stream: dict[str, list[Append]] = {}
    for append in appends:
        by_stream.setdefault(append.stream, []).append(append)
    rows: list[Row] = []
    for stream, group in by_stream.items():
        drafts = [draft for append in group for draft in append.drafts]
        model = group[0].model
        if any(append.model != model for append in group):
            raise KnownKey
        try:
            stream_id, seq = heads.claim(connection, stream, drafts, model, persisted_at)
        except (ModelMismatch, StreamDeleted) as error:
            raise KnownKey from error
        previous = _previous(connection, stream_id, seq, drafts)
        for append in group:
            if append.expected_seq is not None and append.expected_seq != seq:
                raise KnownKey
            append.result = _add_rows(rows, stream_id, seq, append.drafts, persisted_at, previous)
            seq, previous = seq + len(append.drafts), rows[-1][9]
    _insert(connection, rows)


def append_checked(connection: sqlite3.Connection, heads: Heads, appends: Sequence[Append], persisted_at: str) -> None:
    """Write a group, looking up every key. Each append gets its result, or the error that refuses it."""
    for append in appends:
        row = connection.execute(_select_head, (append.stream,)).fetchone()
        stream_id, seq, recorded = row or (0, 0, "")
        firsts = {d.key: connection.execute(_select_key, (stream_id, d.key)).fetchone() for d in append.drafts}
        # The first draft of each key that is not stored yet; a second one is a retry within the same call.
        unknown: dict[str, Draft] = {}
        for draft in append.drafts:
            if firsts[draft.key] is None:
                unknown.setdefault(draft.key, draft)
        new = list(unknown.values())
        append.error = None
        try:
            check_model(append.stream, recorded, append.model)
            if row is None:
                check_not_deleted(find_tombstone(connection, append.stream), append.drafts)
            if new:
                check_expected(append.stream, seq, append.expected_seq)
        except (ModelMismatch, SequenceConflict, StreamDeleted) as error:
            append.error = error
            continue
        if new:
            stream_id, seq = heads.claim(connection, append.stream, new, append.model, persisted_at)
        rows: list[Row] = []
        previous = _previous(connection, stream_id, seq, new)
        results = dict(zip(unknown, _add_rows(rows, stream_id, seq, new, persisted_at, previous), strict=True))
        _insert(connection, rows)
        firsts |= {row[4]: (row[2], row[1], row[7], row[9]) for row in rows}
        append.result = [
            results.pop(d.key) if d.key in results else _first_result(d, firsts[d.key]) for d in append.drafts
        ]


def adopt_rows(connection: sqlite3.Connection, stream: str, records: Sequence[Record], model: str) -> int:
    """Write those of a log's records that are new to the stream; how many they are.

    Raises:
        ModelMismatch: the stream records another model; nothing was written.
        SequenceConflict: the stream holds something else in their place; nothing was written.
    """
    stream_id, last_seq, recorded = connection.execute(_select_head, (stream,)).fetchone() or (0, 0, "")
    model = check_model(stream, recorded, model)
    held = connection.execute(_select_range, (stream_id, records[0].seq, records[-1].seq))
    new = new_records(stream, records, last_seq, (Record(stream, *row) for row in held))
    for record in new if stream_id else ():
        if connection.execute(_select_key, (stream_id, record.key)).fetchone() is not None:
            raise key_taken(record, last_seq)
    if new:
        first, last = new[0], new[-1]
        head = (stream, first.tenant, last.seq, len(new), first.persisted_at, last.persisted_at, model)
        (stream_id,) = connection.execute(_put_head, head).fetchone()
        connection.executemany(insert_event, [_row(stream_id, record) for record in new])
        connection.execute(_drop_tombstone, (stream,))
    return len(new)


def find_tombstone(connection: sqlite3.Connection, stream: str) -> Tombstone | None:
    row = connection.execute(_select_tombstone, (stream,)).fetchone()
    return None if row is None else Tombstone(*row)


def delete_rows(
    connection: sqlite3.Connection, stream: str, expected_seq: int | None, tombstone: Tombstone | None
) -> None:
    """
    Raises:
        StreamNotFound: there is no such stream, and no tombstone to forget.
        SequenceConflict: the stream is not at `expected_seq`; nothing was deleted.
    """
    row = connection.execute(_select_head, (stream,)).fetchone()
    if row is None and (tombstone is not None or find_tombstone(connection, stream) is None):
        raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
    if row is not None:
        stream_id, last_seq, _ = row
        check_expected(stream, last_seq, expected_seq)
        connection.execute("DELETE FROM streams WHERE id = ?", (stream_id,))
        connection.execute("DELETE FROM snapshots WHERE stream_id = ?", (stream_id,))
        connection.execute("DELETE FROM events WHERE stream_id = ?", (stream_id,))
    if tombstone is None:
        connection.execute(_drop_tombstone, (stream,))
    else:
        connection.execute(_put_tombstone, msgspec.structs.astuple(tombstone))


def _row(stream_id: int, record: Record) -> Row:
    envelope = (record.event_id, record.type, record.key, record.tenant, record.emitted_at, record.persisted_at)
    return (stream_id, record.seq, *envelope, checksum(record.seq, *envelope, record.body), record.body)


def _previous(connection: sqlite3.Connection, stream_id: int, seq: int, drafts: Sequence[Draft]) -> bytes | None:
    """The last line of a stream, where one of the drafts is chained to it."""
    if not any(draft.chained for draft in drafts):
        return None
    row = connection.execute(_select_body, (stream_id, seq)).fetchone()
    return None if row is None else bytes(row[0])


def _add_rows(
    rows: list[Row], stream_id: int, seq: int, drafts: Sequence[Draft], persisted_at: str, previous: bytes | None
) -> list[AppendResult]:
    results = []
    for draft in drafts:
        seq += 1
        event_id, kind, key, tenant, emitted_at = draft.event_id, draft.type, draft.key, draft.tenant, draft.emitted_at
        body = previous = draft.render(seq, persisted_at, previous)
        crc = checksum(seq, event_id, kind, key, tenant, emitted_at, persisted_at, body)
        rows.append((stream_id, seq, event_id, kind, key, tenant, emitted_at, persisted_at, crc, body))
        results.append(AppendResult(event_id, seq, persisted_at))
    return results


def _insert(connection: sqlite3.Connection, rows: list[Row]) -> None:
    try:
        connection.executemany(insert_event, rows)
    except sqlite3.IntegrityError as error:
        raise KnownKey from error


def _first_result(draft: Draft, first: tuple[str, int, str, bytes]) -> AppendResult:
    event_id, seq, persisted_at, body = first
    return AppendResult(event_id, seq, persisted_at, True, False, not draft.same_content(body))
