"""Bins of time that fit what they are to show: widths that clocks and calendars go by, and labels that fit the width.

Times are whole milliseconds since 1970, UTC. Bins of one width are the same on every machine and for every fleet: they
begin at midnight, or on a Monday.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

bins_max = 60
"""Bins of one chart. With this ladder, anything that took longer than a few milliseconds gets at least 24."""

_second, _minute, _hour, _day, _year = 1000, 60_000, 3_600_000, 86_400_000, 365 * 86_400_000
ladder_ms = [
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(_second * n for n in (1, 2, 5, 10, 15, 30)),
    *(_minute * n for n in (1, 2, 5, 10, 15, 30)),
    *(_hour * n for n in (1, 2, 3, 6, 12)),
    *(_day * n for n in (1, 2, 4, 7, 14, 30, 60, 90, 180)),
    *(_year * n for n in (1, 2, 5, 10, 20, 50, 100, 200)),
]
"""The widths to choose from. The widest is enough for all years that a calendar has."""

_epoch = datetime(1970, 1, 1, tzinfo=UTC)
_millisecond = timedelta(milliseconds=1)
ms_min = (datetime(1, 1, 1, tzinfo=UTC) - _epoch) // _millisecond
ms_max = (datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC) - _epoch) // _millisecond
"""The first and the last time that can be written."""
_months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def bin_width_ms(first_ms: int, last_ms: int) -> int:
    """The narrowest width of the ladder with which both times and all between them are in at most `bins_max` bins."""
    return next((width for width in ladder_ms if _count(first_ms, last_ms, width) <= bins_max), ladder_ms[-1])


def bin_start_ms(at_ms: int, width_ms: int) -> int:
    """Where the bin begins that a time is in."""
    return at_ms - (at_ms - bin_offset_ms(width_ms)) % width_ms


def bin_offset_ms(width_ms: int) -> int:
    """Where one of the bins begins; all others are whole widths away."""
    # 1970 began on a Thursday, and a week begins on Monday.
    return 4 * _day if width_ms in (7 * _day, 14 * _day) else 0


def label_starts_ms(first_ms: int, count: int, width_ms: int, labels_max: int) -> set[int]:
    """Which of the bins to label, by their starts: at most `labels_max`, at round times where such fit the width."""
    last_ms = first_ms + (count - 1) * width_ms
    for step in ladder_ms:
        if step % width_ms == 0 and (last_ms - first_ms) // step < labels_max:
            found = {start for start in range(first_ms, last_ms + 1, width_ms) if bin_start_ms(start, step) == start}
            if 2 <= len(found) <= labels_max:
                return found
    return set(range(first_ms, last_ms + 1, width_ms * math.ceil(count / labels_max)))


def label(at_ms: int, width_ms: int, first_ms: int, last_ms: int) -> str:
    """A bin's time for the axis of a chart from `first_ms` to `last_ms`: no more than tells it from the others."""
    at, first, last = _moment(at_ms), _moment(first_ms), _moment(last_ms)
    day = f"{at.day} {_months[at.month - 1]}"
    if width_ms >= 30 * _day:
        return f"{_months[at.month - 1]} {at.year}"
    if width_ms >= _day:
        return day if first.year == last.year else f"{day} {at.year}"
    if width_ms < _minute:
        return f"{at:%H:%M:%S}" + (f".{at.microsecond // 1000:03}" if width_ms < _second else "")
    if first.date() == last.date():
        return f"{at:%H:%M}"
    return day if at_ms % _day == 0 else f"{day} {at:%H:%M}"


def time_text(at_ms: int) -> str:
    """A time as RFC 3339 writes it, with milliseconds where it has some."""
    at = _moment(at_ms)
    fraction = f".{at.microsecond // 1000:03}" if at.microsecond else ""
    return f"{at.year:04}-{at.month:02}-{at.day:02}T{at:%H:%M:%S}{fraction}Z"


def time_ms(text: str) -> int | None:
    """What `time_text` has written, or any other time with a zone; None for what is no time."""
    try:
        at = datetime.fromisoformat(text)
        return None if at.tzinfo is None else (at - _epoch) // _millisecond
    except (ValueError, OverflowError):
        return None


def _count(first_ms: int, last_ms: int, width_ms: int) -> int:
    return (bin_start_ms(last_ms, width_ms) - bin_start_ms(first_ms, width_ms)) // width_ms + 1


def _moment(at_ms: int) -> datetime:
    # The first bin may begin before the first year that a calendar has.
    return _epoch + timedelta(milliseconds=min(max(at_ms, ms_min), ms_max))
