"""Charts as HTML rows and inline SVG, without a library.

Everything across is in per cent and everything down in pixels, so that a chart fits any width while its text keeps its
size. No element carries a style of its own: the page's Content-Security-Policy would drop it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from runstate.pipeline.report.page_markup import (
    Html,
    compact,
    compact_money,
    count,
    duration,
    identity,
    joined,
    share,
    tag,
)

rows_max = 15
"""Rows of one chart. The table below it has the others."""

_ticks_max = 5


class Bar(msgspec.Struct):
    """A row of a bar chart: one bar for each series."""

    name: str
    values: list[tuple[str, float | None]]
    """The series' class, and how long its bar is on the axis."""
    words: str
    """What the row says in figures."""


class Axis(msgspec.Struct, frozen=True):
    """What the bars of a chart are measured by."""

    unit: str
    """What is counted: `runs`, `share of attempts`."""
    words: Callable[[float], str]
    """A value as its mark on the axis says it."""
    step_min: float = 0.0
    """Marks are at least so far apart: 1 for what comes in whole numbers."""
    top_max: float = math.inf
    """Nothing can be more: 1 for shares."""


counts = Axis("runs", compact, step_min=1.0)
shares = Axis("share of attempts", share, top_max=1.0)
amounts = Axis("cost", compact_money)


def bars(title: str, note: str, rows: Sequence[Bar], axis: Axis, legend: Sequence[tuple[str, str]] = ()) -> Html:
    """Horizontal bars on one axis, at most `rows_max`. `legend` pairs a series' class with its name."""
    top, step = value_scale(max((_finite(v) for row in rows for _, v in row.values), default=0.0), axis)
    ticks = [step * n for n in range(round(top / step) + 1)]
    shown = [
        _row(
            row.name, row.words, _bar_svg([(css, _finite(v) / top) for css, v in row.values], [t / top for t in ticks])
        )
        for row in rows[:rows_max]
    ]
    marks = [
        label_svg(100 * t / top, 12, axis.words(t), wide=n % 2 == 1 and len(ticks) > 3) for n, t in enumerate(ticks)
    ]
    marked = tag("svg", *marks, class_="axis", width="100%", height=18, aria_hidden="true")
    unit = tag("span", axis.unit, class_="unit")
    return figure(title, note, len(rows), legend, tag("div", *shown, marked, unit, class_="rows"))


def value_scale(highest: float, axis: Axis) -> tuple[float, float]:
    """A round top of an axis from 0, and the step between its marks: 1, 2 or 5 times a power of ten."""
    highest = min(max(highest, axis.step_min, 1e-9), axis.top_max)
    size = 10.0 ** math.floor(math.log10(highest))
    step = next(s for s in (size / 5, size / 2, size, size * 2, size * 5) if highest / s <= _ticks_max)
    step = max(step, axis.step_min)
    return step * max(1, math.ceil(highest / step - 1e-9)), step


def _finite(value: float | None) -> float:
    """The length of a bar; what is no number has none."""
    return value if value is not None and math.isfinite(value) and value > 0 else 0.0


def ranges(title: str, note: str, rows: Sequence[tuple[str, Sequence[float | None]]]) -> Html:
    """p50, p95 and p99 of durations in milliseconds, side by side on one logarithmic scale."""
    rows = [(name, [p if p is not None and math.isfinite(p) else None for p in points]) for name, points in rows]
    everything = [max(point, _ticks_ms[0]) for _, points in rows for point in points if point is not None]
    if not everything:
        return Html("")
    low = max(tick for tick in _ticks_ms if tick <= min(everything))
    high = next((tick for tick in _ticks_ms if tick >= max(everything) and tick > low), max(everything))
    ticks = [tick for tick in _ticks_ms if low <= tick <= high]

    def place(value: float) -> float:
        # Differences of logarithms: a quotient of two figures may be beyond what a float holds.
        return 100 * (math.log(max(value, low)) - math.log(low)) / (math.log(high) - math.log(low))

    shown = []
    for name, points in rows[:rows_max]:
        words = " · ".join(duration(point) for point in points)
        shown.append(_row(name, words, _range_svg(points, ticks, place)))
    axis = [label_svg(place(t), 12, duration(t), wide=n % 2 == 1 and len(ticks) > 3) for n, t in enumerate(ticks)]
    axis_row = tag("svg", *axis, class_="axis", width="100%", height=18, aria_hidden="true")
    legend = [("p50", "p50 (median)"), ("p95", "p95"), ("p99", "p99")]
    return figure(title, note, len(rows), legend, tag("div", *shown, axis_row, class_="rows"))


