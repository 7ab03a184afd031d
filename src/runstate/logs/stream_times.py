"""Places in a stream by the time at which its events were stored."""

from __future__ import annotations

from datetime import datetime

from runstate.logs.log import EventLog, begins_after


def seq_at(log: EventLog, stream: str, at: datetime | str) -> int:
    """The last seq that was stored by a time. A prefix, even if the authority's clock once went backwards.

    Raises:
        ValueError: the time has no zone, or is not a time.
    """
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    if moment.tzinfo is None:
        raise ValueError(f"{at} has no zone; write it like 2026-11-15T09:30:00Z")
    found = after_seq = begins_after(log, stream)
    while page := log.read(stream, after_seq=after_seq):
        after_seq = page[-1].seq
        stored_by_then = [r.seq for r in page if datetime.fromisoformat(r.persisted_at) <= moment]
        found = max([found, *stored_by_then])
    return found
