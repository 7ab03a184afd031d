"""Positions of logs that number their events: the number, in decimal."""

from __future__ import annotations

from runstate.errors import InvalidPosition
from runstate.logs.log import Position


def decimal_position(position: Position, last: int) -> int:
    """The number in a position, for logs whose positions are numbers up to `last`.

    Raises:
        InvalidPosition: none that this log has handed out; it may be another log's, or this one from an older backup.
    """
    number = int(position) if position.isascii() and position.isdecimal() and len(position) < 20 else -1
    if not 0 <= number <= last:
        raise InvalidPosition(f"{position[:40]!r} is no position that this log has handed out", position=position)
    return number
