"""The tables of a Snowflake log, and how an older schema becomes a newer one.

Snowflake commits each statement of DDL by itself. So every step may be done twice, or by many at once, and the row of
`runstate_log`, which is made together with its table, says how far they have come: version 0 is a log in the making.
"""

from __future__ import annotations

from runstate.errors import LogFailed, LogNotFound, LogTooNew, NotALog
from runstate.logs.snowflake.connections import NoSuchTable, Session

_gate = """
CREATE TABLE IF NOT EXISTS runstate_log AS
SELECT CAST(0 AS NUMBER(38, 0)) AS format_version, CAST(0 AS NUMBER(38, 0)) AS last_position
"""
_version_1 = [
    """
    CREATE TABLE IF NOT EXISTS streams (
        stream             VARCHAR NOT NULL,
        tenant             VARCHAR NOT NULL,
        last_seq           NUMBER(38, 0) NOT NULL,
        events             NUMBER(38, 0) NOT NULL,
        first_position     NUMBER(38, 0) NOT NULL,
        first_persisted_at VARCHAR NOT NULL,
        last_persisted_at  VARCHAR NOT NULL
    )
    """,
    # No keys are declared: Snowflake would take them down and not hold anybody to them.
    """
    CREATE TABLE IF NOT EXISTS events (
        position     NUMBER(38, 0) NOT NULL,
        stream       VARCHAR NOT NULL,
        seq          NUMBER(38, 0) NOT NULL,
        event_id     VARCHAR NOT NULL,
        type         VARCHAR NOT NULL,
        key          VARCHAR NOT NULL,
        tenant       VARCHAR NOT NULL,
        emitted_at   VARCHAR NOT NULL,
        persisted_at VARCHAR NOT NULL,
        crc          NUMBER(38, 0) NOT NULL,
        body         BINARY NOT NULL
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS snapshots (
        stream  VARCHAR NOT NULL,
        model   VARCHAR NOT NULL,
        version NUMBER(38, 0) NOT NULL,
        seq     NUMBER(38, 0) NOT NULL,
        digest  VARCHAR NOT NULL,
        body    BINARY NOT NULL
    )
    """,
    "CREATE TABLE IF NOT EXISTS blobs (digest VARCHAR NOT NULL, part NUMBER(38, 0) NOT NULL, data BINARY NOT NULL)",
]
_version_2 = [
    "ALTER TABLE streams ADD COLUMN IF NOT EXISTS model VARCHAR DEFAULT ''",
    """
    CREATE TABLE IF NOT EXISTS tombstones (
        stream     VARCHAR NOT NULL,
        last_seq   NUMBER(38, 0) NOT NULL,
        digest     VARCHAR NOT NULL,
        archive    VARCHAR NOT NULL,
        deleted_at VARCHAR NOT NULL
    )
    """,
]
# When a blob was put: one that nothing refers to is removed some time after it.
_version_3 = ["ALTER TABLE blobs ADD COLUMN IF NOT EXISTS put_ms NUMBER(38, 0)"]
migrations: list[list[str]] = [_version_1, _version_2, _version_3]
"""The n-th turns version n into version n + 1. Published ones are never edited."""

_find_version = "SELECT MAX(format_version) FROM runstate_log"
_find_tables = "SELECT table_name FROM information_schema.tables WHERE table_schema = ? LIMIT 1000"


def prepare(session: Session, database: str, schema: str, *, create: bool) -> int:
    """Bring the schema to the newest version; make it, and its tables, if it is not there.

    Returns the version that it has then: an older one if this role may not change the tables. They can be read.

    Raises:
        LogNotFound: there is no log, and `create` is false.
        NotALog: the schema holds tables of somebody else.
        LogTooNew: a newer Runstate wrote it.
    """
    version = _version(session)
    if version == len(migrations):
        return version
    if not create and not version:
        raise LogNotFound(
            f"There is no log in {database}.{schema}, or this role may not see it", database=database, schema=schema
        )
    if version is None:
        session.change(f'CREATE SCHEMA IF NOT EXISTS "{database}"."{schema}"')
        _check_empty(session, database, schema)
        session.change(_gate)
        version = 0
    try:
        for number in range(version, len(migrations)):
            for statement in migrations[number]:
                session.change(statement)
            session.change("UPDATE runstate_log SET format_version = ? WHERE format_version = ?", number + 1, number)
    except LogFailed:
        if not version:
            raise
        return version
    return len(migrations)


def check_migrated(version: int) -> None:
    """
    Raises:
        LogFailed: the schema is of an older version, which can only be read.
    """
    if version < len(migrations):
        raise LogFailed(
            f"The schema has format version {version} and must be migrated to {len(migrations)} before it is written. "
            "Open the log once with a role that may alter its tables",
            version=version,
        )


def _version(session: Session) -> int | None:
    """The schema's version; None where nothing of a log is to be seen."""
    try:
        ((version,),) = session.rows(_find_version)
    except NoSuchTable:
        return None
    found = int(version or 0)
    if found > len(migrations):
        raise LogTooNew(
            f"The schema has format version {found}, this Runstate knows up to {len(migrations)}; "
            "upgrade Runstate to open it. It was left untouched",
            version=found,
        )
    return found


def _check_empty(session: Session, database: str, schema: str) -> None:
    tables = {name.lower() for (name,) in session.rows(_find_tables, schema)}
    if "runstate_log" in tables:  # Another process is making it at this moment.
        return
    if tables:
        raise NotALog(f"The schema {database}.{schema} holds tables of another application; it was left untouched")
