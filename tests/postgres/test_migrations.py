"""Tables are made once, however many processes open a new log at the same time."""

from __future__ import annotations

import subprocess
import sys

import psycopg
import pytest
from tests.postgres_server import plain_and_schema

from runstate.conformance.notes import notes
from runstate.errors import RunstateError
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
