"""Snapshots of a Snowflake log, inside a transaction that holds the gate: saved alone, or with the events they include.

A role that appends has INSERT and DELETE on `snapshots`, and no UPDATE. So a snapshot is replaced by two statements.
"""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import Sequence

import msgspec

from runstate.errors import EventTooLarge, StreamNotFound
from runstate.logs.log import StoredSnapshot, is_outdated, is_same_stream
from runstate.logs.snowflake.connections import Session
from runstate.logs.snowflake.row_parts import join_rows, rows_table

_logger = logging.getLogger("runstate.logs.snowflake")

body_bytes_max = 8 * 1024 * 1024
"""The longest BINARY that every account takes."""

select_snapshot = "SELECT model, version, seq, digest, body FROM snapshots WHERE stream = ? AND model = ?"
_ends = "SELECT last_seq, first_persisted_at FROM streams WHERE stream = ?"
_insert = "INSERT INTO snapshots (stream, model, version, seq, digest, body) SELECT ?, ?, ?, ?, ?, ?"
_delete = "DELETE FROM snapshots WHERE stream = ? AND model = ?"
_delete_rows = f"""
DELETE FROM snapshots USING (SELECT value[0]::VARCHAR AS stream, value[1]::VARCHAR AS model FROM {rows_table}) n
WHERE snapshots.stream = n.stream AND snapshots.model = n.model
"""
_insert_rows = f"""
INSERT INTO snapshots (stream, model, version, seq, digest, body)
SELECT value[0]::VARCHAR, value[1]::VARCHAR, value[2]::NUMBER(38, 0), value[3]::NUMBER(38, 0), value[4]::VARCHAR,
    TO_BINARY(value[5]::VARCHAR, 'BASE64')
FROM {rows_table}
"""


def check_size(snapshot: StoredSnapshot) -> None:
    """
    Raises:
        EventTooLarge: Snowflake cannot keep it.
    """
    if len(snapshot.body) > body_bytes_max:
        raise EventTooLarge(f"The snapshot has {len(snapshot.body)} bytes, and Snowflake keeps {body_bytes_max}")


def save(session: Session, stream: str, snapshot: StoredSnapshot) -> None:
    """Save a snapshot, unless a newer one is stored or it is of an earlier stream of that name.

    Raises:
        StreamNotFound: there is no such stream.
    """
    if not (rows := session.rows(_ends, stream)):
        raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
    last_seq, first_persisted_at = rows[0]
    if not is_same_stream(first_persisted_at, snapshot.first_persisted_at):
        return
    for _, version, seq, *_ in session.rows(select_snapshot, stream, snapshot.model):
        if is_outdated(snapshot, version, seq, last_seq):
            return
        session.change(_delete, stream, snapshot.model)
    session.change(
        _insert, stream, snapshot.model, snapshot.version, snapshot.seq, snapshot.digest, bytes(snapshot.body)
    )


def save_with_events(session: Session, snapshots: Sequence[tuple[str, StoredSnapshot, bool]]) -> None:
    """Save the snapshots of streams that this transaction appends to: stream, snapshot, and whether the stream is new.

    In the transaction of the newest event no other snapshot can be newer, so each replaces what is stored.
    """
    kept = []
    for stream, snapshot, is_new in snapshots:
        try:
            check_size(snapshot)
        except EventTooLarge as error:  # The events are stored all the same, and states are folded without it.
            _logger.warning("The snapshot of %r was not saved: %s", stream, error)
        else:
            kept.append((stream, snapshot, is_new))
    replaced = [msgspec.json.encode((stream, snapshot.model)) for stream, snapshot, is_new in kept if not is_new]
    for part in join_rows(replaced):
        session.change(_delete_rows, part)
    for part in join_rows(_encode(stream, snapshot) for stream, snapshot, _ in kept):
        session.change(_insert_rows, part)


def _encode(stream: str, snapshot: StoredSnapshot) -> bytes:
    body = b64encode(snapshot.body).decode()
    return msgspec.json.encode((stream, snapshot.model, snapshot.version, snapshot.seq, snapshot.digest, body))
