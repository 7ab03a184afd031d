"""How long events have been waiting behind a position of the feed, also those that the feed must still hold back.

A feed may not hand out an event while an older transaction is open: it could still commit behind it. Such an event is
stored, acknowledged and old, and the feed shows nothing. A log that can hold events back says so here.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

from runstate.logs.log import EventLog, Position


class Blocker(msgspec.Struct, frozen=True, rename="camel"):
    """The session whose open transaction holds the feed back. What the server does not show is empty."""

    pid: int | None
    age_s: float | None
    """How long its transaction has been open."""
    application: str
    database: str
    user: str


class Pending(msgspec.Struct, frozen=True, rename="camel"):
    """The oldest event behind a position."""

    persisted_at: str
    blocked_by: Blocker | None = None
    """None: the feed hands the event out."""


@runtime_checkable
class HoldingLog(Protocol):
    """A log whose feed may have to hold events back."""

    def oldest_pending(self, after: Position | None) -> Pending | None:
        """The oldest event after a position, held back or not; None if there is none."""
        ...


def oldest_pending(log: EventLog, after: Position | None) -> Pending | None:
    """The oldest event after a position of any log; None if there is none."""
    if isinstance(log, HoldingLog):
        return log.oldest_pending(after)
    waiting = log.feed(after=after, limit=1).records
    return Pending(waiting[0].persisted_at) if waiting else None
