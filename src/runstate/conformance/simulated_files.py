"""Open files and locks of a simulated disk."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from runstate.conformance.crash_states import FileInode, Truncate, Write
from runstate.storage.descriptors import Identity

if TYPE_CHECKING:
    from runstate.conformance.simulated_disk import SimulatedDisk


def disk_error(number: int, what: object) -> OSError:
    return OSError(number, os.strerror(number), str(what))


@dataclass(frozen=True, eq=False)
class SimulatedLock:
    held: list[SimulatedLock]
    node: FileInode
    shared: bool

    def release(self) -> None:
        if self in self.held:
            self.held.remove(self)


@dataclass
class SimulatedDescriptor:
    disk: SimulatedDisk
    node: FileInode
    path: PurePath
    read_only: bool = False
    held: SimulatedLock | None = None

    def write(self, data: memoryview) -> int:
        if self.read_only:
            raise disk_error(errno.EBADF, self.path)
        return self.disk.call("write", f"at {self.size()} of {self.path}", lambda: self._write(data))

    def read(self, offset: int, size: int) -> bytes:
        return self.disk.call("read", self.path, lambda: bytes(self.node.current[offset : offset + size]))

    def size(self) -> int:
        return len(self.node.current)

    def truncate(self, size: int) -> None:
        if self.read_only:
            raise disk_error(errno.EINVAL, self.path)
        self.disk.call("truncate", f"{self.path} to {size}", lambda: self.node.change(Truncate(size)))

    def flush(self) -> None:
        self.disk.call("sync", self.path, self.node.sync, fail=self.node.drop)

    def identity(self) -> Identity:
        return 0, id(self.node)

    def lock(self) -> None:
        if self.held is None:
            self.held = self.disk.call("lock", self.path, lambda: self.disk.lock_node(self.node, self.path, False))

    def close(self) -> None:
        if self.held is not None:
            self.held.release()

    def _write(self, data: memoryview) -> int:
        limits = (len(data), self.disk.write_bytes_max, self.disk.free_bytes())
        size = min(limit for limit in limits if limit is not None)
        if size == 0:
            raise disk_error(errno.ENOSPC, self.path)
        self.node.change(Write(self.size(), bytes(data[:size])))
        return size
