"""One writer at a time among all processes, and as many appends as possible in each of its transactions.

The gate is the only row of `runstate_log`. Every transaction begins with an UPDATE of it, which takes positions for the
feed; Snowflake lets no second transaction update the row before the first has ended. Within a process, appends that
wait share a transaction, since a transaction costs much and a row in it little.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import TypeVar

from runstate.errors import AppendOutcomeUnknown, LogBusy, LogClosed, LogDamaged, RunstateError
from runstate.logs.bulk import Answer
from runstate.logs.group_commit import GroupCommit
from runstate.logs.log import AppendResult
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
        self._turn = Lock()
        """Held by the caller that writes."""
        self._line = GroupCommit(
            self._commit,
            Append.answer,
            weigh=lambda append: len(append.drafts),
            weight_max=drafts_max,
            turn=self._turn,
            name="runstate-snowflake-writer",
        )
        self._closed = False

    def append(self, append: Append) -> list[AppendResult]:
        """Run one append, with others or alone, and wait for its commit.

        Raises:
            RunstateError: what has refused it, or all of its transaction.
        """
        return self._line.run(append)

    def append_many(self, appends: list[Append]) -> list[Answer]:
        """Run many appends, in as few transactions as there can be."""
        return self._line.run_all(appends)

    def submit(self, append: Append) -> Future[list[AppendResult]]:
        """Run one append without waiting for it."""
        return self._line.submit(append)

    def alone(self, positions: int, work: Callable[[Session], T]) -> T:
        """Run any other change in a transaction of its own. Raises what `work` raises, and what `append` does."""
        with self._turn:
            if self._closed:
                raise LogClosed()
            return self._transaction(positions, work)

    def close(self) -> None:
        """Finish what was accepted, and take nothing more."""
        self._line.close()
        with self._turn:
            self._closed = True

    def _commit(self, group: list[Append]) -> None:
        """Write a group in one transaction. Each append has its result or its error then.

        Raises:
            RunstateError: the answer to all of them.
        """
        group = [append for append in group if append.drafts]
        positions = sum(len(append.drafts) for append in group)
        try:
            self._transaction(positions, lambda session: append_group(session, group))
        except (AppendOutcomeUnknown, LogBusy, LogClosed):
            raise
        except RunstateError:
            if len(group) <= 1:
                raise
            for append in group:  # What one of them has done wrong is no matter of the others.
                try:
                    self._commit([append])
                except RunstateError as error:
                    append.error = error

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
