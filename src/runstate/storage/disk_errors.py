"""The operating system's errors in our words."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from runstate.errors import LogBusy, LogFailed, LogFull, RunstateError
from runstate.storage.disk import LockBusy
from runstate.storage.permissions import denial

_no_locks = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
_full = {errno.ENOSPC, errno.EDQUOT}


def lacks_locks(error: OSError) -> bool:
    """Whether a file system refused to lock a file because it never does."""
    return error.errno in _no_locks


def translate(error: OSError) -> RunstateError:
    """The operating system's errors in our words. Nothing was written."""
    if isinstance(error, LockBusy):
        return LogBusy("Another writer holds this stream; try again")
    if error.errno in _full:
        return LogFull()
    if lacks_locks(error):
        return LogFailed(
            f"This file system cannot lock files ({error.strerror}), so that another writer could not be kept out. "
            "Keep the log on a local disk, or mount the file system with locks"
        )
    if (denied := denial(error)) is not None:
        return denied
    return LogFailed(f"The disk refused: {error.strerror or error} ({error.filename})")


@contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise translate(error) from error
