"""A SQLite log that this process may only read: never stale, never wrong, whoever writes to it meanwhile."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from runstate.conformance.notes import keys, notes, stored
from runstate.errors import LogBusy, LogDamaged, LogFailed, NotALog, NotWritable
from runstate.logs.registry import open_log
from runstate.logs.sqlite import SqliteLog
from runstate.logs.sqlite.readers import Files, ReadOnlyReaders

for_ever_s = 60.0
_append = """
import sys
from runstate.conformance.notes import notes
from runstate.logs.sqlite import SqliteLog
with SqliteLog(sys.argv[1]) as log:
    log.append("s", notes("b"))
"""

Opener = Callable[[Path], SqliteLog]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log with one event, which nobody has open."""
    found = tmp_path / "fleet.db"
    with SqliteLog(found) as log:
        log.append("s", notes("a"))
    return found


@pytest.fixture
def open_to_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    """Opens a log as a process without write permission does. Tests may run as root, whom no permission stops."""
    opened: list[SqliteLog] = []

    def opener(path: Path) -> SqliteLog:
        with monkeypatch.context() as patch:
            patch.setattr("runstate.logs.sqlite.log.can_write", lambda path: False)
            opened.append(SqliteLog(path, create=False))
        return opened[-1]

    yield opener
    for log in opened:
        log.close()


@pytest.fixture
def reader(path: Path, open_to_read: Opener) -> SqliteLog:
    return open_to_read(path)


def files_of(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir())


def leave_wal(path: Path, copy: Path) -> Path:
    """A copy of a log as a killed writer leaves it, with one event that is only in `-wal`."""
    copy.mkdir()
    with SqliteLog(path) as writer:
        writer.append("s", notes("b"))
        for each in path.parent.glob("fleet.db*"):
            shutil.copy(each, copy / each.name)
    return copy / path.name


# --- writers that come and go --------------------------------------------------------------------------------------


def test_what_a_live_writer_appends_is_read(path: Path, reader: SqliteLog) -> None:
    assert keys(stored(reader, "s")) == ["a"]
    with SqliteLog(path) as writer:
        for count, key in enumerate("bcd", 2):
            writer.append("s", notes(key))
            assert keys(stored(reader, "s")) == list("abcd")[:count]


def test_what_a_writer_appended_before_it_closed_the_file_is_read(path: Path, reader: SqliteLog) -> None:
    for count, key in enumerate("bcd", 2):
        with SqliteLog(path) as writer:
            writer.append("s", notes(key))
        assert keys(stored(reader, "s")) == list("abcd")[:count]


@pytest.mark.parametrize("stays", [True, False])
def test_a_read_during_which_a_writer_comes_is_repeated(path: Path, stays: bool) -> None:
    writer, calls = list[SqliteLog](), 0

    def work(connection: sqlite3.Connection) -> int:
        nonlocal calls
        calls += 1
        (count,) = connection.execute("SELECT count(*) FROM events").fetchone()
        if not writer:
            writer.append(SqliteLog(path))
            writer[0].append("s", notes("b"))
            if not stays:
                writer[0].close()
        return int(count)

    with closing(ReadOnlyReaders(path, 1.0)) as readers:
        assert (readers.run(work), calls) == (2, 2)
        writer[0].close()


def test_a_file_that_changes_during_every_read_is_busy(path: Path) -> None:
    def work(connection: sqlite3.Connection) -> None:
        connection.execute("SELECT count(*) FROM events").fetchone()
        os.utime(path, (0, int(time.monotonic())))

    with closing(ReadOnlyReaders(path, 1.0)) as readers, pytest.raises(LogBusy, match="try again"):
        readers.run(work)


