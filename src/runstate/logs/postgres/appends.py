"""How an append becomes rows, in two round trips: lock the head and look, then write and commit.

The head row's lock is the append authority: whoever holds it gives out the next `seq`, and knows every key of the
stream. Waiting for it takes no transaction id, so the order of ids within a stream is the order of its seqs, which the
feed relies on; the statement that writes checks it once more, and writes nothing if it were not so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from psycopg.types.numeric import Int8

from runstate.errors import LogFailed
from runstate.logs.log import AppendResult, check_expected
from runstate.logs.postgres.connections import Connection
from runstate.models.model import Draft

# Each statement must see what was committed while the one before it waited, whatever the server's default is.
_begin = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
# Not FOR UPDATE: that would also wait for those who only need the stream to exist, as a snapshot does.
_lock_head = "SELECT id, last_seq FROM streams WHERE stream = %s FOR NO KEY UPDATE"
_known = """
SELECT e.key, e.event_id, e.seq, e.persisted_at, e.body FROM events e
WHERE e.stream_id = (SELECT id FROM streams WHERE stream = %s) AND e.key = ANY(%s::text[])
"""
_last_body = (
    "SELECT e.body FROM events e JOIN streams s ON e.stream_id = s.id AND e.seq = s.last_seq WHERE s.stream = %s"
)
# The server's clock, read while the head is locked: one clock for all producers, whatever theirs say.
_clock = """SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"""
_move_head = """
UPDATE streams SET last_seq = last_seq + %(count)s, events = events + %(count)s,
    last_persisted_at = %(persisted_at)s, transaction = pg_current_xact_id()
WHERE id = %(id)s AND last_seq = %(seq)s AND transaction < pg_current_xact_id() RETURNING id
"""
_new_head = """
INSERT INTO streams (stream, tenant, last_seq, events, first_persisted_at, last_persisted_at)
VALUES (%(stream)s, %(tenant)s, %(count)s, %(count)s, %(persisted_at)s, %(persisted_at)s)
ON CONFLICT (stream) DO NOTHING RETURNING id
"""
_write = """
WITH head AS ({head})
INSERT INTO events (stream_id, seq, event_id, type, key, tenant, emitted_at, persisted_at, crc, body)
SELECT head.id, fresh.seq, event_id, type, key, tenant, emitted_at, %(persisted_at)s, crc, body
FROM head, unnest(
    %(seqs)s::bigint[], %(event_ids)s::text[], %(types)s::text[], %(keys)s::text[], %(tenants)s::text[],
    %(emitted)s::text[], %(crcs)s::bigint[], %(bodies)b::bytea[]
) AS fresh (seq, event_id, type, key, tenant, emitted_at, crc, body)
ORDER BY fresh.seq
"""
_write_on = _write.format(head=_move_head)
_write_first = _write.format(head=_new_head)


class First(NamedTuple):
    """The event that a key stands for."""

    event_id: str
    seq: int
    persisted_at: str
    body: bytes


class Head(NamedTuple):
    """A stream as it stands while its head is locked; `stream_id` is None where there is none to lock."""

    stream: str
    stream_id: int | None
    last_seq: int
    firsts: dict[str, First]
    """Of the keys that were asked for, those that are known."""
    last_body: bytes | None
    persisted_at: str


class Plan(NamedTuple):
    """What an append will write, and what each of its drafts will be told."""

    head: Head
    new: list[Draft]
    bodies: list[bytes]
    results: list[AppendResult]


def checksum(
    seq: int, event_id: str, kind: str, key: str, tenant: str, emitted_at: str, persisted_at: str, body: bytes
) -> int:
    """CRC-32 over a row, so that a flipped bit or a column edited by hand is found."""
    envelope = f"{event_id}\0{kind}\0{key}\0{tenant}\0{emitted_at}\0{persisted_at}".encode()
    return crc32(envelope, crc32(body, seq & 0xFFFFFFFF))


def lock_head(connection: Connection, stream: str, drafts: Sequence[Draft]) -> Head:
    """Begin a transaction, and wait for the stream's head, if there is one. One round trip."""
    last = None
    with connection.pipeline():
        connection.execute(_begin)
        head = connection.execute(_lock_head, (stream,))
        known = connection.execute(_known, (stream, [draft.key for draft in drafts]), binary=True)
        if any(draft.chained for draft in drafts):
            last = connection.execute(_last_body, (stream,), binary=True)
        clock = connection.execute(_clock)
    stream_id, last_seq = head.fetchone() or (None, 0)
    # A stream that was made after the head was looked for is not ours to write to: its maker may still be at work.
    firsts = {} if stream_id is None else {key: First(*row) for key, *row in known}
    last_row = last.fetchone() if last is not None else None
    (persisted_at,) = clock.fetchone() or ("",)
    return Head(stream, stream_id, last_seq, firsts, last_row[0] if last_row else None, persisted_at)


def plan(head: Head, drafts: Sequence[Draft], expected_seq: int | None) -> Plan:
    """What is new among the drafts, where it goes, and what every caller is told.

    Raises:
        SequenceConflict: there is something new, and the stream is not at `expected_seq`.
        LogFailed: a draft cannot be rendered.
    """
    firsts = dict(head.firsts)
    made = Plan(head, [], [], [])
    seq, previous = head.last_seq, head.last_body
    for draft in drafts:
        first = firsts.get(draft.key)
        if first is not None:
            same = draft.same_content(first.body)
            made.results.append(AppendResult(first.event_id, first.seq, first.persisted_at, True, False, not same))
            continue
        if not made.new:
            check_expected(head.stream, seq, expected_seq)
        seq += 1
        try:
            body = previous = draft.render(seq, head.persisted_at, previous)
        except (TypeError, ValueError) as error:
            raise LogFailed(f"It cannot be written: {error!r}") from error
        firsts[draft.key] = First(draft.event_id, seq, head.persisted_at, body)
        made.new.append(draft)
        made.bodies.append(body)
        made.results.append(AppendResult(draft.event_id, seq, head.persisted_at))
    return made


def commit(connection: Connection, made: Plan) -> bool:
    """Move the head, write all rows and commit, in one round trip.

    False: another append has made the stream meanwhile, or has a later transaction; nothing was written, begin again.
    """
    head, new = made.head, made.new
    values = {
        "id": head.stream_id,
        "seq": Int8(head.last_seq),
        "stream": head.stream,
        "tenant": new[0].tenant,
        "count": Int8(len(new)),
        "persisted_at": head.persisted_at,
        "seqs": [Int8(head.last_seq + 1 + number) for number in range(len(new))],
        "event_ids": [draft.event_id for draft in new],
        "types": [draft.type for draft in new],
        "keys": [draft.key for draft in new],
        "tenants": [draft.tenant for draft in new],
        "emitted": [draft.emitted_at for draft in new],
        "crcs": [Int8(_crc(made, number)) for number in range(len(new))],
        "bodies": made.bodies,
    }
    with connection.pipeline():
        written = connection.execute(_write_first if head.stream_id is None else _write_on, values)
        # Sent along without waiting: if the statement before it fails, the server skips this one.
        connection.execute("COMMIT")
    return written.rowcount == len(new)


def _crc(made: Plan, number: int) -> int:
    d = made.new[number]
    seq, persisted_at = made.head.last_seq + 1 + number, made.head.persisted_at
    return checksum(seq, d.event_id, d.type, d.key, d.tenant, d.emitted_at, persisted_at, made.bodies[number])
