"""Who appends and reads the same events on the same server: the log, the package `eventsourcing`, and bare SQL.

Each contender is opened in a schema of its own, and turns a batch into the call that is timed. Whatever a caller would
have ready is made beforehand: drafts for the log, `StoredEvent`s for the package, rows for SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import NamedTuple
from uuid import NAMESPACE_URL, UUID, uuid5

from eventsourcing.persistence import AggregateRecorder, ApplicationRecorder, StoredEvent
from eventsourcing.postgres import PostgresFactory
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.numeric import Int8

from benchmarks.case import Thunk
from benchmarks.postgres.server import Place, Session, Sessions
from benchmarks.workload import Row, append_new, draft_batches, persisted_at, row
from runstate.logs.registry import open_log
from runstate.models.model import Draft

writers_max = 8
columns = ("stream_id", "seq", "event_id", "type", "key", "tenant", "emitted_at", "persisted_at", "crc", "body")
_types = ("int8", "int8", "text", "text", "text", "text", "text", "text", "int8", "bytea")


class Batch(NamedTuple):
    """Events of one run that are appended together, and where in the run they begin."""

    stream: str
    after_seq: int
    drafts: list[Draft]

    @property
    def rows(self) -> list[Row]:
        number = int(self.stream.removeprefix("run-"))
        return [row(number, seq, draft) for seq, draft in enumerate(self.drafts, self.after_seq + 1)]


Prepare = Callable[[Batch], Thunk]
Contender = Callable[[Place], AbstractContextManager[Prepare]]


def batches(size: int, run_events: int, first: int = 0, stride: int = 1) -> Iterator[Batch]:
    """Runs without end, one after the other, in batches; `first` and `stride` keep writers apart."""
    stream, seq = "", 0
    for named, drafts in draft_batches(size, run_events, first, stride):
        stream, seq = named, seq if named == stream else 0
        yield Batch(stream, seq, drafts)
        seq += len(drafts)


# --- the log -----------------------------------------------------------------------------------------------------


@contextmanager
def log_appends(place: Place) -> Iterator[Prepare]:
    with open_log(place.log_url) as log:
        yield lambda batch: partial(append_new, log.append, batch.stream, batch.drafts)


# --- the package eventsourcing -----------------------------------------------------------------------------------


@contextmanager
def _factory(place: Place, *, functions: bool = False, connections: int = writers_max) -> Iterator[PostgresFactory]:
    server = conninfo_to_dict(place.url)
    env = {
        "POSTGRES_DBNAME": str(server.get("dbname", "postgres")),
        "POSTGRES_HOST": str(server.get("host", "127.0.0.1")),
        "POSTGRES_PORT": str(server.get("port", "5432")),
        "POSTGRES_USER": str(server.get("user", "postgres")),
        "POSTGRES_PASSWORD": str(server.get("password", "")),
        "POSTGRES_SCHEMA": place.schema,
        # A connection for each writer, and none made while the clock runs.
        "POSTGRES_POOL_SIZE": str(connections),
        "POSTGRES_ENABLE_DB_FUNCTIONS": "yes" if functions else "no",
    }
    with PostgresFactory(env) as factory:
        factory.datastore.pool.wait()
        yield factory


@contextmanager
def peer_appends(
    place: Place, *, functions: bool = False, feed: bool = True, connections: int = writers_max
) -> Iterator[Prepare]:
    """Its application recorder, which has a feed as the log has, or its aggregate recorder, which has none."""
    with _factory(place, functions=functions, connections=connections) as factory:
        recorder = factory.application_recorder() if feed else factory.aggregate_recorder()
        yield lambda batch: partial(recorder.insert_events, _stored(batch))


def _stored(batch: Batch) -> list[StoredEvent]:
    """The same lines. It counts versions of what it calls an originator, and names it by a UUID."""
    numbered = enumerate(batch.drafts, batch.after_seq + 1)
    run = peer_id(batch.stream)
    return [StoredEvent(run, seq, draft.type, draft.render(seq, persisted_at)) for seq, draft in numbered]


def peer_id(stream: str) -> UUID:
    return uuid5(NAMESPACE_URL, stream)


# --- bare SQL ----------------------------------------------------------------------------------------------------


def arrays(rows: list[Row]) -> list[list[object]]:
    """Rows by column. A binary array has one type of number, whatever the size of each."""
    by_column = [list(column) for column in zip(*rows, strict=True)]
    return [[Int8(v) if isinstance(v, int) else v for v in column] for column in by_column]


_insert = f"INSERT INTO bare ({', '.join(columns)}) SELECT * FROM unnest({', '.join(f'%b::{t}[]' for t in _types)})"
_copy = f"COPY bare ({', '.join(columns)}) FROM STDIN (FORMAT BINARY)"


@contextmanager
def _bare(place: Place) -> Iterator[Sessions]:
    """A table with the columns and indexes of the log's own, and nothing else: no heads, no triggers."""
    open_log(place.log_url).close()
    with place.connect() as session:
        session.execute("CREATE TABLE IF NOT EXISTS bare (LIKE events INCLUDING ALL)")
    with closing(Sessions(place)) as sessions:
        yield sessions


