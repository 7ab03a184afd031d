"""The blobs of a SQLite log. When each was put stands in a table of its own, which is made with the first one.

A blob without a time was put by an earlier version. A collection takes it for a new one, and writes its time down.
"""

from __future__ import annotations

import sqlite3
from time import time

from runstate.logs.blob_collection import Collected, Marked, refresh_s
from runstate.logs.blob_refs import mentioned_refs
from runstate.logs.log import BlobRef
from runstate.logs.row_repair import aside_tables

puts_table = "blob_puts"
_make_puts = f"""
CREATE TABLE IF NOT EXISTS {puts_table} (digest TEXT PRIMARY KEY, put_at REAL NOT NULL) WITHOUT ROWID
"""
# Bytes that were changed are replaced by those that have the digest.
_put = """
INSERT INTO blobs VALUES (?, ?) ON CONFLICT (digest) DO UPDATE SET data = excluded.data WHERE data IS NOT excluded.data
"""
_refresh = f"""
INSERT INTO {puts_table} VALUES (?, ?)
ON CONFLICT (digest) DO UPDATE SET put_at = excluded.put_at WHERE put_at < excluded.put_at - ?
"""
_listed = f"SELECT digest, length(data), put_at FROM blobs LEFT JOIN {puts_table} USING (digest)"
_exists = "SELECT 1 FROM sqlite_master WHERE name = ?"


def put(connection: sqlite3.Connection, name: str, data: bytes) -> None:
    connection.execute(_put, (name, data))
    connection.execute(_make_puts)
    connection.execute(_refresh, (name, time(), refresh_s))


def mark_set_aside(reader: sqlite3.Connection, marked: Marked) -> None:
    """Mark what the events that repairs have set aside refer to."""
    there = [table for table in aside_tables if reader.execute(_exists, (table,)).fetchone()]
    for table in there:
        for (body,) in reader.execute(f"SELECT body FROM {table}"):
            marked.refs.update(mentioned_refs(body if isinstance(body, bytes) else str(body).encode()))


def collect(connection: sqlite3.Connection, marked: Marked, *, dry_run: bool) -> Collected:
    """In one transaction, under the write lock: whoever puts a blob again comes before it, or after."""
    if not dry_run:
        connection.execute(_make_puts)
    elif not connection.execute(_exists, (puts_table,)).fetchone():
        undated = connection.execute("SELECT digest, length(data) FROM blobs")
        return marked.sort(((BlobRef(f"sha256:{name}"), size, False) for name, size in undated), dry_run=True)
    rows = connection.execute(_listed).fetchall()
    found = ((BlobRef(f"sha256:{n}"), size, at is not None and at < marked.put_before) for n, size, at in rows)
    collected = marked.sort(found, dry_run=dry_run)
    if not dry_run:
        moment = time()
        dates = [(name, moment, refresh_s) for name, _, put_at in rows if put_at is None]
        connection.executemany(_refresh, dates)
        gone = [(ref.removeprefix("sha256:"),) for ref in collected.removed]
        connection.executemany("DELETE FROM blobs WHERE digest = ?", gone)
        connection.executemany(f"DELETE FROM {puts_table} WHERE digest = ?", gone)
    return collected
