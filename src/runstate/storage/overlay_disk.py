"""A disk whose changes stay in memory: what a repair would do is found by doing it there.

Reads go to the disk below until a file is changed. Nothing below is changed, locked or created.
"""

from __future__ import annotations

import errno
import os
from pathlib import PurePath

from runstate.storage.descriptors import Identity
from runstate.storage.disk import Disk, File, Kind, Lock


class OverlayDisk:
    """For one thread. Directories that exist below stay; those that are made here are known by what is in them."""

    def __init__(self, below: Disk) -> None:
        self._below = below
        self._files: dict[PurePath, _Node | None] = {}
        """What differs from below; None: removed."""
        self._directories: set[PurePath] = set()

    def open(self, path: PurePath, *, create: bool = False, read_only: bool = False) -> File:
        if path in self._files:
            node = self._files[path]
            if node is not None:
                return File(_Descriptor(node), path)
            if not create:
                raise _missing(path)
        elif not create or self._below.exists(path):
            node = self._files[path] = _Node(below=self._below.open(path, read_only=True))
            return File(_Descriptor(node), path)
        return self.create(path)

    def create(self, path: PurePath) -> File:
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        node = self._files[path] = _Node(data=bytearray())
        return File(_Descriptor(node), path)

    def read(self, path: PurePath) -> bytes:
        with self.open(path, read_only=True) as file:
            return file.read_at(0, file.size())

    def exists(self, path: PurePath) -> bool:
        return self.kind(path) is not None

    def kind(self, path: PurePath) -> Kind | None:
        if path in self._files:
            return None if self._files[path] is None else "file"
        return "directory" if path in self._directories else self._below.kind(path)

    def is_writable(self, path: PurePath) -> bool:
        return True

    def is_link(self, path: PurePath) -> bool:
        return path not in self._files and self._below.is_link(path)

    def stamp(self, path: PurePath) -> tuple[int, str]:
        return self._below.stamp(path)

    def modified_at(self, path: PurePath) -> float:
        return self._below.modified_at(path)

    def look_up(self, path: PurePath) -> tuple[Identity, int]:
        with self.open(path, read_only=True) as file:
            return file.identity(), file.size()

    def names(self, path: PurePath) -> list[str]:
        names = set() if path in self._directories else set(self._below.names(path))
        for changed, node in self._files.items():
            if changed.parent == path:
                (names.discard if node is None else names.add)(changed.name)
        return sorted(names)

    def some_names(self, path: PurePath, limit: int) -> list[str]:
        return self.names(path)[:limit]

    def rename(self, source: PurePath, target: PurePath) -> None:
        self.open(source).close()
        self._files[target], self._files[source] = self._files[source], None

    def remove(self, path: PurePath) -> None:
        if not self.exists(path):
            raise _missing(path)
        self._files[path] = None

    def make_directory(self, path: PurePath) -> None:
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        self._directories.add(path)

    def remove_directory(self, path: PurePath) -> None:
        self._directories.discard(path)

    def sync_directory(self, path: PurePath) -> None: ...

    def lock(self, path: PurePath, *, shared: bool = False) -> Lock:
        return NoLock()

    def temp_name(self, path: PurePath) -> PurePath:
        return self._below.temp_name(path)


class NoLock:
    """Stands for a lock that nobody else could want."""

    def release(self) -> None: ...


class _Node:
    """A file: as it is below, until it is changed and held in memory."""

    def __init__(self, *, below: File | None = None, data: bytearray | None = None) -> None:
        self._below, self._data = below, data

    def read(self, offset: int, size: int) -> bytes:
        if self._data is None and self._below is not None:
            return self._below.read_at(offset, size)
        return bytes(self.changed()[offset : offset + size])

    def size(self) -> int:
        return self._below.size() if self._data is None and self._below is not None else len(self.changed())

    def changed(self) -> bytearray:
        if self._data is None:
            self._data = bytearray(b"" if self._below is None else self._below.read_at(0, self._below.size()))
        return self._data


class _Descriptor:
    def __init__(self, node: _Node) -> None:
        self._node = node
        self.read, self.size = node.read, node.size

    def write(self, data: memoryview) -> int:
        self._node.changed().extend(data)
        return len(data)

    def truncate(self, size: int) -> None:
        del self._node.changed()[size:]

    def flush(self) -> None: ...

    def identity(self) -> Identity:
        return 0, id(self._node)

    def lock(self) -> None: ...

    def close(self) -> None: ...


def _missing(path: PurePath) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
