"""Whether this machine's clock, which gives `persisted_at`, agrees with DynamoDB's, which no request can use.

Every answer carries the service's time, in whole seconds. A request is sent before that moment and its answer arrives
after it, unless a clock is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

from runstate.errors import LogFailed

skew_max_s = 5.0
"""How far the clocks may be apart."""


class ServerClock:
    """Compares the two clocks with every answer."""

    def __init__(self) -> None:
        self.time: Callable[[], float] = time.time
        self._last_date = ""
        self._skew_s = 0.0
        """How far this machine's clock is ahead, as far as it is sure; negative: behind."""

    def note(self, date: str, sent_at: float) -> None:
        """Take note of an answer: its `Date`, and when it was asked for."""
        if date == self._last_date:
            return  # It has been compared within this second.
        try:
            served_at = parsedate_to_datetime(date).timestamp()
        except ValueError:
            return  # No time at all: a proxy's, perhaps.
        self._last_date = date
        self._skew_s = max(0.0, sent_at - (served_at + 1)) or min(0.0, self.time() - served_at)

    def check(self) -> None:
        """
        Raises:
            LogFailed: the clocks are too far apart; nothing was written.
        """
        if abs(self._skew_s) > skew_max_s:
            side = "ahead of" if self._skew_s > 0 else "behind"
            raise LogFailed(
                f"This machine's clock is {abs(self._skew_s):.0f} s {side} DynamoDB's, and events would be stored with "
                "a wrong time; set the clock, and try again"
            )