# --- parts -----------------------------------------------------------------------------------------------------------

_ticks_ms = [0.01, 0.1, 1, 10, 100, 1e3, 1e4, 6e4, 6e5, 3.6e6, 3.6e7, 8.64e7, 8.64e8, 8.64e9, 8.64e10]
"""Where a scale of durations has its marks: powers of ten below a minute, then what clocks and calendars go by."""


def figure(title: str, note: str, row_count: int, legend: Sequence[tuple[str, str]], body: Html) -> Html:
    """A chart with its heading. `row_count` is how many rows there are, also those that are not shown."""
    if row_count > rows_max:
        note = f"{note} The first {rows_max} of {count(row_count)}; the table has all.".strip()
    keys = [tag("li", _swatch(css), name) for css, name in legend]
    caption = tag("figcaption", tag("strong", title), note)
    return tag("figure", caption, tag("ul", *keys, class_="legend") if keys else Html(""), body, aria_label=title)


def _swatch(css: str) -> Html:
    return tag("svg", tag("rect", class_=css, width=10, height=10, rx=2), width=10, height=10, aria_hidden="true")


def _row(name: str, value: str, drawing: Html) -> Html:
    label = tag("span", identity(name), class_="name", title=name)
    return joined(label, tag("span", value, class_="value"), tag("div", drawing, class_="bars"))


def _bar_svg(lengths: Sequence[tuple[str, float]], ticks: Sequence[float]) -> Html:
    """One bar below the other, each as long as a fraction of the whole width."""
    thick = 14 if len(lengths) == 1 else 8
    height = len(lengths) * (thick + 2) - 2
    parts = []
    for number, (css, length) in enumerate(lengths):
        y = number * (thick + 2)
        # What is not nothing stays visible.
        width = max(min(length, 1) * 100, 0.4) if length > 0 else 0
        parts.append(tag("rect", class_="track", y=y, width="100%", height=thick, rx=3))
        if width:
            parts.append(tag("rect", class_=css, y=y, width=f"{width:.2f}%", height=thick, rx=3))
    # Above the tracks, which would hide them.
    lines = [tag("line", class_="mark", x1=f"{t:.2%}", x2=f"{t:.2%}", y1=-3, y2=height + 3) for t in ticks]
    return tag("svg", *parts, *lines, width="100%", height=height, aria_hidden="true")


def _range_svg(points: Sequence[float | None], ticks: Sequence[float], place: Callable[[float], float]) -> Html:
    parts = [tag("line", class_="grid", x1=f"{place(t):.2f}%", x2=f"{place(t):.2f}%", y1=-3, y2=23) for t in ticks]
    places = [(css, place(p)) for css, p in zip(("p50", "p95", "p99"), points, strict=False) if p is not None]
    if places:
        first, last = places[0][1], places[-1][1]
        parts.append(tag("rect", class_="span", x=f"{first:.2f}%", width=f"{max(last - first, 0):.2f}%", y=7, height=6))
    # The median is drawn last: where all three are one, it is the one to see.
    parts += [tag("circle", class_=css, cx=f"{x:.2f}%", cy=10, r=5.5) for css, x in reversed(places)]
    return tag("svg", *parts, width="100%", height=20, aria_hidden="true")


def label_svg(x: float, y: float, words: str, *, wide: bool, leans: bool = True) -> Html:
    """A label below an axis. One that is `wide` is left out where there is little room."""
    # A label at an edge leans inwards, or it would be cut off. On the left there may be room for it.
    anchor = "start" if x < 5 and leans else "end" if x > 95 else "middle"
    return tag("text", words, x=f"{x:.2f}%", y=y, text_anchor=anchor, class_="wide" if wide else None)
