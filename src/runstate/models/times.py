"""RFC 3339 times as producers write them: `t` and `z` in either case, fractions of up to nine digits."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

_microsecond = timedelta(microseconds=1)
_beyond_microseconds = re.compile(r"[^.]*\.[0-9]{6}([0-9]{1,3})")


def parse_time(text: str) -> datetime:
    """The instant, to the microsecond; further digits are cut off.

    Raises:
        ValueError: the text is not a time, or of the year 0000, which RFC 3339 allows and Python does not.
    """
    # Python takes `t` for `T`, but not `z` for `Z`.
    return datetime.fromisoformat(text.upper())


def elapsed_ns(start: str, end: str) -> int:
    """Nanoseconds between two instants; negative where the end comes first.

    Raises:
        ValueError: one of them is not a time.
        TypeError: one of them has a zone, the other has none.
    """
    between = (parse_time(end) - parse_time(start)) // _microsecond
    return between * 1000 + _nanoseconds(end) - _nanoseconds(start)


def _nanoseconds(text: str) -> int:
    """What a time says beyond its microseconds."""
    found = _beyond_microseconds.match(text) if len(text) > 26 else None
    return int(found[1].ljust(3, "0")) if found else 0
