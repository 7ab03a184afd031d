"""What a log's test file hands to the kit: a way to open the log, again and again."""

from __future__ import annotations

from collections.abc import Callable

from runstate.logs.log import EventLog
from runstate.logs.registry import open_log


class Opener:
    """Opens one log, at one place, as often as a test asks."""

    def __init__(self, url: str, opening: Callable[[str], EventLog] = open_log) -> None:
        """
        Args:
            url: the log's own; for a durable log, one that other processes can open too.
            opening: what to open it with, for a log that is not installed as an entry point.
        """
        self.url = url
        self._opening = opening
        self._opened: list[EventLog] = []

    def __call__(self) -> EventLog:
        """A new handle on the log. The first call makes the log."""
        log = self._opening(self.url)
        self._opened.append(log)
        return log

    def close(self) -> None:
        """Close every handle that a test has left open."""
        while self._opened:
            self._opened.pop().close()
