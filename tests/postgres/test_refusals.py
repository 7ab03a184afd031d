"""What is refused, in words that say what to do, and never with a password among them."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Callable

import psycopg
import pytest
from tests.postgres.sessions import Session
from tests.postgres_server import PostgresServer, plain_and_schema

from runstate.conformance.notes import notes, snapshot
from runstate.errors import (
    InvalidUrl,
    LogDamaged,
    LogFailed,
    LogNotFound,
    LogTooNew,
    NotALog,
    RunstateError,
)
from runstate.logs.log import BlobRef
from runstate.logs.postgres import PostgresLog, open_url


def test_a_log_that_is_not_there_is_not_made_unless_asked_for(url: str) -> None:
    with pytest.raises(LogNotFound):
        open_url(url, create=False)
    open_url(url).close()
    open_url(url, create=False).close()


def test_a_schema_of_somebody_else_is_left_alone(url: str) -> None:
    plain, schema = plain_and_schema(url)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema} CREATE TABLE theirs (n int)".encode())
    with pytest.raises(NotALog):
        open_url(url)


def test_a_newer_format_is_refused(url: str, session: Session) -> None:
    session.execute("INSERT INTO runstate_version VALUES (99, '')")
    with pytest.raises(LogTooNew, match="upgrade"):
        open_url(url)


_uses: list[tuple[str, Callable[[PostgresLog], object]]] = [
    ("streams", lambda log: log.append("s", notes("b"))),
    ("streams", lambda log: log.streams()),
    ("events", lambda log: log.append("s", notes("b"))),
    ("events", lambda log: log.feed()),
    ("events", lambda log: list(log.verify())),
    ("snapshots", lambda log: log.load_snapshot("s", "notes")),
    ("snapshots", lambda log: log.save_snapshot("s", snapshot(1))),
    ("blobs", lambda log: log.get_blob(BlobRef(f"sha256:{'0' * 64}"))),
]


@pytest.mark.parametrize(("table", "use"), _uses)
def test_a_missing_table_is_named(
    log: PostgresLog, session: Session, table: str, use: Callable[[PostgresLog], object]
) -> None:
    log.append("s", notes("a"))
    session.execute(f"DROP TABLE {table}".encode())
    with pytest.raises(LogDamaged, match=table):
        use(log)


def test_a_server_that_is_not_there_is_an_error_at_once() -> None:
    url = "postgresql://nobody:pa55word@127.0.0.1:1/none"
    with pytest.raises(LogFailed, match="cannot be reached") as found:
        open_url(url)
    assert "pa55word" not in _all_words(found.value)


@pytest.mark.slow
def test_a_wrong_password_is_an_error_at_once_and_no_password_is_ever_told() -> None:
    server = PostgresServer(password="r1ght/pa55:word")
    try:
        with open_url(server.url) as log:
            log.append("s", notes("a"))
            assert "pa55" not in repr(log) + repr(vars(log))
            server.stop()
            with pytest.raises(RunstateError) as lost:
                open_url(server.url)
            server.start()
            assert log.append("s", notes("b"))[0].seq == 2
        wrong_url = server.url.replace("r1ght", "wr0ng")
        with pytest.raises(LogFailed, match="password authentication failed") as wrong:
            open_url(wrong_url)
        no_password = server.url.replace(":r1ght%2Fpa55%3Aword", "")
        with pytest.raises(LogFailed, match="no password") as missing:
            open_url(no_password)
        for found in (lost, wrong, missing):
            assert "pa55" not in _all_words(found.value)
        shown = subprocess.run(
            [sys.executable, "-m", "runstate", "streams", wrong_url],
            capture_output=True,
            text=True,
        )
        assert shown.returncode
        assert "password authentication failed" in shown.stderr
        assert "pa55" not in shown.stderr + shown.stdout
    finally:
        server.remove()


def _all_words(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + repr(getattr(error, "details", None))


@pytest.mark.parametrize(
    "bad",
    [
        "postgresql:runs",
        "postgresql://h/d?schema=No",
        "postgresql://h/d?schema=pg_x",
        "postgresql://h/d?pool_max=0",
        "postgresql://h/d?pool_max=x",
        "postgresql://h/d?busy_timeout_s=-1",
        "postgresql://h/d?partitions=0",
        "postgresql://h/d?partitions=257",
        "postgresql://h/d?partitions=many",
        "postgresql://h/d?unknown=1",
        "postgresql://[h/d",
    ],
)
def test_a_url_that_makes_no_sense_is_refused(bad: str) -> None:
    with pytest.raises(InvalidUrl) as found:
        open_url(bad.replace("://h", "://me:secret@h"))
    assert "secret" not in str(found.value)


@pytest.mark.parametrize(
    "password", ["p@geheim", "p/geheim", "geheim/p", "p?geheim", "p#geheim", "geheim#p", "\uff0fgeheim"]
)
def test_a_password_that_is_not_escaped_is_refused_with_what_to_write(password: str) -> None:
    with pytest.raises(InvalidUrl, match="%40") as found:
        open_url(f"postgresql://me:{password}@127.0.0.1:1/db")
    assert "geheim" not in _all_words(found.value)


@pytest.mark.parametrize("hosts", ["127.0.0.1:1,127.0.0.1:2", "[::1]:1", "%2Fnowhere"])
def test_every_way_of_naming_hosts_reaches_the_driver(hosts: str) -> None:
    with pytest.raises(LogFailed, match="cannot be reached"):
        open_url(f"postgresql://me:a%40b@{hosts}/db")
