"""The only door to the operating system's file API.

A file log sees only a `Disk`, so that tests can hand it a `SimulatedDisk` that fails and loses power. The contract:

- What was appended survives a power cut once `File.sync` has returned.
- A name (new, renamed, removed) survives once `sync_directory` of its directory has returned; syncing a
  file says nothing about its name.
- A rename is atomic: after a crash its target is the old file or the new one.

A file that is a symbolic link is read, and never opened to be changed: whoever made the link would choose what is
changed. A caller may name a directory by a link; see `refuse_links` for the directories inside a log.

Errors are plain `OSError`s with an errno, and the two classes below. A log translates them.
"""

import errno
import os
import re
import secrets
import stat
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path, PurePath
from typing import Literal, Protocol, Self

import filelock

from runstate.storage.descriptors import (
    Descriptor,
    Identity,
    RealDescriptor,
    SharedLock,
    link_refused,
    open_to_change,
    open_to_read,
)
from runstate.storage.file_status import find_file

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
TEMP_SUFFIX = ".tmp"
TEMP = rf"\.[0-9a-f]{{16}}{re.escape(TEMP_SUFFIX)}"
"""What `Disk.temp_name` adds to a name, as a regular expression. A file whose name ends otherwise is not a temporary
file of ours, and is never removed."""
Kind = Literal["file", "directory", "other"]
_temp_pattern = re.compile(f"(.+){TEMP}")


class PoisonedHandle(OSError):
    """An earlier sync of this handle failed, so what it wrote may be lost: reopen the file and replay it."""


class LockBusy(BlockingIOError):
    """Somebody else holds the lock now."""


class Lock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    def open(self, path: PurePath, *, create: bool = False, read_only: bool = False) -> "File":
        """Open a file to read and append; `create` makes an empty one where there is none.

        `read_only` needs no right to write, and refuses to: a change of such a file is an OSError.
        """

    def create(self, path: PurePath) -> "File":
        """Open a new, empty file. FileExistsError: the name is taken."""

    def read(self, path: PurePath) -> bytes: ...

    def exists(self, path: PurePath) -> bool: ...

    def kind(self, path: PurePath) -> Kind | None:
        """What is there. A symlink is `other`, wherever it leads."""

    def is_writable(self, path: PurePath) -> bool:
        """Whether this process may create files in a directory, as far as its permissions tell."""

    def is_link(self, path: PurePath) -> bool:
        """Whether a symbolic link is there, wherever it leads."""

    def stamp(self, path: PurePath) -> tuple[int, str]:
        """A file's size, and a text that changes whenever the file does, or is another one."""

    def modified_at(self, path: PurePath) -> float:
        """When a file was last written, in seconds since 1970."""

    def look_up(self, path: PurePath) -> tuple[Identity, int]:
        """Which file has this name now, and its size. A symlink is a file of its own. FileNotFoundError: none has."""

    def names(self, path: PurePath) -> list[str]:
        """What a directory holds, sorted."""

    def some_names(self, path: PurePath, limit: int) -> list[str]:
        """Up to so many of the names that a directory holds, in any order, however many there are."""

    def rename(self, source: PurePath, target: PurePath) -> None:
        """Rename within one directory, replacing `target`; durable once that directory is synced.

        OSError (EXDEV): the directories differ, so that no single sync could make the rename durable.
        """

    def remove(self, path: PurePath) -> None:
        """Remove a file, or a symlink but not what it leads to. IsADirectoryError: a directory is there."""

    def make_directory(self, path: PurePath) -> None: ...

    def remove_directory(self, path: PurePath) -> None:
        """Remove an empty directory."""

    def sync_directory(self, path: PurePath) -> None:
        """Make the names in a directory durable. After a failure nobody knows which of them are: a second
        sync that succeeds proves nothing."""

    def lock(self, path: PurePath, *, shared: bool = False) -> Lock:
        """Take the kernel lock on a file (made if missing, never removed) without waiting.

        It is exclusive, or `shared` with others who share it. The kernel frees it when its holder dies. LockBusy:
        somebody holds it. OSError (ENOSYS, ENOLCK): this file system can't lock. The file of a shared lock must
        never be removed: whoever shares it would not notice.
        """

    def temp_name(self, path: PurePath) -> PurePath:
        """A name beside `path` that nobody else uses: the name of `path`, and what `TEMP` describes."""


