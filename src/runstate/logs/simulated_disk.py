"""A disk in memory that fails on request and knows everything a crash may leave of it.

Each file and directory is an `_Inode`: what is durable, what a running process sees, and the changes
between the two. A power cut at any moment leaves, independently for each of them:

- of the unsynced writes and truncations of a file, any subset, so also a later one without an earlier one;
- at most one write per file torn: cut short, or grown to its full size with zeros after the cut or before it;
- of the unsynced changes of a directory, any subset that keeps the order of changes to the same name, so a
  rename leaves the old name or the new one, and never neither;
- everything that was synced.

A failed sync leaves its changes readable and makes them undependable for good, as Linux does: no later sync
brings them back. A kill, unlike a power cut, loses nothing that was written.

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
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import PurePath, PurePosixPath
from typing import Any, Generic, Literal, Protocol, TypeVar

from runstate.logs.disk import TEMP_SUFFIX, File, Lock, LockBusy

T = TypeVar("T")
Node = TypeVar("Node", "_File", "_Directory")
Change = TypeVar("Change", bound="_Change")
Content = TypeVar("Content", bytearray, "dict[str, _File | _Directory]")

Operation = Literal[
    "open", "create", "read", "write", "truncate", "sync", "names", "rename", "remove",
    "make_directory", "remove_directory", "sync_directory", "lock",
]  # fmt: skip
Phase = Literal["before", "after"]
Act = Callable[[], None]
Pick = Callable[[int], int]
"""Decides one thing: a number below the one given."""
Tree = dict[PurePosixPath, bytes | None]
"""Everything on a disk: the content of each file, None for each directory."""

STATES_MAX = 4096
"""Up to so many crash states are enumerated; of more than that, so many are sampled."""
CUT_EVERYWHERE_BYTES_MAX = 128
"""A write up to this size is torn at every byte; a larger one at its ends, at pages and at sampled bytes."""
PAGE_BYTES = 4096


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
        self._root = _Directory({})
        self._faults: list[_Fault] = []
        self._locked: set[_File] = set()
        self._mutex = threading.RLock()

    # --- the Disk protocol ---------------------------------------------------------------------------------

    def open(self, path: PurePath, *, create: bool = False) -> File:
        if create and not self.exists(path):
            return self.create(path)
        return File(_SimulatedDescriptor(self, self.call("open", path, lambda: self._file(path)), path), path)

    def create(self, path: PurePath) -> File:
        node = _File(bytearray())
        self.call("create", path, lambda: self._add(path, node))
        return File(_SimulatedDescriptor(self, node, path), path)

    def read(self, path: PurePath) -> bytes:
        return self.call("read", path, lambda: bytes(self._file(path).current))

    def exists(self, path: PurePath) -> bool:
        try:
            self._node(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def names(self, path: PurePath) -> list[str]:
        return self.call("names", path, lambda: sorted(self._directory(path).current))

    def rename(self, source: PurePath, target: PurePath) -> None:
        self.call("rename", f"{source} to {target}", lambda: self._rename(source, target))

    def remove(self, path: PurePath) -> None:
        self.call("remove", path, lambda: self._unlink(path, self._file(path)))

    def make_directory(self, path: PurePath) -> None:
        self.call("make_directory", path, lambda: self._add(path, _Directory({})))

    def remove_directory(self, path: PurePath) -> None:
        self.call("remove_directory", path, lambda: self._unlink(path, self._empty_directory(path)))

    def sync_directory(self, path: PurePath) -> None:
        node = self._directory(path)
        self.call("sync_directory", path, node.sync, fail=node.drop)

    def lock(self, path: PurePath) -> Lock:
        return self.call("lock", path, lambda: self._lock(path))

    def temp_name(self, path: PurePath) -> PurePath:
        names = (path.with_name(f"{path.name}.{number}{TEMP_SUFFIX}") for number in count())
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
        return dict(_walk(self._root, PurePosixPath("/"), None))

    def killed(self) -> SimulatedDisk:
        """What the next process finds when this one dies: all that was written, synced or not."""
        disk = SimulatedDisk()
        disk._root = copy.deepcopy(self._root)
        return disk

    def crash_states(self, *, states_max: int = STATES_MAX, seed: int = 0) -> Iterator[SimulatedDisk]:
        """All disks that a power cut now may leave, each once; nothing lost comes first, all lost second.

        When there are more ways to crash than `states_max`, those two and seeded samples, so many in all.
        """
        ways = list(islice(_every_choice(self._crash), states_max + 1))
        if len(ways) > states_max:
            samples = (self._crash(random.Random(seed + n).randrange) for n in range(states_max - 2))  # noqa: S311
            ways = [ways[0], *samples]
        for state in {frozenset(tree.items()): tree for tree in (self.tree(), *ways)}.values():
            yield SimulatedDisk._holding(state)

    def random_crash_state(self, seed: int) -> SimulatedDisk:
        """One disk that a power cut now may leave."""
        return SimulatedDisk._holding(self._crash(random.Random(seed).randrange))  # noqa: S311

    def _crash(self, pick: Pick) -> Tree:
        return dict(_walk(self._root, PurePosixPath("/"), pick))

    @staticmethod
    def _holding(tree: Tree) -> SimulatedDisk:
        disk = SimulatedDisk()
        for path, content in tree.items():  # a directory comes before what it holds
            node = _Directory({}) if content is None else _File(bytearray(content))
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
                    raise _error(fault.error, what)
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

    def _node(self, path: PurePath) -> _File | _Directory:
        node: _File | _Directory = self._root
        for name in path.parts:
            if name == "/":
                continue
            if isinstance(node, _File):
                raise _error(errno.ENOTDIR, path)
            if name not in node.current:
                raise _error(errno.ENOENT, path)
            node = node.current[name]
        return node

    def _file(self, path: PurePath) -> _File:
        node = self._node(path)
        if isinstance(node, _Directory):
            raise _error(errno.EISDIR, path)
        return node

    def _directory(self, path: PurePath) -> _Directory:
        node = self._node(path)
        if isinstance(node, _File):
            raise _error(errno.ENOTDIR, path)
        return node

    def _empty_directory(self, path: PurePath) -> _Directory:
        node = self._directory(path)
        if node.current:
            raise _error(errno.ENOTEMPTY, path)
        return node

    def _add(self, path: PurePath, node: Node) -> Node:
        directory = self._directory(path.parent)
        if path.name in directory.current:
            raise _error(errno.EEXIST, path)
        directory.change(_Relink(None, path.name, node))
        return node

    def _unlink(self, path: PurePath, node: _File | _Directory) -> None:
        self._directory(path.parent).change(_Relink(path.name, None, node))

    def _rename(self, source: PurePath, target: PurePath) -> None:
        if source.parent != target.parent:
            raise OSError(errno.EXDEV, "a rename stays within one directory", str(source), None, str(target))
        node = self._node(source)
        if self.exists(target) and target != source:
            _ = self._file(target) if isinstance(node, _File) else self._empty_directory(target)
        self._directory(source.parent).change(_Relink(source.name, target.name, node))

    def _lock(self, path: PurePath) -> Lock:
        node = self._file(path) if self.exists(path) else self._add(path, _File(bytearray()))
        if node in self._locked:
            raise LockBusy(errno.EWOULDBLOCK, "the lock is held", str(path))
        self._locked.add(node)
        return _SimulatedLock(self._locked, node)


def _error(number: int, what: object) -> OSError:
    return OSError(number, os.strerror(number), str(what))


@dataclass(frozen=True)
class _Fault:
    operation: Operation
    nth: int
    error: int
    persistent: bool

    def strikes(self, operation: Operation, nth: int) -> bool:
        return operation == self.operation and (nth == self.nth or (self.persistent and nth > self.nth))


@dataclass(frozen=True)
class _SimulatedLock:
    locked: set[_File]
    node: _File

    def release(self) -> None:
        self.locked.discard(self.node)


@dataclass(frozen=True)
class _SimulatedDescriptor:
    disk: SimulatedDisk
    node: _File
    path: PurePath

    def write(self, data: memoryview) -> int:
        return self.disk.call("write", f"at {self.size()} of {self.path}", lambda: self._write(data))

    def read(self, offset: int, size: int) -> bytes:
        return self.disk.call("read", self.path, lambda: bytes(self.node.current[offset : offset + size]))

    def size(self) -> int:
        return len(self.node.current)

    def truncate(self, size: int) -> None:
        self.disk.call("truncate", f"{self.path} to {size}", lambda: self.node.change(_Truncate(size)))

    def flush(self) -> None:
        self.disk.call("sync", self.path, self.node.sync, fail=self.node.drop)

    def close(self) -> None: ...

    def _write(self, data: memoryview) -> int:
        limits = (len(data), self.disk.write_bytes_max, self.disk.free_bytes())
        size = min(limit for limit in limits if limit is not None)
        if size == 0:
            raise _error(errno.ENOSPC, self.path)
        self.node.change(_Write(self.size(), bytes(data[:size])))
        return size


# --- what a crash may leave ----------------------------------------------------------------------------


Fate = Literal["pending", "kept", "dropped"]
"""A sync makes pending changes kept, a failed one makes them dropped: lost or not, whatever follows."""


class _Change(Protocol):
    def apply(self, content: Any) -> None: ...


class _Inode(Generic[Content, Change]):
    """What is durable, what a running process sees, and the changes that lead from one to the other."""

    def __init__(self, durable: Content) -> None:
        self.durable: Content = durable
        self.current: Content = copy.copy(durable)
        self.changes: list[tuple[Change, Fate]] = []

    def change(self, change: Change) -> None:
        change.apply(self.current)
        self.changes.append((change, "pending"))

    def sync(self) -> None:
        self._settle("kept")
        if all(fate == "kept" for _, fate in self.changes):
            self.durable = copy.copy(self.current)
            self.changes.clear()

    def drop(self) -> None:
        self._settle("dropped")

    def _settle(self, settled: Fate) -> None:
        self.changes = [(change, settled if fate == "pending" else fate) for change, fate in self.changes]


@dataclass(frozen=True)
class _Write:
    offset: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        content.extend(bytes(max(0, self.offset - len(content))))
        content[self.offset : self.offset + len(self.data)] = self.data

    def torn(self, pick: Pick) -> list[_Write]:
        """The size but no data; the data before a cut, with or without the full size; the data after it."""
        cuts = _cuts(self.offset, len(self.data))
        full_size = _Write(self.offset + len(self.data), b"")
        choice = pick(1 + 3 * len(cuts))
        if choice == 0:
            return [full_size]
        cut, shape = cuts[(choice - 1) // 3], choice % 3
        head, tail = _Write(self.offset, self.data[:cut]), _Write(self.offset + cut, self.data[cut:])
        return [[tail], [head], [head, full_size]][shape]


@dataclass(frozen=True)
class _Truncate:
    size: int

    def apply(self, content: bytearray) -> None:
        del content[self.size :]
        _Write(self.size, b"").apply(content)


@dataclass(frozen=True)
class _Relink:
    """One change of a directory's names: old without new removes, new without old adds, both rename."""

    old: str | None
    new: str | None
    node: _File | _Directory

    def apply(self, content: dict[str, _File | _Directory]) -> None:
        if self.old is not None:
            content.pop(self.old, None)
        if self.new is not None:
            content[self.new] = self.node


