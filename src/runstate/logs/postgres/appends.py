"""How appends become rows, in two round trips: lock the heads and look, then write all and commit.

An append comes here if it could not be written in one round trip (see `guesses`).

A head row's lock is the append authority: whoever holds it gives out the next `seq`, and knows every key of the
stream. The feed relies on the ids of a stream's transactions having the order of its seqs. A transaction gets its id
with the first head that it locks, and could find a later id in the next one: the statement that writes leaves such a
head as it is. Nothing of a stream is written unless its head is moved or made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from psycopg import Cursor
from psycopg.errors import RestrictViolation
from psycopg.rows import TupleRow

from runstate.errors import RunstateError
from runstate.logs.log import AppendResult, Record, StoredSnapshot
from runstate.logs.planning import StreamPlan
from runstate.logs.postgres.arrays import Blobs, Numbers, Texts
from runstate.logs.postgres.deletion import put_back_tombstone
from runstate.logs.postgres.transactions import Connection, begin, local_settings, server_time, set_local
from runstate.logs.snapshotting import MakeSnapshot, StreamEnd
from runstate.logs.stored_rows import checksums, read_records, record_columns
from runstate.logs.tombstones import Tombstone
from runstate.models.canonical import digest
from runstate.models.model import Draft

# Not FOR UPDATE: that would also wait for those who only need the stream to exist, as a snapshot does.
lock_heads = """
SELECT s.stream, s.id, s.last_seq, s.tenant, s.model, s.transaction::text,
    t.stream, t.last_seq, t.digest, t.archive, t.deleted_at
FROM $schema.streams s LEFT JOIN $schema.tombstones t ON t.stream = s.stream
WHERE s.stream = ANY(%s) FOR NO KEY UPDATE OF s
"""
# Those that wait for a head queue up here first. Where several wait for one row, Postgres may give a transaction its id
# before it gives it the lock. Then the head may have a later one by the time it is locked, and all would begin again.
_queue_up = "SELECT pg_advisory_xact_lock(1381322323, hashtext('$schema.' || %s))"
# Whoever holds many heads and waited for one more could wait for ever, and would hold up all of them.
lock_free_heads = f"{lock_heads} SKIP LOCKED"
# At least a row for each stream that is there. With the server's clock, read while the heads are locked: one clock for
# all producers, whatever theirs say. All keys come in one array, with each stream's part of it; OFFSET keeps the
# planner from going through all events of a stream instead. The settings come along, as a statement of their own costs.
_known = f"""
SELECT clock.now, clock.has_standby, known.* FROM (
    SELECT {server_time}, {local_settings}
) AS clock (now, lock_timeout, synchronous_commit, has_standby) LEFT JOIN (
    SELECT asked.stream, e.* FROM unnest(%s, %s, %s) AS asked (stream, first, last)
    JOIN $schema.streams s ON s.stream = asked.stream LEFT JOIN LATERAL (
        SELECT {record_columns} FROM $schema.events e
        WHERE stream_id = s.id AND key = ANY((%s)[asked.first:asked.last]) OFFSET 0
    ) AS e ON true
) AS known ON true
"""
_ends = """
SELECT s.stream, e.body, s.first_persisted_at
FROM $schema.streams s JOIN $schema.events e ON e.stream_id = s.id AND e.seq = s.last_seq
WHERE s.stream = ANY(%s)
"""
insert_events = """
INSERT INTO $schema.events (stream_id, seq, event_id, type, key, tenant, emitted_at, persisted_at, crc, body)
SELECT head.id, fresh.seq, event_id, type, key, tenant, emitted_at, persisted_at, crc, body
FROM head JOIN unnest(
    %(of)s, %(seqs)s, %(event_ids)s, %(types)s, %(keys)s, %(tenants)s,
    %(emitted)s, %(persisted)s, %(crcs)s, %(bodies)s
) AS fresh (head, seq, event_id, type, key, tenant, emitted_at, persisted_at, crc, body) ON fresh.head = head.{head}
ORDER BY fresh.head, fresh.seq
"""
# In the transaction of the newest event no other snapshot can be newer.
keep_snapshots = """, kept AS (
    INSERT INTO $schema.snapshots (stream_id, model, version, seq, digest, body)
    SELECT head.id, snapshot.model, snapshot.version, snapshot.seq, snapshot.digest, snapshot.body
    FROM head JOIN unnest(
        %(kept_of)s, %(kept_models)s, %(kept_versions)s, %(kept_seqs)s, %(kept_digests)s, %(kept_bodies)s
    ) AS snapshot (stream, model, version, seq, digest, body) ON snapshot.stream = head.stream
    ON CONFLICT (stream_id, model) DO UPDATE
    SET version = excluded.version, seq = excluded.seq, digest = excluded.digest, body = excluded.body
)"""
_move_heads = f"""
WITH head AS (
    UPDATE $schema.streams SET last_seq = moved.last_seq, events = streams.events + moved.events,
        last_persisted_at = moved.persisted_at, transaction = pg_current_xact_id()
    FROM unnest(%(ids)s, %(befores)s, %(lasts)s, %(counts)s, %(ends)s)
        AS moved (id, before, last_seq, events, persisted_at)
    WHERE streams.id = moved.id AND streams.last_seq = moved.before AND transaction < pg_current_xact_id()
    RETURNING streams.id, stream
), written AS ({insert_events.format(head="id")}) $kept
SELECT stream, id, pg_current_xact_id()::text FROM head
"""


def make_heads(*, condition: str = "true", columns: str = "NULL") -> str:
    """A statement that makes heads and inserts their events, for streams that meet the condition."""
    # By name, so that two who make the same streams at once wait for each other in one order.
    return f"""
