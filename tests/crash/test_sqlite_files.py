"""What a crash can leave of a SQLite log's files, and that the log opens on it with everything acknowledged."""

import random
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from runstate.conformance.notes import keys, notes, stored
from runstate.conformance.opener import Opener
from runstate.conformance.processes import run
from runstate.conformance.workers import Worker, check_stored
from runstate.conformance.writer import Task
from runstate.errors import LogBusy
from runstate.logs.sqlite import SqliteLog

task = Task("s", 40, seed=7)

Written = list[tuple[int, int]]
"""After each append: how long the write-ahead file was, and how many events had been acknowledged."""


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Written]:
    """The files of a log whose process is gone: nothing was closed, nothing was moved into the database file."""
    living, dead = tmp_path_factory.mktemp("living"), tmp_path_factory.mktemp("dead")
    written: Written = []
    with SqliteLog(living / "log.db") as log:
        for batch in task.sent(0):
            results = log.append(task.stream, batch)
            written.append(((living / "log.db-wal").stat().st_size, results[-1].seq))
        for name in ("log.db", "log.db-wal"):
            shutil.copy(living / name, dead / name)
    return dead, written


def recover(crashed: Path, place: Path, damage: Callable[[bytes], bytes]) -> int:
    """Damage the write-ahead file, open the log, check all of it; how many events it still holds."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(crashed, place)
    wal = place / "log.db-wal"
    wal.write_bytes(damage(wal.read_bytes()))
    with SqliteLog(place / "log.db") as log:
        check_stored(log, [task], {})
        assert list(log.verify()) == []
        count = len(stored(log, task.stream))
        assert log.append(task.stream, notes("afterwards"))[0].seq == count + 1
    return count


def acknowledged_within(written: Written, size: int) -> int:
    return max((count for length, count in written if length <= size), default=0)


def cuts(written: Written, chance: random.Random) -> Sequence[int]:
    """Places to cut at: the end of each append, a byte before and after it, and a few anywhere."""
    ends = [length for length, _ in written]
    anywhere = [chance.randrange(ends[-1]) for _ in range(30)]
    return sorted({cut for end in chance.sample(ends, 12) for cut in (end - 1, end, end + 1)} | {*anywhere, 0})


@pytest.mark.slow
def test_a_write_ahead_file_cut_at_any_byte_leaves_all_that_was_synced_before(
    crashed: tuple[Path, Written], tmp_path: Path
) -> None:
    files, written = crashed
    for cut in cuts(written, random.Random(1)):
        found = recover(files, tmp_path / "cut", lambda wal, cut=cut: wal[:cut])  # type: ignore[misc]
        assert found == acknowledged_within(written, cut)


@pytest.mark.slow
def test_a_write_ahead_file_whose_end_is_zeros_leaves_all_that_was_synced_before(
    crashed: tuple[Path, Written], tmp_path: Path
) -> None:
    files, written = crashed
    for cut in cuts(written, random.Random(2)):
        found = recover(
            files,
            tmp_path / "zeros",
            lambda wal, cut=cut: wal[:cut] + bytes(max(0, len(wal) - cut)),  # type: ignore[misc]
        )
        assert found >= acknowledged_within(written, cut)


@pytest.mark.slow
def test_a_flipped_bit_in_the_write_ahead_file_costs_nothing_before_it(
    crashed: tuple[Path, Written], tmp_path: Path
) -> None:
    files, written = crashed
    chance = random.Random(3)
    for _ in range(30):
        place = chance.randrange(32, written[-1][0])

        def flip(wal: bytes, place: int = place) -> bytes:
            return wal[:place] + bytes([wal[place] ^ 1 << chance.randrange(8)]) + wal[place + 1 :]

        assert recover(files, tmp_path / "flipped", flip) >= acknowledged_within(written, place)


def test_opening_a_file_that_is_being_made_elsewhere_is_busy_and_can_be_tried_again(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "log.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LogBusy):
            SqliteLog(tmp_path / "log.db", busy_timeout_s=0.05)
    SqliteLog(tmp_path / "log.db").close()


# --- while the file is made, and while it is tidied up ------------------------------------------------------


@pytest.mark.slow
def test_a_kill_while_the_file_is_made_leaves_a_file_that_opens(tmp_path: Path) -> None:
    chance = random.Random(4)
    for number in range(15):
        opener = Opener(f"sqlite:{tmp_path}/{number}.db")
        task = Task("s", 3)
        with Worker(opener.url) as worker:
            worker.start(task)
            told = worker.kill(after_acknowledged=0, pause_s=chance.uniform(0, 0.06))
        log = opener()
        check_stored(log, [task], told)
        assert log.append("s", notes("afterwards"))[0].persisted
        assert list(log.verify()) == []
        opener.close()


@pytest.mark.slow
def test_many_processes_may_make_one_new_file_at_once(tmp_path: Path) -> None:
    for number in range(5):
        opener = Opener(f"sqlite:{tmp_path}/{number}.db")
        tasks = [Task("s", 1, name=f"w{writer}") for writer in range(8)]
        check_stored(opener(), tasks, run(opener, tasks))
        opener.close()


@pytest.mark.slow
def test_a_kill_while_the_write_ahead_file_is_moved_into_the_database_loses_nothing(tmp_path: Path) -> None:
    """Large events: every few appends fill the write-ahead file, and SQLite moves it over."""
    opener = Opener(f"sqlite:{tmp_path}/log.db")
    chance = random.Random(5)
    with Worker(opener.url) as worker:
        for number in range(25):
            task = Task(f"s{number}", 100_000, threads=2, seed=number, text_bytes_max=1_000_000)
            worker.start(task)
            told = worker.kill(after_acknowledged=chance.randrange(30), pause_s=chance.uniform(0, 0.03))
            log = opener()
            check_stored(log, [task], told)
            assert list(log.verify(task.stream)) == []
            log.close()
    assert list(opener().verify()) == []
    opener.close()


@pytest.mark.slow
def test_processes_that_come_and_go_hold_up_no_writer(tmp_path: Path) -> None:
    """Whoever closes the file last tidies it up; whoever opens it at that moment must wait, not fail."""
    opener = Opener(f"sqlite:{tmp_path}/log.db")
    lasting = Task("s", 30, name="lasting")
    with Worker(opener.url) as first, Worker(opener.url) as second:
        for number in range(40):
            first.start(Task("s", 1, name=f"one-{number}"))
            second.start(Task("s", 1, name=f"two-{number}"))
            first.finish()
            second.finish()
        first.start(lasting)
        told = first.finish()
    log = opener()
    guests = [Task("s", 1, name=f"{name}-{number}") for name in ("one", "two") for number in range(40)]
    check_stored(log, [lasting, *guests], told)
    assert len(keys(stored(log, "s"))) == sum(len(b) for t in [lasting, *guests] for b in t.sent(0))
    opener.close()
