"""The tables of a SQLite log, and how an older file becomes a newer one.

Migrations run in one transaction under the write lock, so two processes may open a new file at once.
"""

from __future__ import annotations

import re
import sqlite3

from runstate.errors import LogDamaged, LogTooNew, NotALog
from runstate.logs.log import now

application_id = 0x52554E53
"""`RUNS`: marks the file as ours in SQLite's own header."""

_version_1 = """
CREATE TABLE streams (
    id                 INTEGER PRIMARY KEY,
    stream             TEXT NOT NULL UNIQUE,
    tenant             TEXT NOT NULL,
    last_seq           INTEGER NOT NULL,
    events             INTEGER NOT NULL,
    first_persisted_at TEXT NOT NULL,
    last_persisted_at  TEXT NOT NULL
);

-- AUTOINCREMENT: a position is never given twice, not even after the newest stream was deleted. A feed reader
-- that has passed a position would otherwise never see the event that got it second.
CREATE TABLE events (
    position     INTEGER PRIMARY KEY AUTOINCREMENT,
    stream_id    INTEGER NOT NULL,
    seq          INTEGER NOT NULL,
    event_id     TEXT NOT NULL,
    type         TEXT NOT NULL,
    key          TEXT NOT NULL,
    tenant       TEXT NOT NULL,
    emitted_at   TEXT NOT NULL,
    persisted_at TEXT NOT NULL,
    crc          INTEGER NOT NULL,
    body         BLOB NOT NULL,
    UNIQUE (stream_id, seq),
    UNIQUE (stream_id, key)
);

CREATE TABLE snapshots (
    stream_id INTEGER NOT NULL,
    model     TEXT NOT NULL,
    version   INTEGER NOT NULL,
    seq       INTEGER NOT NULL,
    digest    TEXT NOT NULL,
    body      BLOB NOT NULL,
    PRIMARY KEY (stream_id, model)
) WITHOUT ROWID;

CREATE TABLE blobs (
    digest TEXT PRIMARY KEY,
    data   BLOB NOT NULL
) WITHOUT ROWID;

CREATE TRIGGER events_are_never_updated BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'events are append-only: correct a fact by a later fact'); END;

-- Retention removes whole streams: the row in `streams` goes first, and only then may its events go.
CREATE TRIGGER events_are_never_deleted_singly BEFORE DELETE ON events
WHEN EXISTS (SELECT 1 FROM streams WHERE id = OLD.stream_id)
BEGIN SELECT RAISE(ABORT, 'events are append-only: delete the whole stream'); END;
"""

_version_2 = """
ALTER TABLE streams ADD COLUMN model TEXT NOT NULL DEFAULT '';

CREATE TABLE tombstones (
    stream     TEXT PRIMARY KEY,
    last_seq   INTEGER NOT NULL,
    digest     TEXT NOT NULL,
    archive    TEXT NOT NULL,
    deleted_at TEXT NOT NULL
) WITHOUT ROWID;

-- INSERT OR REPLACE deletes the row in its way without firing delete triggers.
CREATE TRIGGER events_are_never_replaced BEFORE INSERT ON events
WHEN EXISTS (SELECT 1 FROM events WHERE stream_id = NEW.stream_id AND seq = NEW.seq)
    OR EXISTS (SELECT 1 FROM events WHERE stream_id = NEW.stream_id AND key = NEW.key)
    OR EXISTS (SELECT 1 FROM events WHERE position = NEW.position)
BEGIN SELECT RAISE(ABORT, 'events are append-only: correct a fact by a later fact'); END;
"""

migrations = [_version_1, _version_2]
"""The n-th turns version n into version n + 1. Published ones are never edited."""

own_tables = {"schema_version", "blob_puts", *re.findall(r"CREATE TABLE (\w+)", "".join(migrations))}


def prepare(connection: sqlite3.Connection) -> None:
    """Bring the file to the newest version; make the tables in a new one.

    Raises:
        NotALog: it holds tables of somebody else.
        LogTooNew: a newer Runstate wrote it.
    """
    if _version(connection) == len(migrations):
        return
    # Only now: this setting is kept in the file, and a stranger's file must stay as it is.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have been faster while this one waited for the lock.
        for number in range(_version(connection), len(migrations)):
            for statement in _statements(migrations[number]):
                connection.execute(statement)
            connection.execute("INSERT INTO schema_version VALUES (?, ?)", (number + 1, now()))
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def check(connection: sqlite3.Connection) -> None:
    """See that a file that cannot be changed can be read; one of an older version is read as it is.

    Raises:
        NotALog, LogTooNew: as `prepare` does; or nothing was written to the file yet.
    """
    if _version(connection) == 0:
        raise NotALog("The file is an empty SQLite database: no log has been created in it yet")


def read_unmigrated(connection: sqlite3.Connection) -> None:
    """Let a connection that only reads see a file of version 1 as if it were migrated. The file stays as it is."""
    columns = connection.execute("SELECT 1 FROM main.pragma_table_info('streams') WHERE name = 'model'")
    if columns.fetchone() is None:
        # A temporary view hides the table of the same name from this connection's queries.
        connection.execute("CREATE TEMP VIEW IF NOT EXISTS streams AS SELECT *, '' AS model FROM main.streams")
        none = "SELECT '' AS stream, 0 AS last_seq, '' AS digest, '' AS archive, '' AS deleted_at WHERE 0"
        connection.execute(f"CREATE TEMP VIEW IF NOT EXISTS tombstones AS {none}")


def _version(connection: sqlite3.Connection) -> int:
    """The file's version: 0 for a new one, whose version table is then made."""
    kinds = dict(
        connection.execute("SELECT lower(name), type FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
    )
    tables = {name for name, kind in kinds.items() if kind == "table"}
    if replaced := sorted(own_tables & kinds.keys() - tables):
        # A view is a query that the author of the file chose, and may never end.
        raise NotALog(f"In the file, {replaced[0]!r} is a view and not the table of a log; it was left untouched")
    if "schema_version" in tables and _is_ours(connection):
        (version,) = connection.execute("SELECT coalesce(max(version), 0) FROM schema_version").fetchone()
        if version > len(migrations):
            raise LogTooNew(
                f"The file has format version {version}, this Runstate knows up to {len(migrations)}; "
                "upgrade Runstate to open it. It was left untouched",
                version=version,
            )
        if version == 0 and "streams" in tables:
            raise LogDamaged("The file holds tables of a log, but schema_version has no row; restore a backup")
        return int(version)
    if tables or _is_foreign(connection):
        raise NotALog("The file is a SQLite database of another application; it was left untouched")
    if connection.in_transaction:
        connection.execute(f"PRAGMA application_id = {application_id}")
        connection.execute("CREATE TABLE schema_version (version INTEGER PRIMARY KEY, applied_at TEXT NOT NULL)")
    return 0


def _is_ours(connection: sqlite3.Connection) -> bool:
    (found,) = connection.execute("PRAGMA application_id").fetchone()
    return bool(found == application_id)


def _is_foreign(connection: sqlite3.Connection) -> bool:
    (found,) = connection.execute("PRAGMA application_id").fetchone()
    return found not in (0, application_id)


def _statements(script: str) -> list[str]:
    """The statements of a script; executescript() would commit the transaction that they belong to."""
    statements, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return statements
