"""Group commit: concurrent callers put jobs in line, one of them flushes for all that wait.

The first caller leads: it takes the jobs in line, up to a bound, flushes once, wakes their callers, and hands over to
the next caller in line. A lone caller leads at once and changes no thread. For jobs that are submitted, and waited for
by no caller, one background thread leads; it starts with the first of them.

A flush that is interrupted (Ctrl-C in the caller that leads) is repeated for the other jobs of its group. Jobs must
therefore be safe to repeat, as an append is: its keys answer it the second time.
"""

from __future__ import annotations

from _thread import LockType, allocate_lock
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from itertools import zip_longest
from queue import SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Any, Generic, TypeVar

from runstate.errors import LogClosed, RunstateError

J = TypeVar("J")
A = TypeVar("A")

weight_default_max = 1000
"""Jobs that share one flush; more would only make the first of them wait longer."""

gather_default_pause_s = 0.0002


class _Seat:
    """The place of a job in line."""

    __slots__ = ("error", "following", "future", "has_left", "is_done", "is_last", "job", "leads", "turn")

    def __init__(self, job: Any, future: Future[Any] | None = None) -> None:
        self.job, self.future = job, future
        self.is_last = False
        """Whether its caller waits for it: of the jobs that a caller brings, for the last one only."""
        self.turn: LockType | None = None
        """Released when its job is done, or its caller is to lead. A bare lock wakes faster than any event object."""
        self.is_done = self.leads = self.has_left = False
        self.following: _Seat | None = None
        """The next caller of the same group, which this one wakes."""
        self.error: Exception | None = None


