"""A deleted stream is never begun again, whatever an append was waiting for when the deletion was committed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psycopg
import pytest
from tests.postgres.sessions import Session, somebody_waits_for, until
from tests.postgres.test_groups import grouped

from runstate.conformance.claims.tombstones import tombstone_of
from runstate.conformance.notes import keys, notes, stored
from runstate.errors import StreamDeleted
from runstate.logs.postgres import PostgresLog, appends
from runstate.logs.postgres.deletion import delete_rows


def test_an_append_that_waits_for_the_deleters_lock_is_refused(log: PostgresLog, session: Session) -> None:
    log.append("s", notes("a", "b"))
    with ThreadPoolExecutor(1) as pool:
        with session.transaction():
            delete_rows(session, "s", 2, "", tombstone_of("s"))
            answer = pool.submit(log.append, "s", notes("c"))
            until(partial(somebody_waits_for, session))
        with pytest.raises(StreamDeleted):
            answer.result()
    assert (log.stream("s"), log.tombstone("s")) == (None, tombstone_of("s"))


@pytest.mark.parametrize("adopts", [False, True], ids=["append", "adopt"])
def test_a_new_head_that_waits_for_the_deletion_of_the_old_one_sees_the_tombstone(
    log: PostgresLog,
    opened: Callable[[], PostgresLog],
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    adopts: bool,
) -> None:
    log.append("s", notes("a", "b"))
    held = stored(log, "s")
    log.delete_stream("s")
    with ThreadPoolExecutor(1) as pool:

        def commit(connection: Session, heads: list[appends.Head], *_: object) -> appends.Written | None:
            """Between the look-up, which has found no stream, and the commit, the stream is begun and deleted."""
            monkeypatch.undo()
            opened().append("s", notes("a", "b"))
            with session.transaction():
                delete_rows(session, "s", 2, "", tombstone_of("s"))
                written = pool.submit(appends.commit, connection, heads)
                until(partial(somebody_waits_for, session))
            return written.result()

        monkeypatch.setattr("runstate.logs.postgres.writer.commit", commit)
        if adopts:
            assert log.adopt("s", held, model="notes") == 2
            assert (stored(log, "s"), log.tombstone("s")) == (held, None)
        else:
            with pytest.raises(StreamDeleted):
                log.append("s", notes("c"))
            assert (log.stream("s"), log.tombstone("s")) == (None, tombstone_of("s"))
    assert list(log.verify()) == []


def test_a_refused_append_leaves_its_group_in_one_transaction(log: PostgresLog, session: Session) -> None:
    log.append("s", notes("late"))
    log.delete_stream("s", tombstone=tombstone_of("s"))
    streams = ("t", "s", "u")
    with grouped(log, session, [partial(log.append, stream, notes("a")) for stream in streams]) as answers:
        assert [answers[number].result()[0].seq for number in (0, 2)] == [1, 1]
        with pytest.raises(StreamDeleted):
            answers[1].result()
    transactions = session.execute("SELECT count(DISTINCT transaction) FROM events WHERE key = 'a'").fetchone()
    assert transactions == (1,)
    assert keys(stored(log, "t")) == ["a"]


def test_the_database_refuses_a_writer_that_does_not_look_for_tombstones(log: PostgresLog, session: Session) -> None:
    log.append("s", notes("a", "b"))
    log.delete_stream("s", tombstone=tombstone_of("s"))
    insert = "INSERT INTO streams (stream, tenant, last_seq, events, first_persisted_at, last_persisted_at)"
    with pytest.raises(psycopg.errors.RestrictViolation, match="was deleted"):
        session.execute(f"{insert} VALUES ('s', '', 1, 1, '', '')".encode())


def test_a_temporary_table_does_not_hide_tombstones_from_the_database(log: PostgresLog, session: Session) -> None:
    log.append("s", notes("a", "b"))
    log.delete_stream("s", tombstone=tombstone_of("s"))
    session.execute("CREATE TEMPORARY TABLE tombstones (stream text)")
    insert = "INSERT INTO streams (stream, tenant, last_seq, events, first_persisted_at, last_persisted_at)"
    with pytest.raises(psycopg.errors.RestrictViolation, match="was deleted"):
        session.execute(f"{insert} VALUES ('s', '', 1, 1, '', '')".encode())
