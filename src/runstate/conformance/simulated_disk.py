"""A disk in memory that fails on request and knows everything a crash may leave of it.

`crash_states` says what a power cut may leave of each file and directory. A failed sync leaves its changes readable and
makes them undependable for good, as Linux does. A kill, unlike a power cut, loses nothing that was written.

    def history(disk):                          # yields what was acknowledged
        log = Log(disk)
        for record in records:
            log.append(record)
            yield record

    for crash in every_crash(history):
        stored = Log(crash.disk).read()         # acknowledged ⊆ stored ⊆ sent, in order
Everything is deterministic; what is sampled takes a seed.
"""

from __future__ import annotations

import copy
import errno
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import PurePath, PurePosixPath
from typing import Generic, Literal, TypeVar
from zlib import crc32

from runstate.conformance.crash_states import (
    DirectoryInode,
    FileInode,
    Pick,
    Relink,
    Tree,
    every_choice,
    walk,
)
from runstate.conformance.simulated_files import SimulatedDescriptor, SimulatedLock, disk_error
from runstate.storage.descriptors import Identity
from runstate.storage.disk import TEMP_SUFFIX, File, Kind, Lock, LockBusy

T = TypeVar("T")
Node = TypeVar("Node", "FileInode", "DirectoryInode")

Operation = Literal[
    "open", "create", "read", "stamp", "write", "truncate", "sync", "names", "rename", "remove",
    "make_directory", "remove_directory", "sync_directory", "lock",
]  # fmt: skip
Phase = Literal["before", "after"]
Act = Callable[[], None]

STATES_MAX = 4096
"""Up to so many crash states are enumerated; of more than that, so many are sampled."""


@dataclass(frozen=True)
class Crash(Generic[T]):
    """A disk as one crash left it, rebooted: what was going on, and what had been acknowledged by then."""

    disk: SimulatedDisk
    during: str
    acknowledged: tuple[T, ...]


Scenario = Callable[["SimulatedDisk"], Iterable[T]]
"""Works on a disk, and yields whatever it was told is stored."""


def every_crash(
    scenario: Scenario[T],
    start: SimulatedDisk | None = None,
    *,
    states_max: int = STATES_MAX,
    seed: int = 0,
) -> Iterator[Crash[T]]:
    """Every disk that a power cut may leave before, during or after any call that `scenario` makes.

    The scenario runs once, on `start`. A cut during a change is one after it, with the change not yet synced;
    a cut during a sync is one before it. The same disk with the same acknowledgements comes once.
    """
    seen: set[object] = set()
    moments = _moments(scenario, start, lambda phase, call: (phase == "before") == call.startswith("sync"))
    for moment in moments:
        for disk in moment.disk.crash_states(states_max=states_max, seed=seed):
            state = (len(moment.acknowledged), frozenset(disk.tree().items()))
            if state not in seen:
                seen.add(state)
                yield Crash(disk, moment.during, moment.acknowledged)


def every_kill(scenario: Scenario[T], start: SimulatedDisk | None = None) -> Iterator[Crash[T]]:
    """Every disk that the death of the process may leave before or after any call; its page cache survives.

    To be killed at every byte of a write as well, start on SimulatedDisk(write_bytes_max=1).
    """
    yield from _moments(scenario, start, lambda phase, call: True)


def _moments(
    scenario: Scenario[T], start: SimulatedDisk | None, wanted: Callable[[Phase, Operation], bool]
) -> list[Crash[T]]:
    disk = start or SimulatedDisk()
    moments: list[Crash[T]] = []
    acknowledged: list[T] = []

    def observe(phase: Phase, operation: Operation, what: str) -> None:
        if wanted(phase, operation):
            during = f"{phase} call {disk.calls.total()}: {operation} {what}"
            moments.append(Crash(disk.killed(), during, tuple(acknowledged)))

    disk.observer = observe
    for promise in scenario(disk):
        acknowledged.append(promise)
    disk.observer = None
    return [*moments, Crash(disk.killed(), "after the last call", tuple(acknowledged))]


