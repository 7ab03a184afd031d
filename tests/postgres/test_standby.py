"""Commits wait for a standby that is gone. When the wait is ended from outside, the row is on this server alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg
import pytest
from tests.postgres.sessions import until
from tests.postgres_server import PostgresServer

from runstate.conformance.notes import keys, notes, numbered, stored
from runstate.errors import AppendOutcomeUnknown
from runstate.logs.postgres import PostgresLog, open_url

Admin = psycopg.Connection[tuple[Any, ...]]
Ask = Callable[[], Any]

_waiting = "SELECT pid, xact_start FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    started = PostgresServer()
    try:
        yield started
    finally:
        started.remove()


@pytest.fixture
def admin(server: PostgresServer) -> Iterator[Admin]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        try:
            yield connection
        finally:
            _require(connection, "")


@pytest.fixture
def log(server: PostgresServer, admin: Admin) -> Iterator[PostgresLog]:
    with open_url(server.url) as opened:
        yield opened


def _require(admin: Admin, standby: str) -> None:
    admin.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'")
    admin.execute("SELECT pg_reload_conf()")


def _require_gone_standby(admin: Admin, server: PostgresServer) -> None:
    """Returns once commits wait for it."""
    _require(admin, "gone")
    with psycopg.connect(server.url, autocommit=True) as probe, ThreadPoolExecutor(1) as pool:
        while not _is_waiting(pool.submit(probe.execute, "SELECT pg_logical_emit_message(true, '', '')"), admin):
            pass
        _end_wait(admin, "pg_cancel_backend")


def _is_waiting(answer: Future[Any], admin: Admin) -> bool:
    """Whether the server waits for the standby, rather than answer."""
    until(lambda: answer.done() or _waits(admin))
    return not answer.done()


def _waits(admin: Admin) -> bool:
    return admin.execute(_waiting).fetchone() is not None


def _end_wait(admin: Admin, how: str) -> None:
    until(lambda: _waits(admin))
    wait = admin.execute(_waiting).fetchall()
    admin.execute(f"SELECT {how}(pid) FROM ({_waiting}) AS waiting".encode())
    until(lambda: admin.execute(_waiting).fetchall() != wait)


def _ask_while_the_standby_is_gone(ask: Ask, admin: Admin, server: PostgresServer, how: str) -> Any:
    """Ask once, and have the wait ended from outside. Ask again, and bring the standby back: what that is answered."""
    _require_gone_standby(admin, server)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask)
        _end_wait(admin, how)
        with pytest.raises(AppendOutcomeUnknown):
            first.result(60)
        again = pool.submit(ask)
        assert _is_waiting(again, admin), "answered, though the standby has nothing of it"
        _require(admin, "")
        return again.result(60)


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
@pytest.mark.parametrize("count", [1, 40], ids=["shared", "alone"])
def test_an_append_and_its_retry_are_not_acknowledged_before_the_standby_has_it(
    log: PostgresLog, admin: Admin, server: PostgresServer, how: str, count: int
) -> None:
    stream = f"{how}-{count}"
    log.append(stream, notes("a"))
    answer = _ask_while_the_standby_is_gone(lambda: log.append(stream, numbered(count)), admin, server, how)
    assert {(result.persisted, result.idempotent) for result in answer} == {(False, True)}
    assert keys(stored(log, stream)) == ["a", *(draft.key for draft in numbered(count))]


def test_adopted_records_are_not_acknowledged_before_the_standby_has_them(
    log: PostgresLog, admin: Admin, server: PostgresServer
) -> None:
    log.append("adopted", numbered(3))
    held = stored(log, "adopted")
    log.delete_stream("adopted")
    adopt = partial(log.adopt, "adopted", held)
    assert _ask_while_the_standby_is_gone(adopt, admin, server, "pg_cancel_backend") == 0
    assert stored(log, "adopted") == held


def test_a_deletion_that_the_standby_may_not_have_is_not_acknowledged(
    log: PostgresLog, admin: Admin, server: PostgresServer
) -> None:
    log.append("deleted", notes("a"))
    _require_gone_standby(admin, server)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(log.delete_stream, "deleted")
        _end_wait(admin, "pg_cancel_backend")
        with pytest.raises(AppendOutcomeUnknown):
            answer.result(60)
    assert log.stream("deleted") is None


def test_a_blob_that_is_there_is_not_acknowledged_before_the_standby_has_it(
    log: PostgresLog, admin: Admin, server: PostgresServer
) -> None:
    _require_gone_standby(admin, server)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(log.put_blob, b"data")
        _end_wait(admin, "pg_cancel_backend")
        # It was stored here by the first try, and is put again.
        assert _is_waiting(answer, admin)
        _require(admin, "")
        assert log.get_blob(answer.result(60)) == b"data"
