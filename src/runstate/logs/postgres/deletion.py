"""Deleting a whole stream, and the tombstone that is left of it: both in one transaction.

No head is made while there is a tombstone: a trigger refuses it, so that no writer can get past this. A head and a
tombstone at once are a stream that is being restored.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from runstate.errors import StreamNotFound
from runstate.logs.log import check_expected, check_same_stream
from runstate.logs.postgres.arrays import Texts
from runstate.logs.postgres.transactions import Connection
from runstate.logs.tombstones import Tombstone

select_tombstones = """
SELECT stream, last_seq, digest, archive, deleted_at FROM $schema.tombstones t WHERE stream = ANY(%s)
    AND NOT EXISTS (SELECT 1 FROM $schema.streams s WHERE s.stream = t.stream AND s.last_seq >= t.last_seq)
"""
drop_tombstone = "DELETE FROM $schema.tombstones WHERE stream = %s"
_put_tombstone = """
INSERT INTO $schema.tombstones (tenant, stream, last_seq, digest, archive, deleted_at) VALUES (%s, %s, %s, %s, %s, %s)
"""
_put_back = """
INSERT INTO $schema.tombstones (tenant, stream, last_seq, digest, archive, deleted_at)
SELECT s.tenant, s.stream, %(last_seq)s, %(digest)s, %(archive)s, %(deleted_at)s FROM $schema.streams s
WHERE s.stream = %(stream)s AND s.last_seq < %(last_seq)s ON CONFLICT (stream) DO NOTHING
"""
_lock_stream = "SELECT id, tenant, last_seq, first_persisted_at FROM $schema.streams WHERE stream = %s FOR UPDATE"


def find_tombstones(connection: Connection, streams: Iterable[str]) -> dict[str, Tombstone]:
    """The tombstones that count."""
    rows = connection.execute(select_tombstones, (Texts(list(streams)),))
    return {row[0]: Tombstone(*row) for row in rows}


def delete_rows(
    connection: Connection,
    stream: str,
    expected_seq: int | None,
    first_persisted_at: str,
    tombstone: Tombstone | None,
) -> None:
    """
    Raises:
        StreamNotFound: there is no such stream, and no tombstone to forget.
        SequenceConflict: the stream is not at `expected_seq`, or began at another time; nothing was deleted.
    """
    row = connection.execute(_lock_stream, (stream,)).fetchone()
    if row is None:
        if tombstone is not None or not find_tombstones(connection, [stream]):
            raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
        connection.execute(drop_tombstone, (stream,))
        return
    stream_id, tenant, last_seq, began_at = row
    check_expected(stream, last_seq, expected_seq)
    check_same_stream(stream, began_at, first_persisted_at)
    # The head first: the database lets events go only after it.
    for table, column in (("streams", "id"), ("snapshots", "stream_id"), ("events", "stream_id")):
        connection.execute(f"DELETE FROM $schema.{table} WHERE {column} = %s", (stream_id,))
    connection.execute(drop_tombstone, (stream,))
    if tombstone is not None:
        connection.execute(_put_tombstone, (tenant, *msgspec.structs.astuple(tombstone)))


def put_back_tombstone(connection: Connection, tombstone: Tombstone) -> None:
    """Keep a tombstone beside the head of a stream that is not wholly restored."""
    connection.execute(_put_back, msgspec.structs.asdict(tombstone))
