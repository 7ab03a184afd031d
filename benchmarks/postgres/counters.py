"""Other ways to number the events of a run: a sequence of the database for each run, or a counter in Redis.

Both draw a number first and insert under it second, so that no two appends ever wait for each other. They keep the
same columns and, as indexes, the same two promises: a seq and a key are each unique in their run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Protocol

import redis
from psycopg import errors, sql

from benchmarks.postgres.contenders import Prepare, arrays
from benchmarks.postgres.server import Place, RedisServer, Session, Sessions
from benchmarks.workload import append_new, persisted_at, row
from runstate.logs.log import AppendResult, EventLog
from runstate.logs.registry import open_log
from runstate.models.model import Draft

Draw = Callable[[Session, str, int], Sequence[int]]
"""The next numbers of a run."""

_table = """
CREATE TABLE IF NOT EXISTS events (
    position bigint GENERATED ALWAYS AS IDENTITY UNIQUE, stream text COLLATE "C" NOT NULL, seq bigint NOT NULL,
    event_id text NOT NULL, type text NOT NULL, key text COLLATE "C" NOT NULL, tenant text NOT NULL,
    emitted_at text NOT NULL, persisted_at text NOT NULL, crc bigint NOT NULL, body bytea NOT NULL,
    PRIMARY KEY (stream, seq), UNIQUE (stream, key)
)
"""
_insert = """
INSERT INTO events (stream, seq, event_id, type, key, tenant, emitted_at, persisted_at, crc, body)
SELECT %s, fresh.* FROM unnest(
    %b::bigint[], %b::text[], %b::text[], %b::text[], %b::text[], %b::text[], %b::text[], %b::bigint[], %b::bytea[]
) AS fresh
ON CONFLICT (stream, key) DO NOTHING RETURNING key
"""
_first = "SELECT event_id, seq, persisted_at FROM events WHERE stream = %s AND key = %s"


class Strategy(Protocol):
    """What is asked of each way to number events, the log's own included."""

    def append(self, stream: str, drafts: Sequence[Draft]) -> list[AppendResult]: ...

    def seqs_after(self, stream: str, seq: int) -> list[int]:
        """What a reader that follows one run by its seqs gets next."""
        ...


class HeadRow:
    """The log itself, by its port."""

    def __init__(self, log: EventLog) -> None:
        self.append = log.append
        self._log = log

    def seqs_after(self, stream: str, seq: int) -> list[int]:
        return [record.seq for record in self._log.read(stream, after_seq=seq)]


class Counter:
    """Appends under numbers that come from elsewhere."""

    def __init__(self, sessions: Sessions, draw: Draw) -> None:
        self._sessions, self._draw = sessions, draw
        sessions.mine().execute(_table)

    def append(self, stream: str, drafts: Sequence[Draft]) -> list[AppendResult]:
        session = self._sessions.mine()
        seqs = self._draw(session, stream, len(drafts))
        rows = [row(0, seq, draft) for seq, draft in zip(seqs, drafts, strict=True)]
        values = [stream, *arrays(rows)[1:]]
        written = {key for (key,) in session.execute(_insert, values)}
        return [
            AppendResult(draft.event_id, seq, persisted_at)
            if draft.key in written
            else AppendResult(*self._known(session, stream, draft.key), True, False)
            for seq, draft in zip(seqs, drafts, strict=True)
        ]

    def _known(self, session: Session, stream: str, key: str) -> tuple[str, int, str]:
        event_id, seq, at = session.execute(_first, (stream, key)).fetchone() or ("", 0, "")
        return event_id, seq, at

    def seqs_after(self, stream: str, seq: int) -> list[int]:
        query = "SELECT seq FROM events WHERE stream = %s AND seq > %s ORDER BY seq"
        return [found for (found,) in self._sessions.mine().execute(query, (stream, seq))]


class _Sequences:
    """A sequence for each run, made with its first event. That a run has one is remembered, and asked for once."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def draw(self, session: Session, stream: str, count: int) -> Sequence[int]:
        name = f"seq_{stream}"
        if stream not in self._known:
            with suppress(errors.UniqueViolation):  # Another writer has made it at the same moment.
                session.execute(sql.SQL("CREATE SEQUENCE IF NOT EXISTS {}").format(sql.Identifier(name)))
            self._known.add(stream)
        drawn = session.execute("SELECT nextval(%s::regclass) FROM generate_series(1, %s)", (f'"{name}"', count))
        return [seq for (seq,) in drawn]


@contextmanager
def head_rows(place: Place) -> Iterator[Strategy]:
    with open_log(place.log_url) as log:
        yield HeadRow(log)


@contextmanager
def sequences(place: Place) -> Iterator[Strategy]:
    with closing(Sessions(place)) as sessions:
        yield Counter(sessions, _Sequences().draw)


@contextmanager
def redis_counters(place: Place, server: RedisServer) -> Iterator[Strategy]:
    with closing(Sessions(place)) as sessions, redis.Redis(unix_socket_path=server.socket) as client:

        def draw(_: Session, stream: str, count: int) -> Sequence[int]:
            last = int(client.incrby(f"{place.schema}:{stream}", count))
            return range(last - count + 1, last + 1)

        yield Counter(sessions, draw)


@contextmanager
def sequence_appends(place: Place) -> Iterator[Prepare]:
    with sequences(place) as strategy:
        yield lambda batch: partial(append_new, strategy.append, batch.stream, batch.drafts)


@contextmanager
def redis_appends(place: Place, server: RedisServer) -> Iterator[Prepare]:
    with redis_counters(place, server) as strategy:
        yield lambda batch: partial(append_new, strategy.append, batch.stream, batch.drafts)
