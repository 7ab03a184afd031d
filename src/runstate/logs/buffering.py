"""An optional ability of a log: to take an append before it is durable, and to drop events that a snapshot replaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from runstate.logs.log import AppendResult, Finding, StoredSnapshot
from runstate.models.model import Draft


class Ticket(Protocol):
    """An append on its way to the disk."""

    @property
    def results(self) -> list[AppendResult]: ...

    def wait(self, timeout: float | None = None) -> list[AppendResult]: ...


@runtime_checkable
class BufferingLog(Protocol):
    """A log that shares flushes among callers who do not wait for each of their appends."""

    def append_buffered(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> Ticket:
        """Append to the buffer: the seqs are known at once, durability comes with the next flush."""
        ...

    def known(self, stream: str, key: str) -> int | None:
        """The seq of the event that has this key, durable or not yet."""
        ...

    def recover(self, stream: str) -> list[Finding]:
        """Take the stream's lock and recover it now, not with the first append. What was found, and done."""
        ...

    def checkpoint(self, stream: str, snapshot: StoredSnapshot) -> None:
        """Keep a snapshot, and drop the events that are no longer needed with it."""
        ...