class File:
    """A file open to read and append, used by one thread at a time.

    A failed sync poisons the handle: every later change or sync of it raises PoisonedHandle, because the
    kernel may have dropped the pages, and a second sync would then report success for data that is gone.
    """

    def __init__(self, descriptor: Descriptor, path: PurePath) -> None:
        self.path = path
        self._descriptor: Descriptor | None = descriptor
        self._poisoned = False
        self._identity: Identity | None = None

    def append(self, data: bytes) -> int:
        """Write all of `data` at the end and return the offset where it begins.

        OSError: a part of it may stand in the file; truncate back to the old size before going on.
        """
        descriptor = self._changeable()
        offset = descriptor.size()
        rest = memoryview(data)
        while rest:
            written = descriptor.write(rest)
            if written == 0:
                raise OSError(errno.EIO, "the write makes no progress", str(self.path))
            rest = rest[written:]
        return offset

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only where the file ends."""
        descriptor, data = self._open(), bytearray()
        while len(data) < size and (more := descriptor.read(offset + len(data), size - len(data))):
            data += more
        return bytes(data)

    def size(self) -> int:
        return self._open().size()

    def identity(self) -> Identity:
        """Which file this is, whatever its name is now."""
        if self._identity is None:
            self._identity = self._open().identity()
        return self._identity

    def lock(self) -> None:
        """Take the kernel lock on this very file, until the handle is closed. LockBusy: another handle holds it."""
        try:
            self._open().lock()
        except BlockingIOError as busy:
            raise _busy(self.path) from busy

    def truncate(self, size: int) -> None:
        self._changeable().truncate(size)

    def sync(self) -> None:
        """Once this returns, everything written survives a power cut."""
        descriptor = self._changeable()
        try:
            descriptor.flush()
        except BaseException:  # an interrupt too: the kernel may have reported, and forgotten, an error
            self._poisoned = True
            raise

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            descriptor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> Descriptor:
        if self._descriptor is None:
            raise OSError(errno.EBADF, "the file is closed", str(self.path))
        return self._descriptor

    def _changeable(self) -> Descriptor:
        if self._poisoned:
            raise PoisonedHandle(errno.EIO, "an earlier sync failed; reopen and replay", str(self.path))
        return self._open()


def write_new(disk: Disk, path: PurePath, data: bytes) -> None:
    """Create a file that holds `data`, flushed; its name needs a sync of the directory.

    FileExistsError: the name is taken. After any other failure the file is gone again.
    """
    file = disk.create(path)
    try:
        with closing(file):
            file.append(data)
            file.sync()
    except BaseException:
        with suppress(OSError):
            disk.remove(path)
        raise


def replace_durably(disk: Disk, path: PurePath, data: bytes) -> None:
    """Make `path` hold `data`: a crash at any point leaves the old content or the new, never a mixture.

    Once this returns, the new content survives a power cut. OSError: the old content stands, except when
    the last step, the sync of the directory, failed: then either may stand after a crash.
    """
    temp = disk.temp_name(path)
    write_new(disk, temp, data)
    try:
        disk.rename(temp, path)
    except BaseException:
        with suppress(OSError):
            disk.remove(temp)
        raise
    disk.sync_directory(path.parent)


def temp_target(name: str) -> str | None:
    """The name of the file that a temporary file was to become; None if `Disk.temp_name` does not make such names."""
    found = _temp_pattern.fullmatch(name)
    return None if found is None else found[1]


def open_private(path: str, flags: int) -> int:
    """An opener for `open` and `FileIO`: a new file is for its owner alone, an existing one keeps its mode."""
    return os.open(path, flags, FILE_MODE)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that need not survive a crash. A new one is for its owner alone."""
    with open(path, "wb", opener=open_private) as file:
        file.write(data)


def refuse_links(disk: Disk, *paths: PurePath) -> None:
    """Check that none of these directories of a log is a symbolic link, before something is written into them.

    Raises:
        OSError (ELOOP): one is.
    """
    for path in paths:
        if disk.is_link(path):
            raise link_refused(path)


