"""The kit on a real server, and what is Postgres' own: other people's SQL, other transactions, lost connections."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.postgres_server import PostgresServer, url_at

from runstate.conformance import DurableLogConformance, LogConformance, MultiProcessLogConformance, Opener
from runstate.conformance.notes import followed, keys, note, notes, numbered, snapshot
from runstate.errors import (
    AppendOutcomeUnknown,
    InvalidEvent,
    InvalidUrl,
    LogFailed,
    LogNotFound,
    LogTooNew,
    NotALog,
    RunstateError,
)
from runstate.logs.log import EventLog
from runstate.logs.postgres import appends
from runstate.logs.postgres import log as logs
from runstate.logs.registry import open_log

Session = psycopg.Connection[tuple[Any, ...]]


class TestPostgresLog(LogConformance, DurableLogConformance, MultiProcessLogConformance):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return Opener(url_at(tmp_path))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_at(tmp_path)


@pytest.fixture
def log(url: str) -> Iterator[EventLog]:
    with open_log(url) as opened:
        yield opened


@pytest.fixture
def session(url: str, log: EventLog) -> Iterator[Session]:
    """Somebody else on the same tables, as with psql."""
    plain, _, schema = url.partition("?schema=")
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute("SELECT set_config('search_path', %s, false)", (schema,))
        yield connection


# --- append-only ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    ["UPDATE events SET body = 'x'", "DELETE FROM events WHERE seq = 2", "DELETE FROM events", "TRUNCATE events"],
)
def test_an_event_is_neither_changed_nor_deleted_by_anybodys_sql(
    log: EventLog, session: Session, statement: str
) -> None:
    log.append("s", notes("a", "b"))
    with pytest.raises(psycopg.errors.RestrictViolation, match="append-only"):
        session.execute(statement.encode())
    assert keys(log.read("s")) == ["a", "b"]


def test_a_whole_stream_may_be_deleted_head_first_from_any_search_path(
    url: str, log: EventLog, session: Session
) -> None:
    log.append("s", notes("a", "b"))
    log.append("t", notes("c"))
    schema = url.partition("?schema=")[2]
    session.execute("SET search_path = pg_catalog")
    with session.transaction():
        session.execute(f"DELETE FROM {schema}.streams WHERE stream = 's'".encode())
        session.execute(
            f"DELETE FROM {schema}.events WHERE stream_id NOT IN (SELECT id FROM {schema}.streams)".encode()
        )
    assert list(log.verify()) == []
    assert [info.stream for info in log.streams()] == ["t"]


# --- the feed ---------------------------------------------------------------------------------------------------

_late = """
WITH head AS (INSERT INTO streams (stream, tenant, last_seq, events, first_persisted_at, last_persisted_at)
              VALUES ('late', '', 1, 1, '', '') RETURNING id)
