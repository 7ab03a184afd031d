"""Which segments are merged: small neighbours, in order, as many as fit into one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from runstate.logs.segments.manifest import Segment

events_max_default = 1000
bytes_max_default = 4 * 1024 * 1024


class Limits(msgspec.Struct, frozen=True):
    """What a merged segment holds at most. A plan that is larger stays as it is: it is never split."""

    segment_events_max: int = events_max_default
    segment_bytes_max: int = bytes_max_default


def rows_to_merge(segments: Sequence[Segment], limits: Limits) -> list[list[Segment]]:
    """All segments in rows of neighbours, each to become one; a row of one stays as it is."""
    rows: list[list[Segment]] = []
    events = size = 0
    for segment in segments:
        events, size = events + segment.last - segment.first + 1, size + segment.bytes
        if not rows or events > limits.segment_events_max or size > limits.segment_bytes_max:
            rows.append([])
            events, size = segment.last - segment.first + 1, segment.bytes
        rows[-1].append(segment)
    return rows