class RealDisk:
    """The disk of this machine. Files are created with mode 0600, directories with 0700.

    Below `shared_below`, the modes of directories say who else may read. A new file is readable for the group, and for
    others, where its directory is; a new directory for the group of its directory, if that has the setgid bit. Locks
    stay private: whoever can open one can hold up a writer.
    """

    def __init__(self, *, shared_below: PurePath | None = None) -> None:
        self._shared_below = shared_below

    def open(self, path: PurePath, *, create: bool = False, read_only: bool = False) -> File:
        if read_only:
            return File(RealDescriptor(open_to_read(path), path), path)
        if not create:
            return File(RealDescriptor(open_to_change(path, 0, FILE_MODE), path), path)
        return File(RealDescriptor(open_to_change(path, os.O_CREAT, self._file_mode(path)), path), path)

    def create(self, path: PurePath) -> File:
        return File(RealDescriptor(open_to_change(path, os.O_CREAT | os.O_EXCL, self._file_mode(path)), path), path)

    def read(self, path: PurePath) -> bytes:
        with open(open_to_read(path), "rb") as file:
            return file.read()

    def exists(self, path: PurePath) -> bool:
        return os.path.exists(path)

    def kind(self, path: PurePath) -> Kind | None:
        try:
            mode = os.lstat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
        return "directory" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"

    def is_writable(self, path: PurePath) -> bool:
        return os.access(path, os.W_OK | os.X_OK)

    def is_link(self, path: PurePath) -> bool:
        return os.path.islink(path)

    def stamp(self, path: PurePath) -> tuple[int, str]:
        found = os.stat(path)
        return found.st_size, f"{found.st_ino:x}.{found.st_mtime_ns:x}.{found.st_size:x}"

    def modified_at(self, path: PurePath) -> float:
        return os.stat(path).st_mtime

    def look_up(self, path: PurePath) -> tuple[Identity, int]:
        return find_file(os.fspath(path))

    def names(self, path: PurePath) -> list[str]:
        return sorted(os.listdir(path))

    def some_names(self, path: PurePath, limit: int) -> list[str]:
        with os.scandir(path) as found:
            return [entry.name for entry in islice(found, limit)]

    def rename(self, source: PurePath, target: PurePath) -> None:
        if source.parent != target.parent:
            raise OSError(errno.EXDEV, "a rename stays within one directory", str(source), None, str(target))
        os.rename(source, target)

    def remove(self, path: PurePath) -> None:
        try:
            os.unlink(path)
        except PermissionError:
            if self.kind(path) == "directory":  # What macOS reports where Linux says EISDIR.
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path)) from None
            raise

    def make_directory(self, path: PurePath) -> None:
        parent = self._mode_around(path)
        os.mkdir(path, DIRECTORY_MODE | (_readers_in(parent) & 0o050 if parent & stat.S_ISGID else 0))

    def remove_directory(self, path: PurePath) -> None:
        os.rmdir(path)

    def sync_directory(self, path: PurePath) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: PurePath, *, shared: bool = False) -> Lock:
        if shared:
            try:
                return SharedLock(open_to_change(path, os.O_CREAT, FILE_MODE))
            except BlockingIOError as busy:
                raise _busy(path) from busy
        # Made here, because filelock would also make missing directories, with a mode of its own choice.
        os.close(open_to_change(path, os.O_CREAT, FILE_MODE))
        # No soft fallback: where the kernel can't lock, a marker file only pretends to. Not thread-local:
        # a writer may be closed by another thread than the one that opened it.
        lock = filelock.FileLock(path, fallback_to_soft=False, thread_local=False)
        try:
            lock.acquire(blocking=False)
        except filelock.Timeout as busy:
            raise _busy(path) from busy
        return lock

    def temp_name(self, path: PurePath) -> PurePath:
        return path.with_name(f"{path.name}.{secrets.token_hex(8)}{TEMP_SUFFIX}")

    def _file_mode(self, path: PurePath) -> int:
        return FILE_MODE | (_readers_in(self._mode_around(path)) & 0o044)

    def _mode_around(self, path: PurePath) -> int:
        """The mode of the directory that a name is in; 0 where it says nothing about who may read."""
        is_shared = self._shared_below is not None and self._shared_below in path.parents
        return os.stat(path.parent).st_mode if is_shared else 0


def _busy(path: PurePath) -> LockBusy:
    return LockBusy(errno.EWOULDBLOCK, "the lock is held", str(path))


def _readers_in(mode: int) -> int:
    """The bits of those besides the owner who can list a directory and reach what is in it."""
    return sum(bits for bits in (0o050, 0o005) if mode & bits == bits)