WITH head AS (
    INSERT INTO $schema.streams (stream, tenant, last_seq, events, first_persisted_at, last_persisted_at, model)
    SELECT * FROM unnest(
        %(streams)s, %(firsts)s, %(lasts)s, %(counts)s, %(starts)s,
        %(ends)s, %(models)s
    ) AS made (stream, tenant, last_seq, events, began_at, ended_at, model)
    WHERE NOT EXISTS (SELECT 1 FROM $schema.tombstones t WHERE t.stream = made.stream) AND {condition}
    ORDER BY made.stream
    ON CONFLICT (stream) DO NOTHING RETURNING id, stream
), written AS ({insert_events.format(head="stream")}) $kept
SELECT stream, id, pg_current_xact_id()::text, {columns} FROM head
"""


_make_heads = make_heads()

Answer = list[AppendResult] | RunstateError
Written = dict[str, tuple[int, str]]
"""The number of each stream that was written, and the transaction that did it."""


class Append:
    """What a caller wants to be written, and in the end what it is told."""

    __slots__ = ("drafts", "error", "expected_seq", "make", "results", "stream")

    def __init__(
        self, stream: str, drafts: Sequence[Draft], expected_seq: int | None, make: MakeSnapshot | None = None
    ) -> None:
        self.stream, self.drafts, self.expected_seq, self.make = stream, drafts, expected_seq, make
        self.results: list[AppendResult] | None = None
        self.error: RunstateError | None = None

    @property
    def is_open(self) -> bool:
        """Whether nothing of it was decided, or written, yet."""
        return self.results is None and self.error is None

    def settle(self, answer: Answer) -> None:
        if isinstance(answer, RunstateError):
            self.error = answer
        else:
            self.results = answer


class Head(StreamPlan):
    """A stream while its head is locked, or as it is guessed to be, and what is to be written to it.

    `id` is None where there is no head; `transaction` is the last one that changed it.
    """

    __slots__ = ("before_seq", "end", "id", "make", "rows", "transaction")

    def __init__(
        self,
        stream: str,
        stream_id: int | None = None,
        last_seq: int = 0,
        tenant: str = "",
        model: str = "",
        transaction: str = "",
        tombstone: Tombstone | None = None,
    ) -> None:
        self.rows: dict[str, list[Any]] = {}
        """Of the keys that were asked for, those that are known."""
        super().__init__(stream, last_seq, tenant, model, find=self._find, tombstone=tombstone)
        self.id, self.before_seq, self.transaction = stream_id, last_seq, transaction
        self.make: MakeSnapshot | None = None
        self.end = StreamEnd() if stream_id is None else None
        """Where the stream ended before; None where that is not known, and no snapshot can be made."""

    def add_append(self, append: Append, persisted_at: str) -> list[AppendResult]:
        """`add`, for one append of a group. The last one that keeps snapshots makes one for all of them."""
        results = self.add(append.drafts, append.expected_seq, persisted_at)
        self.make = append.make or self.make
        return results

    def make_snapshot(self) -> StoredSnapshot | None:
        """The snapshot to be saved with what is new."""
        if self.make is None or self.end is None or not self.new:
            return None
        return self.make(self.end, list(self.new.values()))

    def _find(self, key: str) -> Record | None:
        """
        Raises:
            LogDamaged: the event of that key is not what was appended.
        """
        return read_records(self.stream, [self.rows[key]])[0] if key in self.rows else None


def read_head(row: TupleRow) -> Head:
    """A head out of a row of `lock_heads`."""
    stream, stream_id, last_seq, tenant, model, transaction, *deleted = row
    tombstone = Tombstone(*deleted) if deleted[0] else None
    return Head(stream, stream_id, last_seq, tenant, model, transaction, tombstone)


class Plan(NamedTuple):
    """What a locking look at the heads has found out."""

    heads: list[Head]
    answers: dict[Append, Answer]
    """What each caller is to be told; an append to a head that somebody else holds is not among them."""
    persisted_at: str
    has_standby: bool
    """Whether commits wait for a standby."""


def plan(connection: Connection, appends: Sequence[Append], *, wait: bool) -> Plan:
    """Begin a transaction, lock the heads and decide what is to be written, and what each caller is told of it.

    One round trip. With `wait`, for the head of the one stream; else a head that somebody else holds is left out.
    """
    asked: dict[str, list[str]] = {}
    for append in appends:
        asked.setdefault(append.stream, []).extend(draft.key for draft in append.drafts)
    names = Texts(list(asked))
    lasts = list(accumulate(map(len, asked.values())))
    firsts = [1, *(last + 1 for last in lasts[:-1])]
    keys = Texts([key for some in asked.values() for key in some])
    last = None
    with connection.pipeline():
        connection.execute(begin)
        if wait:
            connection.execute(set_local)
            connection.execute(_queue_up, (appends[0].stream,))
        locked = connection.execute(lock_heads if wait else lock_free_heads, (names,))
        known = connection.execute(_known, (names, Numbers(firsts), Numbers(lasts), keys), binary=True)
        if any(append.make or any(draft.chained for draft in append.drafts) for append in appends):
            last = connection.execute(_ends, (names,), binary=True)
    heads = {head.stream: head for head in map(read_head, locked)}
    # One that was made after the heads were looked for is not ours to write to: its maker may still be at work.
    busy = set()
    rows = known.fetchall()
    persisted_at: str = rows[0][0]
    has_standby: bool = rows[0][1]
    for _, _, stream, *row in rows:
        if stream is not None and stream not in heads:
            busy.add(stream)
        elif row[0] is not None:
            heads[stream].rows[row[3]] = row
    for stream, body, first_persisted_at in last or ():
        if stream in heads:
            heads[stream].previous = body
            heads[stream].end = StreamEnd(first_persisted_at, heads[stream].last_seq, digest(body))
    answers: dict[Append, Answer] = {}
    for append in appends:
        if append.stream in busy:
            continue
        head = heads.setdefault(append.stream, Head(append.stream))
        try:
            answers[append] = head.add_append(append, persisted_at)
        except RunstateError as error:
            answers[append] = error
    return Plan(list(heads.values()), answers, persisted_at, has_standby)


def commit(connection: Connection, heads: Iterable[Head], tombstone: Tombstone | None = None) -> Written | None:
    """Move or make the heads, write their records and commit, in one round trip. The streams that were written.

    Without records, it only commits. That waits for the standbys if there are any: the lock of a head is a write.

    `tombstone` was dropped, so that the head could be made. It is put back unless the stream is whole now.

    One that is not among them was made by another writer meanwhile, or has a later transaction: begin again with it. Or
    it has a tombstone. If that was committed while the new head waited for it, all is rolled back: None.

    Raises:
        NotReplicated: it is committed, but maybe not on the standby.
    """
    try:
        with connection.pipeline():
            written = [connection.execute(*each) for each in statements(heads, _move_heads, _make_heads)]
            if tombstone is not None:
                put_back_tombstone(connection, tombstone)
            # Sent along without waiting: if a statement before it fails, the server skips this one.
            connection.execute("COMMIT")
    except RestrictViolation:  # By the trigger that refuses new heads of deleted streams.
        connection.rollback()
        return None
    connection.check_replicated()
    return read_written(written)


def read_written(cursors: Iterable[Cursor[TupleRow]]) -> Written:
    return {stream: (stream_id, transaction) for cursor in cursors for stream, stream_id, transaction, *_ in cursor}


def statements(heads: Iterable[Head], move: str, make: str) -> list[tuple[str, dict[str, object]]]:
    """The statements that write what is new, with their values: to heads that are there, and with new heads."""
    moved = [head for head in heads if head.id is not None and head.new]
    made = [head for head in heads if head.id is None and head.new]
    asked: list[tuple[str, dict[str, object]]] = []
    if moved:
        values = _values(moved) | {"of": Numbers([head.id or 0 for head in moved for _ in head.new])}
        asked.append(_add_snapshots(move, moved, values))
    if made:
        values = _values(made) | {"of": Texts([head.stream for head in made for _ in head.new])}
        asked.append(_add_snapshots(make, made, values))
    return asked


def without_snapshots(statement: str) -> str:
    return statement.replace("$kept", "")


def with_snapshots(statement: str) -> str:
    return statement.replace("$kept", keep_snapshots)


def _add_snapshots(statement: str, heads: Sequence[Head], values: dict[str, object]) -> tuple[str, dict[str, object]]:
    """The statement, and what it saves along with the events."""
    made = [(head.stream, snapshot) for head in heads if (snapshot := head.make_snapshot()) is not None]
    if not made:
        return without_snapshots(statement), values
    return with_snapshots(statement), values | {
        "kept_of": Texts([stream for stream, _ in made]),
        "kept_models": Texts([snapshot.model for _, snapshot in made]),
        "kept_versions": Numbers([snapshot.version for _, snapshot in made]),
        "kept_seqs": Numbers([snapshot.seq for _, snapshot in made]),
        "kept_digests": Texts([snapshot.digest for _, snapshot in made]),
        "kept_bodies": Blobs([snapshot.body for _, snapshot in made]),
    }


def _values(heads: Sequence[Head]) -> dict[str, object]:
    records = [record for head in heads for record in head.new.values()]
    firsts = [next(iter(head.new.values())) for head in heads]
    return {
        "ids": Numbers([head.id or 0 for head in heads]),
        "streams": Texts([head.stream for head in heads]),
        "firsts": Texts([first.tenant for first in firsts]),
        "befores": Numbers([head.before_seq for head in heads]),
        "transactions": Texts([head.transaction for head in heads]),
        "lasts": Numbers([head.last_seq for head in heads]),
        "counts": Numbers([len(head.new) for head in heads]),
        "starts": Texts([first.persisted_at for first in firsts]),
        "ends": Texts([next(reversed(head.new.values())).persisted_at for head in heads]),
        "models": Texts([head.model for head in heads]),
        "seqs": Numbers([r.seq for r in records]),
        "event_ids": Texts([r.event_id for r in records]),
        "types": Texts([r.type for r in records]),
        "keys": Texts([r.key for r in records]),
        "tenants": Texts([r.tenant for r in records]),
        "emitted": Texts([r.emitted_at for r in records]),
        "persisted": Texts([r.persisted_at for r in records]),
        "crcs": Numbers([crc for head in heads for crc in checksums(head.stream, head.new.values())]),
        "bodies": Blobs([r.body for r in records]),
    }
