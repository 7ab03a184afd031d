"""Repairing a stream of a Postgres log: damaged rows go to a table of their own, and its head says what is left."""

from __future__ import annotations

from psycopg.types.numeric import Int8

from runstate.errors import StreamNotFound
from runstate.logs.log import Finding, now
from runstate.logs.postgres.arrays import Numbers
from runstate.logs.postgres.transactions import Connection
from runstate.logs.row_repair import RowRepair, plan_repair, set_aside_table
from runstate.logs.stored_rows import is_intact, record_columns

_columns = "position, transaction, stream_id, seq, event_id, type, key, tenant, emitted_at, persisted_at, crc, body"
_create = f"""
CREATE TABLE IF NOT EXISTS $schema.{set_aside_table} AS
SELECT {_columns}, ''::text AS stream, ''::text AS set_aside_at FROM $schema.events WHERE false
"""
_keep = f"""
INSERT INTO $schema.{set_aside_table} ({_columns}, stream, set_aside_at)
SELECT {_columns}, %s, %s FROM $schema.events WHERE stream_id = %s AND seq = ANY(%s)
"""
_head = "SELECT id, tenant, model, last_seq, events FROM $schema.streams WHERE stream = %s FOR UPDATE"
_rows = f"SELECT {record_columns} FROM $schema.events e WHERE stream_id = %s AND seq > %s ORDER BY seq LIMIT 1000"
_put_head = """
INSERT INTO $schema.streams (id, stream, tenant, model, last_seq, events, first_persisted_at, last_persisted_at)
OVERRIDING SYSTEM VALUE SELECT %(id)s, %(stream)s, %(tenant)s, %(model)s, %(last_seq)s, %(events)s,
    (SELECT persisted_at FROM $schema.events WHERE stream_id = %(id)s ORDER BY seq LIMIT 1),
    (SELECT persisted_at FROM $schema.events WHERE stream_id = %(id)s ORDER BY seq DESC LIMIT 1)
"""


def repair_stream(connection: Connection, stream: str, *, dry_run: bool, salvage: bool) -> list[Finding]:
    """What was done, or would be. The caller has begun a transaction.

    Raises:
        StreamNotFound: there is no such stream.
    """
    head = connection.execute(_head, (stream,)).fetchone()
    if head is None:
        raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
    stream_id, tenant, model, last_seq, events = head
    plan = plan_repair(_intact(connection, stream_id), last_seq, events, salvage=salvage)
    if plan is None:
        return []
    if not dry_run:
        _set_aside(connection, stream_id, stream, plan)
        if plan.kept:
            names = {"id": Int8(stream_id), "stream": stream, "tenant": tenant, "model": model}
            ends = {"last_seq": Int8(plan.kept[-1]), "events": Int8(len(plan.kept))}
            connection.execute(_put_head, {**names, **ends})
    return [plan.finding(stream)]


def _intact(connection: Connection, stream_id: int) -> list[tuple[int, bool]]:
    found: list[tuple[int, bool]] = []
    after = -(2**62)  # Also rows that no append wrote, below the first seq.
    while page := connection.execute(_rows, (stream_id, Int8(after)), binary=True).fetchall():
        found += [(row[0], is_intact(row)) for row in page]
        after = page[-1][0]
    return found


def _set_aside(connection: Connection, stream_id: int, stream: str, plan: RowRepair) -> None:
    seqs = Numbers(plan.set_aside)
    connection.execute(_create)
    connection.execute(_keep, (stream, now(), stream_id, seqs))
    # The head goes first: a trigger refuses to delete events of a stream that is there.
    connection.execute("DELETE FROM $schema.streams WHERE id = %s", (stream_id,))
    connection.execute("DELETE FROM $schema.snapshots WHERE stream_id = %s", (stream_id,))
    connection.execute("DELETE FROM $schema.events WHERE stream_id = %s AND seq = ANY(%s)", (stream_id, seqs))
