"""Repairing a stream of a SQLite log: damaged rows go to a table of their own, and its head says what is left."""

from __future__ import annotations

import sqlite3

import msgspec

from runstate.errors import StreamNotFound
from runstate.logs.log import Finding, now
from runstate.logs.row_repair import RowRepair, plan_quarantine, plan_repair
from runstate.logs.sqlite.appends import insert_event
from runstate.logs.sqlite.damaged_text import fetch_rows
from runstate.logs.stored_rows import Ends, is_intact, record_columns

_columns = "position, stream_id, seq, event_id, type, key, tenant, emitted_at, persisted_at, crc, body"
# Without types or constraints: what is damaged may be anything.
_create = f"CREATE TABLE IF NOT EXISTS {{table}} ({_columns}, stream, set_aside_at)"
_keep = f"INSERT INTO {{table}} SELECT {_columns}, ?, ? FROM events WHERE stream_id = ? AND seq = ?"
_head = """
SELECT id, last_seq, events, model, tenant, first_persisted_at, last_persisted_at FROM streams WHERE stream = ?
"""
_rows = f"SELECT {record_columns}, position FROM events e WHERE stream_id = ? ORDER BY seq"
_row = """
SELECT stream_id, seq, event_id, type, key, tenant, emitted_at, persisted_at, crc, body FROM events
WHERE stream_id = ? AND seq = ?
"""
_put_head = """
INSERT INTO streams (id, stream, last_seq, events, model, tenant, first_persisted_at, last_persisted_at)
SELECT ?, ?, ?, ?, ?,
    (SELECT tenant FROM events WHERE stream_id = ?1 ORDER BY seq LIMIT 1),
    (SELECT persisted_at FROM events WHERE stream_id = ?1 ORDER BY seq LIMIT 1),
    (SELECT persisted_at FROM events WHERE stream_id = ?1 ORDER BY seq DESC LIMIT 1)
"""


def repair_stream(
    connection: sqlite3.Connection, stream: str, *, dry_run: bool, salvage: bool, quarantine: int
) -> list[Finding]:
    """What was done, or would be. The caller has begun a transaction, unless it is a dry run.

    Raises:
        StreamNotFound: there is no such stream.
        EventNotFound, LogDamaged: as `plan_quarantine`.
    """
    head = connection.execute(_head, (stream,)).fetchone()
    if head is None:
        raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
    stream_id, last_seq, events, model, *columns = head
    ends = Ends()
    rows = fetch_rows(connection, _rows, (stream_id,))
    found = [(row[0], ends.note(is_intact(stream, row[:-1]), row[4], row[6])) for row in rows]
    plan = plan_repair(
        found,
        last_seq,
        events,
        salvage=salvage,
        is_rest_sound=ends.fit(*columns),
        places={row[0]: row[-1] for row in rows},
    )
    if quarantine:
        plan = plan_quarantine(stream, (seq for seq, _ in found), plan, quarantine)
        # The place of its last event is the version of a stream, which must change with its events.
        moved = [seq for seq in plan.kept[-1:] if seq > quarantine]
        plan = msgspec.structs.replace(plan, moved=moved)
    # Where SQLite's own structure is damaged, nothing that is written can be relied on.
    if plan is None or connection.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
        return []
    if not dry_run:
        _apply(connection, stream_id, stream, model, plan)
    return [plan.finding(stream)]


def _apply(connection: sqlite3.Connection, stream_id: int, stream: str, model: str, plan: RowRepair) -> None:
    connection.execute(_create.format(table=plan.table))
    # The head goes first: a trigger refuses to delete events of a stream that is there.
    connection.execute("DELETE FROM streams WHERE id = ?", (stream_id,))
    connection.execute("DELETE FROM snapshots WHERE stream_id = ?", (stream_id,))
    moment = now()
    for seq in plan.set_aside:
        connection.execute(_keep.format(table=plan.table), (stream, moment, stream_id, seq))
        connection.execute("DELETE FROM events WHERE stream_id = ? AND seq = ?", (stream_id, seq))
    for seq in plan.moved:
        row = connection.execute(_row, (stream_id, seq)).fetchone()
        connection.execute("DELETE FROM events WHERE stream_id = ? AND seq = ?", (stream_id, seq))
        connection.execute(insert_event, row)
    if plan.kept:
        connection.execute(_put_head, (stream_id, stream, plan.kept[-1], len(plan.kept), model))
