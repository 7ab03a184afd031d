"""Concurrent appends become shared transactions: the more callers wait, the more share the one fsync of a commit."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from runstate.errors import (
    AppendOutcomeUnknown,
    InvalidJson,
    LogBusy,
    LogClosed,
    LogDamaged,
    LogFailed,
    LogFull,
    RunstateError,
)
from runstate.logs.bulk import Answer
from runstate.logs.group_commit import GroupCommit
from runstate.logs.log import AppendResult, now
from runstate.logs.sqlite.appends import Append, Heads, KnownKey, append_checked, append_new
from runstate.logs.sqlite.damaged_text import is_undecodable
from runstate.logs.sqlite.file_proof import FileProof

Work = Callable[[sqlite3.Connection], None]
"""Any other change. It checks first and writes then: when it raises, it has written nothing."""


class _Job:
    """What to write, and why it was refused."""

    __slots__ = ("append", "durable", "error", "work")

    def __init__(self, append: Append | None, work: Work | None = None, *, durable: bool = True) -> None:
        self.append, self.work, self.durable = append, work, durable
        self.error: RunstateError | None = None


def _answer(job: _Job) -> list[AppendResult]:
    if job.error is not None:
        raise job.error
    if job.append is None:
        return []
    if job.append.error is not None:
        raise job.append.error
    return job.append.result


class Writer:
    """Runs jobs in the order they come, as many as possible in one transaction."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], busy_timeout_s: float, path: Path) -> None:
        self._connection = connect()
        self._relaxed = connect()
        # Without the fsync: for what may be thrown away. The next durable commit syncs it along.
        self._relaxed.execute("PRAGMA synchronous = NORMAL")
        for connection in (self._connection, self._relaxed):
            # `_begin` waits for the lock. SQLite would wait too, and Ctrl-C had no effect until it gave up.
            connection.execute("PRAGMA busy_timeout = 0")
        self._busy_timeout_s, self._proof = busy_timeout_s, FileProof(path)
        self._heads = Heads()
        self._poison: RunstateError | None = None
        self._jobs = GroupCommit(self._commit, _answer, name="runstate-sqlite-writer")

    def append(self, append: Append) -> list[AppendResult]:
        """Run one append and wait until it is durable.

        Raises:
            SequenceConflict, LogBusy, LogFull, LogClosed: nothing was written.
            AppendOutcomeUnknown: it may have been.
        """
        return self._jobs.run(_Job(append))

    def append_many(self, appends: Sequence[Append]) -> list[Answer]:
        """Run many appends, in as few transactions as there can be."""
        return self._jobs.run_all([_Job(append) for append in appends])

    def submit(self, append: Append) -> Future[list[AppendResult]]:
        """Run one append without waiting for it."""
        return self._jobs.submit(_Job(append))

    def work(self, work: Work, *, durable: bool = True) -> None:
        """Run any other change and wait for its commit. Raises what `work` raises, and what `append` does."""
        self._jobs.run(_Job(None, work, durable=durable))

    def close(self) -> None:
        self._jobs.close()
        self._connection.close()
        self._relaxed.close()

    def _commit(self, group: list[_Job]) -> None:
        """Write a group in one transaction. Its failure is the failure of all; a refused job has its own error.

        Raises:
            RunstateError: nothing of the group was written, or nobody knows whether it was.
        """
        durable = any(job.durable for job in group)
        connection = self._connection if durable else self._relaxed
        try:
            if self._poison is not None:
                raise self._poison.again()
            self._write(connection, group)
            self._finish(connection)
        except BaseException as error:
            self._roll_back(connection)
            if isinstance(error, sqlite3.Error):
                raise translate(error) from error
            if isinstance(error, RunstateError) or not isinstance(error, Exception):
                raise
            if len(group) == 1:
                raise LogFailed(f"It cannot be written: {error!r}") from error
            for job in group:  # What one of them does wrong must reach its caller, and no other.
                try:
                    self._commit([job])
                except RunstateError as own:
                    job.error = own

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        self._heads.forget()
        try:
            connection.rollback()
        except sqlite3.Error as error:
            self._poison = LogClosed(f"A rollback failed ({error}); open the log again")

    def _write(self, connection: sqlite3.Connection, group: list[_Job]) -> None:
        appends = [job.append for job in group if job.append is not None and job.append.drafts]
        for append in appends:
            append.error = None  # It may be of an attempt that was rolled back.
        self._begin(connection)
        if appends:
            try:
                append_new(connection, self._heads, appends, now())
            except KnownKey:
                self._roll_back(connection)
                self._begin(connection)
                append_checked(connection, appends, now())
        for job in group:
            if job.work is not None:
                try:
                    job.work(connection)
                except RunstateError as error:
                    job.error = error

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Take the write lock. Other processes write too, and SQLite gives it to whoever asks at the right moment.

        Short random pauses give each of them its turn; SQLite's own back-off of up to 100 ms starves the
        one that waits.
        """
        deadline = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if primary_code(error) != sqlite3.SQLITE_BUSY:
                    raise
                if time.monotonic() > deadline:
                    raise LogBusy(
                        f"Another process has held the log for {self._busy_timeout_s:g} s; try again"
                    ) from error
            time.sleep(random.uniform(0.0002, 0.002))  # noqa: S311 - no secret, a pause

    def _finish(self, connection: sqlite3.Connection) -> None:
        """Commit. A failure here is not an answer: the bytes may or may not have reached the disk."""
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if primary_code(error) == sqlite3.SQLITE_FULL:
                raise
            # The kernel may have dropped the pages that it could not write: never try again on this handle.
            self._poison = LogClosed(
                f"A commit failed ({error}); nothing more is written until the log is opened again"
            )
            raise AppendOutcomeUnknown(
                f"The commit failed ({error}); open the log again and send the same keys"
            ) from error
        if (lost := self._proof.find_lost()) is not None:
            self._poison = LogClosed(f"{lost} was removed or replaced while it was open; open the log again to write")
            raise AppendOutcomeUnknown(
                f"{lost} was removed or replaced while it was open, and the commit may not be in the file that stands "
                "there now; open the log again and send the same keys"
            )


def translate(error: sqlite3.Error) -> RunstateError:
    """SQLite's errors in our words. Only reads, and writes that were rolled back, come here."""
    code = primary_code(error)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL):
        return LogBusy(f"Another process holds the log ({error}); try again")
    if code == sqlite3.SQLITE_FULL:
        return LogFull()
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return LogDamaged(f"SQLite found damage ({error}); keep a copy of the file, then run 'runstate verify'")
    if is_undecodable(error):
        return LogDamaged(f"The file holds damaged text ({error}); keep a copy of it, then run 'runstate verify'")
    return LogFailed(f"SQLite refused: {error}")


@contextmanager
def translated() -> Iterator[None]:
    """SQLite's errors about a read in our words."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error) from error
    except UnicodeEncodeError as error:  # A lone surrogate, which no stored text can hold.
        raise InvalidJson(f"{error.object[:40]!r} is no text: it has a lone surrogate") from error


def primary_code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
