"""Snapshots in a Postgres log: the newest of each stream and model."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.types.numeric import Int8

from runstate.logs.log import StoredSnapshot
from runstate.logs.postgres.transactions import Connection, begin, set_local

select_snapshot = """
SELECT model, version, seq, digest, body FROM $schema.snapshots
WHERE stream_id = (SELECT id FROM $schema.streams WHERE stream = %s) AND model = %s
"""
# The share lock keeps the stream from being deleted in between, which would leave the snapshot to nobody.
_save = """
INSERT INTO $schema.snapshots AS kept (stream_id, model, version, seq, digest, body)
SELECT id, %s, %s, %s, %s, %s FROM $schema.streams
WHERE stream = %s AND %s IN ('', first_persisted_at) FOR KEY SHARE
ON CONFLICT (stream_id, model) DO UPDATE
SET version = excluded.version, seq = excluded.seq, digest = excluded.digest, body = excluded.body
WHERE excluded.version <> kept.version OR excluded.seq >= kept.seq
    OR kept.seq > (SELECT last_seq FROM $schema.streams WHERE id = excluded.stream_id)
"""


def save_rows(connection: Connection, snapshots: Sequence[tuple[str, StoredSnapshot]]) -> list[int]:
    """Save snapshots of streams in one transaction; how many rows each has changed."""
    with connection.pipeline():
        connection.execute(begin)
        connection.execute(set_local)
        # Not synced: a snapshot that a power cut takes away is rebuilt from the log.
        connection.execute("SET LOCAL synchronous_commit = off")
        saved = [
            connection.execute(
                _save,
                (new.model, Int8(new.version), Int8(new.seq), new.digest, new.body, stream, new.first_persisted_at),
            )
            for stream, new in snapshots
        ]
        connection.execute("COMMIT")
    return [each.rowcount for each in saved]
