"""Collecting blobs: by the server's clock, and by nobody who sees only a part of the streams."""

from __future__ import annotations

import psycopg
import pytest
from tests.postgres.sessions import Session
from tests.postgres_server import as_role, plain_and_schema

from runstate.conformance.notes import note
from runstate.errors import LogFailed
from runstate.logs.postgres import PostgresLog, open_url


def test_a_blob_that_is_put_again_counts_as_new(log: PostgresLog, session: Session) -> None:
    ref = log.put_blob(b"data")
    session.execute("UPDATE blobs SET put_at = 'epoch'")
    log.put_blob(b"data")
    assert log.collect_blobs().recent == 1
    session.execute("UPDATE blobs SET put_at = 'epoch'")
    assert log.collect_blobs().removed == [ref]


def test_what_a_repair_has_set_aside_keeps_its_blobs(log: PostgresLog, session: Session) -> None:
    evidence = log.put_blob(b"evidence")
    log.append("s", [note("a"), note("b", evidence)])
    session.execute("SET session_replication_role = replica")
    session.execute("UPDATE events SET type = 'x' WHERE seq = 2")
    assert log.repair("s")
    assert log.collect_blobs(grace_s=0).removed == []


def test_a_role_that_sees_a_part_of_the_streams_collects_nothing(log: PostgresLog, session: Session, url: str) -> None:
    plain, schema = plain_and_schema(url)
    role = f"{schema}_part"
    ref = log.put_blob(b"of another tenant")
    log.append("s", [note("a", ref)])
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'not-a-secret'".encode())
        try:
            connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}".encode())
            connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}".encode())
            session.execute("ALTER TABLE streams ENABLE ROW LEVEL SECURITY")
            with open_url(as_role(url, role, "not-a-secret")) as part:
                assert part.streams() == []
                with pytest.raises(LogFailed, match="policies"):
                    part.collect_blobs(grace_s=0)
        finally:
            connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
    assert log.get_blob(ref) == b"of another tenant"
