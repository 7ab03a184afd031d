"""Which file a name stands for, asked without its times.

A writer asks this after every flush. `os.stat` also reads the times of the file, and since Linux 6.13 the next write to
a file whose times were read must record a new one: an append to SQLite took 50 µs longer. `statx` can leave them out.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable

from runstate.storage.descriptors import Identity

Find = Callable[[str], tuple[Identity, int]]

_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_STATX_INO_AND_SIZE = 0x100 | 0x200
_Buffer = ctypes.c_char * 256
_ino_size_and_device = struct.Struct("=32xQQ88xII")


def find_file_by_stat(path: str) -> tuple[Identity, int]:
    found = os.lstat(path)
    return (found.st_dev, found.st_ino), found.st_size


def _bind_statx() -> Find | None:
    """`find_file` with the C library's `statx`; None where there is none."""
    if sys.platform != "linux":
        return None
    try:
        statx = ctypes.CDLL(None, use_errno=True).statx
    except (OSError, AttributeError):
        return None
    statx.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)

    def find_file(path: str) -> tuple[Identity, int]:
        found = _Buffer()
        if statx(_AT_FDCWD, os.fsencode(path), _AT_SYMLINK_NOFOLLOW, _STATX_INO_AND_SIZE, found) != 0:
            return find_file_by_stat(path)  # It raises the error, or answers where a sandbox refuses statx.
        inode, size, major, minor = _ino_size_and_device.unpack_from(found)
        return (os.makedev(major, minor), inode), size

    return find_file


find_file: Find = _bind_statx() or find_file_by_stat
"""The identity and size of what stands under a name; a symlink is a file of its own. OSError: nothing does."""
