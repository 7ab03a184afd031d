"""The blobs of a Snowflake log. Putting one again adds its rows again, with a later time, and changes none.

So writers need no right to change or delete, but for replacing a blob whose bytes were changed; and a collection, which
removes rows by their time, never takes away what was put meanwhile. A blob without a time was put by an earlier
version: a collection takes it for a new one.
"""

from __future__ import annotations

from contextlib import suppress
from time import time

from runstate.logs.blob_collection import Collected, Marked, refresh_s
from runstate.logs.blob_refs import mentioned_refs
from runstate.logs.log import BlobRef
from runstate.logs.row_repair import aside_tables
from runstate.logs.snowflake.connections import NoSuchTable, Session
from runstate.models.canonical import digest

blob_part_bytes = 2 * 1024 * 1024
"""A blob is kept in parts, since a BINARY ends at 8 MB."""
_newest = "SELECT COUNT(*), MAX(put_ms) FROM blobs WHERE digest = ?"
_parts = "SELECT part, data FROM blobs WHERE digest = ? ORDER BY part"
_put = "INSERT INTO blobs (digest, part, data, put_ms) SELECT ?, ?, ?, ?"
_listed = """
SELECT digest, SUM(bytes), MAX(put_ms) FROM (
    SELECT digest, part, MAX(OCTET_LENGTH(data)) AS bytes, MAX(put_ms) AS put_ms FROM blobs GROUP BY digest, part
) GROUP BY digest ORDER BY digest
"""


def put(session: Session, name: str, data: bytes) -> None:
    parts = [data[at : at + blob_part_bytes] for at in range(0, max(1, len(data)), blob_part_bytes)]
    moment = _milliseconds(time())
    ((count, put_ms),) = session.rows(_newest, name)
    is_changed = count and digest(get(session, name) or b"") != name
    if count and not is_changed and put_ms is not None and moment - int(put_ms) < refresh_s * 1000:
        return
    # Without the gate: if two put the same at once, there are two equal rows of each part, and one is read.
    session.begin()
    if is_changed:
        session.change("DELETE FROM blobs WHERE digest = ?", name)
    for number, part in enumerate(parts):
        session.change(_put, name, number, bytes(part), moment)
    session.commit()


def get(session: Session, name: str) -> bytes | None:
    """The bytes of a blob, as they are there."""
    found = session.rows(_parts, name)
    return b"".join(dict(found).values()) if found else None


def mark_set_aside(session: Session, marked: Marked) -> None:
    """Mark what the events that repairs have set aside refer to."""
    for table in aside_tables:
        with suppress(NoSuchTable):  # It is made by the first repair.
            for (body,) in session.each(f"SELECT body FROM {table}"):
                marked.refs.update(mentioned_refs(body))


def collect(session: Session, marked: Marked, *, dry_run: bool) -> Collected:
    put_before = _milliseconds(marked.put_before)
    if not dry_run:
        session.change("UPDATE blobs SET put_ms = ? WHERE put_ms IS NULL", _milliseconds(time()))
    found = [(BlobRef(f"sha256:{name}"), int(size), put_ms) for name, size, put_ms in session.rows(_listed)]
    collected = marked.sort(
        ((ref, size, put_ms is not None and int(put_ms) < put_before) for ref, size, put_ms in found), dry_run=dry_run
    )
    if dry_run or not collected.removed:
        return collected
    session.begin()
    for ref in collected.removed:
        session.change("DELETE FROM blobs WHERE digest = ? AND put_ms < ?", ref.removeprefix("sha256:"), put_before)
    session.commit()
    return collected


def _milliseconds(moment: float) -> int:
    return int(moment * 1000)
