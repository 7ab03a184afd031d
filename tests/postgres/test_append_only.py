"""Append-only, by the database itself: other people's SQL neither changes nor deletes an event."""

from __future__ import annotations

import psycopg
import pytest
from tests.postgres.sessions import Session
from tests.postgres_server import plain_and_schema

from runstate.conformance.notes import keys, notes, numbered
from runstate.errors import InvalidUrl
from runstate.logs.postgres import PostgresLog, open_url

partitions = 3


@pytest.fixture(params=["", f"&partitions={partitions}"], ids=["plain", "partitioned"])
def url(url: str, request: pytest.FixtureRequest) -> str:
    return f"{url}{request.param}"


_changes = ["UPDATE {} SET body = 'x'", "DELETE FROM {} WHERE seq = 2", "DELETE FROM {}", "TRUNCATE {}"]


@pytest.mark.parametrize("statement", _changes)
def test_an_event_is_neither_changed_nor_deleted_by_anybodys_sql(
    log: PostgresLog, session: Session, statement: str
) -> None:
    log.append("s", notes("a", "b"))
    with pytest.raises(psycopg.errors.RestrictViolation, match="append-only"):
        session.execute(statement.format("events").encode())
    assert keys(log.read("s")) == ["a", "b"]


@pytest.mark.parametrize("statement", _changes)
def test_nor_through_a_partition(url: str, log: PostgresLog, session: Session, statement: str) -> None:
    for number in range(20):
        log.append(f"s{number}", notes("a", "b"))
    for number in range(partitions if "partitions" in url else 0):
        assert session.execute(f"SELECT count(*) FROM events_{number}".encode()).fetchone() != (0,)
        with pytest.raises(psycopg.errors.RestrictViolation, match="append-only"):
            session.execute(statement.format(f"events_{number}").encode())
    assert list(log.verify()) == []
    assert len(log.streams()) == 20


def test_a_whole_stream_may_be_deleted_head_first_from_any_search_path(
    url: str, log: PostgresLog, session: Session
) -> None:
    log.append("s", notes("a", "b"))
    log.append("t", notes("c"))
    _, schema = plain_and_schema(url)
    session.execute("SET search_path = pg_catalog")
    with session.transaction():
        session.execute(f"DELETE FROM {schema}.streams WHERE stream = 's'".encode())
        session.execute(
            f"DELETE FROM {schema}.events WHERE stream_id NOT IN (SELECT id FROM {schema}.streams)".encode()
        )
    assert list(log.verify()) == []
    assert [info.stream for info in log.streams()] == ["t"]


def test_streams_are_spread_over_the_partitions_and_each_stays_in_one(
    url: str, log: PostgresLog, session: Session
) -> None:
    for number in range(50):
        log.append(f"s{number}", numbered(2))
        log.append(f"s{number}", numbered(4))
    places = session.execute("SELECT stream_id, tableoid FROM events GROUP BY 1, 2").fetchall()
    assert len(places) == 50
    assert len({place for _, place in places}) == (partitions if "partitions" in url else 1)
    assert list(log.verify()) == []


def test_the_number_of_partitions_is_chosen_once(url: str, log: PostgresLog) -> None:
    log.append("s", notes("a"))
    plain = url.partition("&partitions=")[0]
    with pytest.raises(InvalidUrl, match="partitions"):
        open_url(f"{plain}&partitions=7")
    with open_url(plain) as again:
        assert keys(again.read("s")) == ["a"]
