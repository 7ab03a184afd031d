"""Positions of a Postgres log: the transaction that wrote an event, and its number."""

from __future__ import annotations

import re

from psycopg.types.numeric import Int8

from runstate.errors import InvalidPosition
from runstate.logs.log import Position

_pattern = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


def parse_position(after: Position | None) -> tuple[str, Int8]:
    """The transaction and the number in a position.

    Raises:
        InvalidPosition: it is none.
    """
    if after is None:
        return "0", Int8(0)
    found = _pattern.fullmatch(after)
    if found is None:
        raise no_position(after)
    return found[1], Int8(int(found[2]))


def no_position(after: str | None) -> InvalidPosition:
    return InvalidPosition(f"{str(after)[:40]!r} is no position that this log has handed out", position=after)
