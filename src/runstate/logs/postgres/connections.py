"""Connections to the server: a pool of them, what each is set to, and the driver's errors in our words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg import errors as driver
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from runstate.errors import (
    EventTooLarge,
    InvalidEvent,
    LogBusy,
    LogClosed,
    LogDamaged,
    LogFailed,
    LogFull,
    RunstateError,
)
from runstate.logs.postgres.arrays import dumpers
from runstate.logs.postgres.transactions import Connection, ConnectionLost

T = TypeVar("T")

held_back_max_s = 0.2
"""How long the feed, or whoever opens the log, waits for a transaction that is about to end."""
pause_s = 0.002

# Every statement of a log goes by an index; a plan that is made while its tables are small, or unknown to the planner,
# must do so too, for it may stay. With no other plan to be had, making it anew for each call would only cost: more than
# all else that an append does. These only save time, and a session behind a pooler is not ours alone to be set: a
# pooler tells each client a process of its own making, not the server's.
_settings = """
SELECT set_config('lock_timeout', '$lock_timeout', false),
       set_config('enable_seqscan', 'off', false), set_config('enable_hashjoin', 'off', false),
       set_config('enable_mergejoin', 'off', false), set_config('jit', 'off', false),
       set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('default_transaction_isolation', 'read committed', false)
WHERE pg_backend_pid() = %s
"""
_busy = (
    driver.LockNotAvailable,
    driver.DeadlockDetected,
    driver.SerializationFailure,
    driver.TooManyConnections,
    driver.CannotConnectNow,
    driver.AdminShutdown,
    driver.CrashShutdown,
    PoolTimeout,
)
_damaged = (driver.DataCorrupted, driver.IndexCorrupted)
_missing = (driver.UndefinedTable, driver.UndefinedColumn, driver.UndefinedFunction, driver.InvalidSchemaName)


class Connections:
    """As many connections as threads at work, up to `pool_max`; beyond that, threads wait for their turn."""

    def __init__(self, conninfo: str, schema: str, *, pool_max: int, busy_timeout_s: float) -> None:
        self._conninfo, self._schema, self._busy_timeout_s = conninfo, schema, busy_timeout_s
        self._arguments: dict[str, Any] = {
            "autocommit": True,
            "client_encoding": "UTF8",
            "fallback_application_name": "runstate",
        }
        self.is_pooled = False
        """Whether a pooler is between us and the server: no state of a session can be relied on."""
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            conninfo,
            connection_class=Connection,
            kwargs=self._arguments,
            configure=self._configure,
            min_size=0,
            max_size=pool_max,
            timeout=busy_timeout_s,
            open=False,
            name="runstate-postgres",
        )

    def first(self, work: Callable[[Connection], T]) -> T:
        """Do something on a connection of its own, and open the pool once that has worked.

        Raises:
            LogFailed: the server cannot be reached, or does not let us in. The pool would try for minutes instead.
        """
        try:
            with self.connect() as connection:
                answer = work(connection)
        except psycopg.Error as error:
            raise translate(error) from error
        self._pool.open()
        return answer

    def connect(self) -> Connection:
        """A connection that is not the pool's.

        Raises:
            LogFailed, LogBusy: the server cannot be reached, or does not let us in.
        """
        try:
            connection = Connection.connect(self._conninfo, **self._arguments)
        except psycopg.Error as error:
            if isinstance(error, _busy):
                raise translate(error) from error
            raise LogFailed(f"The server cannot be reached, or refuses the connection: {error}") from error
        self._configure(connection)
        return connection

    @contextmanager
    def one(self, timeout_s: float | None = None) -> Iterator[Connection]:
        """A connection, with no transaction open, for as long as the block takes.

        Raises:
            ConnectionLost: it went away meanwhile.
            RunstateError: whatever else the server answered; its transaction was rolled back.
        """
        with _translated():
            connection = self._pool.getconn(timeout_s)
        try:
            yield connection
        except psycopg.Error as error:
            if _is_lost(connection, error):
                connection.close()
                raise ConnectionLost(f"The connection to the server was lost: {error}") from error
            raise translate(error) from error
        finally:
            if connection.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                with suppress(psycopg.Error):  # Then it is broken, and the pool replaces it.
                    connection.rollback()
            self._pool.putconn(connection)

    def run(self, work: Callable[[Connection], T]) -> T:
        """Do something that may be done twice: after a restart of the server, it is.

        Raises:
            LogFailed: the connection went away each time.
        """
        for _ in range(2):
            try:
                with self.one() as connection:
                    return work(connection)
            except ConnectionLost:
                self.drop_broken()
        try:
            with self.one() as connection:
                return work(connection)
        except ConnectionLost as lost:
            raise LogFailed(str(lost)) from lost

    def drop_broken(self) -> None:
        """A restart of the server breaks all connections at once: do not meet them one by one."""
        with _translated():
            self._pool.check()

    def close(self) -> None:
        self._pool.close()

    def _configure(self, connection: Connection) -> None:
        for array, dumper in dumpers:
            connection.adapters.register_dumper(array, dumper)
        connection.prepare_log(self._schema, int(self._busy_timeout_s * 1000))
        if connection.execute(_settings, (connection.info.backend_pid,)).fetchone() is None:
            self.is_pooled = True
            connection.prepare_threshold = None  # A prepared statement belongs to a session, too.


def _is_lost(connection: Connection, error: psycopg.Error) -> bool:
    """Whether the error says nothing about what the server did: it is no answer, or the last words of a session.

    The driver may be the one to speak: a pipeline that cannot be left hides what ended it. So may a pooler that has
    lost the server: its codes are of the class 08.
    """
    is_answer = error.sqlstate is not None or not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    is_answer = is_answer and not (error.sqlstate or "").startswith("08")
    return connection.closed or not is_answer or error.diag.severity_nonlocalized in ("FATAL", "PANIC")


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise translate(error) from error


def translate(error: psycopg.Error) -> RunstateError:
    """Postgres' errors in our words. Only reads, and writes that were rolled back, come here."""
    if isinstance(error, PoolClosed):
        return LogClosed()
    if isinstance(error, _busy):
        return LogBusy(f"The server or another writer is busy ({error}); try again")
    if isinstance(error, driver.DiskFull):
        return LogFull()
    if isinstance(error, _damaged):
        return LogDamaged(f"Postgres found damage ({error}); keep a copy of its files, then run 'runstate verify'")
    if isinstance(error, _missing):
        return LogDamaged(f"A part of the log's schema is missing: {error}")
    if isinstance(error, driver.ProgramLimitExceeded):
        return EventTooLarge(f"Postgres cannot index it, a key may have about 2,600 bytes: {error}")
    if isinstance(error, psycopg.DataError):
        return InvalidEvent(f"Postgres keeps no such text: {error}")
    return LogFailed(f"Postgres refused: {error}")


def let_settle(connection: Connection) -> None:
    """Wait a moment for the transactions that run now.

    After a writer was killed, its server process may still be about to commit: whoever opens the log next should find
    either all of that append, or know that it will never come.
    """
    began = connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text").fetchone()
    deadline = time.monotonic() + held_back_max_s
    while not _is_over(connection, began) and time.monotonic() < deadline:
        time.sleep(pause_s)


def _is_over(connection: Connection, began: tuple[Any, ...] | None) -> bool:
    row = connection.execute("SELECT pg_snapshot_xmin(pg_current_snapshot()) >= %s::xid8", began).fetchone()
    return row is not None and bool(row[0])
