"""How snapshots are kept in a SQLite log, inside a transaction that the writer has begun."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from runstate.errors import StreamNotFound
from runstate.logs.log import StoredSnapshot

select_snapshot = """
SELECT model, version, seq, digest, body FROM snapshots
WHERE stream_id = (SELECT id FROM streams WHERE stream = ?) AND model = ?
"""
_save = """
INSERT INTO snapshots (stream_id, model, version, seq, digest, body)
SELECT id, ?, ?, ?, ?, ? FROM streams WHERE stream = ? AND ? IN ('', first_persisted_at)
ON CONFLICT (stream_id, model) DO UPDATE
SET version = excluded.version, seq = excluded.seq, digest = excluded.digest, body = excluded.body
WHERE excluded.version <> version OR excluded.seq >= seq
    OR seq > (SELECT last_seq FROM streams WHERE id = excluded.stream_id)
"""
_save_with_events = """
INSERT OR REPLACE INTO snapshots (stream_id, model, version, seq, digest, body) VALUES (?, ?, ?, ?, ?, ?)
"""
_exists = "SELECT 1 FROM streams WHERE stream = ?"


def save(connection: sqlite3.Connection, stream: str, snapshot: StoredSnapshot) -> None:
    """
    Raises:
        StreamNotFound: there is no such stream.
    """
    is_saved = connection.execute(_save, _values(stream, snapshot)).rowcount
    if not is_saved and connection.execute(_exists, (stream,)).fetchone() is None:
        raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)


def save_all(connection: sqlite3.Connection, snapshots: Sequence[tuple[str, StoredSnapshot]]) -> None:
    """Save many; those of streams that are gone are passed over."""
    connection.executemany(_save, [_values(stream, snapshot) for stream, snapshot in snapshots])


def save_with_events(connection: sqlite3.Connection, stream_id: int, snapshot: StoredSnapshot) -> None:
    """Save a snapshot of a stream's last event, in the transaction that writes that event: none can be newer."""
    values = (snapshot.model, snapshot.version, snapshot.seq, snapshot.digest, snapshot.body)
    connection.execute(_save_with_events, (stream_id, *values))


def _values(stream: str, snapshot: StoredSnapshot) -> tuple[object, ...]:
    values = (snapshot.model, snapshot.version, snapshot.seq, snapshot.digest, snapshot.body)
    return *values, stream, snapshot.first_persisted_at
