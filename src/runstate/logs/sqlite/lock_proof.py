"""Whether a file system has the locks that SQLite needs. Where it has none, SQLite says that the log is busy."""

from __future__ import annotations

import fcntl
from pathlib import Path
from tempfile import TemporaryFile

from runstate.storage.disk_errors import lacks_locks, translate


def check_locks(directory: Path) -> None:
    """Lock a new file in a directory. The log itself is not touched: closing it would release the locks of SQLite.

    Raises:
        LogFailed: the file system cannot lock files.
    """
    try:
        with TemporaryFile(dir=directory) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if lacks_locks(error):
            raise translate(error) from error
