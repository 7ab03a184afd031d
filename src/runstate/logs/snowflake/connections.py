"""Connections to Snowflake: a pool of them, statements one at a time on each, and the driver's errors in our words."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from queue import Empty, LifoQueue
from threading import BoundedSemaphore
from typing import Any, TypeVar

import snowflake.connector
from snowflake.connector import errors as driver

from runstate.errors import (
    EventTooLarge,
    LogBusy,
    LogClosed,
    LogDamaged,
    LogFailed,
    RunstateError,
)

T = TypeVar("T")
Row = tuple[Any, ...]

login_timeout_s = 15
"""The driver's own is five minutes, which is long for a mistyped account."""
pause_max_s = 1.0
"""About what a transaction takes in Snowflake."""
_answers_max = 200_000
"""Numbers below are answers to a statement. Those above are about the way there: HTTP, tokens, sessions."""
_too_long = 100_078
_no_object = (2003, 2043)
_no_place = (90_105, 90_106)
"""No current database, or no current schema: the one that was asked for is not there."""
_no_warehouse = 606
_no_privilege = 3001
_lock_not_had = 625
_cancelled = "57014"
"""The state of a statement that waited too long for a lock, or found too many others waiting for it."""

# Without a handler, what the driver warns about would go to standard error.
logging.getLogger("snowflake.connector").addHandler(logging.NullHandler())


def pauses() -> Iterator[float]:
    """Seconds to wait between tries: at random, so that those who were sent away together do not come back together."""
    longest_s = 0.01
    while True:
        yield random.uniform(0, longest_s)  # noqa: S311 - no secret, a pause
        longest_s = min(longest_s * 2, pause_max_s)


class ConnectionLost(Exception):
    """The session went away while it was used. What it was doing may or may not have been done."""


class NoSuchTable(LogDamaged):
    """A table that a log needs is not there, or this role may not see it."""


class Session:
    """One connection. Whoever holds it is alone on it: the driver runs one statement at a time."""

    def __init__(self, connection: snowflake.connector.SnowflakeConnection) -> None:
        self._connection = connection
        self._began_in: object = None
        self.in_transaction = False
        self.is_lost = False

    def rows(self, query: str, *values: object) -> list[Row]:
        return list(self.each(query, *values))

    def each(self, query: str, *values: object) -> Iterator[Row]:
        """Row by row, in bounded memory: a large answer comes in parts."""
        with _answered(self), self._connection.cursor() as cursor:
            cursor.execute(query, values or None)
            for row in cursor:
                # The driver hands out binary columns as bytearray.
                yield tuple(bytes(value) if isinstance(value, bytearray) else value for value in row)

    def change(self, statement: str, *values: object) -> int:
        """Run a statement that changes something; how many rows it changed."""
        with _answered(self), self._connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return cursor.rowcount or 0

    def begin(self) -> None:
        self.change("BEGIN")
        self.in_transaction = True
        self._began_in = self._connection.session_id

    def commit(self) -> None:
        """
        Raises:
            ConnectionLost: it may or may not have been committed.
        """
        if self._connection.session_id != self._began_in:
            # A driver that logs in again by itself would commit nothing, in a session that has begun nothing.
            self.is_lost = True
            raise ConnectionLost("the driver has opened another session")
        try:
            self.change("COMMIT")
        except RunstateError as error:
            self.is_lost = True
            raise ConnectionLost(str(error)) from error
        self.in_transaction = False

    def rollback(self) -> None:
        self.change("ROLLBACK")
        self.in_transaction = False

    def close(self) -> None:
        with suppress(driver.Error, OSError):  # It is let go in any case; the server ends what nobody uses.
            self._connection.close(retry=False)