class _File(_Inode[bytearray, "_Write | _Truncate"]):
    def after_crash(self, pick: Pick) -> bytearray:
        content = bytearray(self.durable)
        losable = [change for change, fate in self.changes if fate != "kept" and isinstance(change, _Write)]
        torn = (None, *losable)[pick(1 + len(losable))]
        for change, fate in self.changes:
            if change is torn:
                for part in torn.torn(pick):
                    part.apply(content)
            elif fate == "kept" or pick(2):
                change.apply(content)
        return content


class _Directory(_Inode["dict[str, _File | _Directory]", _Relink]):
    def after_crash(self, pick: Pick) -> dict[str, _File | _Directory]:
        surviving: list[_Relink] = []
        names: set[str | None] = set()
        for change, fate in reversed(self.changes):
            # A change survives together with the earlier ones of its names: else a name used again after a
            # rename could bury the file that was renamed.
            if fate == "kept" or names & {change.old, change.new} or pick(2):
                names |= {change.old, change.new} - {None}
                surviving.append(change)
        content = dict(self.durable)
        for change in reversed(surviving):
            change.apply(content)
        return content


def _walk(
    directory: _Directory, path: PurePosixPath, pick: Pick | None
) -> Iterator[tuple[PurePosixPath, bytes | None]]:
    """Everything below a directory: as a process sees it, or as a crash decided by `pick` leaves it."""
    for name, node in sorted((directory.after_crash(pick) if pick else directory.current).items()):
        if isinstance(node, _Directory):
            yield path / name, None
            yield from _walk(node, path / name, pick)
        else:
            yield path / name, bytes(node.after_crash(pick) if pick else node.current)


def _cuts(offset: int, size: int) -> Sequence[int]:
    if size <= CUT_EVERYWHERE_BYTES_MAX:
        return range(1, size)
    ends = {*range(1, 17), *range(size - 16, size)}
    pages = range(-offset % PAGE_BYTES or PAGE_BYTES, size, PAGE_BYTES)[:16]
    return sorted({*ends, *pages, *random.Random(size).sample(range(1, size), 32)})  # noqa: S311


def _every_choice(build: Callable[[Pick], T]) -> Iterator[T]:
    """What `build` makes of every sequence of picks (one may decide which come next); zeros come first."""
    turn: list[tuple[int, int]] = []  # each pick of this turn: the value, and the bound it stayed below
    fixed: list[int] = []

    def pick(bound: int) -> int:
        turn.append((fixed[len(turn)] if len(turn) < len(fixed) else 0, bound))
        return turn[-1][0]

    while True:
        turn.clear()
        yield build(pick)
        while turn and turn[-1][0] + 1 == turn[-1][1]:
            turn.pop()
        if not turn:
            return
        fixed[:] = [value for value, _ in turn]
        fixed[-1] += 1
