"""Charts as HTML rows and inline SVG, without a library.

Everything across is in per cent and everything down in pixels, so that a chart fits any width while its text keeps its
size. No element carries a style of its own: the page's Content-Security-Policy would drop it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from runstate.pipeline.page_markup import Html, count, duration, identity, joined, tag

rows_max = 15
"""Rows of one chart. The table below it has the others."""

_slots_max = 96
_slots_min = 12
_labels_max = 8
_plot_px = 150
_hour = timedelta(hours=1)
_epoch = datetime(1970, 1, 1, tzinfo=UTC)


class Bar(msgspec.Struct):
    """A row of a bar chart: one bar for each series, its length as a fraction of the whole width."""

    name: str
    lengths: list[tuple[str, float]]
    """The series' class and the length of its bar."""
    value: str
    """What the row says in figures."""


class Hour(msgspec.Struct):
    """What happened in one hour, series by series."""

    hour: str
    values: list[float]


def bars(title: str, note: str, rows: Sequence[Bar], legend: Sequence[tuple[str, str]] = ()) -> Html:
    """Horizontal bars, at most `rows_max`. `legend` pairs a series' class with its name."""
    shown = [_row(row.name, row.value, _bar_svg(row.lengths)) for row in rows[:rows_max]]
    return _figure(title, note, len(rows), legend, tag("div", *shown, class_="rows"))


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
    axis = [_label(place(t), 12, duration(t), wide=n % 2 == 1 and len(ticks) > 5) for n, t in enumerate(ticks)]
    axis_row = tag("svg", *axis, class_="axis", width="100%", height=18, aria_hidden="true")
    legend = [("p50", "p50 (median)"), ("p95", "p95"), ("p99", "p99")]
    return _figure(title, note, len(rows), legend, tag("div", *shown, axis_row, class_="rows"))


