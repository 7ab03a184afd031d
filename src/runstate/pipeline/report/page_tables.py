"""Tables of the page. Where there is little room, a row of a wide one is shown as a card: nothing is cut off."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from runstate.pipeline.report.page_markup import Html, count, duration, identity, money, share, tag

rows_max = 500
"""Rows of one table. A page that no browser can show is no report."""
_columns_max = 4
"""Columns of a table that fits a phone as it is."""

Cell = Callable[[Any], tuple[str, float | None]]
"""From a row to what is shown, and for a number what it is sorted by."""


class Number(msgspec.Struct, frozen=True):
    """A column of numbers."""

    field: str | int
    words: Callable[[float | None], str]

    def __call__(self, row: Any) -> tuple[str, float | None]:
        value = row[self.field] if isinstance(self.field, int) else getattr(row, self.field)
        return self.words(value), value


def counted(field: str | int) -> Number:
    return Number(field, count)


def rated(field: str) -> Number:
    return Number(field, share)


def timed(field: str) -> Number:
    return Number(field, duration)


def priced(field: str) -> Number:
    return Number(field, money)


def named(field: str | int) -> Cell:
    return lambda row: (identity(row[field] if isinstance(field, int) else getattr(row, field)), None)


class OnClock(msgspec.Struct, frozen=True):
    """A column that is shown while its clock is the chosen one."""

    clock: str
    cell: Any


def table(caption: str, columns: Sequence[tuple[str, Any]], rows: Sequence[Any], *, most: int = rows_max) -> Html:
    """A table that can be sorted. The first column names the row."""
    if len(rows) > most:
        caption = f"{caption}: the first {count(most)} of {count(len(rows))}"
    shown = [_Column.of(heading, cell) for heading, cell in columns]
    heads = [tag("th", each.heading, scope="col", class_=each.css("")) for each in shown]
    lines = [tag("tr", *(_cell(each, place, row) for place, each in enumerate(shown))) for row in rows[:most]]
    made = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *lines),
        class_="sortable cards" if len(columns) > _columns_max else "sortable",
    )
    # Focusable, so that a keyboard can scroll what does not fit.
    return tag("div", made, class_="scroll", tabindex=0, role="region", aria_label=caption)


class _Column(msgspec.Struct, frozen=True):
    heading: str
    cell: Any
    is_numeric: bool
    clock: str

    @classmethod
    def of(cls, heading: str, cell: Any) -> _Column:
        clock = cell.clock if isinstance(cell, OnClock) else ""
        cell = cell.cell if isinstance(cell, OnClock) else cell
        return cls(heading, cell, isinstance(cell, Number), clock)

    def css(self, *names: str) -> str | None:
        own = ["num" if self.is_numeric else "", f"on-{self.clock}" if self.clock else ""]
        return " ".join(filter(None, [*own, *names])) or None


def _cell(column: _Column, place: int, row: Any) -> Html:
    words, value = column.cell(row)
    if place == 0:
        return tag("th", words, scope="row", class_=column.css("" if column.is_numeric else "long"))
    exact = None if value is None or not math.isfinite(value) else repr(float(value))
    css = column.css(("" if value else "none") if column.is_numeric else "long")
    return tag("td", words, class_=css, data_value=exact, data_label=column.heading)


def nothing(words: str) -> Html:
    return tag("p", words, class_="muted")
