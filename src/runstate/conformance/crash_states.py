"""What a power cut may leave of the files and directories of a simulated disk.

Each file and directory is an `Inode`: what is durable, what a running process sees, and the changes
between the two. A power cut at any moment leaves, independently for each of them:

- of the unsynced writes and truncations of a file, any subset, so also a later one without an earlier one;
- at most one write per file torn: cut short, or grown to its full size with zeros after the cut or before it;
- of the unsynced changes of a directory, any subset that keeps the order of changes to the same name, so a
  rename leaves the old name or the new one, and never neither;
- everything that was synced.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Generic, Literal, Protocol, TypeVar

T = TypeVar("T")
Change = TypeVar("Change", bound="InodeChange")
Content = TypeVar("Content", bytearray, "dict[str, FileInode | DirectoryInode]")

Pick = Callable[[int], int]
"""Decides one thing: a number below the one given."""
Tree = dict[PurePosixPath, bytes | None]
"""Everything on a disk: the content of each file, None for each directory."""

CUT_EVERYWHERE_BYTES_MAX = 128
"""A write up to this size is torn at every byte; a larger one at its ends, at pages and at sampled bytes."""
PAGE_BYTES = 4096

Fate = Literal["pending", "kept", "dropped"]
"""A sync makes pending changes kept, a failed one makes them dropped: lost or not, whatever follows."""


class InodeChange(Protocol):
    def apply(self, content: Any) -> None: ...


class Inode(Generic[Content, Change]):
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
class Write:
    offset: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        content.extend(bytes(max(0, self.offset - len(content))))
        content[self.offset : self.offset + len(self.data)] = self.data

    def torn(self, pick: Pick) -> list[Write]:
        """The size but no data; the data before a cut, with or without the full size; the data after it."""
        cuts = _cuts(self.offset, len(self.data))
        full_size = Write(self.offset + len(self.data), b"")
        choice = pick(1 + 3 * len(cuts))
        if choice == 0:
            return [full_size]
        cut, shape = cuts[(choice - 1) // 3], choice % 3
        head, tail = Write(self.offset, self.data[:cut]), Write(self.offset + cut, self.data[cut:])
        return [[tail], [head], [head, full_size]][shape]


@dataclass(frozen=True)
class Truncate:
    size: int

    def apply(self, content: bytearray) -> None:
        del content[self.size :]
        Write(self.size, b"").apply(content)


@dataclass(frozen=True)
class Relink:
    """One change of a directory's names: old without new removes, new without old adds, both rename."""

    old: str | None
    new: str | None
    node: FileInode | DirectoryInode

    def apply(self, content: dict[str, FileInode | DirectoryInode]) -> None:
        if self.old is not None:
            content.pop(self.old, None)
        if self.new is not None:
            content[self.new] = self.node


class FileInode(Inode[bytearray, "Write | Truncate"]):
    def after_crash(self, pick: Pick) -> bytearray:
        content = bytearray(self.durable)
        losable = [change for change, fate in self.changes if fate != "kept" and isinstance(change, Write)]
        torn = (None, *losable)[pick(1 + len(losable))]
        for change, fate in self.changes:
            if change is torn:
                for part in torn.torn(pick):
                    part.apply(content)
            elif fate == "kept" or pick(2):
                change.apply(content)
        return content


class DirectoryInode(Inode["dict[str, FileInode | DirectoryInode]", Relink]):
    def after_crash(self, pick: Pick) -> dict[str, FileInode | DirectoryInode]:
        surviving: list[Relink] = []
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


def walk(
    directory: DirectoryInode, path: PurePosixPath, pick: Pick | None
) -> Iterator[tuple[PurePosixPath, bytes | None]]:
    """Everything below a directory: as a process sees it, or as a crash decided by `pick` leaves it."""
    for name, node in sorted((directory.after_crash(pick) if pick else directory.current).items()):
        if isinstance(node, DirectoryInode):
            yield path / name, None
            yield from walk(node, path / name, pick)
        else:
            yield path / name, bytes(node.after_crash(pick) if pick else node.current)


def _cuts(offset: int, size: int) -> Sequence[int]:
    if size <= CUT_EVERYWHERE_BYTES_MAX:
        return range(1, size)
    ends = {*range(1, 17), *range(size - 16, size)}
    pages = range(-offset % PAGE_BYTES or PAGE_BYTES, size, PAGE_BYTES)[:16]
    return sorted({*ends, *pages, *random.Random(size).sample(range(1, size), 32)})


def every_choice(build: Callable[[Pick], T]) -> Iterator[T]:
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
