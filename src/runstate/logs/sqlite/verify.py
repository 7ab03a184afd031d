"""What `verify` looks at in a SQLite log: the file's structure, then every row against its checksum and its head."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from runstate.logs.blob_refs import changed_blob
from runstate.logs.log import Finding, StoredSnapshot
from runstate.logs.row_repair import aside_tables, count_set_aside, set_aside_findings
from runstate.logs.sqlite.damaged_text import any_text
from runstate.logs.stored_rows import (
    Ends,
    head_finding,
    is_intact,
    record_columns,
    row_findings,
    snapshot_findings,
)
from runstate.models.canonical import digest

_heads = "SELECT id, stream, last_seq, events, tenant, first_persisted_at, last_persisted_at FROM streams"
_rows = f"SELECT {record_columns}, position FROM events e WHERE stream_id = ? ORDER BY seq"
_orphans = """
SELECT stream_id, count(*) FROM events WHERE stream_id NOT IN (SELECT id FROM streams) GROUP BY stream_id
"""
_snapshots = """
SELECT s.stream, s.last_seq, n.model, n.version, n.seq, n.digest, n.body
FROM snapshots n JOIN streams s ON s.id = n.stream_id
"""


def verify_file(reader: sqlite3.Connection, stream: str | None) -> Iterator[Finding]:
    """Findings for one stream, or for the whole file, as far as SQLite can still read it."""
    if stream is None:
        yield from verify_rest(reader)
    yield from _as_far_as_it_goes(reader, _streams(reader, stream))


def verify_rest(reader: sqlite3.Connection) -> Iterator[Finding]:
    """Findings that are about no stream."""
    return _as_far_as_it_goes(reader, _rest(reader))


def _as_far_as_it_goes(reader: sqlite3.Connection, findings: Iterator[Finding]) -> Iterator[Finding]:
    try:
        # One moment for all: a head that was read before an append must not be held against rows read after it.
        reader.execute("BEGIN")
        yield from findings
    except sqlite3.DatabaseError as error:
        yield Finding(
            code="sqlite.structure",
            message=f"SQLite cannot read on ({error}); keep a copy of the file, and restore it from a backup",
        )
    finally:
        if reader.in_transaction:
            reader.execute("ROLLBACK")


def _rest(reader: sqlite3.Connection) -> Iterator[Finding]:
    yield from _structure(reader)
    for stream_id, count in reader.execute(_orphans).fetchall():
        yield Finding(
            code="sqlite.orphan_events",
            message=f"{count} events belong to stream number {stream_id}, which is not there",
        )
    for table in aside_tables:
        if reader.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
            yield from set_aside_findings(reader.execute(count_set_aside.format(table=table)).fetchall(), table)
    for name, data in reader.execute("SELECT digest, data FROM blobs"):
        if not isinstance(data, bytes) or digest(data) != name:
            yield changed_blob(name)


def _streams(reader: sqlite3.Connection, stream: str | None) -> Iterator[Finding]:
    only, values = ("", ()) if stream is None else (" WHERE stream = ?", (stream,))
    for head in reader.execute(_heads + only, values).fetchall():
        yield from _stream(reader, *head)
    for name, last_seq, *kept in reader.execute(_snapshots + only, values):
        yield from snapshot_findings(name, StoredSnapshot(*kept), last_seq)


def _structure(reader: sqlite3.Connection) -> Iterator[Finding]:
    for (message,) in reader.execute("PRAGMA integrity_check"):
        if message != "ok":
            yield Finding(code="sqlite.structure", message=message)


def _stream(
    reader: sqlite3.Connection, stream_id: int, stream: str, last_seq: int, events: int, *head: str
) -> Iterator[Finding]:
    ends = Ends()
    with any_text(reader):
        rows = (
            (row[0], ends.note(is_intact(stream, row), row[4], row[6]), position)
            for *row, position in reader.execute(_rows, (stream_id,))
        )
        found = list(row_findings(stream, rows, 0, last_seq, events))
    yield from found
    if not found and not ends.fit(*head):  # Where events are missing, it cannot fit.
        yield head_finding(stream)
