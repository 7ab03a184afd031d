"""One writer at a time among all processes, and as many appends as possible in each of its transactions.

The gate is the only row of `runstate_log`. Every transaction begins with an UPDATE of it, which takes positions for the
feed; Snowflake lets no second transaction update the row before the first has ended. Within a process, callers queue:
whoever's turn it is takes along all appends that wait, since a transaction costs much and a row in it little.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from runstate.errors import AppendOutcomeUnknown, LogBusy, LogClosed, LogDamaged, RunstateError
from runstate.logs.snowflake.appends import Append, append_group
from runstate.logs.snowflake.connections import ConnectionLost, Connections, Session, pauses

T = TypeVar("T")

drafts_max = 10_000
"""Drafts that share one transaction; more would only make the first of them wait longer."""
_take_gate = "UPDATE runstate_log SET last_position = last_position + ?"


class Writer:
    """Runs what changes the log, in turns."""

    def __init__(self, connections: Connections, busy_timeout_s: float) -> None:
        self._connections, self._busy_timeout_s = connections, busy_timeout_s
        self._waiting: list[Append] = []
        self._entrance = Lock()
        """Held to look at what waits, for a moment."""
        self._turn = Lock()
        """Held by whoever writes."""
        self._closed = False

    def append(self, append: Append) -> None:
        """Run one append, with others or alone, and wait for its commit.

        Raises:
            RunstateError: what has refused it, or all of its transaction.
        """
        self.append_many([append])
        if append.error is not None:
            raise append.error

    def append_many(self, appends: list[Append]) -> None:
        """Run many appends. Each has its result or its error then.

        Raises:
            LogClosed: nothing was written.
        """
        with self._entrance:
            if self._closed:
                raise LogClosed()
            self._waiting += appends
        with self._turn:
            while not all(append.is_done for append in appends):
                self._commit(self._next_group())

    def alone(self, positions: int, work: Callable[[Session], T]) -> T:
        """Run any other change in a transaction of its own. Raises what `work` raises, and what `append` does."""
        with self._turn:
            if self._closed:
                raise LogClosed()
            return self._transaction(positions, work)

    def close(self) -> None:
        """Finish what was accepted, and take nothing more."""
        with self._entrance:
            self._closed = True
        with self._turn:
            while group := self._next_group():
                self._commit(group)

    def _next_group(self) -> list[Append]:
        with self._entrance:
            count, size = 0, 0
            for append in self._waiting:
                size += len(append.drafts)
                if count and size > drafts_max:
                    break
                count += 1
            group, self._waiting = self._waiting[:count], self._waiting[count:]
            return group

    def _commit(self, group: list[Append]) -> None:
        positions = sum(len(append.drafts) for append in group)
        try:
            self._transaction(positions, lambda session: append_group(session, group))
        except (AppendOutcomeUnknown, LogBusy, LogClosed) as error:
            for append in group:
                append.error = error.again()
        except RunstateError as error:
            if len(group) > 1:  # What one of them has done wrong is no matter of the others.
                for append in group:
                    self._commit([append])
                return
            group[0].error = error
        except BaseException:
            # An interrupt in the caller whose turn it was. The others must neither wait for ever, nor think it failed.
            for append in group:
                append.error = AppendOutcomeUnknown()
                append.is_done = True
            raise
        for append in group:
            append.is_done = True

    def _transaction(self, positions: int, work: Callable[[Session], T]) -> T:
        deadline = time.monotonic() + self._busy_timeout_s
        pause_s = pauses()
        while True:
            is_sent = False
            try:
                with self._connections.one() as session:
                    session.begin()
                    if (rows := session.change(_take_gate, positions)) != 1:
                        raise LogDamaged(f"runstate_log has {rows} rows instead of one; nothing was written")
                    answer = work(session)
                    is_sent = True
                    session.commit()
                    return answer
            except ConnectionLost as lost:
                if is_sent:
                    raise AppendOutcomeUnknown(
                        f"The connection was lost during the commit ({lost}); send the same keys again"
                    ) from lost
                # What was not committed is rolled back: the session had expired, or the server is back again.
                failure = LogBusy(f"The connection to Snowflake was lost ({lost}); try again")
            except LogBusy as busy:
                failure = busy
            if time.monotonic() > deadline:
                raise failure
            time.sleep(next(pause_s))
