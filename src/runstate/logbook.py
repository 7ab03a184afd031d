"""Where a projector keeps what is not in its sink: how far it has come in each log, its lag, and its alerts.

It goes on from there after a restart, and others look there to see how it is: `runstate lag`. A small SQLite file, so
that it can be read with any tool while it is written; losing it loses no snapshot, only the way to where they end.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Literal
from uuid import uuid4

import msgspec

from runstate.errors import InvalidUrl, LogBusy, LogFailed, LogNotFound, NotALog, shown_url
from runstate.logs.log import Position, now
from runstate.logs.sqlite.readers import ReadOnlyReaders, can_write
from runstate.models.model import Alert
from runstate.storage.directories import make_directories
from runstate.storage.disk import LockBusy, RealDisk
from runstate.storage.permissions import denial, is_writable, not_writable
from runstate.storage.target_directory import check_target

file_name = "logbook.db"
_own_files = re.compile(r"logbook\.lock|\.lock|logbook\.db-(wal|shm|journal)")
_busy_timeout_s = 10.0
_application_id = 0x52734C62  # "RsLb"
_schema = """
CREATE TABLE IF NOT EXISTS logs (
    url TEXT NOT NULL, model TEXT NOT NULL, version INTEGER NOT NULL, is_aside INTEGER NOT NULL, position TEXT,
    events INTEGER NOT NULL, resyncs INTEGER NOT NULL, stale INTEGER NOT NULL,
    lag_s REAL NOT NULL, measured_at TEXT NOT NULL, PRIMARY KEY (url, is_aside)
) STRICT;
CREATE TABLE IF NOT EXISTS sink (name TEXT NOT NULL, boot TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS alerts (
    alert_id TEXT NOT NULL, raised_at TEXT NOT NULL, cleared_at TEXT, code TEXT NOT NULL, level TEXT NOT NULL,
    subject TEXT NOT NULL, event_id TEXT NOT NULL, details TEXT NOT NULL, PRIMARY KEY (alert_id, raised_at)
) STRICT;
"""
_columns = "url, model, version, is_aside, position, events, resyncs, stale, lag_s, measured_at"
_raise = (
    "INSERT INTO alerts SELECT ?, ?, NULL, ?, ?, ?, ?, ? "
    "WHERE NOT EXISTS (SELECT 1 FROM alerts WHERE alert_id = ? AND cleared_at IS NULL)"
)


class Entry(msgspec.Struct, frozen=True, rename="camel"):
    """How a projector is doing with one log."""

    url: str
    """Without its secrets."""
    model: str
    version: int
    is_aside: bool = False
    """A new version of the model is projected beside the one that readers see, until it has caught up."""
    position: Position | None = None
    """Where its feed is read next."""
    events: int = 0
    resyncs: int = 0
    stale: int = 0
    """How many streams wait for a resync."""
    lag_s: float = 0.0
    measured_at: str = ""


class RaisedAlert(msgspec.Struct, frozen=True, rename="camel"):
    """An alert with its time; open until it is cleared."""

    code: str
    level: Literal["P1", "P2", "P3"]
    subject: str
    event_id: str
    details: msgspec.Raw
    raised_at: str
    cleared_at: str | None


def check_state(directory: Path) -> None:
    """Check that a projector may keep its state in a directory.

    Raises:
        NotALog: something else is there.
        LogFailed: it cannot be read or written.
    """
    check_target(directory, _own_files, has_marker=(directory / file_name).exists())


class Logbook:
    """The logbook of one projector. Threads may share it."""

    def __init__(self, directory: Path, *, create: bool = True) -> None:
        """
        Raises:
            LogNotFound: it is not there, and `create` is false.
            NotALog: a file of that name is no logbook, or the directory holds something else.
            NotWritable: it is to be written, and this process may only read it.
            LogFailed: it cannot be opened.
        """
        self.path = directory / file_name
        self.is_after_restart = False
        """Whether the machine has been restarted since this logbook was last kept: what was not flushed may be lost."""
        if create:
            check_state(directory)
        elif not self.path.exists():
            raise LogNotFound(f"No projector keeps its logbook in {directory}; start one with 'runstate project'")
        self._lock = Lock()
        is_read_only = not create and not can_write(self.path)
        self._connection = None if is_read_only else _connected(self.path)
        self._readers = ReadOnlyReaders(self.path, _busy_timeout_s) if is_read_only else None
        ((found,),) = self._query("PRAGMA application_id")
        ((tables,),) = self._query("SELECT count(*) FROM sqlite_master")
        if found != _application_id and (tables or is_read_only):
            raise NotALog(f"{self.path} is no logbook of a projector; it was left untouched")
        if is_read_only:
            return
        with self._used() as connection:
            # A position that a power cut takes back costs a second look at some events, and nothing else.
            connection.execute("PRAGMA synchronous = NORMAL")
            if not tables:
                connection.executescript(f"PRAGMA journal_mode = WAL; PRAGMA application_id = {_application_id};")
                connection.executescript(_schema)

    @contextmanager
    def kept_for(self, sink: str) -> Iterator[None]:
        """Be the only projector that keeps this logbook, which is one of that sink for good.

        Raises:
            LogBusy: another projector keeps it now.
            InvalidUrl: it is one of another sink: what it says is not where this one would have to go on.
        """
        try:
            lock = RealDisk().lock(self.path.with_name("logbook.lock"))
        except LockBusy as error:
            raise LogBusy(f"Another projector keeps the logbook {self.path}; end it first, or use another") from error
        try:
            with self._used() as connection:
                boot = _boot()
                connection.execute("INSERT INTO sink SELECT ?, ? WHERE NOT EXISTS (SELECT 1 FROM sink)", (sink, boot))
                found, last_boot = connection.execute("SELECT name, boot FROM sink").fetchone()
                # Earlier versions wrote … in the place of a password. Such a log is projected again from its start.
                for (url,) in connection.execute("SELECT DISTINCT url FROM logs").fetchall():
                    if url != shown_url(url):
                        connection.execute("DELETE FROM logs WHERE url = ?", (url,))
            if found != sink:
                raise InvalidUrl(f"The logbook {self.path} is that of a projector to {found}; choose another --state")
            self.is_after_restart = last_boot != boot
            yield
        finally:
            lock.release()

    def reconciled(self) -> None:
        """Put down that what a restart of the machine may have taken from the sink was made good."""
        self.is_after_restart = False
        with self._used() as connection:
            connection.execute("UPDATE sink SET boot = ?", (_boot(),))

    def entry(self, url: str, *, is_aside: bool = False) -> Entry | None:
        found = [entry for entry in self.entries() if (entry.url, entry.is_aside) == (shown_url(url), is_aside)]
        return found[0] if found else None

    def entries(self) -> list[Entry]:
        rows = self._query(f"SELECT {_columns} FROM logs ORDER BY url, is_aside")  # noqa: S608
        return [Entry(url, model, version, bool(aside), *rest) for url, model, version, aside, *rest in rows]

    def drop(self, entry: Entry) -> None:
        with self._used() as connection:
            connection.execute("DELETE FROM logs WHERE url = ? AND is_aside = ?", (entry.url, entry.is_aside))

    def note(self, entry: Entry) -> None:
        """Put down how it is now. The sink has everything up to the entry's position already."""
        values = (*msgspec.structs.astuple(entry)[:-1], now())
        with self._used() as connection:
            connection.execute(f"INSERT OR REPLACE INTO logs ({_columns}) VALUES (?,?,?,?,?,?,?,?,?,?)", values)  # noqa: S608

    def raised(self, alert: Alert) -> bool:
        """Put an alert down. False: it is open already, perhaps since before a restart."""
        details = msgspec.json.encode(alert.details).decode()
        told = (alert.code, alert.level, alert.subject, alert.event_id, details)
        with self._used() as connection:
            return connection.execute(_raise, (alert.alert_id, now(), *told, alert.alert_id)).rowcount > 0

    def cleared(self, alert_id: str) -> None:
        with self._used() as connection:
            connection.execute(
                "UPDATE alerts SET cleared_at = ? WHERE alert_id = ? AND cleared_at IS NULL", (now(), alert_id)
            )

    def alerts(self, *, open_only: bool = False) -> list[RaisedAlert]:
        """All alerts, the oldest first."""
        columns = "code, level, subject, event_id, details, raised_at, cleared_at"
        wanted = "WHERE cleared_at IS NULL" if open_only else ""
        rows = self._query(f"SELECT {columns} FROM alerts {wanted} ORDER BY raised_at, alert_id")  # noqa: S608
        return [
            RaisedAlert(code, level, subject, event_id, msgspec.Raw(details.encode()), *times)
            for code, level, subject, event_id, details, *times in rows
        ]

    def open_alerts(self) -> list[Alert]:
        return [
            Alert(
                code=a.code,
                level=a.level,
                subject=a.subject,
                event_id=a.event_id,
                details=msgspec.json.decode(a.details),
            )
            for a in self.alerts(open_only=True)
        ]

    def alert_counts(self) -> tuple[Counter[str], Counter[str]]:
        """How many alerts of each code there were, and how many of them are open."""
        rows = self._query("SELECT code, count(*), sum(cleared_at IS NULL) FROM alerts GROUP BY code")
        return Counter({code: all_ for code, all_, _ in rows}), Counter({code: open_ for code, _, open_ in rows})

    def close(self) -> None:
        with self._lock:
            for opened in (self._connection, self._readers):
                if opened is not None:
                    opened.close()

    def _query(self, query: str) -> list[Any]:
        if self._readers is None:
            with self._used() as connection:
                return connection.execute(query).fetchall()
        try:
            return self._readers.run(lambda connection: connection.execute(query).fetchall())
        except sqlite3.DatabaseError as error:
            raise LogFailed(f"The logbook {self.path} refused: {error}") from error

    @contextmanager
    def _used(self) -> Iterator[sqlite3.Connection]:
        """The connection that writes.

        Raises:
            NotWritable: this process may only read the logbook.
        """
        if self._connection is None:
            raise not_writable(self.path)
        try:
            with self._lock:
                yield self._connection
        except sqlite3.DatabaseError as error:
            raise LogFailed(f"The logbook {self.path} refused: {error}") from error


def _connected(path: Path) -> sqlite3.Connection:
    """
    Raises:
        NotWritable, LogFailed: the file cannot be created or written.
    """
    try:
        make_directories(RealDisk(), path.parent)
        if not is_writable(path.parent) or (path.exists() and not is_writable(path)):
            raise not_writable(path)
        if not path.exists():
            # Made here: SQLite would make it readable by all, and its other files have the mode of this one.
            RealDisk().open(path, create=True).close()
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_busy_timeout_s)
    except OSError as error:
        raise denial(error) or LogFailed(f"The logbook {path} cannot be opened: {error}") from error
    except sqlite3.Error as error:
        raise LogFailed(f"The logbook {path} cannot be opened: {error}") from error


def _boot() -> str:
    """What is another one after each start of the machine; never the same twice where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return uuid4().hex
