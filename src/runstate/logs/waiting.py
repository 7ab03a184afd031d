"""How a follower waits for more: woken by the log if it can wake, else a short while, to look again."""

from __future__ import annotations

import time
from typing import Protocol, runtime_checkable

from runstate.logs.log import EventLog, Position

poll_s = 0.2
"""How often a log is looked at that cannot tell of appends by others."""


@runtime_checkable
class WakingLog(Protocol):
    """A log that hears of appends, whoever makes them."""

    def wait(self, after: Position | None, timeout_s: float) -> None:
        """Return once there may be something after `after`, or after `timeout_s`. It may return early, never late."""
        ...


def wait_for_more(log: EventLog, after: Position | None, timeout_s: float, *, look_s: float = poll_s) -> None:
    """Wait between two looks at a feed that has come to its end; no longer than `look_s` where the log cannot wake."""
    if isinstance(log, WakingLog):
        log.wait(after, timeout_s)
    else:
        time.sleep(min(look_s, timeout_s))