def test_a_file_that_was_changed_a_moment_ago_is_not_yet_believed_to_be_at_rest() -> None:
    now_ns = time.time_ns() | 1
    second_ns = 1_000_000_000

    def unsettled_s(changed_ns: int) -> float:
        return Files((1, 2, changed_ns, changed_ns), -1, False, 0).unsettled_s()

    assert 0 < unsettled_s(now_ns) <= 0.05
    assert unsettled_s(now_ns - second_ns // 10) == 0
    assert unsettled_s(now_ns + 3600 * second_ns) == 0  # The clock was set back: a change now would show.
    assert unsettled_s(now_ns // second_ns * second_ns) > 0.5  # A file system that counts in seconds.


_coming_and_going = """
import os, sys
from runstate.conformance.notes import note
from runstate.logs.sqlite import SqliteLog

written = 1
for number in range(30):
    keys = [note(f"{number}/{part}") for part in range(number % 4 + 1)]
    if not (child := os.fork()):
        log = SqliteLog(sys.argv[1])
        log.append("s", keys)
        if number % 3:
            log.close()
        os._exit(0)  # Every third leaves its files as a killed writer does.
    os.waitpid(child, 0)
    written += len(keys)
    print(written, flush=True)
"""


@pytest.mark.slow
def test_a_reader_is_never_behind_what_was_acknowledged_before_it_looked(path: Path, reader: SqliteLog) -> None:
    with (
        subprocess.Popen(
            [sys.executable, "-c", _coming_and_going, str(path)], stdout=subprocess.PIPE, text=True
        ) as writer,
        ThreadPoolExecutor(1) as pool,
    ):
        assert writer.stdout is not None
        acknowledged, lines = 1, writer.stdout
        told = pool.submit(lines.readline)
        while not told.done() or told.result():
            if told.done():
                acknowledged = int(told.result())
                told = pool.submit(lines.readline)
            assert len(stored(reader, "s")) >= acknowledged
    assert (len(stored(reader, "s")), list(reader.verify())) == (acknowledged, [])


def test_an_append_of_another_process_ends_the_wait(path: Path, reader: SqliteLog) -> None:
    end = reader.feed().next
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.wait, end, for_ever_s)
        subprocess.run([sys.executable, "-c", _append, str(path)], check=True)
        waiting.result()
    assert time.monotonic() - began < for_ever_s / 2
    assert keys(reader.feed(after=end).records) == ["b"]


def test_an_append_of_a_writer_that_is_at_work_ends_the_wait(path: Path, reader: SqliteLog) -> None:
    with SqliteLog(path) as writer, ThreadPoolExecutor(1) as pool:
        writer.append("s", notes("b"))
        end = reader.feed().next
        began = time.monotonic()
        waiting = pool.submit(reader.wait, end, for_ever_s)
        writer.append("s", notes("c"))
        waiting.result()
    assert time.monotonic() - began < for_ever_s / 2


def test_a_reader_that_is_closed_leaves_the_locks_of_this_process_alone(path: Path, open_to_read: Opener) -> None:
    reader = open_to_read(path)
    assert keys(stored(reader, "s")) == ["a"]
    with open_log(f"sqlite:{path}") as held:
        held.append("s", notes("b"))
        reader.close()
        program = f"from runstate.logs.registry import open_log; open_log('sqlite:{path}').close()"
        subprocess.run([sys.executable, "-c", program], check=True)
        # The last one to close the file removes this. That other process was not the last.
        assert path.with_name("fleet.db-wal").exists()
        assert keys(stored(held, "s")) == ["a", "b"]


# --- what is beside the file ---------------------------------------------------------------------------------------


def test_reading_creates_nothing_even_where_the_directory_can_be_written(path: Path, reader: SqliteLog) -> None:
    assert keys(stored(reader, "s")) == ["a"]
    assert list(reader.verify()) == []
    assert files_of(path) == ["fleet.db"]


def test_events_that_a_killed_writer_left_in_the_wal_are_read(path: Path, open_to_read: Opener, tmp_path: Path) -> None:
    left = leave_wal(path, tmp_path / "killed")
    assert keys(stored(open_to_read(left), "s")) == ["a", "b"]
    assert files_of(left) == ["fleet.db", "fleet.db-shm", "fleet.db-wal"]


def test_a_wal_without_its_shm_is_refused_with_what_to_do(path: Path, open_to_read: Opener, tmp_path: Path) -> None:
    left = leave_wal(path, tmp_path / "copied")
    left.with_name("fleet.db-shm").unlink()
    with pytest.raises(LogFailed, match=r"fleet.db-wal holds events .* Copy fleet.db and fleet.db-wal to a directory"):
        open_to_read(left)
    assert files_of(left) == ["fleet.db", "fleet.db-wal"]


def test_an_empty_wal_without_its_shm_holds_nothing(path: Path, open_to_read: Opener) -> None:
    path.with_name("fleet.db-wal").touch()
    assert keys(stored(open_to_read(path), "s")) == ["a"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 32])
