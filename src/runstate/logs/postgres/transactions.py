"""A connection of a log, and its transactions. No statement depends on what the session is set to.

Behind a transaction pooler, each transaction may run in another session of the server, and other applications share
these sessions. So a statement names its tables with the schema, and a transaction that writes sets what it needs for
itself alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from select import POLLIN, poll
from typing import Any

import psycopg
from psycopg import sql
from psycopg.errors import Diagnostic

Row = tuple[Any, ...]

# Each statement must see what was committed while the one before it waited, whatever the server's default is.
begin = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"

# remote_apply is stronger than on, and stays where an operator has asked for it. With either of them, a commit waits
# for the standbys that are named.
sync_commit = """
CASE WHEN current_setting('synchronous_commit') IN ('on', 'remote_apply') THEN ''
    ELSE set_config('synchronous_commit', 'on', true) END
"""
"""A column of a query that makes its transaction durable."""
local_settings = f"""
set_config('lock_timeout', '$lock_timeout', true), {sync_commit}, current_setting('synchronous_standby_names') <> ''
"""
"""Three columns of a query. It sets them until the transaction ends; the last is whether commits wait for a standby."""
set_local = f"SELECT {local_settings}"

server_time = """to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"""
"""The server's clock, as `persisted_at` writes it."""

# A transaction that writes nothing waits for no standby.
write_for_standby = """
SELECT pg_logical_emit_message(true, 'runstate', '') WHERE current_setting('synchronous_standby_names') <> ''
"""


class ConnectionLost(Exception):
    """The connection went away while it was used. What it was doing may or may not have been done."""


class NotReplicated(ConnectionLost):
    """The server has committed, but nobody knows whether the synchronous standby has it."""


class Connection(psycopg.Connection[Row]):
    """In its statements, `$schema` stands for the log's schema."""

    schema = ""
    _lock_timeout_ms = 0
    _is_wait_cancelled = False

    def prepare_log(self, schema: str, lock_timeout_ms: int) -> None:
        """Make it a connection of a log. Before that, it sends nothing."""
        self.schema, self._lock_timeout_ms = schema, lock_timeout_ms
        self._rendered: dict[str, str] = {}
        self.add_notice_handler(self._notice)

    def execute(
        self, query: Any, params: Any = None, *, prepare: bool | None = None, binary: bool = False
    ) -> psycopg.Cursor[Row]:
        if isinstance(query, str):
            query = self._rendered.get(query) or self._render(query)
        return super().execute(query, params, prepare=prepare, binary=binary)

    def _render(self, query: str) -> str:
        schema = sql.Identifier(self.schema).as_string(None)
        rendered = query.replace("$schema", schema).replace("$lock_timeout", str(self._lock_timeout_ms))
        self._rendered[query] = rendered
        return rendered

    def check_silent(self) -> None:
        """To be called before something is sent that could not be sent again.

        Raises:
            ConnectionLost: the server has said something since the last use, perhaps that it shuts down.
        """
        sockets = poll()
        sockets.register(self.pgconn.socket, POLLIN)
        if sockets.poll(0):
            raise ConnectionLost("The server has closed the connection, or said something else without being asked")

    def check_replicated(self) -> None:
        """
        Raises:
            NotReplicated: the last commit did not wait for the standby until the end.
        """
        if self._is_wait_cancelled:
            self._is_wait_cancelled = False
            raise NotReplicated("The wait for the synchronous standby was cancelled: only this server has the commit")

    def _notice(self, notice: Diagnostic) -> None:
        # Its text depends on the server's language, and its code is the one of all warnings.
        if notice.source_function == "SyncRepWaitForLSN":
            self._is_wait_cancelled = True


@contextmanager
def changes(connection: Connection) -> Iterator[None]:
    """A transaction that writes, in a pipeline. If the block fails, the caller rolls it back.

    Raises:
        NotReplicated: it is committed, but maybe not on the standby.
    """
    with connection.pipeline():
        connection.execute(begin)
        connection.execute(set_local)
        yield
        connection.execute("COMMIT")
    connection.check_replicated()
