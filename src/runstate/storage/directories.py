"""Directories whose names survive a power cut, and what is done with them as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePath

from runstate.storage.disk import Disk, File, Lock, refuse_links


def names_in(disk: Disk, directory: PurePath) -> list[str]:
    """What a directory holds; nothing where there is none."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return disk.names(directory)
    return []


def remove_tree(disk: Disk, path: PurePath) -> None:
    """Remove a directory with everything in it. A symlink in it is removed, and not followed.

    What another process removes meanwhile is not an error.
    """
    if disk.kind(path) != "directory":
        return
    for name in names_in(disk, path):
        try:
            disk.remove(path / name)
        except FileNotFoundError:
            continue
        except IsADirectoryError:
            remove_tree(disk, path / name)
    try:
        disk.remove_directory(path)
    except FileNotFoundError:
        return


def make_durable_directory(disk: Disk, path: PurePath) -> None:
    """Make a directory if it does not exist; once this returns, its name survives a power cut."""
    is_new = not disk.exists(path)
    with suppress(FileExistsError):
        disk.make_directory(path)
    try:
        # Also for an existing one: the process that made it may have been killed before this.
        disk.sync_directory(path.parent)
    except BaseException:
        # A name that a sync has failed on is never durable for sure; only a new one is.
        if is_new:
            with suppress(OSError):
                disk.remove_directory(path)
        raise


def make_directories(disk: Disk, path: PurePath) -> None:
    """Make a directory, and those above it that are missing, for their owner alone. They survive a power cut."""
    if not disk.exists(path):
        make_directories(disk, path.parent)
        with suppress(FileExistsError):  # Another process was faster.
            disk.make_directory(path)
        disk.sync_directory(path.parent)


def create_in(disk: Disk, path: PurePath) -> File:
    """Make a stream's first file, and its directory; once this returns, both names survive a power cut."""
    home = path.parent
    with suppress(FileExistsError):
        disk.make_directory(home)
    try:
        file = disk.create(path)
        try:
            disk.sync_directory(home)
            disk.sync_directory(home.parent)
        except BaseException:
            # Names that a sync has failed on are never sure again; only new ones are.
            file.close()
            disk.remove(path)
            raise
    except BaseException:
        with suppress(OSError):
            disk.remove_directory(home)
        raise
    return file


def lock_in(disk: Disk, path: PurePath, *, shared: bool = False, writes_to: Sequence[PurePath] = ()) -> Lock:
    """Take a lock whose directory is made with the first one, to write into the directories `writes_to`.

    Raises:
        LockBusy: somebody holds it.
        OSError: one of these directories is a symbolic link.
    """
    refuse_links(disk, path.parent, *writes_to)
    try:
        return disk.lock(path, shared=shared)
    except FileNotFoundError:
        with suppress(FileExistsError):
            disk.make_directory(path.parent)
        return disk.lock(path, shared=shared)
