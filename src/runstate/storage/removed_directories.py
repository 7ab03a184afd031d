"""Deleting a stream's directory: one rename takes all of it away, and what a crash leaves of that is swept up later."""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePath

from runstate.storage.directories import names_in, remove_tree
from runstate.storage.disk import Disk, temp_target

_removed = ".deleted"


def is_removed(name: str) -> bool:
    return temp_target(name) == _removed


def remove_directory(disk: Disk, home: PurePath, lock: PurePath) -> None:
    """Delete a stream's directory and the file of its lock, which the caller holds.

    Raises:
        OSError: the stream is as it was, or it is gone and a power cut may bring it back.
    """
    moved = disk.temp_name(home.parent / _removed)
    disk.rename(home, moved)
    disk.sync_directory(home.parent)
    with suppress(OSError):  # What cannot be removed now is swept up by a later deletion.
        remove_tree(disk, moved)
    # A process that has opened the lock file meanwhile finds it unlinked, and opens a new one.
    with suppress(OSError):
        disk.remove(lock)


class Sweeper:
    """Finishes, once, what deletions of processes that were killed have left in a directory of streams."""

    def __init__(self, disk: Disk, directory: PurePath) -> None:
        self._disk, self._directory = disk, directory
        self._is_done = False

    def sweep(self) -> None:
        if self._is_done:
            return
        self._is_done = True
        for name in names_in(self._disk, self._directory):
            if is_removed(name):
                remove_tree(self._disk, self._directory / name)
