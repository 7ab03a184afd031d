"""The page by one clock or the other: the switch, and what happened when.

Both are in the page, and its style hides one, so that the switch needs no script. A browser whose style knows no `:has`
shows both, each with its name.
"""

from __future__ import annotations

from runstate.pipeline.report.page_markup import Html, count, duration, exact_moment, joined, moment, tag
from runstate.pipeline.report.page_report import Clock, Report, Throughput, clocks
from runstate.pipeline.report.page_tables import counted, nothing, table
from runstate.pipeline.report.page_timeline import Bin, timeline
from runstate.pipeline.report.time_bins import time_ms

_meanings: dict[Clock, str] = {
    "emitted": "when its producer says that it happened",
    "persisted": "when the log stored it",
}


def switch(report: Report) -> Html:
    """Two radio buttons: which time of an event counts."""
    choices = [
        tag(
            "label",
            tag("input", type="radio", name="clock", id=f"clock-{clock}", value=clock, checked=clock == report.clock),
            tag("span", clock, tag("small", f" {_meanings[clock]}")),
        )
        for clock in clocks
    ]
    return tag("fieldset", tag("legend", "Time of an event"), *choices, class_="clock")


def period(report: Report) -> Html:
    """From when to when the events are, by each clock."""
    if not report.totals.events:
        return tag("p", "The logs hold no events.", class_="muted")
    as_of = f"read as of {moment(report.as_of)}."
    return joined(
        *(tag("p", f"{_between(each)}, {as_of}", class_=f"muted on-{each.clock}") for each in report.throughput)
    )


def _between(found: Throughput) -> str:
    if found.first_event_at is None:
        return f"Events without a time {found.clock}"
    return f"Events {found.clock} from {moment(found.first_event_at)} to {moment(found.last_event_at)}"


def throughput(report: Report) -> Html:
    """Events and ends of runs over time, by each clock."""
    if not any(each.bins for each in report.throughput):
        return nothing("No events were stored.")
    return joined(*(tag("div", *_charts(each), class_=f"on-{each.clock}") for each in report.throughput))


def _charts(found: Throughput) -> list[Html]:
    if not found.bins:
        return [_left_out(found)]
    # A start that no calendar has is in the table, and has no place on the axis.
    placed = [(ms, row) for row in found.bins if (ms := time_ms(row.start)) is not None]
    events = [Bin(ms, [row.events]) for ms, row in placed]
    runs = [Bin(ms, [row.runs_finished, row.runs_failed]) for ms, row in placed]
    note, width = f"By the time {found.clock}.", found.bin_ms
    ended = sum(sum(each.values) for each in runs)
    columns = [
        ("From (UTC)", lambda row: (exact_moment(row.start).removesuffix(" UTC"), None)),
        ("Events", counted("events")),
        ("Runs finished", counted("runs_finished")),
        ("Runs failed", counted("runs_failed")),
    ]
    # The newest are those that a reader asks for, should there be too many.
    caption = f"Every {duration(width)} by the time {found.clock}, the newest first"
    return [
        _left_out(found),
        timeline(f"Events {found.clock}", note, events, width, [("accent", "events")]),
        timeline("Runs ended", note, runs, width, [("good", "finished"), ("bad", "failed")])
        if ended
        else nothing("No run has ended: no event says so."),
        tag(
            "details",
            tag("summary", f"{count(len(found.bins))} bars as a table"),
            table(caption, columns, found.bins[::-1]),
        ),
    ]


def _left_out(found: Throughput) -> Html:
    """Events that have no place by this clock. At another time than their own, they would squeeze the rest."""
    number = found.events_without_time
    if not number:
        return Html("")
    verb = "event has no time" if number == 1 else "events have no time"
    return nothing(f"{count(number)} {verb} {found.clock} and cannot be shown by this clock: choose the other one.")
