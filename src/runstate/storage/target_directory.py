"""Target directories: where a command may write, and what it may delete there.

A target directory is absent, empty, or written by Runstate. Its marker shows the latter: a file of the format that it
holds, such as `table.json`. Any other directory is refused before anything is written to it (`check_target`).

In its own directory, a command deletes only files that Runstate wrote (`remove_own`). Each format describes the names
of its files by a regular expression over paths relative to the directory. The path of a directory ends with a slash.
A directory that the expression does not match is not entered. A symlink is neither followed nor removed.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePath

from runstate.errors import LogFailed, LogFull, NotALog, RunstateError, Unsupported
from runstate.storage.disk import Disk, LockBusy, RealDisk
from runstate.storage.permissions import denial

_full = {errno.ENOSPC, errno.EDQUOT}
_scheme = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_real_disk = RealDisk()


def check_target(directory: PurePath, own: re.Pattern[str], *, has_marker: bool, disk: Disk = _real_disk) -> None:
    """Check that a directory is absent, empty, or ours, and that this process may write to it.

    `own` matches what an interrupted command may have left there before it wrote the marker.

    Raises:
        Unsupported: it is the URL of an object store.
        NotALog: it is a file, or holds something that Runstate did not write.
        LogFailed: it cannot be read or written.
    """
    refuse_url(directory)
    if not has_marker:
        refuse_foreign(directory, own, disk=disk)
    existing = directory
    while not disk.exists(existing) and existing != existing.parent:
        existing = existing.parent
    if not disk.is_writable(existing):
        raise cannot_write(existing, PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(existing)))


def refuse_url(directory: PurePath) -> None:
    """Refuse a URL that was given in place of a directory: as a path, `s3://bucket/x` is the directory `./s3:`.

    Raises:
        Unsupported: a part of the path is a scheme.
    """
    if (scheme := next((part for part in directory.parts if _scheme.fullmatch(part)), None)) is not None:
        raise Unsupported(
            f"{directory} is no directory: {scheme}// is not supported here, and nothing was written. "
            "Give a directory, such as one where the object store is mounted on every machine that takes part"
        )


def refuse_foreign(directory: PurePath, own: re.Pattern[str], *, disk: Disk = _real_disk) -> None:
    """
    Raises:
        NotALog: the directory is a file, or holds something that `own` does not match.
        LogFailed: it cannot be read.
    """
    try:
        found = next(foreign_entries(directory, own, disk=disk), None)
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise NotALog(f"{directory} is a file, or is below one. Choose an empty or new directory") from error
    except OSError as error:
        raise LogFailed(
            f"{directory} cannot be read: {error.strerror}. Choose a directory that you can read and write"
        ) from error
    if found is not None:
        raise NotALog(
            f"{directory} is not empty and was not written by Runstate: it holds {found!r}. "
            "Nothing was changed. Choose an empty or new directory",
            path=str(directory),
        )


def foreign_entries(directory: PurePath, own: re.Pattern[str], *, disk: Disk = _real_disk) -> Iterator[str]:
    """What a directory holds and `own` does not match.

    Raises:
        OSError: a directory cannot be read.
    """
    return (path for path, is_own in _entries(disk, directory, own) if not is_own)


def own_entries(directory: PurePath, own: re.Pattern[str], *, disk: Disk = _real_disk) -> Iterator[str]:
    """What a directory holds and `own` matches. A directory comes after what it holds.

    Raises:
        OSError: a directory cannot be read.
    """
    return (path for path, is_own in _entries(disk, directory, own) if is_own)


def remove_own(
    directory: PurePath, own: re.Pattern[str], *, keep: Collection[str] = (), disk: Disk = _real_disk
) -> None:
    """Remove the files that `own` matches, and directories that it matches and that are empty then.

    Paths in `keep` stay. What another process removes meanwhile is not an error.

    Raises:
        OSError: a file cannot be removed.
    """
    with suppress(FileNotFoundError):
        for path in [path for path in own_entries(directory, own, disk=disk) if path not in keep]:
            if not path.endswith("/"):
                with suppress(FileNotFoundError):
                    disk.remove(directory / path)
            elif not disk.names(directory / path):
                disk.remove_directory(directory / path)


def _entries(disk: Disk, directory: PurePath, own: re.Pattern[str], prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Relative paths, and whether they are ours. A directory comes after what it holds."""
    for name in disk.names(directory):
        kind = disk.kind(directory / name)
        path = f"{prefix}{name}/" if kind == "directory" else f"{prefix}{name}"
        # We make no symlinks: one that has a name of ours is not ours.
        is_own = kind != "other" and own.fullmatch(path) is not None
        if kind == "directory" and is_own:
            yield from _entries(disk, directory / name, own, path)
        yield path, is_own


def cannot_write(directory: PurePath, error: OSError) -> RunstateError:
    """The error for a target directory that the operating system refuses to write."""
    message = f"{directory} cannot be written: {error.strerror or error}"
    if error.errno in _full:
        return LogFull(f"{message}. Free some space and run the command again")
    return denial(error) or LogFailed(f"{message}. Choose a directory that you can write to")


@contextmanager
def writing_to(directory: PurePath) -> Iterator[None]:
    """
    Raises:
        LogFull, LogFailed: the operating system refuses to write. A lock that is held stays a LockBusy.
    """
    try:
        yield
    except LockBusy:
        raise
    except OSError as error:
        raise cannot_write(directory, error) from error
