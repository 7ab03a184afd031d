"""Rows of a database log, changed behind its back: past the triggers that forbid it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

from runstate.logs.log import EventLog

Change = Callable[[str], None]
"""Runs a statement in the log's database."""


def change_rows(log: Any, url: str, statement: str) -> None:
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:"))) as connection, connection:
            for trigger in ("events_are_never_updated", "events_are_never_deleted_singly"):
                connection.execute(f"DROP TRIGGER IF EXISTS {trigger}")
            connection.execute(statement)
    elif url.startswith("postgresql:"):
        with log._connections.one() as connection, connection.transaction():
            connection.execute("SELECT set_config('search_path', %s, true)", (connection.schema,))
            connection.execute("SET LOCAL session_replication_role = replica")
            connection.execute(statement)
    else:
        log._connections.run(lambda session: session.change(statement))


def place(log: EventLog) -> str:
    """The row of event 3 of the stream `s`, as a condition."""
    column = (
        "stream = 's'"
        if type(log).__name__ == "SnowflakeLog"
        else "stream_id = (SELECT id FROM streams WHERE stream = 's')"
    )
    return f"seq = 3 AND {column}"
