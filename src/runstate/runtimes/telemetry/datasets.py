"""What a work item reads and writes beside its artifacts: data that others know by a namespace and a name."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Dataset(msgspec.Struct, frozen=True):
    """Data at one place. No member holds a secret."""

    namespace: str
    name: str
    """Unique in the namespace."""
    uri: str
    version: str | None = None
    """Where the data has versions: the one that was written."""
    rows: int | None = None
    """What the work item has written: rows, bytes and files. None: not known."""
    bytes: int | None = None
    files: int | None = None


class Datasets(Protocol):
    """Tells what the work items of a graph read and write."""

    def start(self, worker: str, scope: str) -> None:
        """A work item starts: remember what is there, so that its own writes can be counted."""

    def reads(self, worker: str, scope: str) -> list[Dataset]: ...

    def writes(self, worker: str, scope: str) -> list[Dataset]:
        """What a work item writes, without counts: it has not ended, or has failed."""

    def written(self, worker: str, scope: str) -> list[Dataset]:
        """What a work item that has finished wrote, with what is known about it."""