def test_a_wal_without_a_commit_holds_nothing_whatever_its_shm_says(
    path: Path, open_to_read: Opener, tmp_path: Path, size: int
) -> None:
    (copy := tmp_path / "copy").mkdir()
    with SqliteLog(path) as writer:
        writer.append("s", notes("b"))
        with closing(sqlite3.connect(path)) as other:
            other.execute("PRAGMA wal_checkpoint(FULL)")
        for suffix in ("", "-shm"):
            shutil.copy(f"{path}{suffix}", copy)
        (copy / "fleet.db-wal").write_bytes(Path(f"{path}-wal").read_bytes()[:size])
    assert keys(stored(open_to_read(copy / "fleet.db"), "s")) == ["a", "b"]


def test_a_shm_that_was_left_without_a_wal_is_no_obstacle(path: Path, open_to_read: Opener) -> None:
    path.with_name("fleet.db-shm").write_bytes(b"left")
    assert keys(stored(open_to_read(path), "s")) == ["a"]


def test_a_journal_that_must_be_rolled_back_is_refused(path: Path, open_to_read: Opener, tmp_path: Path) -> None:
    (tmp_path / "torn").mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("PRAGMA cache_size = 1")
        other.execute("BEGIN")
        other.execute(
            "CREATE TABLE large AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000) "
            "SELECT i, hex(randomblob(20)) FROM n"
        )
        for each in path.parent.glob("fleet.db*"):
            shutil.copy(each, tmp_path / "torn" / each.name)
    assert files_of(tmp_path / "torn" / "fleet.db") == ["fleet.db", "fleet.db-journal"]
    with pytest.raises(LogFailed, match="must be recovered before it is read"):
        open_to_read(tmp_path / "torn" / "fleet.db")


def test_a_link_leads_to_the_files_beside_its_target(path: Path, open_to_read: Opener, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "link.db"
    link.symlink_to(leave_wal(path, tmp_path / "killed"))
    assert keys(stored(open_to_read(link), "s")) == ["a", "b"]


def test_a_name_with_characters_that_mean_something_in_a_url_is_read(tmp_path: Path, open_to_read: Opener) -> None:
    odd = tmp_path / "50% of? that#file&mode=rwc.db"
    with SqliteLog(odd) as log:
        log.append("s", notes("a"))
    assert keys(stored(open_to_read(odd), "s")) == ["a"]


# --- what is refused -----------------------------------------------------------------------------------------------


def test_every_change_is_refused(reader: SqliteLog) -> None:
    for change in (
        lambda: reader.append("s", notes("b")),
        lambda: reader.save_snapshots([]),
        lambda: reader.delete_stream("s"),
        lambda: reader.put_blob(b"data"),
    ):
        with pytest.raises(NotWritable, match="cannot be written"):
            change()
    assert keys(stored(reader, "s")) == ["a"]


def test_what_is_no_log_is_refused_and_left_alone(tmp_path: Path, open_to_read: Opener) -> None:
    (tmp_path / "text").write_text("no database at all " * 100)
    (tmp_path / "empty").touch()
    with closing(sqlite3.connect(tmp_path / "foreign")) as other:
        other.execute("CREATE TABLE mine (x)")
    for name, error in (("text", NotALog), ("empty", LogDamaged), ("foreign", NotALog)):
        with pytest.raises(error):
            open_to_read(tmp_path / name)
    assert files_of(tmp_path / "text") == ["empty", "foreign", "text"]


def test_a_directory_is_refused_as_one(tmp_path: Path, open_to_read: Opener) -> None:
    with pytest.raises(NotALog, match="is a directory"):
        open_to_read(tmp_path)
