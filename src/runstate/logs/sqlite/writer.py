"""One thread that writes, and turns concurrent appends into shared transactions.

Callers put jobs into a queue and wait. The thread takes all that are waiting, runs them in one transaction and
commits once: the more callers wait, the more share the one fsync that takes most of the time. A caller that finds
nobody else writing does the same by itself, and spares two changes of threads.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue

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
from runstate.logs.log import now
from runstate.logs.sqlite.appends import Append, Heads, KnownKey, append_checked, append_new
from runstate.logs.sqlite.damaged_text import is_undecodable
from runstate.logs.sqlite.file_proof import FileProof

jobs_max = 1000
"""Jobs that share one transaction; more would only make the first of them wait longer."""

Work = Callable[[sqlite3.Connection], None]
"""Any other change. It checks first and writes then: when it raises, it has written nothing."""


class _Job:
    """What to write, and its caller's place to wait."""

    __slots__ = ("append", "done", "durable", "error", "work")

    def __init__(self, append: Append | None, work: Work | None, durable: bool) -> None:
        self.append, self.work, self.durable = append, work, durable
        self.error: RunstateError | None = None
        # A bare lock, taken here and released by the writer, wakes its waiter faster than any event object.
        self.done = allocate_lock()
        self.done.acquire()


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
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._heads = Heads()
        self._gate = threading.Lock()
        self._turn = threading.Lock()
        """Held by whoever writes."""
        self._unfinished = 0
        self._refusal: RunstateError | None = None
        self._poison: RunstateError | None = None
        self._thread = threading.Thread(target=self._run, name="runstate-sqlite-writer", daemon=True)
        self._thread.start()

    def append(self, append: Append) -> None:
        """Run one append and wait until it is durable.

        Raises:
            SequenceConflict, LogBusy, LogFull, LogClosed: nothing was written.
            AppendOutcomeUnknown: it may have been.
        """
        self._submit([_Job(append, None, True)])
        if append.error is not None:
            raise append.error

    def append_many(self, appends: list[Append]) -> None:
        """Run many appends, in as few transactions as there can be. Each has its result or its error then."""
        jobs = [_Job(append, None, True) for append in appends]
        for start in range(0, len(jobs), jobs_max):
            with suppress(RunstateError):  # It stands in each job.
                self._submit(jobs[start : start + jobs_max])
        for append, job in zip(appends, jobs, strict=True):
            append.error = append.error or job.error

    def work(self, work: Work, *, durable: bool = True) -> None:
        """Run any other change and wait for its commit. Raises what `work` raises, and what `append` does."""
        self._submit([_Job(None, work, durable)])

    def close(self) -> None:
        with self._gate:
            if self._refusal is None:
                self._refusal = LogClosed()
            self._jobs.put(None)
        self._thread.join()

    def _submit(self, jobs: list[_Job]) -> None:
        with self._gate:  # So that no job can slip in behind the last one that the thread takes.
            if self._refusal is not None:
                for job in jobs:
                    job.error = self._refusal.again()
                raise self._refusal.again()
            alone = self._unfinished == 0
            self._unfinished += len(jobs)
            if not alone:
                for job in jobs:
                    self._jobs.put(job)
        if alone:
            # With nobody to share a commit with, waking the thread and being woken by it would only cost time.
            try:
                with self._turn:
                    self._commit(jobs)
            finally:
                self._finished(len(jobs))
        else:
            for job in jobs:
                job.done.acquire()
        if jobs[0].error is not None:
            raise jobs[0].error

    def _finished(self, jobs: int) -> None:
        with self._gate:
            self._unfinished -= jobs

    def _run(self) -> None:
        last = False
        while not last and (job := self._jobs.get()) is not None:
            with self._turn:  # While it was waited for, more jobs may have come: take them now.
                group = [job]
                last = self._take_waiting(group)
                self._commit(group)
            self._finished(len(group))
        with self._turn:
            self._connection.close()
            self._relaxed.close()

    def _take_waiting(self, group: list[_Job]) -> bool:
        """Add the jobs that are waiting; True when the end of all jobs was among them."""
        try:
            while len(group) < jobs_max:
                job = self._jobs.get_nowait()
                if job is None:
                    return True
                group.append(job)
        except Empty:
            pass
        return False

    def _commit(self, group: list[_Job]) -> None:
        durable = any(job.durable for job in group)
        connection = self._connection if durable else self._relaxed
        failure: RunstateError | None
        try:
            if self._poison is not None:
                raise self._poison.again()
            self._write(connection, group)
        except RunstateError as error:
            failure = error
        except sqlite3.Error as error:
            failure = translate(error)
        except Exception as error:  # noqa: BLE001 - what a job does wrong must reach its caller, not end the thread
            if len(group) > 1:
                self._roll_back(connection)
                for job in group:
                    self._commit([job])
                return
            failure = LogFailed(f"It cannot be written: {error!r}")
        except BaseException:  # An interrupt, in a caller that writes by itself: nothing half done may stay behind.
            self._roll_back(connection)
            raise
        else:
            failure = self._finish(connection)
        if failure is not None:
            self._roll_back(connection)
        for job in group:
            job.error = job.error if failure is None else failure.again()
            job.done.release()

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        self._heads.forget()
        try:
            connection.rollback()
        except sqlite3.Error as error:
            self._poison = self._refusal = LogClosed(f"A rollback failed ({error}); open the log again")

    def _write(self, connection: sqlite3.Connection, group: list[_Job]) -> None:
        appends = [job.append for job in group if job.append is not None]
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

    def _finish(self, connection: sqlite3.Connection) -> RunstateError | None:
        """Commit. A failure here is not an answer: the bytes may or may not have reached the disk."""
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if primary_code(error) == sqlite3.SQLITE_FULL:
                return translate(error)
            # The kernel may have dropped the pages that it could not write: never try again on this handle.
            self._poison = self._refusal = LogClosed(
                f"A commit failed ({error}); nothing more is written until the log is opened again"
            )
            return AppendOutcomeUnknown(f"The commit failed ({error}); open the log again and send the same keys")
        if (lost := self._proof.find_lost()) is not None:
            self._poison = self._refusal = LogClosed(
                f"{lost} was removed or replaced while it was open; open the log again to write"
            )
            return AppendOutcomeUnknown(
                f"{lost} was removed or replaced while it was open, and the commit may not be in the file that stands "
                "there now; open the log again and send the same keys"
            )
        return None


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
