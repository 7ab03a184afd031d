"""What `verify` looks at in a Postgres log: every row against its checksum and its head, snapshots and blobs."""

from __future__ import annotations

from collections.abc import Iterator

from psycopg.types.numeric import Int8

from runstate.logs.blob_refs import changed_blob
from runstate.logs.log import Finding, StoredSnapshot
from runstate.logs.postgres.transactions import Connection
from runstate.logs.row_repair import aside_tables, count_set_aside, set_aside_findings
from runstate.logs.stored_rows import (
    Ends,
    head_finding,
    is_intact,
    record_columns,
    row_findings,
    snapshot_findings,
)
from runstate.models.canonical import digest

_begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_heads = """
SELECT id, stream, last_seq, events, tenant, first_persisted_at, last_persisted_at FROM $schema.streams
WHERE (%s::text IS NULL OR stream = %s)
"""
_rows = f"""
SELECT {record_columns}, transaction::text, position FROM $schema.events e
WHERE stream_id = %s AND seq > %s ORDER BY seq LIMIT 1000
"""
_orphans = """
SELECT stream_id, count(*) FROM $schema.events e WHERE NOT EXISTS (SELECT 1 FROM $schema.streams WHERE id = e.stream_id)
GROUP BY stream_id
"""
_ahead = """
SELECT s.stream, e.seq, e.transaction::text FROM $schema.events e JOIN $schema.streams s ON s.id = e.stream_id
WHERE e.transaction >= pg_snapshot_xmax(pg_current_snapshot()) ORDER BY e.transaction, e.position LIMIT 1
"""
_snapshots = """
SELECT s.stream, s.last_seq, n.model, n.version, n.seq, n.digest, n.body
FROM $schema.snapshots n JOIN $schema.streams s ON s.id = n.stream_id WHERE s.id = %s
"""
_blobs = "SELECT digest, data FROM $schema.blobs WHERE digest > %s ORDER BY digest LIMIT 20"

_has_set_aside = "SELECT 1 WHERE to_regclass(quote_ident(%s) || '.' || %s) IS NOT NULL"


def verify_schema(connection: Connection, stream: str | None) -> Iterator[Finding]:
    """Findings for one stream, or for the whole log."""
    if stream is None:
        yield from verify_rest(connection)
    # One moment for all: a head that was read before an append must not be held against rows read after it.
    connection.execute(_begin)
    for head in connection.execute(_heads, (stream, stream)).fetchall():
        yield from _stream(connection, *head)
        yield from _kept(connection, head[0])
    connection.execute("ROLLBACK")


def verify_rest(connection: Connection) -> Iterator[Finding]:
    """Findings beyond single streams."""
    connection.execute(_begin)
    # These go through whole tables, once: what serves an append would look up each event by itself.
    connection.execute("SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on")
    yield from _strays(connection)
    yield from _changed_blobs(connection)
    for table in aside_tables:
        if connection.execute(_has_set_aside, (connection.schema, table)).fetchone():
            counts = connection.execute(count_set_aside.format(table=f"$schema.{table}")).fetchall()
            yield from set_aside_findings(counts, table)
    connection.execute("ROLLBACK")


def _strays(connection: Connection) -> Iterator[Finding]:
    for stream_id, count in connection.execute(_orphans).fetchall():
        yield Finding(
            code="postgres.orphan_events",
            message=f"{count} events belong to stream number {stream_id}, which is not there",
        )
    for stream, seq, transaction in connection.execute(_ahead).fetchall():
        yield Finding(
            code="postgres.transaction_ahead",
            message=f"Transaction {transaction} is still to come on this server, so the feed does not show it: "
            "the log was restored from a dump of another server",
            stream=stream,
            seq=seq,
        )


def _stream(
    connection: Connection, stream_id: int, stream: str, last_seq: int, events: int, *head: str
) -> Iterator[Finding]:
    ends = Ends()
    rows = read_placed(connection, stream_id, stream, ends)
    found = list(row_findings(stream, rows, (0, 0), last_seq, events))
    yield from found
    if not found and not ends.fit(*head):  # Where events are missing, it cannot fit.
        yield head_finding(stream)


def read_placed(
    connection: Connection, stream_id: int, stream: str, ends: Ends
) -> Iterator[tuple[int, bool, tuple[int, int]]]:
    """All rows of a stream: the seq of each, whether it is intact, and its place in the feed."""
    after = -(2**62)  # Also rows that no append wrote, below the first seq.
    while page := connection.execute(_rows, (stream_id, Int8(after)), binary=True).fetchall():
        for *row, transaction, position in page:
            yield row[0], ends.note(is_intact(stream, row), row[4], row[6]), (int(transaction), position)
        after = page[-1][0]


def _kept(connection: Connection, stream_id: int) -> Iterator[Finding]:
    for name, last_seq, *kept in connection.execute(_snapshots, (stream_id,), binary=True).fetchall():
        yield from snapshot_findings(name, StoredSnapshot(*kept), last_seq)


def _changed_blobs(connection: Connection) -> Iterator[Finding]:
    after = ""
    while page := connection.execute(_blobs, (after,), binary=True).fetchall():
        for name, data in page:
            if digest(data) != name:
                yield changed_blob(name)
        after = page[-1][0]
