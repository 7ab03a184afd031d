"""Wakes those who follow the feed, in any process, by Postgres' NOTIFY.

A transaction that notifies keeps all others from committing until it is flushed. So no append does: a thread rings
after them, once for all that were committed meanwhile. What it fails to tell is found by polling. Behind a pooler
nothing is heard, since LISTEN belongs to a session of the server: there, it polls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg
from psycopg import sql

from runstate.errors import RunstateError
from runstate.logs.postgres.connections import Connections
from runstate.logs.postgres.transactions import Connection, ConnectionLost

_pause_s = 0.02
"""Between two rings: at most so many wake-ups reach a follower, however many appends there are."""
_pause_max_s = 0.1
_pause_share = 20
"""On a busy server a ring takes longer, and the pause is so many times as long: appends come first."""
_ring_max_s = 1.0
_held_back_pause_s = 0.2
_poll_pause_s = 0.1


class Bell:
    """Rings, and listens to others that ring, on one channel of the database."""

    def __init__(self, connections: Connections, channel: str) -> None:
        self._connections, self._channel = connections, channel
        self._gate = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_untold = False
        self._is_due = threading.Event()
        self._is_closed = threading.Event()
        self._listening: list[Connection] = []

    def ring(self) -> None:
        """Tell everybody, soon; the caller does not wait for it."""
        self._is_untold = True
        self._is_due.set()
        if self._thread is None:
            with self._gate:
                if self._thread is None and not self._is_closed.is_set():
                    self._thread = threading.Thread(target=self._run, name="runstate-postgres-bell", daemon=True)
                    self._thread.start()

    def wait(self, is_more: Callable[[], bool | None], timeout_s: float) -> None:
        """Wait for a ring, unless there is more already: `is_more` says so, or None if there is nothing at all.

        False from it means that there is more, held back by a transaction that nobody will ring for when it ends.
        """
        deadline = time.monotonic() + timeout_s
        try:
            found = self._poll(is_more, deadline) if self._connections.is_pooled else self._listen(is_more, timeout_s)
        except (psycopg.Error, RunstateError):
            found = False  # The server was restarted, say. The next wait listens anew.
        if found is False:
            time.sleep(max(0.0, min(_held_back_pause_s, deadline - time.monotonic())))

    def _listen(self, is_more: Callable[[], bool | None], timeout_s: float) -> bool | None:
        with self._listener() as listener:
            # Looked for after LISTEN: whatever is committed behind this look is heard.
            found = is_more()
            if found is None:
                for _ in listener.notifies(timeout=timeout_s, stop_after=1):
                    found = True
        return found

    def _poll(self, is_more: Callable[[], bool | None], deadline: float) -> bool | None:
        while (found := is_more()) is None and (left_s := deadline - time.monotonic()) > 0:
            if self._is_closed.wait(min(_poll_pause_s, left_s)):
                break
        return found

    def close(self) -> None:
        self._is_closed.set()
        self._is_due.set()
        with self._gate:
            thread, self._thread = self._thread, None
            listening, self._listening = self._listening, []
        if thread is not None:
            thread.join()
        for listener in listening:
            listener.close()

    @contextmanager
    def _listener(self) -> Iterator[Connection]:
        """A connection that listens, for one thread at a time. It is kept: rings between two waits are heard."""
        with self._gate:
            listener = self._listening.pop() if self._listening else None
        if listener is None:
            listener = self._connections.connect()
            listener.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        try:
            yield listener
        except BaseException:
            listener.close()
            raise
        with self._gate:
            if not self._is_closed.is_set():
                self._listening.append(listener)
                return
        listener.close()

    def _run(self) -> None:
        while not self._is_closed.is_set():
            self._is_due.wait()
            self._is_due.clear()
            began = time.monotonic()
            self._tell()
            busy_s = (time.monotonic() - began) * _pause_share
            self._is_closed.wait(max(_pause_s, min(busy_s, _pause_max_s)))
        self._tell()

    def _tell(self) -> None:
        if not self._is_untold:
            return
        self._is_untold = False
        with suppress(RunstateError, ConnectionLost), self._connections.one(_ring_max_s) as connection:
            connection.execute("SELECT pg_notify(%s, '')", (self._channel,))
