"""Roles: the SQL of the docs gives a writer what it needs and no more, and keeps tenants apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from tests.postgres.sessions import Session
from tests.postgres_server import as_role, plain_and_schema

from runstate.conformance.claims.tombstones import tombstone_of
from runstate.conformance.notes import followed, keys, note, notes, snapshot
from runstate.errors import LogBusy, LogFailed, StreamDeleted
from runstate.logs.postgres import PostgresLog, open_url

_docs = Path(__file__).parents[2] / "docs"
_password = "not-a-secret"


@pytest.fixture(params=["", "&partitions=3"], ids=["plain", "partitioned"])
def url(url: str, request: pytest.FixtureRequest) -> str:
    return f"{url}{request.param}"


def _sql(page: str, marker: str, names: dict[str, str]) -> bytes:
    """The SQL block that holds `marker`, with the log's schema and the test's roles."""
    blocks = re.findall(r"```sql\n(.*?)```", (_docs / page).read_text(), re.DOTALL)
    (block,) = (block for block in blocks if marker in block)
    for name, given in names.items():
        block = re.sub(rf"\b{name}\b", given, block)
    return str(block).encode()


@contextmanager
def _roles(session: Session, *names: str) -> Iterator[None]:
    """Roles that may log in; they are of the whole server, so they go with the test."""
    for name in names:
        session.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{_password}'".encode())
    try:
        yield
    finally:
        for name in reversed(names):
            session.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


@pytest.fixture
def writer(url: str, session: Session) -> Iterator[str]:
    """A role with what the format page grants to a writer."""
    _, schema = plain_and_schema(url)
    with _roles(session, f"{schema}_w"):
        session.execute(_sql("formats/postgres.md", "TO writer", {"writer": f"{schema}_w", "runstate": schema}))
        yield f"{schema}_w"


def test_a_writer_needs_no_more_than_the_format_page_grants(url: str, writer: str) -> None:
    with open_url(as_role(url, writer, _password)) as log:
        log.append("s", notes("a"))
        log.append("s", notes("b"))
        log.save_snapshot("s", snapshot(1))
        log.save_snapshot("s", snapshot(2))
        log.put_blob(b"data")
        page = log.feed(limit=1)
        assert keys(log.feed(after=page.next).records) == ["b"]
        log.wait(page.next, 1)
        assert list(log.verify()) == []


def test_a_writer_learns_of_a_deletion_and_restores_the_stream_only_with_the_right_to(
    url: str, log: PostgresLog, session: Session, writer: str
) -> None:
    log.append("s", notes("a", "b"))
    held = log.read("s")
    log.delete_stream("s", tombstone=tombstone_of("s"))
    with open_url(as_role(url, writer, _password)) as written:
        with pytest.raises(StreamDeleted):
            written.append("s", notes("c"))
        with pytest.raises(LogFailed, match="permission denied for table tombstones"):
            written.adopt("s", held, model="notes")
        assert written.tombstone("s") == tombstone_of("s")
        session.execute(f"GRANT INSERT, DELETE ON tombstones TO {writer}".encode())
        assert written.adopt("s", held, model="notes") == 2


def test_retention_needs_no_more_than_the_guide_says(url: str, log: PostgresLog, session: Session, writer: str) -> None:
    log.append("s", notes("a", "b"))
    session.execute(f"GRANT DELETE ON streams, snapshots, events TO {writer}".encode())
    session.execute(f"GRANT INSERT, DELETE ON tombstones TO {writer}".encode())
    with open_url(as_role(url, writer, _password)) as retention:
        retention.delete_stream("s", tombstone=tombstone_of("s"))
        assert log.tombstone("s") == tombstone_of("s")
        retention.delete_stream("s")
    assert log.tombstone("s") is None


def test_a_writer_is_stopped_by_the_triggers_and_cannot_switch_them_off(
    url: str, log: PostgresLog, writer: str
) -> None:
    log.append("s", notes("a"))
    plain, schema = plain_and_schema(url)
    statements = [
        "UPDATE {}.events SET body = 'x'",
        "DELETE FROM {}.events",
        "ALTER TABLE {}.events DISABLE TRIGGER ALL",
    ]
    with psycopg.connect(as_role(plain, writer, _password), autocommit=True) as connection:
        for statement in statements:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.format(schema).encode())
    assert list(log.verify()) == []


def test_a_missing_privilege_is_named_and_nothing_is_written(
    url: str, log: PostgresLog, session: Session, writer: str
) -> None:
    log.append("s", notes("a"))
    session.execute(f"REVOKE INSERT ON events FROM {writer}".encode())
    with open_url(as_role(url, writer, _password)) as refused:
        with pytest.raises(LogFailed, match="permission denied"):
            refused.append("s", notes("b"))
        with pytest.raises(LogFailed, match="permission denied"):
            refused.delete_stream("s")
    assert keys(log.read("s")) == ["a"]
    assert list(log.verify()) == []


@pytest.fixture
def tenants(url: str, session: Session, writer: str) -> Iterator[tuple[str, str, str]]:
    """Two tenants and somebody who sees both, as the guide sets them up."""
    _, schema = plain_and_schema(url)
    roles = {"acme": f"{schema}_a", "globex": f"{schema}_g", "operator": f"{schema}_o"}
    with _roles(session, *roles.values()):
        names = {**roles, "writer": writer, "runstate": schema}
        session.execute(_sql("guides/postgres.md", "ENABLE ROW LEVEL SECURITY", names))
        yield roles["acme"], roles["globex"], roles["operator"]


def test_a_tenant_sees_and_writes_its_own_and_nothing_else(
    url: str, log: PostgresLog, tenants: tuple[str, str, str]
) -> None:
    acme, globex, operator = tenants
    for tenant in (acme, globex):
        with open_url(as_role(url, tenant, _password)) as own:
            own.append(f"run-of-{tenant}", [note("a", tenant=tenant), note("b", tenant=tenant)])
            own.save_snapshot(f"run-of-{tenant}", snapshot(2))
    with open_url(as_role(url, acme, _password)) as own:
        assert [info.stream for info in own.streams()] == [f"run-of-{acme}"]
        assert {record.tenant for record in followed(own).records} == {acme}
        assert own.read(f"run-of-{globex}") == []
        assert own.load_snapshot(f"run-of-{globex}", "notes") is None
        assert own.load_snapshot(f"run-of-{acme}", "notes") is not None
        assert list(own.verify(f"run-of-{acme}")) == []
        with pytest.raises(LogFailed, match="row-level security"):
            own.append("forged", [note("a", tenant=globex)])
    with open_url(as_role(f"{url}&busy_timeout_s=0.3", acme, _password)) as own, pytest.raises(LogBusy):
        own.append(f"run-of-{globex}", [note("c", tenant=acme)])
    with open_url(as_role(url, operator, _password)) as everything:
        assert {record.tenant for record in followed(everything).records} == {acme, globex}
    assert len(followed(log).records) == 4
    assert list(log.verify()) == []


def test_a_tombstone_is_hidden_from_other_tenants_and_refuses_them_as_a_stream_does(
    url: str, log: PostgresLog, tenants: tuple[str, str, str]
) -> None:
    acme, globex, operator = tenants
    log.append("s", [note("a", tenant=acme), note("b", tenant=acme)])
    log.delete_stream("s", tombstone=tombstone_of("s"))
    for role, found in ((acme, tombstone_of("s")), (globex, None), (operator, tombstone_of("s"))):
        with open_url(as_role(url, role, _password)) as own:
            assert own.tombstone("s") == found
    with open_url(as_role(url, acme, _password)) as own, pytest.raises(StreamDeleted):
        own.append("s", [note("c", tenant=acme)])
    with open_url(as_role(f"{url}&busy_timeout_s=0.3", globex, _password)) as own, pytest.raises(LogBusy):
        own.append("s", [note("c", tenant=globex)])


def test_a_tenant_reads_no_partition_past_the_table(
    url: str, log: PostgresLog, session: Session, tenants: tuple[str, str, str]
) -> None:
    acme, globex, _ = tenants
    for number in range(20):
        log.append(f"s{number}", [note("a", tenant=globex)])
    plain, schema = plain_and_schema(url)
    tables = session.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename LIKE 'events%%'", (schema,)
    ).fetchall()
    assert len(tables) == (4 if "partitions" in url else 1)
    with psycopg.connect(as_role(plain, acme, _password), autocommit=True) as connection:
        for (table,) in tables:
            assert connection.execute(f"SELECT * FROM {schema}.{table}".encode()).fetchall() == []
