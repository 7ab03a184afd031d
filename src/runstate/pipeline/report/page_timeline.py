"""Stacked bars over time, as inline SVG: every bin has its place, also one in which nothing happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from runstate.pipeline.report.page_charts import Axis, figure, label_svg, value_scale
from runstate.pipeline.report.page_markup import Html, compact, count, duration, exact_moment, tag
from runstate.pipeline.report.time_bins import bin_start_ms, bin_width_ms, label, label_starts_ms, time_text

_slots_min = 12
"""Fewer bars are no wider than if there were so many."""
_labels_max = 6
_plot_px = 150
_whole = Axis("", compact, step_min=1.0)


class Bin(NamedTuple):
    """What happened in one bin, series by series."""

    start_ms: int
    values: Sequence[float]


def timeline(title: str, note: str, bins: Sequence[Bin], bin_ms: int, series: Sequence[tuple[str, str]]) -> Html:
    """Bars over time. `series` pairs a class with a name; bins that would be too many are put together."""
    if not bins:
        return Html("")
    slots, width = _slots(bins, bin_ms, len(series))
    first, last = slots[0].start_ms, slots[-1].start_ms
    top, step = value_scale(max(sum(slot.values) for slot in slots), _whole)
    slot = 100 / max(len(slots), _slots_min)
    lines, scale = [], []
    for number in range(round(top / step) + 1):
        y = _y(number * step, top)
        lines.append(tag("line", class_="grid", x1="0", x2="100%", y1=y, y2=y))
        scale.append(tag("text", compact(number * step), x="100%", y=y + 4, text_anchor="end"))
    drawn = [_stack(n * slot, slot, each, series, top) for n, each in enumerate(slots)]
    starts = sorted(label_starts_ms(first, len(slots), width, _labels_max))
    labels = [
        label_svg(
            ((start - first) / width + 0.5) * slot,
            _plot_px + 26,
            label(start, width, first, last),
            wide=n % 2 == 1 and len(starts) > 2,
            leans=False,
        )
        for n, start in enumerate(starts)
    ]
    sums = ", ".join(f"{count(sum(each.values[i] for each in slots))} {name}" for i, (_, name) in enumerate(series))
    between = f"from {exact_moment(time_text(first))} to {exact_moment(time_text(last + width))}"
    height = _plot_px + 34
    words = f"{title}: {sums}, {between}"
    plot = tag("svg", *lines, *drawn, *labels, role="img", aria_label=words, width="100%", height=height)
    left = tag("svg", *scale, class_="scale", height=height, aria_hidden="true")
    note = f"{note} One bar is {duration(width)}; {between}."
    legend = series if len(series) > 1 else ()
    return figure(title, note, 0, legend, tag("div", left, plot, class_="plot"))


def _slots(bins: Sequence[Bin], bin_ms: int, series: int) -> tuple[list[Bin], int]:
    """Every bin from the first to the last, and their width: as given, unless there would be too many."""
    starts = [each.start_ms for each in bins]
    width = max(bin_ms, bin_width_ms(min(starts), max(starts)))
    first, last = bin_start_ms(min(starts), width), bin_start_ms(max(starts), width)
    sums = {start: [0.0] * series for start in range(first, last + 1, width)}
    for each in bins:
        slot = sums[bin_start_ms(each.start_ms, width)]
        for number, value in enumerate(each.values[:series]):
            slot[number] += value
    return [Bin(start, values) for start, values in sums.items()], width


def _stack(x: float, slot: float, each: Bin, series: Sequence[tuple[str, str]], top: float) -> Html:
    words = ", ".join(f"{count(value)} {name}" for value, (_, name) in zip(each.values, series, strict=True))
    parts, below = [tag("title", f"{exact_moment(time_text(each.start_ms))}: {words}")], 0.0
    for value, (css, _) in zip(each.values, series, strict=True):
        if value > 0:
            y = _y(below + value, top)
            height = _y(below, top) - y
            parts.append(
                tag("rect", class_=css, x=f"{x + slot * 0.1:.3f}%", width=f"{slot * 0.8:.3f}%", y=y, height=height)
            )
            below += value
    return tag("g", *parts)


def _y(value: float, top: float) -> float:
    return 10 + _plot_px * (1 - value / top)
