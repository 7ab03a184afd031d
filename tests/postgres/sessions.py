"""What tests do with a session of their own on a log's tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from runstate.logs.postgres import writer
from runstate.logs.postgres.appends import Head, Written
from runstate.logs.postgres.guesses import Guesses
from runstate.logs.postgres.transactions import Connection

Session = Connection

_hold = """
CREATE FUNCTION hold_late() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext(TG_TABLE_SCHEMA));
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER hold_late AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (NEW.key LIKE 'late%') EXECUTE FUNCTION hold_late();
"""


@contextmanager
def late_commits_held(session: Session) -> Iterator[None]:
    """While the block runs, an append with a key like `late…` has written its rows, and does not get to commit."""
    if session.execute("SELECT to_regproc(current_schema() || '.hold_late')").fetchone() == (None,):
        session.execute(_hold)
    session.execute("SELECT pg_advisory_lock(hashtext(current_schema()))")
    try:
        yield
    finally:
        session.execute("SELECT pg_advisory_unlock(hashtext(current_schema()))")


def lose_before_commit(
    patched: pytest.MonkeyPatch, session: psycopg.Connection[Any], trips: int, heads_min: int = 1
) -> None:
    """End the session of each append to so many heads, just before it sends what commits it: in this round trip."""
    name = "commit_guessed" if trips == 1 else "commit"
    commit = getattr(writer, name)

    def commit_lost(connection: Session, heads: list[Head], **options: bool) -> Written | None:
        if len(heads) >= heads_min:
            session.execute("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))
        written: Written | None = commit(connection, heads, **options)
        return written

    patched.setattr(writer, name, commit_lost)
    if trips == 2:
        patched.setattr(Guesses, "plan", lambda *_: ([], {}))


def somebody_waits_for(session: Session) -> bool:
    """Whether somebody waits for a lock that the session holds."""
    found = session.execute("SELECT 1 FROM pg_stat_activity WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))")
    return found.fetchone() is not None


def until(is_so: Callable[[], bool]) -> None:
    """Wait for what other threads are about to do."""
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.002)