INSERT INTO events (stream_id, seq, event_id, type, key, tenant, emitted_at, persisted_at, crc, body)
SELECT id, 1, '', '', 'late', '', '', '', 0, '' FROM head
"""


def test_a_reader_misses_nothing_when_others_commit_past_an_open_transaction(log: EventLog, session: Session) -> None:
    log.append("s", notes("before"))
    with session.transaction():
        session.execute(_late)
        for number in range(5):
            log.append(f"s{number}", notes("past"))
        seen = followed(log)
        assert keys(seen.records) == ["before"]
        assert keys(log.read("s4")) == ["past"]
    rest = followed(log, seen.next, page=1)
    assert sorted(keys(rest.records)) == ["late", *["past"] * 5]


def test_a_reader_between_two_events_of_one_transaction_gets_the_second(log: EventLog) -> None:
    log.append("s", notes("a", "b"))
    first = log.feed(limit=1)
    assert keys(log.feed(after=first.next, limit=1).records) == ["b"]


_many = """
INSERT INTO streams (stream, tenant, last_seq, events, first_persisted_at, last_persisted_at)
SELECT 's' || n, '', 50, 50, '', '' FROM generate_series(1, 2000) n;
INSERT INTO events (stream_id, seq, event_id, type, key, tenant, emitted_at, persisted_at, crc, body)
SELECT s.id, n, '', '', 'k' || n, '', '', '', 0, '' FROM streams s, generate_series(1, 50) n;
ANALYZE events;
ANALYZE streams;
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "values"),
    [
        (logs._read, ("s7", 10, 1000)),
        (logs._lines, ("s7", 10, 50, 1000)),
        (logs._find, ("s7", "k7")),
        (logs._feed, ("0", 0, 1000)),
        (logs._feed, ("9999999", 0, 1000)),
        (logs._is_held_back, ("0", 0)),
        (logs._is_held_back, ("9999999", 0)),
        (logs._heads, ("s7", None, None, 100)),
        (appends._lock_head, ("s7",)),
        (appends._known, ("s7", ["k1", "k2", "new"])),
        (appends._last_body, ("s7",)),
    ],
)
def test_no_append_or_read_goes_through_a_whole_table(session: Session, query: str, values: tuple[Any, ...]) -> None:
    session.execute(_many)
    places = count(1)
    session.execute("PREPARE asked AS " + re.sub("%s", lambda _: f"${next(places)}", query))
    asked = sql.SQL("EXPLAIN EXECUTE asked ({})").format(sql.SQL(", ").join(map(sql.Literal, values)))
    for mode in ("force_custom_plan", "force_generic_plan"):
        session.execute("SELECT set_config('plan_cache_mode', %s, false)", (mode,))
        plan = "\n".join(line for (line,) in session.execute(asked))
        assert "Seq Scan" not in plan


# --- connections that go away --------------------------------------------------------------------------------------


def test_a_connection_lost_during_commit_leaves_the_outcome_open(
    log: EventLog, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(connection: Session, made: appends.Plan) -> bool:
        session.execute("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))
        return appends.commit(connection, made)

    log.append("s", notes("a"))
    with monkeypatch.context() as patched:
        patched.setattr("runstate.logs.postgres.log.commit", commit)
        with pytest.raises(AppendOutcomeUnknown):
            log.append("s", notes("b"))
    assert log.append("s", notes("b"))[0].persisted


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_a_restart_of_the_server_is_survived(how: signal.Signals) -> None:
    server = PostgresServer()
    try:
        with open_log(server.url) as log:
            log.append("s", notes("a"))
            for turn in range(2):
                end = log.feed().next
                server.stop(how)
                server.start()
                assert log.append("s", notes(f"after-{turn}"))[0].seq == turn + 2
                assert keys(log.feed(after=end).records) == [f"after-{turn}"]
            server.stop(how)
            server.start()
            assert len(log.read("s")) == 3
            assert list(log.verify()) == []
    finally:
        server.remove()


# --- what verify finds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "code", "seq"),
    [
        ("UPDATE events SET body = 'x' WHERE seq = 2", "log.event_changed", 2),
        ("UPDATE events SET tenant = 'x' WHERE seq = 3", "log.event_changed", 3),
        ("DELETE FROM events WHERE seq = 2", "log.events_missing", 2),
        ("UPDATE streams SET last_seq = 5", "log.events_missing", 4),
        ("UPDATE events SET transaction = '1' WHERE seq = 3", "log.out_of_order", 3),
        ("UPDATE events SET transaction = '999999999999' WHERE seq = 3", "postgres.transaction_ahead", 3),
        ("DELETE FROM streams", "postgres.orphan_events", None),
        ("UPDATE snapshots SET body = 'x'", "snapshot.digest_mismatch", 3),
        ("UPDATE blobs SET data = 'x'", "blob.digest_mismatch", None),
    ],
)
def test_what_was_changed_by_hand_is_found(
    log: EventLog, session: Session, statement: str, code: str, seq: int | None
) -> None:
    log.append("s", numbered(3))
    log.save_snapshot("s", snapshot(3))
    log.put_blob(b"data")
    session.execute("ALTER TABLE events DISABLE TRIGGER ALL")
    session.execute(statement.encode())
    assert (code, seq) in [(finding.code, finding.seq) for finding in log.verify()]


# --- what is refused -----------------------------------------------------------------------------------------------


def test_a_log_that_is_not_there_is_not_made_unless_asked_for(url: str) -> None:
    with pytest.raises(LogNotFound):
        open_log(url, create=False)
    open_log(url).close()
    open_log(url, create=False).close()


def test_a_schema_of_somebody_else_is_left_alone(url: str) -> None:
    plain, _, schema = url.partition("?schema=")
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema} CREATE TABLE theirs (n int)".encode())
    with pytest.raises(NotALog):
        open_log(url)