class SimulatedDisk:
    """A `Disk` in memory; `killed` and `crash_states` give new ones, without faults, locks or open handles.

    Beyond `capacity_bytes` in all files a write is cut short, then fails with ENOSPC. `write_bytes_max` is the
    most that one write takes. `calls` counts what was asked.
    """

    def __init__(self, *, capacity_bytes: int | None = None, write_bytes_max: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.write_bytes_max = write_bytes_max
        self.calls: Counter[Operation] = Counter()
        self.observer: Callable[[Phase, Operation, str], None] | None = None
        self._root = DirectoryInode({})
        self._faults: list[_Fault] = []
        self._locks: list[SimulatedLock] = []
        self._mutex = threading.RLock()

    # --- the Disk protocol ---------------------------------------------------------------------------------

    def open(self, path: PurePath, *, create: bool = False, read_only: bool = False) -> File:
        if create and not read_only and not self.exists(path):
            return self.create(path)
        node = self.call("open", path, lambda: self._file(path))
        return File(SimulatedDescriptor(self, node, path, read_only), path)

    def create(self, path: PurePath) -> File:
        node = FileInode(bytearray())
        self.call("create", path, lambda: self._add(path, node))
        return File(SimulatedDescriptor(self, node, path), path)

    def read(self, path: PurePath) -> bytes:
        return self.call("read", path, lambda: bytes(self._file(path).current))

    def stamp(self, path: PurePath) -> tuple[int, str]:
        return self.call("stamp", path, lambda: _stamp(bytes(self._file(path).current)))

    def modified_at(self, path: PurePath) -> float:
        """Long ago: there is no clock in here."""
        self._file(path)
        return 0.0

    def look_up(self, path: PurePath) -> tuple[Identity, int]:
        node = self._file(path)
        return (0, id(node)), len(node.current)

    def exists(self, path: PurePath) -> bool:
        try:
            self._node(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def kind(self, path: PurePath) -> Kind | None:
        if not self.exists(path):
            return None
        return "directory" if isinstance(self._node(path), DirectoryInode) else "file"

    def is_writable(self, path: PurePath) -> bool:
        return True

    def is_link(self, path: PurePath) -> bool:
        return False

    def names(self, path: PurePath) -> list[str]:
        return self.call("names", path, lambda: sorted(self._directory(path).current))

    def some_names(self, path: PurePath, limit: int) -> list[str]:
        return self.names(path)[:limit]

    def rename(self, source: PurePath, target: PurePath) -> None:
        self.call("rename", f"{source} to {target}", lambda: self._rename(source, target))

    def remove(self, path: PurePath) -> None:
        self.call("remove", path, lambda: self._unlink(path, self._file(path)))

    def make_directory(self, path: PurePath) -> None:
        self.call("make_directory", path, lambda: self._add(path, DirectoryInode({})))

    def remove_directory(self, path: PurePath) -> None:
        self.call("remove_directory", path, lambda: self._unlink(path, self._empty_directory(path)))

    def sync_directory(self, path: PurePath) -> None:
        node = self._directory(path)
        self.call("sync_directory", path, node.sync, fail=node.drop)

    def lock(self, path: PurePath, *, shared: bool = False) -> Lock:
        return self.call("lock", path, lambda: self._lock(path, shared))

    def temp_name(self, path: PurePath) -> PurePath:
        names = (path.with_name(f"{path.name}.{number:016x}{TEMP_SUFFIX}") for number in count())
        return next(name for name in names if not self.exists(name))

    # --- faults --------------------------------------------------------------------------------------------

    def fail(self, operation: Operation, *, nth: int = 1, error: int = errno.EIO, persistent: bool = False) -> None:
        """Let the `nth` such call from now fail with the errno `error`, once or from then on."""
        self._faults.append(_Fault(operation, self.calls[operation] + nth, error, persistent))

    def heal(self) -> None:
        """Let no further call fail."""
        self._faults.clear()
        self.capacity_bytes = None

    def flip_bit(self, path: PurePath, offset: int, bit: int) -> None:
        """Damage one bit of a file on the medium."""
        for content in (self._file(path).durable, self._file(path).current):
            if offset < len(content):
                content[offset] ^= 1 << bit

    # --- crashes -------------------------------------------------------------------------------------------

    def tree(self) -> Tree:
        return dict(walk(self._root, PurePosixPath("/"), None))

    def killed(self) -> SimulatedDisk:
        """What the next process finds when this one dies: all that was written, synced or not."""
        disk = SimulatedDisk()
        disk._root = copy.deepcopy(self._root)
        return disk

    def crash_states(self, *, states_max: int = STATES_MAX, seed: int = 0) -> Iterator[SimulatedDisk]:
        """All disks that a power cut now may leave, each once; nothing lost comes first, all lost second.

        When there are more ways to crash than `states_max`, those two and seeded samples, so many in all.
        """
        ways = list(islice(every_choice(self._crash), states_max + 1))
        if len(ways) > states_max:
            samples = (self._crash(random.Random(seed + n).randrange) for n in range(states_max - 2))
            ways = [ways[0], *samples]
        for state in {frozenset(tree.items()): tree for tree in (self.tree(), *ways)}.values():
            yield SimulatedDisk._holding(state)

    def random_crash_state(self, seed: int) -> SimulatedDisk:
        """One disk that a power cut now may leave."""
        return SimulatedDisk._holding(self._crash(random.Random(seed).randrange))

    def _crash(self, pick: Pick) -> Tree:
        return dict(walk(self._root, PurePosixPath("/"), pick))

    @staticmethod
    def _holding(tree: Tree) -> SimulatedDisk:
        disk = SimulatedDisk()
        for path, content in tree.items():  # a directory comes before what it holds
            node = DirectoryInode({}) if content is None else FileInode(bytearray(content))
            directory = disk._directory(path.parent)
            directory.durable[path.name] = directory.current[path.name] = node
        return disk

    # --- inside --------------------------------------------------------------------------------------------

    def call(self, operation: Operation, what: object, act: Callable[[], T], fail: Act = lambda: None) -> T:
        """Every call passes here: is counted, may meet a fault, and is observed if it may change anything."""
        with self._mutex:
            self.calls[operation] += 1
            for fault in self._faults:
                if fault.strikes(operation, self.calls[operation]):
                    fail()
                    raise disk_error(fault.error, what)
            observer = None if operation in ("open", "read", "names") else self.observer
            if observer:
                observer("before", operation, str(what))
            result = act()
            if observer:
                observer("after", operation, str(what))
            return result

    def free_bytes(self) -> int | None:
        if self.capacity_bytes is None:
            return None
        return max(0, self.capacity_bytes - sum(len(content or b"") for content in self.tree().values()))

    def _node(self, path: PurePath) -> FileInode | DirectoryInode:
        node: FileInode | DirectoryInode = self._root
        for name in path.parts:
            if name == "/":
                continue
            if isinstance(node, FileInode):
                raise disk_error(errno.ENOTDIR, path)
            if name not in node.current:
                raise disk_error(errno.ENOENT, path)
            node = node.current[name]
        return node

    def _file(self, path: PurePath) -> FileInode:
        node = self._node(path)
        if isinstance(node, DirectoryInode):
            raise disk_error(errno.EISDIR, path)
        return node

    def _directory(self, path: PurePath) -> DirectoryInode:
        node = self._node(path)
        if isinstance(node, FileInode):
            raise disk_error(errno.ENOTDIR, path)
        return node

    def _empty_directory(self, path: PurePath) -> DirectoryInode:
        node = self._directory(path)
        if node.current:
            raise disk_error(errno.ENOTEMPTY, path)
        return node

    def _add(self, path: PurePath, node: Node) -> Node:
        directory = self._directory(path.parent)
        if path.name in directory.current:
            raise disk_error(errno.EEXIST, path)
        directory.change(Relink(None, path.name, node))
        return node

    def _unlink(self, path: PurePath, node: FileInode | DirectoryInode) -> None:
        self._directory(path.parent).change(Relink(path.name, None, node))

    def _rename(self, source: PurePath, target: PurePath) -> None:
        if source.parent != target.parent:
            raise OSError(errno.EXDEV, "a rename stays within one directory", str(source), None, str(target))
        node = self._node(source)
        if self.exists(target) and target != source:
            _ = self._file(target) if isinstance(node, FileInode) else self._empty_directory(target)
        self._directory(source.parent).change(Relink(source.name, target.name, node))

    def _lock(self, path: PurePath, shared: bool) -> Lock:
        node = self._file(path) if self.exists(path) else self._add(path, FileInode(bytearray()))
        return self.lock_node(node, path, shared)

    def lock_node(self, node: FileInode, path: PurePath, shared: bool) -> SimulatedLock:
        if any(held.node is node and not (held.shared and shared) for held in self._locks):
            raise LockBusy(errno.EWOULDBLOCK, "the lock is held", str(path))
        self._locks.append(lock := SimulatedLock(self._locks, node, shared))
        return lock


def _stamp(content: bytes) -> tuple[int, str]:
    return len(content), f"{crc32(content):x}.{len(content):x}"


@dataclass(frozen=True)
class _Fault:
    operation: Operation
    nth: int
    error: int
    persistent: bool

    def strikes(self, operation: Operation, nth: int) -> bool:
        return operation == self.operation and (nth == self.nth or (self.persistent and nth > self.nth))
