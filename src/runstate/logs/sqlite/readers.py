"""Connections that read a SQLite file: a pool of them, and how a process reads that may not write.

SQLite keeps what readers of a WAL-mode file share in `-shm`, and the newest commits in `-wal`. A process that may write
creates both. One that may not reads in one of two ways:

- Shared, where `-wal` is there: a writer is at work, or was killed. SQLite reads it, and uses `-shm` read-only.
- Immutable, where it is not, or holds no commit and SQLite refuses it: everything is in the file itself. No locks are
  taken, so the files are looked at after every read; if a writer has come meanwhile, the read is repeated.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, LifoQueue
from threading import Lock
from typing import NamedTuple, TypeVar

from runstate.errors import LogBusy, LogFailed, NotALog, RunstateError
from runstate.logs.sqlite.schema import read_unmigrated
from runstate.logs.sqlite.writer import primary_code, translate
from runstate.storage.permissions import denial, is_readable, is_writable, not_readable

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
"""A read. It may be run more than once."""

_patience_s = 1.0
"""How long a file may refuse to be read: a writer that opens or closes it takes milliseconds."""
_refusals_min = 3
"""On a busy machine, SQLite may wait ten seconds for a lock before it refuses a single read."""
_attempts_max = 20
_unsettled_s = 0.05
_coarse_unsettled_s = 2.0
_wal_header_bytes = 32
_second_ns = 1_000_000_000
_transient = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PROTOCOL}
"""What SQLite answers while a writer creates or removes `-wal` and `-shm`."""


def can_write(path: Path) -> bool:
    """Whether a file can be changed: SQLite also creates files in its directory."""
    target = Path(os.path.realpath(path))
    return is_writable(target) and is_writable(target.parent)


def is_directory(path: Path) -> NotALog:
    return NotALog(
        f"{path} is a directory, and a SQLite log is a file; it was left untouched. Check the path and the kind in the "
        "URL",
        path=str(path),
    )


class Readers:
    """A pool of connections, as many as threads are at work."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._idle: LifoQueue[sqlite3.Connection] = LifoQueue()
        self._closed = False

    def run(self, work: Work[T]) -> T:
        with self._lent() as connection:
            return work(connection)

    @contextmanager
    def watching(self) -> Iterator[Callable[[], bool]]:
        """Gives a function that says whether another connection has committed since. It costs next to nothing."""
        with self._lent() as connection:
            before = _data_version(connection)
            yield lambda: _data_version(connection) != before

    def is_current(self) -> bool:
        """Whether what was read is what is in the file. SQLite sees to that, where it can lock."""
        return True

    def close(self) -> None:
        self._closed = True
        while True:
            try:
                self._idle.get_nowait().close()
            except Empty:
                return

    @contextmanager
    def _lent(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = self._idle.get_nowait()
        except Empty:
            connection = self._connect()
            connection.execute("PRAGMA query_only = ON")
        try:
            yield connection
        finally:
            if self._closed:
                connection.close()
            else:
                self._idle.put(connection)


class Files(NamedTuple):
    """A SQLite file and the files beside it, as they are now. Equal if nothing was written in between."""

    database: tuple[int, ...] | None
    """Its inode, size and times; None: it is not there."""
    wal_bytes: int
    """-1: there is no `-wal`."""
    has_shm: bool
    journal_bytes: int

    @property
    def are_shared(self) -> bool:
        """Whether commits may be elsewhere than in the file itself, or are being written to it."""
        return self.wal_bytes > 0 or self.journal_bytes > 0 or (self.wal_bytes == 0 and self.has_shm)

    @property
    def have_commits_elsewhere(self) -> bool:
        """Whether `-wal` has more than its header, or a journal must be rolled back."""
        return self.wal_bytes > _wal_header_bytes or self.journal_bytes > 0

    def unsettled_s(self) -> float:
        """How long to wait until another change of the file would show: its time is only as exact as a clock's tick."""
        if self.database is None:
            return 0.0
        changed_ns = self.database[2]
        # File systems that count in seconds give themselves away.
        tick_s = _unsettled_s if changed_ns % _second_ns else _coarse_unsettled_s
        age_s = (time.time_ns() - changed_ns) / _second_ns
        return tick_s - abs(age_s) if abs(age_s) < tick_s else 0.0


class _Immutable(Readers):
    """Reads a file that nobody was writing to."""

    def __init__(self, path: Path, files: Files) -> None:
        super().__init__(lambda: _connect(path, "immutable=1", 0))
        self.path, self.files = path, files

    def is_current(self) -> bool:
        return _look(self.path) == self.files

    @contextmanager
    def watching(self) -> Iterator[Callable[[], bool]]:
        yield lambda: not self.is_current()


class ReadOnlyReaders:
    """Reads a file that this process may not write. Threads may share it."""

    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        # SQLite follows links too: `-wal` and `-shm` are beside the file that a link points to.
        self._path = Path(os.path.realpath(path))
        self._busy_timeout_s = busy_timeout_s
        self._readers: Readers | None = None
        self._is_refused = False
        """Whether SQLite has given up on the locks, as it does if a killed writer left a `-wal` without a commit."""
        self._gate = Lock()

    def run(self, work: Work[T]) -> T:
        """Run a read on a state of the file that no writer has changed meanwhile.

        Raises:
            LogFailed: the file, `-wal` or `-shm` cannot be read.
            LogBusy: the file was changed during each of several attempts.
            sqlite3.Error: what else SQLite refused.
        """
        until = time.monotonic() + _patience_s
        attempts = refusals = 0
        while True:
            readers = self._current()
            failure: sqlite3.Error | None = None
            try:
                result = readers.run(work)
            except sqlite3.Error as error:
                failure = error
            if readers.is_current():
                if failure is None:
                    return result
                if primary_code(failure) not in _transient:
                    raise failure
                refusals += 1
                self._is_refused = self._is_refused or primary_code(failure) == sqlite3.SQLITE_PROTOCOL
                if refusals >= _refusals_min and time.monotonic() > until:
                    raise self._refusal(failure) from failure
            elif (attempts := attempts + 1) == _attempts_max:
                raise LogBusy(f"{self._path} was changed each time that it was read; try again")
            self._retire(readers)
            time.sleep(random.uniform(0.001, 0.01))  # noqa: S311 - no secret, a pause

    @contextmanager
    def watching(self) -> Iterator[Callable[[], bool]]:
        self.run(_data_version)  # Finds out how the file can be read.
        with self._current().watching() as has_changed:
            yield has_changed

    def close(self) -> None:
        with self._gate:
            if self._readers is not None:
                self._readers.close()

    def _current(self) -> Readers:
        with self._gate:
            while self._readers is None:
                files = _look(self._path)
                if files.have_commits_elsewhere or (files.are_shared and not self._is_refused):
                    self._readers = Readers(
                        # SQLite would otherwise create `-shm` in a directory that happens to be writable.
                        lambda: _connect(self._path, "mode=ro&readonly_shm=1", self._busy_timeout_s)
                    )
                elif (pause_s := files.unsettled_s()) > 0:
                    time.sleep(pause_s)
                else:
                    self._readers = _Immutable(self._path, files)
            return self._readers

    def _retire(self, readers: Readers) -> None:
        with self._gate:
            if self._readers is readers:
                self._readers = None
        readers.close()

    def _refusal(self, error: sqlite3.Error) -> RunstateError:
        """Why the file cannot be read, though nothing about it changes."""
        wal, shm = (self._path.with_name(self._path.name + suffix) for suffix in ("-wal", "-shm"))
        if self._path.is_dir():
            return is_directory(self._path)
        for path in (self._path, wal, shm):
            if path.exists() and not is_readable(path):
                return not_readable(path)
        if wal.exists() and not shm.exists():
            return LogFailed(
                f"{wal} holds events that are not in {self._path.name} yet, and SQLite reads it only with "
                f"{shm.name}, which is missing and cannot be created here. Copy {self._path.name} and {wal.name} to a "
                "directory that you can write to, and read the copy",
                path=str(wal),
            )
        if primary_code(error) == sqlite3.SQLITE_READONLY:
            return LogFailed(
                f"A writer of {self._path} was killed, and the file must be recovered before it is read ({error}). "
                "Open it once as a user who can write it, or copy it with the files beside it and read the copy",
                path=str(self._path),
            )
        return translate(error)


def _look(path: Path) -> Files:
    def seen(suffix: str) -> os.stat_result | None:
        try:
            return os.stat(f"{path}{suffix}")
        except FileNotFoundError:
            return None

    database, wal, shm, journal = (seen(suffix) for suffix in ("", "-wal", "-shm", "-journal"))
    return Files(
        database and (database.st_ino, database.st_size, database.st_mtime_ns, database.st_ctime_ns),
        -1 if wal is None else wal.st_size,
        shm is not None,
        0 if journal is None else journal.st_size,
    )


def _connect(path: Path, parameters: str, busy_timeout_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.as_uri()}?{parameters}",
        uri=True,
        timeout=busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA cache_size = -65536")
        read_unmigrated(connection)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error) and primary_code(error) == sqlite3.SQLITE_NOTADB:
            raise NotALog(f"{path} is not a SQLite database; it was left untouched") from error
        raise
    return connection


def _data_version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA data_version").fetchone()
    return int(version)


def create_private(path: Path) -> None:
    """Make the file readable by its owner alone, before SQLite would make it readable by all."""
    try:
        # Never a file that is there: to close it would take this process's locks on it away from all its connections,
        # and another process could then remove the file of what was written last from under them.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise denial(error) or LogFailed(f"{path} cannot be opened: {error.strerror}") from error


def is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise denial(error) or LogFailed(f"{path} cannot be opened: {error.strerror}") from error


def is_empty(path: Path) -> bool:
    """Whether there is nothing in a file, nor in the file of the newest commits beside it."""
    return not any(os.path.exists(name) and os.path.getsize(name) for name in (path, f"{path}-wal"))