class GroupCommit(Generic[J, A]):
    """A line of jobs, flushed in order and in groups, one group at a time."""

    def __init__(
        self,
        flush: Callable[[list[J]], None],
        answer: Callable[[J], A],
        *,
        weigh: Callable[[J], int] | None = None,
        weight_max: int = weight_default_max,
        gather_pause_s: float = gather_default_pause_s,
        turn: AbstractContextManager[object] | None = None,
        name: str = "runstate-group-commit",
    ) -> None:
        """`flush` makes jobs durable. What it raises is the answer to all of them.

        `answer` returns what came of a flushed job, or raises why it was refused. It runs outside the line, in the
        thread of the job's caller, and may wait.

        `gather_pause_s`: a leader waits for as many jobs as were flushed the last time, until none has come for so
        long. Without it the first caller that comes back flushes alone, and the others wait for two flushes.

        `turn` is held during a flush, and also by those who change the same thing in other ways. The group is made up
        once the leader has it.
        """
        self._flush, self._answer, self._weigh, self._weight_max = flush, answer, weigh, weight_max
        self._gather_pause_s, self._turn, self._name = gather_pause_s, turn or nullcontext(), name
        self._gate = Lock()
        """Held for moments, to look at the line or to change it."""
        self._line: list[_Seat] = []
        self._taken: list[_Seat] = []
        """The group that is being flushed."""
        self._leader: _Seat | None = None
        self._last_size = 1
        self._is_gathering, self._gathered = False, allocate_lock()
        """Whether a leader waits for as many jobs as were flushed the last time, and what wakes it."""
        self._closed = False
        self._background = _Seat(None)
        """Stands for the background thread once it is appointed. Until it begins, any caller may lead in its place."""
        self._begun = _Seat(None)
        """Stands for it while it leads."""
        self._inbox: SimpleQueue[_Seat | None] = SimpleQueue()
        """What the background thread is to do: lead (its own seat), resolve a future (another one), or end (None)."""
        self._thread: Thread | None = None

    def run(self, job: J) -> A:
        """Flush a job, alone or with others, and return its answer.

        Raises:
            LogClosed: it was not flushed.
            What `flush` or `answer` raises.
        """
        seat = _Seat(job)
        self._wait_for([seat])
        return self._answer_of(seat)

    def run_all(self, jobs: Sequence[J]) -> list[A | RunstateError]:
        """Flush many jobs, with as few flushes as the bound allows. Answers or errors, in their order."""
        seats = [_Seat(job) for job in jobs]
        if seats:
            self._wait_for(seats)
        answers: list[A | RunstateError] = []
        for seat in seats:
            try:
                answers.append(self._answer_of(seat))
            except RunstateError as error:
                answers.append(error)
        return answers

    def submit(self, job: J) -> Future[A]:
        """Put a job in line and return at once. Its future gets the answer, from the background thread.

        A future that is cancelled before its flush begins is not flushed.

        Raises:
            LogClosed: it was not accepted.
        """
        future: Future[A] = Future()
        seat = _Seat(job, future)
        with self._gate:
            self._check_open()
            if self._thread is None:
                self._thread = Thread(target=self._serve_futures, name=self._name, daemon=True)
                self._thread.start()
            self._join([seat])
            if self._leader is None:
                self._leader = self._background
                self._inbox.put(self._background)
        return future

    def close(self) -> None:
        """Flush what was accepted, resolve every future, and refuse everything from now on."""
        with self._gate:
            self._closed = True
        self._wait_for([_Seat(None)], is_end=True)
        if self._thread is not None and self._thread is not current_thread():
            self._inbox.put(None)
            self._thread.join()

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed()

    def _join(self, seats: list[_Seat]) -> None:
        """Add jobs to the line. The gate is held."""
        self._line += seats
        if self._is_gathering and len(self._line) >= self._last_size:
            self._is_gathering = False
            self._gathered.release()

    # --- callers -------------------------------------------------------------------------------------------

    def _wait_for(self, seats: list[_Seat], *, is_end: bool = False) -> None:
        """Return once the jobs are flushed: by leading, or by waiting for those who do."""
        last = seats[-1]
        last.is_last = True
        try:
            try:
                with self._gate:
                    if not is_end:
                        self._check_open()
                    if self._leader is None or self._leader is self._background:
                        self._leader = last
                    else:
                        last.turn = allocate_lock()
                        last.turn.acquire()
                    self._join(seats)
                if last.turn is not None:
                    last.turn.acquire()
                while not last.is_done:
                    last.leads = True
                    self._flush_group()
            finally:
                self._leave(seats)
        finally:
            # An interrupt may have ended the first call before it was done. Others would wait for ever.
            self._leave(seats)

    def _leave(self, seats: list[_Seat]) -> None:
        """Hand over if this caller leads, take back what is not flushed, and wake the next caller of the group.

        To repeat it changes nothing.
        """
        last = seats[-1]
        if not last.has_left and (last.leads or not last.is_done):
            with self._gate:
                if not last.is_done:  # Interrupted.
                    own = set(map(id, seats))
                    self._line = [seat for seat in self._line if id(seat) not in own]
                    if self._leader is last:
                        self._taken = [seat for seat in self._taken if id(seat) not in own]
                if self._leader is last:
                    self._hand_over()
                elif self._leader is not None:
                    self._wake(self._leader)  # The interrupt may have come when it was appointed and not yet woken.
                last.has_left = True
        if last.following is not None and last.following.is_done:
            self._wake(last.following)

    def _answer_of(self, seat: _Seat) -> A:
        if seat.error is not None:
            raise seat.error.again() if isinstance(seat.error, RunstateError) else seat.error
        return self._answer(seat.job)

    # --- leading -------------------------------------------------------------------------------------------

    def _flush_group(self) -> None:
        """Take the jobs in line, flush them and wake their callers. The caller leads."""
        if len(self._line) < self._last_size:
            self._gather()
        failure: Exception | None = None
        with self._turn:
            with self._gate:
                self._take()
            try:
                jobs = [seat.job for seat in self._taken if seat.job is not None]
                if jobs:
                    self._flush(jobs)
            except Exception as error:  # noqa: BLE001 - it is raised by the callers whose jobs these are
                failure = error
        with self._gate:
            self._tell(failure)
            self._taken = []

    def _tell(self, failure: Exception | None) -> None:
        """The group is flushed: wake its first caller, which wakes the next one, and so on. The gate is held.

        Callers that woke at once would be in each other's way, since one at a time can run.
        """
        waiting = [seat for seat in self._taken if seat.turn and not seat.has_left and seat is not self._leader]
        for seat, following in zip_longest(waiting, waiting[1:]):
            seat.following = following
        for seat in reversed(self._taken):  # From the last to the first: a caller that is done may wake the next one.
            seat.error, seat.is_done = failure, True
        for seat in self._taken:
            if seat.future is not None:
                self._wake(seat)
        if waiting:
            self._wake(waiting[0])

    def _gather(self) -> None:
        with self._gate:
            self._gathered.acquire(blocking=False)
            self._is_gathering = len(self._line) < self._last_size
        came = -1
        while self._is_gathering and came < len(self._line):
            came = len(self._line)
            self._gathered.acquire(timeout=self._gather_pause_s)

    def _take(self) -> None:
        """Move jobs from the line to the group: those of cancelled futures are dropped."""
        weight, count = 0, 0
        for seat in self._line:
            if self._weigh is not None and seat.job is not None:
                weight += self._weigh(seat.job)
            else:
                weight += 1
            if count and weight > self._weight_max:
                break
            count += 1
        taken, rest = [seat for seat in self._line[:count] if _start(seat)], self._line[count:]
        # No call among these: an interrupt that came in between would leave a job in both, or in neither.
        self._is_gathering, self._last_size, self._taken, self._line = False, count, taken, rest

    def _hand_over(self) -> None:
        """Appoint the next leader: the caller that has waited longest, or the background thread. The gate is held."""
        for seat in self._taken:  # Of a flush that was interrupted.
            if seat.is_done:
                self._wake(seat)
        self._line, self._taken = [seat for seat in self._taken if not seat.is_done] + self._line, []
        self._leader = next((seat for seat in self._line if seat.is_last), self._background if self._line else None)
        if self._leader is not None:
            self._wake(self._leader)

    def _wake(self, seat: _Seat) -> None:
        """Let a caller go on: its job is done, or it is to lead. To repeat it changes nothing."""
        if seat.turn is not None and seat.turn.locked():
            seat.turn.release()
        elif seat.future is not None or seat is self._background:
            self._inbox.put(seat)

    # --- futures -------------------------------------------------------------------------------------------

    def _serve_futures(self) -> None:
        while (seat := self._inbox.get()) is not None:
            if seat is not self._background:
                self._resolve(seat)
                continue
            with self._gate:
                if self._leader is not self._background:
                    continue
                self._leader = self._begun
            self._flush_group()
            with self._gate:
                self._hand_over()

    def _resolve(self, seat: _Seat) -> None:
        future = seat.future
        if future is None or future.done():
            return
        try:
            future.set_result(self._answer_of(seat))
        except Exception as error:  # noqa: BLE001 - it is raised by the future
            future.set_exception(error)


def _start(seat: _Seat) -> bool:
    """Whether a job is to be flushed: that of a cancelled future is not."""
    if seat.future is None or seat.is_done or seat.future.running():
        return not seat.is_done
    seat.is_done = seat.future.cancelled()
    return seat.future.set_running_or_notify_cancel()
