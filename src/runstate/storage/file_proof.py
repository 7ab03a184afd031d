"""The proof that an open file is still the one on disk, for writers that keep a file open.

The kernel lets a process write to a file that was removed, replaced, or whose directory is gone; a flush of it succeeds
and everything is lost when the file is closed. A writer calls `check_in_place` after its flush and before it
acknowledges anything, and takes the lock of the file itself: a lock file beside it can be removed.
"""

from __future__ import annotations

import errno
from pathlib import PurePath

from runstate.errors import AppendOutcomeUnknown
from runstate.storage.disk import Disk, File


class FileChanged(OSError):
    """The file of a running writer was removed, replaced, or changed by somebody else."""


def check_in_place(disk: Disk, path: PurePath, file: File, size: int | None = None) -> None:
    """Check that `path` names this open file, and that the file has the size that its writer gave it, if that is known.

    Raises:
        FileChanged: it does not. Nothing that was written since the last check may be acknowledged.
    """
    try:
        identity, found = disk.look_up(path)
    except (FileNotFoundError, NotADirectoryError):
        raise _changed(path, "was removed while it was written to") from None
    if identity != file.identity():
        raise _changed(path, "was replaced by another file while it was written to")
    if size is not None and found != size:
        raise _changed(path, f"has {found} bytes and not the {size} that were written to it")


def lock_in_place(disk: Disk, path: PurePath, file: File) -> None:
    """Take the lock of a file that was just opened, until it is closed, and check that it still has its name.

    Raises:
        LockBusy: another writer holds it.
        FileChanged: the file lost its name before it was locked; open it again.
    """
    file.lock()
    check_in_place(disk, path, file)


def file_lost(error: FileChanged) -> AppendOutcomeUnknown:
    return AppendOutcomeUnknown(
        f"{error.strerror} ({error.filename}). What this writer appended may be lost; stop what changes the file, open "
        "the log again, check it with 'runstate verify' and send the same keys"
    )


def _changed(path: PurePath, what: str) -> FileChanged:
    return FileChanged(errno.ESTALE, f"{path.name} {what}", str(path))