def timeline(title: str, note: str, hours: Sequence[Hour], series: Sequence[tuple[str, str]]) -> Html:
    """Stacked bars over time. Hours are put together until they fit; an hour in which nothing happened leaves a gap."""
    buckets, size = _buckets(hours, len(series))
    if not buckets:
        return Html("")
    top, step = _scale(max(sum(values) for _, values in buckets))
    slot = 100 / max(len(buckets), _slots_min)
    lines, scale = [], []
    for number in range(round(top / step) + 1):
        y = _y(number * step, top)
        lines.append(tag("line", class_="grid", x1="0", x2="100%", y1=y, y2=y))
        scale.append(tag("text", _compact(number * step), x="100%", y=y + 4, text_anchor="end"))
    drawn = [_stack(n * slot, slot, at, values, series, top) for n, (at, values) in enumerate(buckets)]
    # Counted from midnight, so that labels stand at hours that people go by.
    every = next((n for n in (1, 2, 3, 6, 12) if len(buckets) / n <= _labels_max), 24)
    labels = [
        _label((n + 0.5) * slot, _plot_px + 26, _when(at, size), wide=(at - _epoch) // size // every % 2 == 1)
        for n, (at, _) in enumerate(buckets)
        if (at - _epoch) // size % every == 0
    ]
    sums = ", ".join(f"{count(sum(v[i] for _, v in buckets))} {name}" for i, (_, name) in enumerate(series))
    words = f"{title}: {sums}, from {_when(buckets[0][0], size)} to {_when(buckets[-1][0], size)}, UTC"
    height = _plot_px + 34
    plot = tag("svg", *lines, *drawn, *labels, role="img", aria_label=words, width="100%", height=height)
    left = tag("svg", *scale, class_="scale", height=height, aria_hidden="true")
    stretch = f"{note} One bar is {duration(size / timedelta(milliseconds=1))}."
    legend = series if len(series) > 1 else ()
    return _figure(title, stretch, 0, legend, tag("div", left, plot, class_="plot"))


# --- parts -----------------------------------------------------------------------------------------------------------

_ticks_ms = [0.01, 0.1, 1, 10, 100, 1e3, 1e4, 6e4, 6e5, 3.6e6, 3.6e7, 8.64e7, 8.64e8, 8.64e9, 8.64e10]
"""Where a scale of durations has its marks: powers of ten below a minute, then what clocks and calendars go by."""


def _figure(title: str, note: str, row_count: int, legend: Sequence[tuple[str, str]], body: Html) -> Html:
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


def _bar_svg(lengths: Sequence[tuple[str, float]]) -> Html:
    thick = 14 if len(lengths) == 1 else 8
    parts = []
    for number, (css, length) in enumerate(lengths):
        y = number * (thick + 2)
        # What is not nothing stays visible.
        width = max(min(length, 1) * 100, 0.4) if length > 0 else 0
        parts.append(tag("rect", class_="track", y=y, width="100%", height=thick, rx=3))
        if width:
            parts.append(tag("rect", class_=css, y=y, width=f"{width:.2f}%", height=thick, rx=3))
    return tag("svg", *parts, width="100%", height=len(lengths) * (thick + 2) - 2, aria_hidden="true")


def _range_svg(points: Sequence[float | None], ticks: Sequence[float], place: Callable[[float], float]) -> Html:
    parts = [tag("line", class_="grid", x1=f"{place(t):.2f}%", x2=f"{place(t):.2f}%", y1=-3, y2=23) for t in ticks]
    places = [(css, place(p)) for css, p in zip(("p50", "p95", "p99"), points, strict=False) if p is not None]
    if places:
        first, last = places[0][1], places[-1][1]
        parts.append(tag("rect", class_="span", x=f"{first:.2f}%", width=f"{max(last - first, 0):.2f}%", y=7, height=6))
    # The median is drawn last: where all three are one, it is the one to see.
    parts += [tag("circle", class_=css, cx=f"{x:.2f}%", cy=10, r=5.5) for css, x in reversed(places)]
    return tag("svg", *parts, width="100%", height=20, aria_hidden="true")


def _stack(
    x: float, slot: float, at: datetime, values: Sequence[float], series: Sequence[tuple[str, str]], top: float
) -> Html:
    words = ", ".join(f"{count(value)} {name}" for value, (_, name) in zip(values, series, strict=False))
    parts, below = [tag("title", f"{at:%Y-%m-%d %H:%M} UTC: {words}")], 0.0
    for value, (css, _) in zip(values, series, strict=False):
        if value > 0:
            y = _y(below + value, top)
            height = _y(below, top) - y
            parts.append(
                tag("rect", class_=css, x=f"{x + slot * 0.1:.3f}%", width=f"{slot * 0.8:.3f}%", y=y, height=height)
            )
            below += value
    return tag("g", *parts)


def _label(x: float, y: float, words: str, *, wide: bool) -> Html:
    # A label at an edge leans inwards, or it would be cut off.
    anchor = "start" if x < 5 else "end" if x > 95 else "middle"
    return tag("text", words, x=f"{x:.2f}%", y=y, text_anchor=anchor, class_="wide" if wide else None)


def _y(value: float, top: float) -> float:
    return 10 + _plot_px * (1 - value / top)


def _scale(highest: float) -> tuple[float, float]:
    """A round top of the scale, and the step between its lines; whole numbers, since it counts things."""
    size = 10 ** math.floor(math.log10(max(highest, 1)))
    step = next((s for s in (size / 5, size / 2, size, size * 2, size * 5) if highest / s <= 5), size * 5)
    step = max(1, round(step))
    return step * max(1, math.ceil(highest / step)), step


def _compact(value: float) -> str:
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f}".removesuffix(".0") + unit
    return f"{value:.0f}"


def _buckets(hours: Sequence[Hour], width: int) -> tuple[list[tuple[datetime, list[float]]], timedelta]:
    """Hours in order, put together into at most `_slots_max` equal stretches of time without a gap."""
    found: list[tuple[datetime, list[float]]] = []
    for hour in hours:
        try:
            at = datetime.fromisoformat(hour.hour)
            found.append((at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC), hour.values))
        except (ValueError, OverflowError):
            continue  # No time that a calendar has: it is in the table, and has no place on the axis.
    if not found:
        return [], _hour
    first, last = min(at for at, _ in found), max(at for at, _ in found)
    sizes = [_hour * n for n in (1, 3, 6, 12, 24, 7 * 24)]
    size = next((s for s in sizes if (last - first) / s < _slots_max - 1), None)
    size = size or _hour * 24 * math.ceil((last - first) / _hour / 24 / (_slots_max - 1))
    start = (first - _epoch) // size
    slots: list[list[float]] = [[0.0] * width for _ in range((last - _epoch) // size - start + 1)]
    for at, values in found:
        slot = slots[(at - _epoch) // size - start]
        for number, value in enumerate(values[:width]):
            slot[number] += value
    # The first stretch may begin before the first year that a calendar has.
    return [(first + size * n if n == 0 else _epoch + size * (start + n), slot) for n, slot in enumerate(slots)], size


def _when(at: datetime, size: timedelta) -> str:
    return f"{at:%Y-%m-%d}" if size >= timedelta(days=1) else f"{at:%m-%d %H:%M}"
