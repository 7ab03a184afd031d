"""How appends become rows in one round trip: where the streams stand, and what time it is, are guessed.

A process remembers the head of each stream that it has seen. It renders the events for that head, and sends one
statement, which moves the head and inserts the events only if the head is still the one that was guessed, is not
locked, and if the time is right. Otherwise it writes nothing of that stream, and its appends begin again with the lock
of the head (see `appends`). So do all of them if a key is known. A wrong guess costs a round trip, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import NamedTuple

from runstate.errors import RunstateError
from runstate.logs.log import now
from runstate.logs.postgres.appends import (
    Answer,
    Append,
    Head,
    Written,
    insert_events,
    make_heads,
    read_written,
    statements,
)
from runstate.logs.postgres.transactions import Connection, changes, server_time, sync_commit
from runstate.logs.snapshotting import StreamEnd
from runstate.models.canonical import digest

guesses_max = 10_000
line_bytes_max = 2048
"""A longer last line is not remembered: an append that is chained to it looks it up."""

# The time is the server's, as for every other append: not later, and not much earlier.
_is_time_right = "clock_timestamp() - {time}::timestamptz BETWEEN interval '0' AND interval '1 s'"
# With the id of the last transaction, the head is the very one that was seen, even if the stream was repaired since.
# Heads that somebody else holds are skipped: they are about to change, and a group must not wait for any. Keys are not
# looked up, since nearly all of them are new: the unique index refuses the whole statement otherwise.
_move_guessed = f"""
WITH guessed AS (
    SELECT s.id, given.last_seq, given.events, given.persisted_at
    FROM unnest(%(ids)s, %(befores)s, %(transactions)s, %(lasts)s, %(counts)s, %(ends)s)
        AS given (id, before, transaction, last_seq, events, persisted_at) JOIN $schema.streams s ON s.id = given.id
    WHERE s.last_seq = given.before AND s.transaction = given.transaction::xid8
        AND s.transaction < pg_current_xact_id() AND s.last_persisted_at <= given.persisted_at
        AND {_is_time_right.format(time="given.persisted_at")}
        AND NOT EXISTS (SELECT 1 FROM $schema.tombstones t WHERE t.stream = s.stream)
    FOR NO KEY UPDATE OF s SKIP LOCKED
), head AS (
    UPDATE $schema.streams s SET last_seq = guessed.last_seq, events = s.events + guessed.events,
        last_persisted_at = guessed.persisted_at, transaction = pg_current_xact_id()
    FROM guessed WHERE s.id = guessed.id RETURNING s.id, s.stream
), written AS ({insert_events.format(head="id")}) $kept
SELECT stream, id, pg_current_xact_id()::text, {sync_commit} FROM head
"""
_make_guessed = make_heads(
    condition=f"""{_is_time_right.format(time="made.ended_at")}
        AND NOT EXISTS (SELECT 1 FROM $schema.streams s WHERE s.stream = made.stream)""",
    columns=sync_commit,
)


class _Guess(NamedTuple):
    id: int
    last_seq: int
    tenant: str
    model: str
    transaction: str
    last_line: bytes | None
    end: StreamEnd | None


class Guesses:
    """Where the streams stand, and what the server's clock says, as far as this process knows."""

    def __init__(self) -> None:
        self._known: dict[str, _Guess | None] = {}
        """None: the stream is there, and was changed by somebody else."""
        self._are_unknown_new = True
        """Whether the last stream that was not known turned out to be a new one. The next one may be as well."""
        self._ahead_ms: int | None = None

    def plan(self, appends: Sequence[Append]) -> tuple[list[Head], dict[Append, Answer]]:
        """What to write if the guesses are right, and the answers to the appends then. Others are left out."""
        heads: dict[str, Head | None] = {}
        answers: dict[Append, Answer] = {}
        if self._ahead_ms is None:
            return [], {}
        persisted_at = now(self._ahead_ms)
        for append in appends:
            if append.stream not in heads:
                heads[append.stream] = self._guess(append)
            head = heads[append.stream]
            if head is None or (head.id and head.previous is None and any(d.chained for d in append.drafts)):
                continue
            try:
                answers[append] = head.add_append(append, persisted_at)
            except RunstateError:
                continue  # To be refused by what is there, not by a guess.
        return [head for head in heads.values() if head is not None and head.new], answers

    def _guess(self, append: Append) -> Head | None:
        guess = self._known.get(append.stream)
        if guess is None:
            is_new = append.stream not in self._known and self._are_unknown_new and not append.expected_seq
            return Head(append.stream) if is_new else None
        head = Head(append.stream, guess.id, guess.last_seq, guess.tenant, guess.model, guess.transaction)
        head.previous, head.end = guess.last_line, guess.end
        return head

    def learn(self, heads: Iterable[Head], written: Written) -> None:
        """Remember heads as a transaction has left them. One that it was to write, and did not, is unknown."""
        for head in heads:
            if head.id is None and not head.new:
                continue
            is_written = head.stream in written
            if head.stream not in self._known:
                self._are_unknown_new = head.id is None and is_written
            if len(self._known) >= guesses_max:
                self._known.clear()
            stream_id, transaction = written.get(head.stream, (head.id or 0, head.transaction))
            line = head.previous if head.previous and len(head.previous) <= line_bytes_max else None
            guess = _Guess(stream_id, head.last_seq, head.tenant, head.model, transaction, line, _find_end(head))
            self._known[head.stream] = guess if is_written or not head.new else None

    def ask_time(self, connection: Connection) -> None:
        for (persisted_at,) in connection.execute(f"SELECT {server_time}"):
            self.learn_time(persisted_at)

    def learn_time(self, persisted_at: str) -> None:
        """Compare our clock with the server's, which has just said this."""
        server_ms = round(datetime.fromisoformat(persisted_at).timestamp() * 1000)
        # Rounded so that what is guessed is never later than the server's clock.
        self._ahead_ms = server_ms + -time.time_ns() // 1_000_000


def _find_end(head: Head) -> StreamEnd | None:
    """Where a stream ends with what is new."""
    if not head.new or head.end is None:
        return head.end
    last = next(reversed(head.new.values()))
    began_at = head.end.first_persisted_at or next(iter(head.new.values())).persisted_at
    return StreamEnd(began_at, head.last_seq, digest(last.body))


def commit_guessed(connection: Connection, heads: Sequence[Head], *, is_pooled: bool) -> Written:
    """Write the records of those heads that are as they were guessed, and commit, in one round trip.

    Raises:
        psycopg.Error: nothing was written. One of the keys may be known.
        NotReplicated: it is committed, but maybe not on the standby.
    """
    asked = statements(heads, _move_guessed, _make_guessed)
    # One statement is a transaction by itself. Its isolation is the session's own, which another application may have
    # chosen behind a pooler.
    with changes(connection) if is_pooled or len(asked) > 1 else nullcontext():
        cursors = [connection.execute(*each) for each in asked]
    connection.check_replicated()
    return read_written(cursors)
