"""Tables are made once, however many processes open a new log at the same time."""

from __future__ import annotations

import subprocess
import sys

import psycopg
import pytest
from tests.postgres_server import as_role, plain_and_schema

from runstate.conformance.notes import note, notes
from runstate.errors import LogFailed, ModelMismatch, RunstateError
from runstate.logs.postgres import open_url, schema

_open_and_append = """
import sys
from runstate.conformance.notes import notes
from runstate.logs.postgres import open_url
sys.stdin.readline()
with open_url(sys.argv[1]) as log:
    log.append("s", notes(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", "&partitions=3", "&options=-c%20default_transaction_isolation%3Dserializable"])
def test_many_processes_may_make_a_log_at_once(url: str, options: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _open_and_append, url + options, f"k{number}"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(8)
    ]
    for process in processes:  # All are started before one of them is let go.
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    said = [process.communicate()[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, said
    with open_url(url, create=False) as log:
        assert len(log.read("s")) == 8
        assert list(log.verify()) == []


def test_a_migration_that_fails_leaves_nothing_and_can_run_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(schema, "migrations", [*schema.migrations, "CREATE TABLE half (n int); SELECT 1 / 0"])
        with pytest.raises(RunstateError):
            open_url(url)
    plain, name = plain_and_schema(url)
    with psycopg.connect(plain) as connection:
        assert connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (name,)).fetchone() is None
    open_url(url).close()


def test_an_older_log_becomes_a_newer_one_and_keeps_its_events(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_url(url) as log:
        log.append("s", notes("a"))
    monkeypatch.setattr(schema, "migrations", [*schema.migrations, "CREATE TABLE more (n int)"])
    for _ in range(2):
        with open_url(url) as log:
            assert len(log.read("s")) == 1


# --- version 1: streams recorded no model ----------------------------------------------------------------------------


@pytest.fixture(params=["", "&partitions=3"], ids=["plain", "partitioned"])
def version_1(url: str, request: pytest.FixtureRequest) -> str:
    """The URL of a log as an older version left it."""
    with open_url(url + request.param) as log:
        log.append("s", notes("a"))
    plain, name = plain_and_schema(url)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE {name}.streams DROP COLUMN model".encode())
        connection.execute(f"DELETE FROM {name}.runstate_version WHERE version = 2".encode())
    return url


def test_a_log_of_version_1_records_the_model_of_its_next_new_event(version_1: str) -> None:
    with open_url(version_1) as log:
        assert [info.model for info in log.streams()] == [head.model for head in log.heads()] == [""]
        assert log.append("s", notes("a"))[0].idempotent
        assert [info.model for info in log.streams()] == [""]
        assert log.append("s", notes("b"))[0].seq == 2
        assert [info.model for info in log.streams()] == ["notes"]
        with pytest.raises(ModelMismatch):
            log.append("s", [note("c", model="other")])
        assert list(log.verify()) == []


def test_a_role_that_may_not_migrate_reads_a_log_of_version_1_and_is_refused_when_it_writes(version_1: str) -> None:
    plain, name = plain_and_schema(version_1)
    role = f"{name}_r"
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'not-a-secret'".encode())
        connection.execute(f"GRANT USAGE ON SCHEMA {name} TO {role}".encode())
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO {role}".encode())
        try:
            with open_url(as_role(version_1, role, "not-a-secret"), create=False) as log:
                assert [(info.stream, info.model) for info in log.streams()] == [("s", "")]
                assert [(head.stream, head.model) for head in log.heads()] == [("s", "")]
                held = log.read("s")
                for write in (lambda: log.append("s", notes("b")), lambda: log.adopt("s", held)):
                    with pytest.raises(LogFailed, match=r"migrated to 2 before it is written.* as the owner"):
                        write()
        finally:
            connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
