"""Repairing a stream of a Postgres log: damaged rows go to a table of their own, and its head says what is left."""

from __future__ import annotations

from psycopg.types.numeric import Int8

from runstate.errors import StreamNotFound
from runstate.logs.log import Finding, now
from runstate.logs.postgres.arrays import Numbers
from runstate.logs.postgres.transactions import Connection
from runstate.logs.postgres.verify import read_placed
from runstate.logs.row_repair import RowRepair, plan_quarantine, plan_repair
from runstate.logs.stored_rows import Ends

_columns = "position, transaction, stream_id, seq, event_id, type, key, tenant, emitted_at, persisted_at, crc, body"
_create = f"""
CREATE TABLE IF NOT EXISTS $schema.{{table}} AS
SELECT {_columns}, ''::text AS stream, ''::text AS set_aside_at FROM $schema.events WHERE false
"""
_keep = f"""
INSERT INTO $schema.{{table}} ({_columns}, stream, set_aside_at)
SELECT {_columns}, %s, %s FROM $schema.events WHERE stream_id = %s AND seq = ANY(%s)
"""
_head = """
SELECT id, model, last_seq, events, tenant, first_persisted_at, last_persisted_at FROM $schema.streams WHERE stream = %s
FOR UPDATE
"""
_event = "stream_id, seq, event_id, type, key, tenant, emitted_at, persisted_at, crc, body"
_move = f"""
WITH moved AS (DELETE FROM $schema.events WHERE stream_id = %s AND seq = ANY(%s) RETURNING {_event})
INSERT INTO $schema.events ({_event}) SELECT {_event} FROM moved ORDER BY seq
"""
_put_head = """
INSERT INTO $schema.streams (id, stream, model, last_seq, events, tenant, first_persisted_at, last_persisted_at)
OVERRIDING SYSTEM VALUE SELECT %(id)s, %(stream)s, %(model)s, %(last_seq)s, %(events)s,
    (SELECT tenant FROM $schema.events WHERE stream_id = %(id)s ORDER BY seq LIMIT 1),
    (SELECT persisted_at FROM $schema.events WHERE stream_id = %(id)s ORDER BY seq LIMIT 1),
    (SELECT persisted_at FROM $schema.events WHERE stream_id = %(id)s ORDER BY seq DESC LIMIT 1)
"""


def repair_stream(
    connection: Connection, stream: str, *, dry_run: bool, salvage: bool, quarantine: int
) -> list[Finding]:
    """What was done, or would be. The caller has begun a transaction.

    Raises:
        StreamNotFound: there is no such stream.
        EventNotFound, LogDamaged: as `plan_quarantine`.
    """
    head = connection.execute(_head, (stream,)).fetchone()
    if head is None:
        raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
    stream_id, model, last_seq, events, *columns = head
    ends = Ends()
    rows = list(read_placed(connection, stream_id, stream, ends))
    plan = plan_repair(
        [(seq, is_sound) for seq, is_sound, _ in rows],
        last_seq,
        events,
        salvage=salvage,
        is_rest_sound=ends.fit(*columns),
        places={seq: place for seq, _, place in rows},
    )
    if quarantine:
        plan = plan_quarantine(stream, (seq for seq, _, _ in rows), plan, quarantine)
    if plan is None:
        return []
    if not dry_run:
        _set_aside(connection, stream_id, stream, plan)
        if plan.kept:
            names = {"id": Int8(stream_id), "stream": stream, "model": model}
            counts = {"last_seq": Int8(plan.kept[-1]), "events": Int8(len(plan.kept))}
            connection.execute(_put_head, {**names, **counts})
    return [plan.finding(stream)]


def _set_aside(connection: Connection, stream_id: int, stream: str, plan: RowRepair) -> None:
    seqs = Numbers(plan.set_aside)
    connection.execute(_create.format(table=plan.table))
    connection.execute(_keep.format(table=plan.table), (stream, now(), stream_id, seqs))
    # The head goes first: a trigger refuses to delete events of a stream that is there.
    connection.execute("DELETE FROM $schema.streams WHERE id = %s", (stream_id,))
    connection.execute("DELETE FROM $schema.snapshots WHERE stream_id = %s", (stream_id,))
    connection.execute("DELETE FROM $schema.events WHERE stream_id = %s AND seq = ANY(%s)", (stream_id, seqs))
    if plan.moved:
        connection.execute(_move, (stream_id, Numbers(plan.moved)))
