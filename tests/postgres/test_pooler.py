"""Two logs of one database behind a transaction pooler: they share sessions of the server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psycopg
import pytest
from tests.pgbouncer import program, transaction_pooler
from tests.postgres.sessions import Session
from tests.postgres_server import plain_and_schema, url_at

from runstate.conformance.claims.feeds import check_complete
from runstate.conformance.claims.tombstones import tombstone_of
from runstate.conformance.notes import followed, keys, note, notes, numbered, seqs, snapshot, stored
from runstate.conformance.threads import meanwhile, race_all
from runstate.logs.postgres import PostgresLog, open_url

pytestmark = pytest.mark.skipif(program is None, reason="no pooler to test with: apt-get install pgbouncer")

sessions = 3
"""Of the server, fewer than threads: each of them serves all logs."""


@pytest.fixture(scope="module")
def pooler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with transaction_pooler(tmp_path_factory.mktemp("pooler"), sessions) as url:
        yield url


@pytest.fixture
def pooled(pooler: str, url: str) -> Iterator[PostgresLog]:
    """The test's log, through the pooler."""
    with open_url(f"{pooler}?schema={plain_and_schema(url)[1]}") as log:
        yield log


def _work(log: PostgresLog, name: str, number: int) -> None:
    """What a process does with its log, each statement more often than it takes to be prepared."""
    stream = f"run-{number}"
    for turn in range(8):
        key = f"{name}-{number}-{turn}"
        assert log.append(stream, [note(key)])[0].seq == turn + 1
        assert not log.append(stream, [note(key)])[0].persisted
        log.append("shared", [note(key)])
        log.save_snapshot(stream, snapshot(turn + 1, text=name))
        assert keys(log.read(stream, after_seq=turn)) == [key]
        assert log.get_blob(log.put_blob(key.encode())) == key.encode()
    log.append(stream, numbered(40, f"{name}-{number}-many-"))
    kept = log.load_snapshot(stream, "notes")
    assert kept is not None
    assert kept.body == snapshot(8, text=name).body
    log.append(f"gone-{number}", notes(f"{name}-a", f"{name}-b"))
    log.delete_stream(f"gone-{number}", expected_seq=2, tombstone=tombstone_of(f"gone-{number}"))


def test_logs_that_share_sessions_keep_their_events_apart(pooler: str, tmp_path: Path) -> None:
    names = ("one", "two")
    schemas = {name: plain_and_schema(url_at(tmp_path / name))[1] for name in names}
    with ExitStack() as stack:
        logs = {name: stack.enter_context(open_url(f"{pooler}?schema={schemas[name]}")) for name in names}
        race_all([partial(_work, log, name, number) for name, log in logs.items() for number in range(3)])
        for name, log in logs.items():
            assert {key.partition("-")[0] for key in keys(followed(log).records)} == {name}
            assert len(stored(log, "shared")) == 24
            assert [seqs(stored(log, f"run-{number}")) for number in range(3)] == [list(range(1, 49))] * 3
            assert log.tombstone("gone-1") == tombstone_of("gone-1")
            held = stored(log, "run-0")
            log.delete_stream("run-0")
            assert log.adopt("run-0", held) == 48
            check_complete(log, followed(log).records)
            assert log.repair("shared") == []
            assert list(log.verify()) == []
    with psycopg.connect(plain_and_schema(url_at(tmp_path))[0]) as direct:
        for name, schema in schemas.items():
            found = direct.execute(
                f"SELECT split_part(key, '-', 1), count(*) FROM {schema}.events GROUP BY 1"
            ).fetchall()
            assert found == [(name, 24 + 3 * 48)]


def _in_all_sessions(pooler: str, statement: str) -> list[tuple[object, ...]]:
    """Run a statement in each session that the pooler has: a transaction holds one."""
    with ExitStack() as stack:
        clients = [stack.enter_context(psycopg.connect(pooler)) for _ in range(sessions)]
        held = [client.execute("SELECT pg_backend_pid()").fetchone() for client in clients]
        assert len(set(held)) == sessions
        answers = [client.execute(statement.encode()) for client in clients]
        return [row for answer in answers if answer.description for row in answer.fetchall()]


_settings = ("search_path", "lock_timeout", "synchronous_commit", "enable_seqscan", "plan_cache_mode")
_look = f"SELECT {', '.join(f'current_setting($${name}$$)' for name in _settings)}"


def test_a_log_leaves_nothing_behind_in_a_shared_session(pooler: str, pooled: PostgresLog) -> None:
    before = _in_all_sessions(pooler, _look)
    pooled.append("s", notes("a"))
    pooled.append("s", numbered(40))
    pooled.wait(pooled.feed().next, 0.01)
    assert _in_all_sessions(pooler, _look) == before
    left = "SELECT name FROM pg_prepared_statements UNION ALL SELECT * FROM pg_listening_channels()"
    assert _in_all_sessions(pooler, left) == []


_record = """
CREATE TABLE seen (place text, commits text, isolation text, timeout text);
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO seen SELECT TG_TABLE_NAME, current_setting('synchronous_commit'),
        current_setting('transaction_isolation'), current_setting('lock_timeout');
    RETURN NULL;
END $$;
CREATE TRIGGER see AFTER INSERT ON events EXECUTE FUNCTION see();
CREATE TRIGGER see AFTER INSERT ON blobs EXECUTE FUNCTION see();
CREATE TRIGGER see_deletion AFTER DELETE ON events EXECUTE FUNCTION see();
"""


def test_a_transaction_sets_what_it_relies_on(pooler: str, pooled: PostgresLog, session: Session) -> None:
    session.execute(_record)
    others = "SET synchronous_commit = off; SET default_transaction_isolation = serializable; SET lock_timeout = 1"
    _in_all_sessions(pooler, others)
    try:
        pooled.append("s", notes("a"))
        pooled.append("s", numbered(40))
        held = stored(pooled, "s")
        pooled.delete_stream("s")
        pooled.adopt("s", held)
        pooled.put_blob(b"data")
    finally:
        _in_all_sessions(pooler, "RESET ALL")
    seen = session.execute("SELECT * FROM seen").fetchall()
    events, blobs = ("events", "on", "read committed", "30s"), ("blobs", "on", "read committed", "30s")
    assert seen == [events, events, events, events, blobs]


def test_a_follower_polls_where_it_cannot_listen(pooled: PostgresLog) -> None:
    pooled.append("s", notes("a"))
    end = pooled.feed().next
    began = time.monotonic()
    with meanwhile(lambda _: pooled.wait(end, 60)) as waited:
        pooled.append("s", notes("b"))
        waited.result(30)
    assert keys(pooled.feed(after=end).records) == ["b"]
    assert time.monotonic() - began < 30


def test_a_direct_connection_is_not_taken_for_a_pooled_one(log: PostgresLog, pooled: PostgresLog) -> None:
    assert (log._connections.is_pooled, pooled._connections.is_pooled) == (False, True)
