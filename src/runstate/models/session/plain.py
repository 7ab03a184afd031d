"""What a struct holds, as what JSON is made of; nothing is made into text on the way."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from runstate.errors import InvalidJson
from runstate.models.canonical import check_value

_not_json = (bytes, bytearray, memoryview, datetime, date, time, timedelta, Decimal, UUID)
"""msgspec would write these as text (bytes as base64), and nobody would notice that no text was given."""


def plain(value: Any) -> Any:
    """The value as JSON has it. A struct may have been filled with anything; this tells.

    Raises:
        InvalidJson: something in it is none of what JSON is made of, or no text that UTF-8 can hold.
    """
    try:
        members = msgspec.to_builtins(value, builtin_types=_not_json)
    except (TypeError, RecursionError) as error:
        raise InvalidJson(f"No JSON: {error}") from error
    check_value(members)
    return members
