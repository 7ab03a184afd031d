"""How a group of appends becomes rows, inside a transaction that the writer has begun.

Nearly every key is new, so the first try looks none of them up: the unique index refuses the whole group if
one is known after all, and the second try, after a rollback, looks up each.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from zlib import crc32

from runstate.errors import SequenceConflict
from runstate.logs.log import AppendResult, check_expected
from runstate.models.model import Draft

_select_head = "SELECT id, last_seq FROM streams WHERE stream = ?"
_insert_head = """
INSERT INTO streams (stream, tenant, last_seq, events, first_persisted_at, last_persisted_at)
VALUES (?, ?, 0, 0, ?, ?) RETURNING id
"""
_update_head = """
UPDATE streams SET last_seq = ?, events = events + ?, last_persisted_at = ? WHERE id = ?
"""
insert_event = """
INSERT INTO events (stream_id, seq, event_id, type, key, tenant, emitted_at, persisted_at, crc, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_select_key = "SELECT event_id, seq, persisted_at, body FROM events WHERE stream_id = ? AND key = ?"

First = tuple[str, int, str, bytes]
"""Event id, seq, persisted_at and body of the event that a key already stands for."""


class KnownKey(Exception):
    """Perhaps a key of this group is known already: try again and look."""


class Append:
    """One caller's append: what it asks for, and what came of it."""

    __slots__ = ("drafts", "error", "expected_seq", "result", "stream")

    def __init__(self, stream: str, drafts: Sequence[Draft], expected_seq: int | None) -> None:
        self.stream, self.drafts, self.expected_seq = stream, drafts, expected_seq
        self.result: list[AppendResult] = []
        self.error: SequenceConflict | None = None


def checksum(
    seq: int, event_id: str, kind: str, key: str, tenant: str, emitted_at: str, persisted_at: str, body: bytes
) -> int:
    """CRC-32 over a row, so that a flipped bit or a column edited by hand is found."""
    return crc32(
        "\0".join((event_id, kind, key, tenant, emitted_at, persisted_at)).encode(),
        crc32(body, seq & 0xFFFFFFFF),
    )


class _Head:
    """Where a stream stands, inside this transaction."""

    __slots__ = ("fresh", "last_seq", "stored_seq", "stream_id")

    def __init__(self, stream_id: int | None, last_seq: int) -> None:
        self.stream_id, self.stored_seq, self.last_seq = stream_id, last_seq, last_seq
        self.fresh: dict[str, First] = {}
        """The keys that this transaction adds; filled only where they are looked up."""


def append_all(connection: sqlite3.Connection, appends: Sequence[Append], persisted_at: str, *, look_up: bool) -> None:
    """Write every append of a group, and give each its result or its error.

    Raises:
        KnownKey: only without `look_up`; roll back, and try again with it.
    """
    heads: dict[str, _Head] = {}
    rows: list[tuple[object, ...]] = []
    for append in appends:
        head = heads.get(append.stream)
        if head is None:
            found = connection.execute(_select_head, (append.stream,)).fetchone()
            head = heads[append.stream] = _Head(*found) if found else _Head(None, 0)
        try:
            append.result = _plan(connection, append, head, rows, persisted_at, look_up)
            append.error = None
        except SequenceConflict as conflict:
            if not look_up:
                # A retry of an append that went through meets a stream that has moved on since.
                raise KnownKey from conflict
            append.error = conflict
    try:
        connection.executemany(insert_event, rows)
    except sqlite3.IntegrityError as error:
        raise KnownKey from error
    for head in heads.values():
        if head.last_seq != head.stored_seq:
            grown = head.last_seq - head.stored_seq
            connection.execute(_update_head, (head.last_seq, grown, persisted_at, head.stream_id))


def _plan(
    connection: sqlite3.Connection,
    append: Append,
    head: _Head,
    rows: list[tuple[object, ...]],
    persisted_at: str,
    look_up: bool,
) -> list[AppendResult]:
    firsts = _firsts(connection, head, append.drafts) if look_up else {}
    if len(firsts) < len({draft.key for draft in append.drafts} if look_up else append.drafts):
        check_expected(append.stream, head.last_seq, append.expected_seq)
        if head.stream_id is None:
            opening = (append.stream, append.drafts[0].tenant, persisted_at, persisted_at)
            (head.stream_id,) = connection.execute(_insert_head, opening).fetchone()
    results = []
    seq, stream_id = head.last_seq, head.stream_id
    for draft in append.drafts:
        if look_up and (first := firsts.get(draft.key)) is not None:
            event_id, first_seq, at, body = first
            results.append(AppendResult(event_id, first_seq, at, True, False, not draft.same_content(body)))
            continue
        seq += 1
        event_id, kind, key = draft.event_id, draft.type, draft.key
        tenant, emitted_at = draft.tenant, draft.emitted_at
        body = draft.render(seq, persisted_at)
        crc = checksum(seq, event_id, kind, key, tenant, emitted_at, persisted_at, body)
        rows.append((stream_id, seq, event_id, kind, key, tenant, emitted_at, persisted_at, crc, body))
        results.append(AppendResult(event_id, seq, persisted_at))
        if look_up:
            firsts[key] = head.fresh[key] = (event_id, seq, persisted_at, body)
    head.last_seq = seq
    return results


def _firsts(connection: sqlite3.Connection, head: _Head, drafts: Sequence[Draft]) -> dict[str, First]:
    """The events that the stream already holds under these drafts' keys."""
    if head.stream_id is None:
        return {}
    firsts: dict[str, First] = {}
    for draft in drafts:
        first = head.fresh.get(draft.key)
        first = first or connection.execute(_select_key, (head.stream_id, draft.key)).fetchone()
        if first is not None:
            firsts[draft.key] = first
    return firsts