@contextmanager
def insert_appends(place: Place) -> Iterator[Prepare]:
    """One INSERT of many rows, its columns sent as binary arrays: less to send and to parse than a list of VALUES."""
    with _bare(place) as sessions:
        yield lambda batch: partial(_insert_rows, sessions, arrays(batch.rows))


def _insert_rows(sessions: Sessions, columns: list[list[object]]) -> None:
    sessions.mine().execute(_insert, columns)


@contextmanager
def copy_appends(place: Place) -> Iterator[Prepare]:
    with _bare(place) as sessions:
        yield lambda batch: partial(_copy_rows, sessions, batch.rows)


def _copy_rows(sessions: Sessions, rows: list[Row]) -> None:
    with sessions.mine().cursor() as cursor, cursor.copy(_copy) as copy:
        copy.set_types(_types)
        for values in rows:
            copy.write_row(values)


# --- reading -----------------------------------------------------------------------------------------------------

Count = Callable[[], int]
"""Reads everything, and tells how many events that were."""
Reader = Callable[[Place, list[Batch], str], AbstractContextManager[Count]]
page_events = 1000


@contextmanager
def log_reads(place: Place, filled: list[Batch], how: str) -> Iterator[Count]:
    with open_log(place.log_url) as log:
        for batch in filled:
            log.append(batch.stream, batch.drafts)
        streams = sorted({batch.stream for batch in filled})
        total = sum(len(batch.drafts) for batch in filled)

        def feed() -> int:
            seen, page = 0, log.feed(limit=page_events)
            while page.records:
                seen += len(page.records)
                page = log.feed(after=page.next, limit=page_events)
            return seen

        ways: dict[str, Count] = {
            "read": lambda: sum(len(log.read(stream, limit=total)) for stream in streams),
            "lines": lambda: sum(1 for stream in streams for _ in log.lines(stream)),
            "feed": feed,
        }
        _settle(place)
        yield ways[how]


@contextmanager
def peer_reads(place: Place, filled: list[Batch], how: str) -> Iterator[Count]:
    with _factory(place) as factory:
        recorder = factory.application_recorder()
        for batch in filled:
            recorder.insert_events(_stored(batch))
        _settle(place)
        runs = sorted({peer_id(batch.stream) for batch in filled})
        yield partial(_peer_feed, recorder) if how == "feed" else partial(_peer_read, recorder, runs)


def _peer_read(recorder: AggregateRecorder, runs: list[UUID]) -> int:
    return sum(len(recorder.select_events(run)) for run in runs)


def _peer_feed(recorder: ApplicationRecorder) -> int:
    seen, start = 0, 1
    while page := recorder.select_notifications(start, page_events):
        seen += len(page)
        start = page[-1].id + 1
    return seen


_record = ", ".join(columns[1:8] + columns[9:])
_selects = {
    "read": f"SELECT {_record} FROM bare WHERE stream_id = %s ORDER BY seq",
    "lines": "SELECT body FROM bare WHERE stream_id = %s ORDER BY seq",
    "feed": f"SELECT transaction::text, position, stream_id, {_record} FROM bare "
    f"WHERE (transaction, position) > (%s::xid8, %s) ORDER BY bare.transaction, bare.position LIMIT {page_events}",
}


@contextmanager
def select_reads(place: Place, filled: list[Batch], how: str) -> Iterator[Count]:
    """Rows as tuples: what the server and the driver take, whatever is made of them."""
    with _bare(place) as sessions:
        for batch in filled:
            _copy_rows(sessions, batch.rows)
        _settle(place)
        numbers = sorted({int(batch.stream.removeprefix("run-")) for batch in filled})
        session = sessions.mine()
        yield partial(_select_feed, session) if how == "feed" else partial(_select, session, _selects[how], numbers)


def _select(session: Session, query: str, numbers: list[int]) -> int:
    return sum(len(session.execute(query, (number,), binary=True).fetchall()) for number in numbers)


def _select_feed(session: Session) -> int:
    seen, after = 0, ("0", 0)
    while rows := session.execute(_selects["feed"], after, binary=True).fetchall():
        seen += len(rows)
        after = rows[-1][0], rows[-1][1]
    return seen


def _settle(place: Place) -> None:
    """Let the server do now what it would otherwise do while somebody is timed."""
    with place.connect() as session:
        tables = session.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (place.schema,)).fetchall()
        for (table,) in tables:
            session.execute(sql.SQL("VACUUM ANALYZE {}").format(sql.Identifier(table)))
