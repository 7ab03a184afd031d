"""Which streams a task works on: a range of stream ids, so that every log and table is divided alike.

A shard holds whole streams. Whoever works on it reads and folds them where they are, and nothing is shuffled.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

_finer = 16
"""Bounds kept while counting, for each shard that is asked for: the unevenness of the cut is one part in so many."""


class Shard(msgspec.Struct, frozen=True):
    """The streams with `after < id <= until` by code point; `until` None is the end."""

    after: str = ""
    until: str | None = None
    only: tuple[str, ...] | None = None
    """No others than these, where a reader has asked for a few."""


def cut(weights: Iterable[tuple[str, int]], count: int) -> list[Shard]:
    """At most `count` shards of about equal weight over streams that come in order, in one pass and little memory."""
    bounds: list[str] = []
    step, weight, last = 1, 0, None
    for stream, extent in weights:
        last = stream
        weight += max(1, extent)
        if weight >= step:
            bounds.append(stream)
            weight = 0
        if len(bounds) > 2 * _finer * count:
            bounds, step = bounds[1::2], step * 2
    if last is None:
        return []
    chosen = [bounds[len(bounds) * number // count] for number in range(1, count)] if len(bounds) > 1 else []
    ends = [*sorted({bound for bound in chosen if bound != last}), None]
    return [Shard(after, until) for after, until in zip(["", *(end for end in ends if end)], ends, strict=True)]
