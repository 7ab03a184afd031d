"""Tables are made once, however many processes open a new log at the same time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest
from tests.postgres_server import as_role, plain_and_schema

from runstate.conformance.claims.tombstones import tombstone_of
from runstate.conformance.notes import note, notes
from runstate.errors import LogBusy, LogFailed, RunstateError, StreamDeleted
from runstate.logs.postgres import PostgresLog, open_url, schema

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
        connection.execute(f"DROP TABLE {name}.tombstones".encode())
        connection.execute(f"DROP FUNCTION {name}.refuse_deleted_stream CASCADE".encode())
        connection.execute(f"ALTER TABLE {name}.blobs DROP COLUMN put_at".encode())
        connection.execute(f"DELETE FROM {name}.runstate_version WHERE version > 1".encode())
    return url


def test_a_stream_of_version_1_records_no_model_and_never_will(version_1: str) -> None:
    with open_url(version_1) as log:
        assert log.append("s", notes("a"))[0].idempotent
        assert log.append("s", notes("b"))[0].seq == 2
        assert log.append("s", [note("c", model="other")])[0].seq == 3
        assert [info.model for info in log.streams()] == [head.model for head in log.heads()] == [""]
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
                assert log.tombstone("s") is None
                held = log.read("s")
                writes: list[Callable[[], object]] = [
                    lambda: log.append("s", notes("b")),
                    lambda: log.adopt("s", held),
                    lambda: log.delete_stream("s", tombstone=tombstone_of("s", 1)),
                    lambda: log.put_blob(b"data"),
                    lambda: log.collect_blobs(),
                ]
                for write in writes:
                    with pytest.raises(LogFailed, match=r"migrated to 3 before it is written.* as the owner"):
                        write()
        finally:
            connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


# What operators have set up for version 1, from the guide of that time.
_roles_of_version_1 = """
CREATE ROLE {role}_own LOGIN PASSWORD 'not-a-secret';
CREATE ROLE {role}_acme LOGIN PASSWORD 'not-a-secret';
CREATE ROLE {role}_globex LOGIN PASSWORD 'not-a-secret';
CREATE ROLE {role}_all LOGIN PASSWORD 'not-a-secret';
ALTER SCHEMA {schema} OWNER TO {role}_own;
ALTER TABLE {schema}.streams OWNER TO {role}_own;
GRANT USAGE ON SCHEMA {schema} TO {role}_acme, {role}_globex, {role}_all;
GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}_acme, {role}_globex, {role}_all;
GRANT SELECT, USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role}_acme, {role}_globex, {role}_all;
GRANT INSERT, UPDATE ON {schema}.streams, {schema}.snapshots TO {role}_acme, {role}_globex, {role}_all;
GRANT INSERT ON {schema}.blobs TO {role}_all;
GRANT INSERT ON {schema}.events TO {role}_acme, {role}_globex, {role}_all;
GRANT DELETE ON {schema}.streams, {schema}.snapshots, {schema}.events TO {role}_all;
ALTER TABLE {schema}.streams ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON {schema}.streams USING (tenant = current_user);
CREATE POLICY every_tenant ON {schema}.streams TO {role}_all USING (true);
"""


@pytest.fixture
def roles_of_version_1(version_1: str) -> Iterator[Callable[[str], PostgresLog]]:
    """Opens a log that was migrated from version 1, as one of the roles that were set up before."""
    plain, name = plain_and_schema(version_1)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(_roles_of_version_1.format(schema=name, role=name).encode())
        try:
            with ExitStack() as stack:
                stack.enter_context(open_url(version_1))
                yield lambda role: stack.enter_context(
                    open_url(as_role(f"{version_1}&busy_timeout_s=0.3", f"{name}_{role}", "not-a-secret"))
                )
        finally:
            connection.execute(f"DROP SCHEMA {name} CASCADE".encode())
            for role in ("own", "acme", "globex", "all"):
                connection.execute(f"DROP OWNED BY {name}_{role}; DROP ROLE {name}_{role}".encode())


def test_roles_of_version_1_have_the_same_rights_on_tombstones(
    roles_of_version_1: Callable[[str], PostgresLog], version_1: str
) -> None:
    _, name = plain_and_schema(version_1)
    acme, everything = roles_of_version_1("acme"), roles_of_version_1("all")
    acme.append("t", [note("a", tenant=f"{name}_acme")])
    everything.delete_stream("t", tombstone=tombstone_of("t", 1))
    with pytest.raises(StreamDeleted):
        acme.append("t", [note("b", tenant=f"{name}_acme")])
    assert acme.tombstone("t") == tombstone_of("t", 1)
    everything.delete_stream("t")
    assert acme.append("t", [note("b", tenant=f"{name}_acme")])[0].seq == 1
    with pytest.raises(LogFailed, match="permission denied"):
        acme.delete_stream("t", tombstone=tombstone_of("t", 1))


def test_policies_of_version_1_hide_the_tombstones_of_other_tenants(
    roles_of_version_1: Callable[[str], PostgresLog], version_1: str
) -> None:
    _, name = plain_and_schema(version_1)
    globex = roles_of_version_1("globex")
    roles_of_version_1("acme").append("t", [note("a", tenant=f"{name}_acme")])
    roles_of_version_1("all").delete_stream("t", tombstone=tombstone_of("t", 1))
    assert globex.tombstone("t") is None
    with pytest.raises(LogBusy):  # As for a stream of another tenant that is still there.
        globex.append("t", [note("a", tenant=f"{name}_globex")])


def test_tombstones_belong_to_the_owner_of_the_other_tables(
    roles_of_version_1: Callable[[str], PostgresLog], version_1: str
) -> None:
    plain, name = plain_and_schema(version_1)
    owners = "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = %s AND tablename = 'tombstones'"
    with psycopg.connect(plain) as connection:
        assert connection.execute(owners, (name,)).fetchall() == [(f"{name}_own",)]


def test_a_policy_that_cannot_be_copied_leaves_tombstones_to_their_owner(version_1: str) -> None:
    plain, name = plain_and_schema(version_1)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE {name}.streams ENABLE ROW LEVEL SECURITY".encode())
        connection.execute(f"CREATE POLICY first_streams ON {name}.streams USING (id < 100)".encode())
        open_url(version_1).close()
        policies = "SELECT tablename, policyname FROM pg_policies WHERE schemaname = %s"
        assert connection.execute(policies, (name,)).fetchall() == [("streams", "first_streams")]
        is_hidden = "SELECT relrowsecurity FROM pg_class WHERE oid = %s::regclass"
        assert connection.execute(is_hidden, (f"{name}.tombstones",)).fetchone() == (True,)


def test_roles_of_version_1_that_put_blobs_may_put_them_again(
    roles_of_version_1: Callable[[str], PostgresLog],
) -> None:
    everything = roles_of_version_1("all")
    ref = everything.put_blob(b"data")
    assert everything.put_blob(b"data") == ref
    assert everything.get_blob(ref) == b"data"
