"""The runs on the page: by what their status means, and one by one, with a box to filter them."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from runstate.pipeline.report import page_charts as charts
from runstate.pipeline.report.page_markup import Html, count, duration, identity, joined, missing, moment, share, tag
from runstate.pipeline.report.page_report import Clock, Group, Report, RunRow, clocks, runs_max
from runstate.pipeline.report.page_tables import Cell, Number, OnClock, counted, named, nothing, table
from runstate.pipeline.report.spans import elapsed_ms
from runstate.pipeline.report.time_bins import time_ms

_colours: dict[Group, str] = {
    "completed": "good",
    "running": "accent",
    "waiting": "idle",
    "paused": "warn",
    "cancelled": "idle",
    "failed": "bad",
    "unreadable": "bad",
    "unknown": "other",
}
"""By what a status means, in the order of the chart."""


def failed_runs(report: Report) -> int:
    return sum(row.runs for row in report.totals.statuses if row.group == "failed")


def by_status(report: Report) -> Html:
    """Runs by what their status means, and by model and status."""
    rows = report.totals.statuses
    if not rows:
        return tag("div", tag("h3", "Runs by status"), nothing("No runs were found."))
    total = sum(row.runs for row in rows) or 1
    sums = {group: sum(row.runs for row in rows if row.group == group) for group in _colours}
    shown = [
        charts.Bar(group, [(_colours[group], number)], f"{count(number)} · {share(number / total)}")
        for group, number in sums.items()
        if number
    ]
    columns = [
        ("Status", lambda row: (_status(row.group, row.status), None)),
        ("Model", named("model")),
        ("Runs", counted("runs")),
    ]
    note = "What the statuses of all models mean."
    words = tag("details", tag("summary", "By model and status"), table("Statuses of each model", columns, rows))
    return tag("div", charts.bars("Runs by status", note, shown, charts.counts), words)


def listed(report: Report) -> Html:
    """The runs one by one."""
    runs, total = report.runs[:runs_max], report.totals.runs
    if not runs:
        return nothing("No runs were found.")
    columns: list[tuple[str, object]] = [
        ("Run", named("stream")),
        ("Status", lambda row: (_status(row.group, row.status), None)),
        *((heading, OnClock(clock, cell(clock))) for clock in clocks for heading, cell in _timed),
        ("Events", counted("events")),
        ("Model", named("model")),
        ("Tenant", named("tenant")),
    ]
    box = tag(
        "p",
        tag(
            "label",
            "Filter ",
            tag("input", type="search", placeholder="id, status, model or tenant", autocomplete="off"),
        ),
        tag("output", class_="muted"),
        class_="filter",
        # The script shows it: without one it would do nothing.
        hidden=True,
    )
    words = "A run starts with its first event and lasts until its last one."
    return joined(
        tag("p", f"{words} {_extent(len(runs), total)}", class_="muted"),
        _rest(report) if total > len(runs) else Html(""),
        tag(
            "div",
            box,
            table(f"{count(len(runs))} runs, the newest first", columns, runs, most=runs_max),
            class_="filtered",
        ),
    )


def _extent(shown: int, total: int) -> str:
    if total <= shown:
        return "All runs are listed."
    return (
        f"The newest {count(shown)} of {count(total)} runs are listed, and up to half of these are the newest that "
        f"failed or cannot be read; {count(total - shown)} are left out."
    )


def _rest(report: Report) -> Html:
    """How to ask for the runs that are left out."""
    logs = [url for url in report.generated_from if not url.startswith(("table:", "files:"))]
    commands = [f"runstate streams {shlex.quote(url)} --sort last --reverse" for url in logs[:3]]
    if not commands:
        return tag(
            "p", "To query all of them, read the view ", tag("code", "snapshots"), " with Spark.", class_="muted"
        )
    return tag(
        "p", "To list all of them: ", *(tag("code", each, class_="command") for each in commands), class_="muted"
    )


def _status(group: Group, status: str) -> Html:
    """The meaning as a badge, and the model's own word where it is another one."""
    own = "" if not status or status.casefold() == group else status
    return joined(
        tag("span", group, class_=f"badge {_colours[group]}"), " " if own else "", identity(own) if own else ""
    )


class _Started(Number, frozen=True):
    """When a run started: sorted as a number, shown as a time."""

    def __call__(self, row: RunRow) -> tuple[str, float | None]:
        at = getattr(row, self.field) if isinstance(self.field, str) else None
        ms = None if at is None else time_ms(at)
        return moment(at), None if ms is None else float(ms)


class _Lasted(Number, frozen=True):
    def __call__(self, row: RunRow) -> tuple[str, float | None]:
        first, last = (getattr(row, f"{name}_{self.field}_at") for name in ("first", "last"))
        ms = elapsed_ms(first, last)
        return duration(ms), ms


def _start_cell(clock: Clock) -> Cell:
    return _Started(f"first_{clock}_at", lambda value: missing)


def _duration_cell(clock: Clock) -> Cell:
    return _Lasted(clock, duration)


_timed: list[tuple[str, Callable[[Clock], Cell]]] = [("Start", _start_cell), ("Duration", _duration_cell)]
