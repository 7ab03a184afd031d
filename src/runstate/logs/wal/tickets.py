"""What a caller gets for a buffered append: its seqs at once, and a way to wait until they are flushed."""

from __future__ import annotations

from _thread import LockType
from typing import Protocol

import msgspec

from runstate.errors import RunstateError
from runstate.logs.log import AppendResult
from runstate.logs.wal.entries import Entry


class Settler(Protocol):
    def settle(self, ticket: Ticket, timeout_s: float | None) -> None: ...


class Ticket(msgspec.Struct, eq=False):
    """One append on its way to the disk. Until `wait` has returned, its seqs are a forecast and not a promise."""

    settler: Settler
    results: list[AppendResult] = []
    """What becomes of each draft, if the flush succeeds."""
    error: RunstateError | None = None
    is_done: bool = False
    leads: bool = False
    """Whether whoever waits for it is to lead the next flush."""
    wake: LockType | None = None
    """Locked while somebody waits; released by whoever has news."""

    @property
    def seq(self) -> int:
        """Of its last event; 0 where nothing was appended."""
        return self.results[-1].seq if self.results else 0

    def wait(self, timeout: float | None = None) -> list[AppendResult]:
        """Wait until the append is flushed, which begins at once; nobody waits for the interval.

        Raises:
            TimeoutError: it is not flushed yet, and may still be.
            AppendOutcomeUnknown: it may or may not be stored; open the log again and send the same keys.
            LogFull, LogFailed: nothing was written.
        """
        if not self.is_done:
            self.settler.settle(self, timeout)
        if self.error is not None:
            raise self.error.again()
        return self.results


class Batch:
    """What one flush writes."""

    __slots__ = ("born", "entries", "lines", "persisted_at", "tickets")

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.entries: dict[str, Entry] = {}
        """By key."""
        self.tickets: list[Ticket] = []
        self.born = 0.0
        """When its first entry came, by the monotonic clock."""
        self.persisted_at = ""
        """One time for all: they are stored by one flush."""
