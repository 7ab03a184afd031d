"""The run as one picture: every case's speed as a share of its limit, and where its aim lies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib import ticker

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks.case import show_seconds
from benchmarks.measure import Result

_met, _missed, _free = "#2a7f62", "#c0392b", "#7f8c8d"


def save_plot(results: Sequence[Result], facts: dict[str, str], path: Path) -> None:
    """Bars on a logarithmic axis: as far right of 1 is as much faster as the same way left is slower."""
    shown = list(reversed(results))
    figure, axes = plt.subplots(figsize=(11, 1.6 + 0.42 * len(shown)), layout="constrained")
    for place, result in enumerate(shown):
        _draw(axes, place, result)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.2), max(high, 2))
    axes.xaxis.set_major_locator(ticker.LogLocator(base=10, subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set_yticks(range(len(shown)), [f"{r.case.name}\nvs {r.limits[0].side}" for r in shown], fontsize=8)
    axes.set_ylim(-0.6, len(shown) - 0.4)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("speed per event against the limit, measured in alternation (line: p10 to p90)")
    axes.set_title(
        f"Runstate against the limits of one machine\n{facts['cores']} cores, {facts['file system']}, "
        f"fsync {facts['fsync median']}, Python {facts['python']}, SQLite {facts['sqlite']}",
        fontsize=10,
    )
    handles: list[Artist] = [Patch(color=color) for color in (_met, _missed, _free)]
    handles.append(Line2D([], [], color="black", marker="D", linestyle="none", markersize=5))
    axes.legend(handles, ["aim met", "aim missed", "no aim", "aim"], loc="lower right", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw(axes: Axes, place: int, result: Result) -> None:
    ratio = result.ratios[0]
    color = _free if result.case.aim is None else _missed if result.missed else _met
    # A bar on a logarithmic axis has no zero to stand on; it starts at 1, "as fast as the limit".
    axes.barh(place, ratio.median - 1, left=1, height=0.55, color=color)
    axes.plot([ratio.p10, ratio.p90], [place, place], color="black", linewidth=1, alpha=0.6)
    aim = _aim_as_ratio(result)
    if aim is not None:
        axes.plot(aim, place, "kD", markersize=5)
    axes.annotate(_label(result), (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=8)


def _label(result: Result) -> str:
    aim = "" if result.case.aim is None else f"   aim {result.case.aim}: {result.case.aim.show(result.measured)}"
    return f"{result.ratios[0].median:.2f}x   {show_seconds(result.ours.seconds.median)} per call{aim}"


def _aim_as_ratio(result: Result) -> float | None:
    """Where on the axis of ratios a case's aim lies, whatever it is about."""
    aim, limit = result.case.aim, result.limits[0]
    if aim is None:
        return None
    if aim.kind == "ratio":
        return aim.bound
    return aim.bound / limit.rate if aim.kind == "rate" else limit.seconds.median / aim.bound
