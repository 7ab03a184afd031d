"""One flush: a write and a sync at the end of the WAL, and what is done when either fails."""

from __future__ import annotations

import errno
from contextlib import closing
from pathlib import PurePath

from runstate.errors import AppendOutcomeUnknown, RunstateError
from runstate.storage.directories import create_in
from runstate.storage.disk import Disk, File, LockBusy
from runstate.storage.disk_errors import translate
from runstate.storage.file_proof import FileChanged, check_in_place, file_lost, lock_in_place


def write_flushed(disk: Disk, path: PurePath, file: File, end: int, data: bytes) -> RunstateError | None:
    """Append data to a WAL that ends at `end`, and flush it. What went wrong, if anything did.

    Nothing is acknowledged that was written to a file which is no longer the stream's WAL.
    """
    try:
        file.append(data)
    except OSError as error:
        if _take_back(disk, path, file, end):
            return translate(error)
        return AppendOutcomeUnknown(f"A write failed ({error}), and could not be taken back")
    try:
        file.sync()
    except OSError as error:
        # The kernel may have dropped the pages. Cut them off now: nobody may take them for stored.
        _take_back(disk, path, file, end)
        return AppendOutcomeUnknown(f"A flush failed ({error}); open the log again and send the same keys")
    try:
        check_in_place(disk, path, file, end + len(data))
    except FileChanged as error:
        return file_lost(error)
    return None


def create_locked(disk: Disk, path: PurePath) -> File:
    """Make a stream's WAL, and lock it.

    Raises:
        LockBusy: another writer was faster: the lock file beside it was removed.
    """
    try:
        file = create_in(disk, path)
    except FileExistsError:
        file = disk.open(path)  # Of an attempt of ours that failed, if it is empty.
        disk.sync_directory(path.parent)
        disk.sync_directory(path.parent.parent)
    try:
        lock_in_place(disk, path, file)
        if file.size():
            raise LockBusy(errno.EWOULDBLOCK, "another writer has made the file", str(path))
    except BaseException:
        file.close()
        raise
    return file


def _take_back(disk: Disk, path: PurePath, written: File, end: int) -> bool:
    """Cut the file back to what is durable, by a handle of its own: the old one may be poisoned."""
    try:
        check_in_place(disk, path, written)
        with closing(disk.open(path)) as file:
            if file.size() > end:
                file.truncate(end)
    except OSError:
        return False
    return True
