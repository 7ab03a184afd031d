"""The blobs of a Postgres log: put with the time of the server, and collected in one transaction."""

from __future__ import annotations

from time import time

import msgspec
from psycopg.types.numeric import Float8

from runstate.errors import LogFailed
from runstate.logs.blob_collection import Collected, Marked, refresh_s
from runstate.logs.blob_refs import mentioned_refs
from runstate.logs.log import BlobRef
from runstate.logs.postgres.arrays import Texts
from runstate.logs.postgres.transactions import Connection, changes, write_for_standby
from runstate.logs.row_repair import aside_tables

# What was put again counts as new, so that it stays until its event is stored.
_put = f"""
INSERT INTO $schema.blobs AS b (digest, data) VALUES (%s, %s)
ON CONFLICT (digest) DO UPDATE SET put_at = now() WHERE b.put_at < now() - interval '{refresh_s:.0f} s'
RETURNING xmax = 0
"""
_is_changed = "SELECT 1 FROM $schema.blobs WHERE digest = %s AND sha256(data) <> decode(digest, 'hex')"
_replace = "UPDATE $schema.blobs SET data = %s WHERE digest = %s"
_sees_part = """
SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND relname IN ('streams', 'events') AND row_security_active(c.oid)
"""
_has_set_aside = "SELECT 1 WHERE to_regclass(quote_ident(%s) || '.' || %s) IS NOT NULL"
_listed = """
SELECT digest, octet_length(data), put_at < now() - make_interval(secs => %s) FROM $schema.blobs ORDER BY digest
"""
# The time is looked at again: this statement sees what was put while it waited for the row.
_remove = """
DELETE FROM $schema.blobs WHERE digest = ANY(%s) AND put_at < now() - make_interval(secs => %s)
RETURNING digest, octet_length(data)
"""


def put_row(connection: Connection, name: str, data: bytes) -> None:
    """Put a blob. Bytes of one that is there, and was changed, are replaced: only the owner of the tables may do so."""
    with changes(connection):
        is_new = connection.execute(_put, (name, data)).fetchone() == (True,)
        if not is_new and connection.execute(_is_changed, (name,)).fetchone():
            connection.execute(_replace, (data, name))
        connection.execute(write_for_standby)


def check_sees_all(connection: Connection) -> None:
    """
    Raises:
        LogFailed: policies hide streams from this role, and with them what refers to blobs.
    """
    if connection.execute(_sees_part, (connection.schema,)).fetchone():
        raise LogFailed(
            "Row policies apply to this role, and may hide streams that refer to blobs; no blob was removed. "
            "Collect as the owner of the tables"
        )


def mark_set_aside(connection: Connection, marked: Marked) -> None:
    """Mark what the events that repairs have set aside refer to."""
    for table in aside_tables:
        if connection.execute(_has_set_aside, (connection.schema, table)).fetchone():
            for (body,) in connection.execute(f"SELECT body FROM $schema.{table}", binary=True):
                marked.refs.update(mentioned_refs(body))


def collect(connection: Connection, marked: Marked, *, dry_run: bool) -> Collected:
    """What would be removed."""
    rows = connection.execute(_listed, (_age(marked),)).fetchall()
    found = ((BlobRef(f"sha256:{name}"), size, is_old) for name, size, is_old in rows)
    return marked.sort(found, dry_run=dry_run)


def remove(connection: Connection, marked: Marked) -> Collected:
    """Remove what `collect` says, but for what was put again meanwhile."""
    collected = collect(connection, marked, dry_run=False)
    names = Texts([ref.removeprefix("sha256:") for ref in collected.removed])
    with changes(connection):
        rows = connection.execute(_remove, (names, _age(marked))).fetchall()
    return msgspec.structs.replace(
        collected,
        removed=sorted(BlobRef(f"sha256:{name}") for name, _ in rows),
        removed_bytes=sum(size for _, size in rows),
        recent=collected.recent + len(collected.removed) - len(rows),
    )


def _age(marked: Marked) -> Float8:
    """How long ago a blob must have been put, in seconds: the server compares that with its own clock."""
    return Float8(time() - marked.put_before)
