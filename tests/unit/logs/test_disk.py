"""The real disk: what the kernel is asked, what happens when it does less, and locks between processes."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.storage.directories import make_directories
from runstate.storage.disk import (
    TEMP_SUFFIX,
    LockBusy,
    PoisonedHandle,
    RealDisk,
    replace_durably,
    write_new,
    write_private,
)

DISK = RealDisk()


def failing(error: int) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    return call


def test_append_returns_the_offset_where_the_data_begins(tmp_path: Path) -> None:
    with DISK.open(tmp_path / "log", create=True) as file:
        assert [file.append(b"one"), file.append(b""), file.append(b"two")] == [0, 3, 3]
        assert (file.size(), file.read_at(1, 4), file.read_at(4, 99)) == (6, b"netw", b"wo")


def test_a_file_opened_to_read_alone_refuses_every_change(tmp_path: Path) -> None:
    write_new(DISK, tmp_path / "log", b"data")
    with DISK.open(tmp_path / "log", read_only=True) as file:
        assert file.read_at(1, 2) == b"at"
        with pytest.raises(OSError, match="Bad file descriptor"):
            file.append(b"more")
        with pytest.raises(OSError, match="Invalid argument"):
            file.truncate(0)
    assert DISK.read(tmp_path / "log") == b"data"


def test_append_goes_to_the_new_end_after_a_truncation(tmp_path: Path) -> None:
    with DISK.open(tmp_path / "log", create=True) as file:
        file.append(b"one torn")
        file.truncate(3)
        assert file.append(b"!") == 3
    assert DISK.read(tmp_path / "log") == b"one!"


def test_append_goes_on_after_short_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    with DISK.open(tmp_path / "log", create=True) as file:
        file.append(b"0123456789")
    assert DISK.read(tmp_path / "log") == b"0123456789"


def test_a_write_without_progress_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda fd, data: 0)
    with DISK.open(tmp_path / "log", create=True) as file, pytest.raises(OSError, match="no progress"):
        file.append(b"data")


def test_read_at_goes_on_after_short_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_new(DISK, tmp_path / "log", b"0123456789")
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 3), offset))
    with DISK.open(tmp_path / "log") as file:
        assert file.read_at(1, 8) == b"12345678"


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "lost"), KeyboardInterrupt()])
def test_a_failed_sync_poisons_the_handle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    syncs = []

    def fdatasync(fd: int) -> None:
        syncs.append(fd)
        raise failure

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with DISK.open(tmp_path / "log", create=True) as file:
        file.append(b"data")
        with pytest.raises(type(failure)):
            file.sync()
        for change in (file.sync, lambda: file.append(b"more"), lambda: file.truncate(0)):
            with pytest.raises(PoisonedHandle):
                change()
        assert file.read_at(0, 9) == b"data"
    assert len(syncs) == 1


def test_a_reopened_file_is_not_poisoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DISK.open(tmp_path / "log", create=True) as file, monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(errno.EIO))
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            file.sync()
    with DISK.open(tmp_path / "log") as file:
        file.append(b"data")
        file.sync()


def test_a_closed_file_refuses_everything_but_close(tmp_path: Path) -> None:
    file = DISK.open(tmp_path / "log", create=True)
    file.close()
    file.close()
    for call in (file.size, file.sync, lambda: file.append(b"x"), lambda: file.read_at(0, 1)):
        with pytest.raises(OSError, match="closed") as refusal:
            call()
        assert refusal.value.errno == errno.EBADF


@pytest.fixture
def _no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_no_umask")
def test_files_and_directories_belong_to_their_owner_alone(tmp_path: Path) -> None:
    DISK.make_directory(tmp_path / "d")
    DISK.open(tmp_path / "d/opened", create=True).close()
    DISK.create(tmp_path / "d/created").close()
    DISK.lock(tmp_path / "d/locked").release()
    replace_durably(DISK, tmp_path / "d/replaced", b"")
    write_private(tmp_path / "d/written", b"")
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "d").iterdir()} == {0o600}


@pytest.fixture
def shared(tmp_path: Path) -> tuple[RealDisk, Path]:
    """A disk that shares what is below a directory, and a private directory in there."""
    disk = RealDisk(shared_below=tmp_path / "log")
    disk.make_directory(tmp_path / "log")
    disk.make_directory(tmp_path / "log/d")
    return disk, tmp_path / "log/d"


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.usefixtures("_no_umask")
@pytest.mark.parametrize(
    ("directory", "file"),
    [(0o700, 0o600), (0o750, 0o640), (0o755, 0o644), (0o555, 0o644), (0o711, 0o600), (0o740, 0o600), (0o777, 0o644)],
)
def test_a_file_is_readable_for_those_who_can_read_its_directory(
    shared: tuple[RealDisk, Path], directory: int, file: int
) -> None:
    disk, home = shared
    home.chmod(directory)
    disk.create(home / "created").close()
    disk.open(home / "opened", create=True).close()
    replace_durably(disk, home / "replaced", b"")
    assert {mode_of(path) for path in home.iterdir()} == {file}


@pytest.mark.usefixtures("_no_umask")
@pytest.mark.parametrize(("parent", "child"), [(0o2750, 0o750), (0o2755, 0o750), (0o755, 0o700), (0o2700, 0o700)])
def test_a_directory_is_readable_for_the_group_that_a_setgid_directory_is_shared_with(
    shared: tuple[RealDisk, Path], parent: int, child: int
) -> None:
    disk, home = shared
    home.chmod(parent)
    disk.make_directory(home / "below")
    assert mode_of(home / "below") == child


@pytest.mark.usefixtures("_no_umask")
def test_a_shared_directory_shares_neither_a_new_log_nor_a_lock(shared: tuple[RealDisk, Path]) -> None:
    _, home = shared
    home.chmod(0o2755)
    disk = RealDisk(shared_below=home / "log")
    disk.make_directory(home / "log")
    disk.lock(home / "lock").release()
    assert (mode_of(home / "log"), mode_of(home / "lock")) == (0o700, 0o600)


@pytest.mark.usefixtures("_no_umask")
def test_directories_above_the_one_that_is_made_belong_to_their_owner_alone_too(tmp_path: Path) -> None:
    make_directories(DISK, tmp_path / "a" / "b" / "c")
    make_directories(DISK, tmp_path / "a" / "b")
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")} == {0o700}


def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "shared").touch()
    (tmp_path / "shared").chmod(0o640)
    write_private(tmp_path / "shared", b"new")
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o640


def test_a_rename_between_directories_is_refused(tmp_path: Path) -> None:
    DISK.make_directory(tmp_path / "d")
    write_new(DISK, tmp_path / "a", b"")
    with pytest.raises(OSError, match="within one directory") as refusal:
        DISK.rename(tmp_path / "a", tmp_path / "d/a")
    assert refusal.value.errno == errno.EXDEV


def test_sync_directory_syncs_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    DISK.sync_directory(tmp_path)
    assert synced == [tmp_path.stat().st_ino]


def test_write_new_leaves_a_taken_name_alone(tmp_path: Path) -> None:
    write_new(DISK, tmp_path / "a", b"first")
    with pytest.raises(FileExistsError):
        write_new(DISK, tmp_path / "a", b"second")
    assert DISK.read(tmp_path / "a") == b"first"


@pytest.mark.parametrize("call", ["write", "fdatasync"])
def test_a_failed_write_new_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    monkeypatch.setattr(os, call, failing(errno.ENOSPC))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        write_new(DISK, tmp_path / "a", b"data")
    assert DISK.names(tmp_path) == []


def test_replace_durably_syncs_the_data_renames_and_syncs_the_directory_in_that_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def record(name: str) -> None:
        real = getattr(os, name)

        def recorded(*args: object) -> object:
            order.append(name)
            return real(*args)

        monkeypatch.setattr(os, name, recorded)

    for name in ("write", "fdatasync", "rename", "fsync"):
        record(name)
    replace_durably(DISK, tmp_path / "a", b"data")
    assert order == ["write", "fdatasync", "rename", "fsync"]
    assert {name: DISK.read(tmp_path / name) for name in DISK.names(tmp_path)} == {"a": b"data"}


@pytest.mark.parametrize("call", ["write", "fdatasync", "rename"])
def test_a_failed_replacement_leaves_the_old_content_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    replace_durably(DISK, tmp_path / "a", b"old")
    monkeypatch.setattr(os, call, failing(errno.EIO))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        replace_durably(DISK, tmp_path / "a", b"new")
    assert {name: DISK.read(tmp_path / name) for name in DISK.names(tmp_path)} == {"a": b"old"}


def test_temporary_names_are_unique_beside_the_file_and_recognisable(tmp_path: Path) -> None:
    names = {DISK.temp_name(tmp_path / "a") for _ in range(100)}
    assert len(names) == 100
    assert {name.parent for name in names} == {tmp_path}
    assert all(name.name.startswith("a.") and name.name.endswith(TEMP_SUFFIX) for name in names)


def test_a_held_lock_is_busy_even_in_the_same_process(tmp_path: Path) -> None:
    lock = DISK.lock(tmp_path / "lock")
    with pytest.raises(LockBusy) as busy:
        DISK.lock(tmp_path / "lock")
    assert (busy.value.errno, busy.value.filename) == (errno.EWOULDBLOCK, str(tmp_path / "lock"))
    lock.release()
    DISK.lock(tmp_path / "lock").release()


def test_a_shared_lock_is_shared_and_keeps_the_exclusive_one_away(tmp_path: Path) -> None:
    for disk, path in ((DISK, tmp_path / "lock"), (SimulatedDisk(), Path("/lock"))):
        one, two = disk.lock(path, shared=True), disk.lock(path, shared=True)
        for release in (one.release, two.release):
            with pytest.raises(LockBusy):
                disk.lock(path)
            release()
        one.release()  # Once more does nothing.
        alone = disk.lock(path)
        with pytest.raises(LockBusy):
            disk.lock(path, shared=True)
        alone.release()
        disk.lock(path, shared=True).release()


def test_a_lock_may_be_released_by_another_thread(tmp_path: Path) -> None:
    lock = DISK.lock(tmp_path / "lock")
    thread = threading.Thread(target=lock.release)
    thread.start()
    thread.join()
    DISK.lock(tmp_path / "lock").release()


def test_a_lock_in_a_missing_directory_is_refused_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DISK.lock(tmp_path / "missing/lock")
    assert DISK.names(tmp_path) == []


def test_a_file_system_that_cannot_lock_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOSYS))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSYS)) as refusal:
        DISK.lock(tmp_path / "lock")
    assert not isinstance(refusal.value, LockBusy)


HOLDER = """
import pathlib, sys
from runstate.storage.disk import RealDisk
lock = RealDisk().lock(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
lock.release()
"""


@pytest.mark.parametrize("end", ["killed", "asked"])
def test_the_lock_of_another_process_is_busy_until_that_process_ends(tmp_path: Path, end: str) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LockBusy):
            DISK.lock(tmp_path / "lock")
        if end == "killed":
            holder.kill()
        holder.communicate()
    DISK.lock(tmp_path / "lock").release()