class Connections:
    """As many sessions as threads at work, up to `pool_max`; beyond that, threads wait for their turn."""

    def __init__(self, arguments: Mapping[str, Any], *, pool_max: int, busy_timeout_s: float) -> None:
        """`arguments` are the driver's, secrets among them: they are kept here and shown nowhere."""
        self._arguments = {
            **arguments,
            "paramstyle": "qmark",
            "autocommit": True,
            "login_timeout": login_timeout_s,
            # A statement may wait for a lock as long as that, and the answer has to come back too.
            "network_timeout": int(busy_timeout_s) + login_timeout_s,
            "application": "runstate",
            "session_parameters": {
                "CLIENT_TELEMETRY_ENABLED": False,
                "QUERY_TAG": "runstate",
                "TIMEZONE": "UTC",
                "LOCK_TIMEOUT": max(1, int(busy_timeout_s)),
                # What a killed writer has left running ends by itself, and gives its lock back.
                "ABORT_DETACHED_QUERY": True,
            },
        }
        self._busy_timeout_s = busy_timeout_s
        self._idle: LifoQueue[Session] = LifoQueue()
        self._places = BoundedSemaphore(pool_max)
        self._closed = False

    @contextmanager
    def one(self) -> Iterator[Session]:
        """A session with no transaction open, for as long as the block takes.

        Raises:
            ConnectionLost: it went away meanwhile.
            RunstateError: whatever else the server answered; its transaction was rolled back.
        """
        if not self._places.acquire(timeout=self._busy_timeout_s):
            raise LogBusy(f"No connection became free within {self._busy_timeout_s:g} s; try again")
        try:
            session = self._take()
            try:
                yield session
            finally:
                self._give_back(session)
        finally:
            self._places.release()

    def run(self, work: Callable[[Session], T]) -> T:
        """Do something that may be done twice: if its session had expired, it is.

        Raises:
            LogFailed: the connection went away each time.
        """
        try:
            with self.one() as session:
                return work(session)
        except ConnectionLost:
            self._drop_idle()
        try:
            with self.one() as session:
                return work(session)
        except ConnectionLost as lost:
            raise LogFailed(f"The connection to Snowflake was lost: {lost}") from lost

    def close(self) -> None:
        self._closed = True
        self._drop_idle()

    def _take(self) -> Session:
        if self._closed:
            raise LogClosed()
        try:
            return self._idle.get_nowait()
        except Empty:
            return self._connect()

    def _connect(self) -> Session:
        try:
            return Session(snowflake.connector.connect(**self._arguments))
        except driver.Error as error:
            # Its words name the user and the account, never the password.
            raise LogFailed(f"Snowflake cannot be reached, or refuses the login: {error}") from error
        except (OSError, ValueError, TypeError) as error:  # A key file that cannot be read, or is none.
            raise LogFailed(f"Snowflake cannot be asked for a login: {error}") from error

    def _give_back(self, session: Session) -> None:
        if session.in_transaction and not session.is_lost:
            try:
                session.rollback()
            except (ConnectionLost, RunstateError):
                session.is_lost = True
        if session.is_lost:
            session.close()
        else:
            self._idle.put(session)
        if self._closed:
            self._drop_idle()

    def _drop_idle(self) -> None:
        """What ends one session, an outage or an expiry, has often ended all: do not meet them one by one."""
        with suppress(Empty):
            while True:
                self._idle.get_nowait().close()


@contextmanager
def _answered(session: Session) -> Iterator[None]:
    try:
        yield
    except driver.Error as error:
        if 0 < error.errno < _answers_max:
            raise translate(error) from error
        session.is_lost = True
        raise ConnectionLost(str(error)) from error
    except OSError as error:  # Also what the HTTP library raises.
        session.is_lost = True
        raise ConnectionLost(str(error)) from error


def translate(error: driver.Error) -> RunstateError:
    """Snowflake's errors in our words. Only reads, and writes that were rolled back, come here."""
    if error.errno == _lock_not_had or error.sqlstate == _cancelled:
        return LogBusy(f"Another writer holds the log, or a statement took too long ({error}); try again")
    if error.errno in (*_no_object, *_no_place):
        return NoSuchTable(f"A part of the log is missing, or this role may not see it: {error}")
    if error.errno == _no_privilege:
        return LogFailed(f"This role lacks a privilege; docs/formats/snowflake.md lists what a log needs: {error}")
    if error.errno == _no_warehouse:
        return LogFailed(f"No warehouse runs statements for this user; add ?warehouse=NAME to the URL: {error}")
    if error.errno == _too_long:
        return EventTooLarge(f"Snowflake cannot hold it: {error}")
    return LogFailed(f"Snowflake refused: {error}")
