"""Files as the kernel opens them. A link is read, and never opened to be changed; a pipe or a device is refused."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from pathlib import PurePath
from typing import Protocol

Identity = tuple[int, int]
"""Of a file: its device and inode. While a file is open, no other file has its identity."""


class Descriptor(Protocol):
    """An open file as the kernel gives it: one call may move fewer bytes than it was asked to."""

    def write(self, data: memoryview) -> int: ...
    def read(self, offset: int, size: int) -> bytes: ...
    def size(self) -> int: ...
    def truncate(self, size: int) -> None: ...
    def flush(self) -> None: ...
    def identity(self) -> Identity: ...
    def lock(self) -> None: ...
    def close(self) -> None: ...


def open_to_change(path: PurePath, flags: int, mode: int) -> int:
    """Open a file to read and append. `flags` say whether it may, or must, be created.

    OSError (ELOOP): a symbolic link is there.
    """
    try:
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | flags, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise link_refused(path) from error
        raise


def open_to_read(path: PurePath) -> int:
    """Open a file to read it. A pipe or a device in its place is refused: reading it may never end.

    IsADirectoryError: a directory is there. The kernel would open it too, and refuse only to read from it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))


def link_refused(path: PurePath) -> OSError:
    """The error for a symbolic link where something is to be written."""
    return OSError(errno.ELOOP, f"{path.name} is a symbolic link, and links are not followed to write", str(path))


class SharedLock:
    """filelock's locks are exclusive; this one uses the same call of the kernel, so that each knows of the other."""

    def __init__(self, fd: int) -> None:
        """Takes over the descriptor. BlockingIOError: somebody holds the file's lock alone."""
        self._fd = fd
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealDescriptor:
    """An open file of this machine."""

    def __init__(self, fd: int, path: PurePath) -> None:
        self._fd, self._path = fd, path

    def write(self, data: memoryview) -> int:
        try:
            return os.write(self._fd, data)
        except OSError as error:
            raise self._named(error) from None

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def size(self) -> int:
        return os.lseek(self._fd, 0, os.SEEK_END)  # No fstat: see `file_status`.

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise self._named(error) from None

    def flush(self) -> None:
        try:
            self._flush()
        except OSError as error:
            raise self._named(error) from None

    def _flush(self) -> None:
        if sys.platform == "darwin":
            fcntl.fcntl(self._fd, fcntl.F_FULLFSYNC)  # fsync there leaves data in the drive's own cache
        else:
            os.fdatasync(self._fd)

    def _named(self, error: OSError) -> OSError:
        """The error of a call that was given a descriptor, with the file that it was about."""
        error.filename = str(self._path)
        return error

    def identity(self) -> Identity:
        found = os.fstat(self._fd)
        return found.st_dev, found.st_ino

    def lock(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        os.close(self._fd)
