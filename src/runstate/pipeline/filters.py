"""Conditions that Spark hands down, so that a reader skips what nobody wants."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import msgspec

from runstate.logs.log import Record

operators: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda value, wanted: value in wanted,
    "starts": lambda value, wanted: value.startswith(wanted),
}
"""Text is compared by code point, which is how Spark compares its UTF-8."""

columns = frozenset({"stream", "seq", "event_id", "type", "key", "tenant", "emitted_at", "persisted_at"})


class Condition(msgspec.Struct, frozen=True):
    column: str
    operator: str
    value: Any


class Filters(msgspec.Struct, frozen=True):
    """All of them must hold."""

    conditions: tuple[Condition, ...] = ()

    def streams(self) -> tuple[str, ...] | None:
        """The streams that can be meant at all; None: any."""
        sets = [
            {c.value} if c.operator == "=" else set(c.value)
            for c in self.conditions
            if c.column == "stream" and c.operator in ("=", "in")
        ]
        return None if not sets else tuple(sorted(set.intersection(*sets)))

    def may_hold(self, stream: str) -> bool:
        """Whether a stream of that id can hold an event that is wanted."""
        return all(operators[c.operator](stream, c.value) for c in self.conditions if c.column == "stream")

    def after_seq(self) -> int:
        """The seq that wanted events come after."""
        floors = [c.value - (c.operator == ">=") for c in self.conditions if c.column == "seq" and c.operator[0] == ">"]
        return int(max([0, *floors]))

    def accept(self, record: Record) -> bool:
        return all(operators[c.operator](getattr(record, c.column), c.value) for c in self.conditions)
