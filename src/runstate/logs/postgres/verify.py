"""What `verify` looks at in a Postgres log: every row against its checksum and its head, snapshots and blobs."""

from __future__ import annotations

from collections.abc import Iterator

from psycopg.types.numeric import Int8

from runstate.logs.log import Finding
from runstate.logs.postgres.connections import Connection
from runstate.logs.stored_rows import checksum, row_findings
from runstate.models.canonical import digest

_begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_heads = "SELECT id, stream, last_seq, events FROM streams WHERE (%s::text IS NULL OR stream = %s)"
_rows = """
SELECT seq, event_id, type, key, tenant, emitted_at, persisted_at, body, crc, transaction::text, position
FROM events WHERE stream_id = %s AND seq > %s ORDER BY seq LIMIT 1000
"""
_orphans = """
SELECT stream_id, count(*) FROM events e WHERE NOT EXISTS (SELECT 1 FROM streams WHERE id = e.stream_id)
GROUP BY stream_id
"""
_ahead = """
SELECT s.stream, e.seq, e.transaction::text FROM events e JOIN streams s ON s.id = e.stream_id
WHERE e.transaction >= pg_snapshot_xmax(pg_current_snapshot()) ORDER BY e.transaction, e.position LIMIT 1
"""
_snapshots = """
SELECT s.stream, n.model, n.seq, n.digest, n.body FROM snapshots n JOIN streams s ON s.id = n.stream_id
WHERE s.id = %s
"""
_blobs = "SELECT digest, data FROM blobs WHERE digest > %s ORDER BY digest LIMIT 20"


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


def _stream(connection: Connection, stream_id: int, stream: str, last_seq: int, events: int) -> Iterator[Finding]:
    rows = (
        (int(str(row[0])), checksum(*row) == crc, (int(str(transaction)), int(str(position))))  # type: ignore[arg-type]
        for *row, crc, transaction, position in _pages(connection, stream_id)
    )
    return row_findings(stream, rows, (0, 0), last_seq, events)


def _pages(connection: Connection, stream_id: int) -> Iterator[tuple[object, ...]]:
    after = -(2**62)  # Also rows that no append wrote, below the first seq.
    while page := connection.execute(_rows, (stream_id, Int8(after)), binary=True).fetchall():
        yield from page
        after = page[-1][0]


def _kept(connection: Connection, stream_id: int) -> Iterator[Finding]:
    for name, model, seq, expected, body in connection.execute(_snapshots, (stream_id,), binary=True).fetchall():
        if digest(body) != expected:
            yield Finding(
                code="snapshot.digest_mismatch",
                message=f"The stored {model} snapshot is not what was saved; it can be rebuilt with 'runstate replay'",
                stream=name,
                seq=seq,
            )


def _changed_blobs(connection: Connection) -> Iterator[Finding]:
    after = ""
    while page := connection.execute(_blobs, (after,), binary=True).fetchall():
        for name, data in page:
            if digest(data) != name:
                yield Finding(code="blob.digest_mismatch", message=f"The blob sha256:{name} was changed")
        after = page[-1][0]
