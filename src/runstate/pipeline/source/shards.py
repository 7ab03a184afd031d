"""Which streams a task works on: a range of stream ids, so that every log and table is divided alike.

A shard holds whole streams. Whoever works on it reads and folds them where they are, and nothing is shuffled.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import msgspec

_finer = 16
"""Bounds kept while counting, for each shard that is asked for: the unevenness of the cut is one part in so many."""


events_min = 20_000
"""A task of fewer events costs more to start than to do; how many there are is then better left to us."""


class Shard(msgspec.Struct, frozen=True):
    """The streams with `after < id <= until` by code point; `until` None is the end."""

    after: str = ""
    until: str | None = None
    only: tuple[str, ...] | None = None
    """No others than these, sorted, where a reader has asked for a few."""
    streams: int = 0
    """How many streams of logs there were in it when it was planned; 0 where that is not known."""

    def between(self, after: str, until: str | None) -> Shard | None:
        """The part with `after < id <= until`; None where there is none."""
        low, ends = max(self.after, after), [end for end in (self.until, until) if end is not None]
        high = min(ends, default=None)
        only = None if self.only is None else tuple(s for s in self.only if low < s and (high is None or s <= high))
        if (low, high, only) == (self.after, self.until, self.only):
            return self
        return None if only == () or (high is not None and high <= low) else Shard(low, high, only)


def place_before(stream: str) -> str:
    """A text behind every id that is less than `stream`, and less than it itself: no id is longer than 512 bytes."""
    last = ord(stream[-1]) - 1
    if 0xD800 <= last <= 0xDFFF:
        last = 0xD7FF  # What lies between them is no text.
    return stream[:-1] + chr(last) + chr(0x10FFFF) * 128


def cut(weights: Iterable[tuple[str, int]], count: int, weight_min: int = 1) -> list[Shard]:
    """At most `count` shards of about equal weight over streams that come in order, in one pass and little memory.

    There are fewer where they would otherwise weigh less than `weight_min`.
    """
    return cut_counted(((stream, weight, 0) for stream, weight in weights), count, weight_min)


def cut_counted(weights: Iterable[tuple[str, int, int]], count: int, weight_min: int = 1) -> list[Shard]:
    """The same; each item also says how many streams of a log it stands for, and each shard how many it has."""
    bounds: list[tuple[int, str, int]] = []
    total, step, last, streams = 0, 1, "", 0
    for last, weight, stands_for in weights:
        total += max(1, weight)
        streams += stands_for
        if not bounds or total - bounds[-1][0] >= step:
            bounds.append((total, last, streams))
        if len(bounds) > 2 * _finer * count:
            # As far apart as those that stay, or what comes later would be cut finer than what has been.
            through = _through(bounds)
            bounds = [(weight_sum, stream, through[stream]) for weight_sum, stream, _ in bounds[1::2]]
            step = total // (_finer * count)
        if bounds[-1][1] == last:
            # The same stream of another log: a shard that ends with it has both.
            bounds[-1] = (bounds[-1][0], last, streams)
    if not bounds:
        return []
    count = min(count, total // weight_min + 1)
    places = {min(bisect_left(bounds, (total * n / count, "", 0)), len(bounds) - 1) for n in range(1, count)}
    through = _through(bounds)
    ends = [(stream, through[stream]) for stream in sorted({bounds[place][1] for place in places} - {last})]
    return [
        Shard(after, until, streams=up_to - below)
        for (after, below), (until, up_to) in zip([("", 0), *ends], [*ends, (None, streams)], strict=True)
    ]


def _through(bounds: list[tuple[int, str, int]]) -> dict[str, int]:
    """How many streams there are up to each bound. Of bounds with the same stream, the last has all of its copies."""
    return {stream: streams for _, stream, streams in bounds}
