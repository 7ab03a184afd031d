"""What a caller gets for a buffered append: its seqs at once, and a way to wait until they are flushed."""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from runstate.errors import RunstateError
from runstate.logs.bulk import Answer
from runstate.logs.log import AppendResult
from runstate.logs.wal.entries import Entry
from runstate.models.model import Draft


class Waiter:
    """A thread that sleeps until somebody has news for it."""

    __slots__ = ("leads", "news")

    def __init__(self) -> None:
        self.leads = False
        """Whether the news is that it leads the next flush."""
        self.news = allocate_lock()
        """Released once, by whoever brings the news."""
        self.news.acquire()


class Outcome:
    """What became of a flush, and who waits to learn it. Outlives the batch, which is much larger."""

    __slots__ = ("error", "is_known", "waiters")

    def __init__(self, *, is_known: bool = False) -> None:
        self.error: RunstateError | None = None
        self.is_known = is_known
        self.waiters: deque[Waiter] = deque()

    def tell(self, error: RunstateError | None) -> None:
        """The caller holds the gate."""
        self.error, self.is_known = error, True
        self.pass_on()

    def pass_on(self) -> None:
        """Wake one of those who still wait. It does the same in turn: many who woke at once would only be in each
        other's way, since one at a time can run."""
        with suppress(IndexError):
            self.waiters.popleft().news.release()


class Settler(Protocol):
    def settle(self, outcome: Outcome, timeout_s: float | None) -> None: ...


class Ticket(msgspec.Struct, eq=False, gc=False):
    """One append on its way to the disk. Until `wait` has returned, its seqs are a forecast and not a promise."""

    settler: Settler
    outcome: Outcome
    """Of the flush that it goes with."""
    results: list[AppendResult]
    """What becomes of each draft, if the flush succeeds."""

    @property
    def is_done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self.outcome.is_known

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
        outcome = self.outcome
        if not outcome.is_known:
            self.settler.settle(outcome, timeout)
        if outcome.error is not None:
            raise outcome.error.again()
        return self.results


class Job:
    """An append that somebody waits for. It gets its places from whoever leads the flush."""

    __slots__ = ("drafts", "error", "expected_seq", "ticket")

    def __init__(self, drafts: Sequence[Draft], expected_seq: int | None) -> None:
        self.drafts, self.expected_seq = drafts, expected_seq
        self.ticket: Ticket | None = None
        self.error: Exception | None = None
        """Why it was refused; nothing of it was buffered."""

    def answer(self, flush: Ticket) -> list[AppendResult]:
        """What came of it, once the flush that it waited for is over. Raises why it failed."""
        if self.error is not None:
            raise self.error
        return (self.ticket or flush).wait()


def answers_of(jobs: Sequence[Job], flush: Ticket) -> list[Answer]:
    answers: list[Answer] = []
    for job in jobs:
        try:
            answers.append(job.answer(flush))
        except RunstateError as error:
            answers.append(error)
    return answers


class Batch:
    """What one flush writes."""

    __slots__ = ("adopted", "born", "first", "jobs", "last", "lines", "model", "outcome", "persisted_at")

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        """Those that have no places yet."""
        self.lines: list[bytes] = []
        """Nothing else is kept of its entries but of the first and the last: the less of each, the faster."""
        self.adopted = 0
        """How many of the lines are of another log."""
        self.first: Entry | None = None
        self.last: Entry | None = None
        self.outcome = Outcome()
        self.born = 0.0
        """When its first entry came, by the monotonic clock."""
        self.persisted_at = ""
        """One time for all: they are stored by one flush."""
        self.model = ""
        """What the stream records once this is stored."""