def test_a_newer_format_is_refused(url: str, session: Session) -> None:
    session.execute("INSERT INTO runstate_version VALUES (99, '')")
    with pytest.raises(LogTooNew):
        open_log(url)


def test_a_missing_table_is_named(log: EventLog, session: Session) -> None:
    session.execute("DROP TABLE snapshots")
    with pytest.raises(RunstateError, match="snapshots"):
        log.load_snapshot("s", "notes")


@pytest.fixture
def granted(url: str, session: Session) -> Iterator[str]:
    """The URL for a role that has what the format page grants to a writer."""
    schema = url.partition("?schema=")[2]
    session.execute(f"CREATE ROLE {schema} LOGIN".encode())
    page = (Path(__file__).parents[2] / "docs/formats/postgres.md").read_text()
    for grant in re.findall(r"^GRANT .*;$", page, re.MULTILINE):
        session.execute(grant.replace("TO writer", f"TO {schema}").replace("runstate", schema).encode())
    yield url.replace("postgres@", f"{schema}@")
    session.execute(f"DROP OWNED BY {schema}".encode())
    session.execute(f"DROP ROLE {schema}".encode())


def test_a_writer_needs_no_more_than_the_format_page_grants(granted: str) -> None:
    with open_log(granted) as log:
        log.append("s", notes("a"))
        log.append("s", notes("b"))
        log.save_snapshot("s", snapshot(1))
        log.save_snapshot("s", snapshot(2))
        log.put_blob(b"data")
        page = log.feed(limit=1)
        assert keys(log.feed(after=page.next).records) == ["b"]
        assert list(log.verify()) == []


def test_a_missing_privilege_is_named_and_nothing_is_written(granted: str, log: EventLog, session: Session) -> None:
    log.append("s", notes("a"))
    role = session.execute("SELECT current_schema()").fetchone()
    assert role is not None
    session.execute(f"REVOKE INSERT ON events FROM {role[0]}".encode())
    with open_log(granted) as writer:
        with pytest.raises(LogFailed, match="permission denied"):
            writer.append("s", notes("b"))
        with pytest.raises(LogFailed, match="permission denied"):
            writer.delete_stream("s")
    assert keys(log.read("s")) == ["a"]
    assert list(log.verify()) == []


def test_a_key_that_postgres_cannot_hold_is_refused(log: EventLog) -> None:
    with pytest.raises(InvalidEvent):
        log.append("s", [note("a\0b")])
    assert log.find("s", "a\0b") is None
    assert log.stream("s") is None


def test_a_server_that_is_not_there_is_an_error_at_once() -> None:
    with pytest.raises(LogFailed, match="cannot be reached"):
        open_log("postgresql://nobody@127.0.0.1:1/none")


@pytest.mark.parametrize(
    "bad",
    [
        "postgresql:runs",
        "postgresql://h/d?schema=No",
        "postgresql://h/d?schema=pg_x",
        "postgresql://h/d?pool_max=0",
        "postgresql://h/d?pool_max=x",
        "postgresql://h/d?busy_timeout_s=-1",
        "postgresql://h/d?unknown=1",
        "postgresql://[h/d",
    ],
)
def test_a_url_that_makes_no_sense_is_refused(bad: str) -> None:
    with pytest.raises(InvalidUrl):
        open_log(bad.replace("://h", "://me:secret@h"))
