"""When snapshots are saved that are not saved with every append: a bound on how long a stored one stays behind.

A stream that has unsaved events gets a deadline. One daemon thread saves what is due. It runs only while something is
unsaved, so a store that never appends has none, and a store that is dropped without `close` leaves none behind.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from threading import Condition, Thread, current_thread

_logger = logging.getLogger("runstate.snapshots")

lazy_events_max = 100
"""A snapshot is saved at the latest with this many unsaved events."""
lazy_delay_s = 1.0
"""A snapshot is saved at the latest this long after its first unsaved event."""


class Deadlines:
    """When each stream is due: a fixed delay after it was first added. Adding it again changes nothing."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        # The delay is the same for all, so the first one that was added is the first one that is due.
        self._due_at: dict[str, float] = {}

    def __contains__(self, stream: str) -> bool:
        return stream in self._due_at

    def add(self, stream: str, now: float) -> None:
        self._due_at.setdefault(stream, now + self._delay_s)

    def discard(self, stream: str) -> None:
        self._due_at.pop(stream, None)

    def next_due_at(self) -> float | None:
        return next(iter(self._due_at.values()), None)

    def take_due(self, now: float) -> str | None:
        """The first stream that is due, which then has no deadline any more. None if none is due."""
        due_at = self.next_due_at()
        return None if due_at is None or due_at > now else self.take_first()

    def take_first(self) -> str | None:
        stream = next(iter(self._due_at), None)
        if stream is not None:
            del self._due_at[stream]
        return stream


class LazySaves:
    """Saves the snapshots of streams once they are due, and all of them on `close`."""

    def __init__(self, save: Callable[[str], None], delay_s: float) -> None:
        """`save` is called in the background thread, and by `close` in that of its caller."""
        self._save, self._deadlines = save, Deadlines(delay_s)
        self._changed = Condition()
        self._thread: Thread | None = None
        self._is_running = self._closed = False
        # A forked child has neither the thread nor a log that it may use, and perhaps a lock that stays held.
        self._process = os.getpid()

    def add(self, stream: str) -> None:
        """The stream has unsaved events."""
        if stream in self._deadlines:
            return
        with self._changed:
            if self._closed:
                return
            if not self._is_running:
                thread = Thread(target=self._run, name="runstate-snapshots", daemon=True)
                thread.start()  # Before anything is noted: if it cannot start, the next call tries again.
                self._thread, self._is_running = thread, True
            self._deadlines.add(stream, time.monotonic())

    def discard(self, stream: str) -> None:
        """The stream has no unsaved events any more."""
        if stream in self._deadlines:
            with self._changed:
                self._deadlines.discard(stream)

    def close(self) -> None:
        """Stop the thread, and save what is unsaved. In a forked child, nothing is saved."""
        if self._process != os.getpid():
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not current_thread():
            thread.join()
        while (stream := self._take_first()) is not None:
            self._save(stream)

    def _take_first(self) -> str | None:
        with self._changed:
            return self._deadlines.take_first()

    def _run(self) -> None:
        while (stream := self._wait_for_due()) is not None:
            try:
                self._save(stream)
            except Exception:  # What an alert sink raises must not keep other streams from being saved.
                _logger.exception("The snapshot of %r was not saved", stream)

    def _wait_for_due(self) -> str | None:
        """The next stream to be saved; None when the thread is to end."""
        with self._changed:
            while not self._closed and (due_at := self._deadlines.next_due_at()) is not None:
                now = time.monotonic()
                if (stream := self._deadlines.take_due(now)) is not None:
                    return stream
                self._changed.wait(due_at - now)
            self._is_running = False
            return None
