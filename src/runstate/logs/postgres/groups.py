"""Appends of many threads share transactions: whoever comes first writes for all that wait.

There is no thread for it. An append that finds nobody writing is written by its own thread at once, so a lone one waits
for nothing. Those that come meanwhile wait; when the first is done, one of them writes all of them together. It gives
those of the last group a moment to come back: else the first to do so would write alone, and all others after it.
"""

from __future__ import annotations

import threading
from _thread import allocate_lock
from collections.abc import Callable

from runstate.logs.postgres.appends import Append

group_drafts_max = 1000
"""Drafts that share a transaction, beyond the first append; more would only make all of them wait longer."""

_gather_max_s = 0.001


class _Seat:
    """Where an append waits for its group."""

    __slots__ = ("append", "leads", "turn")

    def __init__(self, append: Append) -> None:
        self.append = append
        self.leads = False
        """True: it was not written with others, but is to write for others."""
        # A bare lock, taken here and released by whoever wrote, wakes its waiter faster than any event object.
        self.turn = allocate_lock()
        self.turn.acquire()


class Groups:
    """One group is written at a time, and never waits for anybody's lock."""

    def __init__(self, write: Callable[[list[Append]], None]) -> None:
        """`write` answers each of the appends, or leaves it open; it raises only if an interrupt ends it."""
        self._write = write
        self._gate = threading.Lock()
        self._waiting: list[_Seat] = []
        self._is_led = False
        self._last_size = 1
        self._is_gathered = allocate_lock()
        """Taken while a leader waits for as many as were written the last time."""
        self._is_gathered.acquire()

    def run(self, append: Append) -> None:
        """Write an append, alone or with others. It is left open if it has to be tried by itself."""
        with self._gate:
            seat = None
            if self._is_led:
                seat = _Seat(append)
                self._waiting.append(seat)
                if len(self._waiting) + 1 == self._last_size and self._is_gathered.locked():
                    self._is_gathered.release()
            self._is_led = True
        if seat is not None:
            self._wait(seat)
            if not seat.leads:
                return
        followers: list[_Seat] = []
        try:
            if len(self._waiting) + 1 < self._last_size:
                self._is_gathered.acquire(timeout=_gather_max_s)
            followers = self._take(len(append.drafts))
            self._write([append, *(follower.append for follower in followers)])
        finally:
            # Those who are done first: by the time the next one looks who waits, they may be back with more.
            for follower in followers:
                follower.turn.release()
            self._pass_on()

    def _wait(self, seat: _Seat) -> None:
        try:
            seat.turn.acquire()
        except BaseException:  # An interrupt: nobody must wait for a leader that is gone.
            with self._gate:
                leads = seat.leads
                if seat in self._waiting:
                    self._waiting.remove(seat)
            if leads:
                self._pass_on()
            raise

    def _take(self, drafts: int) -> list[_Seat]:
        """Those who wait, as many as one transaction should hold."""
        with self._gate:
            number = 0
            for seat in self._waiting:
                drafts += len(seat.append.drafts)
                if drafts > group_drafts_max:
                    break
                number += 1
            taken, self._waiting = self._waiting[:number], self._waiting[number:]
            self._last_size = number + 1
            return taken

    def _pass_on(self) -> None:
        with self._gate:
            if not self._waiting:
                self._is_led = False
                return
            successor = self._waiting.pop(0)
            successor.leads = True
        successor.turn.release()
