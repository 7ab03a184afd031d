"""A fleet report as one HTML page that needs nothing else: no host, no file, no font.

The same report always gives the same bytes. Ids and messages come from outside and are shown as the text that they are;
the page's own policy forbids every script and style but the two that it carries.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from runstate.errors import shown_url
from runstate.pipeline import page_charts as charts
from runstate.pipeline.page_markup import (
    Html,
    count,
    duration,
    identity,
    joined,
    missing,
    moment,
    money,
    share,
    tag,
)
from runstate.pipeline.page_report import Report
from runstate.storage.disk import TEMP
from runstate.storage.target_directory import check_target

table_rows_max = 500
"""Rows of one table. A page that no browser can show is no report."""
_leftovers = re.compile(rf"report\.html{TEMP}")


def render(report: Report) -> bytes:
    """The page, as UTF-8. The same for the same report, whatever the machine, the time and the order of calls."""
    style, script = _asset("page.css"), _asset("page.js")
    own = f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    policy = f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"
    shown = [(anchor, heading, body(report)) for anchor, heading, body in _sections]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        # Quotes are part of its syntax, and nothing in it comes from outside.
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", report.title),
        tag("style", Html(style)),
    )
    main = [
        tag("section", tag("h2", heading, id=f"{anchor}-heading"), body, id=anchor, aria_labelledby=f"{anchor}-heading")
        for anchor, heading, body in shown
    ]
    body = tag(
        "body",
        tag("a", "Skip to the report", class_="skip", href="#report"),
        tag("header", *_header(report, [(anchor, heading) for anchor, heading, _ in shown]), class_="top"),
        tag("main", *main, id="report"),
        tag("footer", tag("p", _colophon)),
        tag("script", Html(script)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n".encode()


def check_report_target(directory: Path) -> None:
    """Check that a directory may hold a report: it holds one already, or nothing.

    Raises:
        NotALog: something else is there.
        LogFailed: it cannot be read or written.
    """
    path = directory / "report.html"
    check_target(directory, _leftovers, has_marker=path.is_file() and _colophon.encode() in path.read_bytes())


def _asset(name: str) -> str:
    return (files("runstate.pipeline") / name).read_text("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


_colophon = (
    "Made by Runstate from the logs alone. Durations and waits are measured with the clocks of those who wrote the "
    "events; where these go backwards, nothing is measured. Hours are those in which the logs stored the events. "
    "p95 is the duration that 95 of 100 attempts do not exceed."
)

# --- sections --------------------------------------------------------------------------------------------------------


def _header(report: Report, anchors: Sequence[tuple[str, str]]) -> list[Html]:
    sources = [joined(" · " if n else "", tag("code", shown_url(url))) for n, url in enumerate(report.generated_from)]
    totals = report.totals
    links = [tag("li", tag("a", heading, href=f"#{anchor}")) for anchor, heading in anchors]
    between = f"Events from {moment(totals.first_event_at)} to {moment(totals.last_event_at)}"
    period = f"{between}, read as of {moment(report.as_of)}." if totals.events else "The logs hold no events."
    return [
        tag("h1", report.title),
        tag("p", period, class_="muted"),
        tag("p", "From ", *sources, class_="sources muted") if sources else Html(""),
        tag("dl", *_tiles(report), class_="tiles"),
        tag("nav", tag("ul", *links), aria_label="Sections"),
    ]


def _tiles(report: Report) -> list[Html]:
    totals, statuses = report.totals, report.totals.streams_by_status
    streams = sum(number for _, number in statuses)
    failed = sum(number for status, number in statuses if _status_class(status) == "bad")
    costs = [row.cost for row in report.calls if row.cost is not None]
    found = None if report.findings is None else sum(row.count for row in report.findings)
    attempts, failures = sum(row.count for row in report.steps), sum(row.failed for row in report.steps)
    calls = sum(row.count for row in report.calls)
    facts = [
        ("Runs", count(totals.runs), ""),
        ("Failed runs", count(failed), f"{share(failed / streams)} of all" if streams else ""),
        ("Step attempts", count(attempts), f"{share(failures / attempts)} failed" if attempts else ""),
        ("Events", count(totals.events), ""),
        ("Model cost", money(sum(costs)) if costs else missing, f"{count(calls)} calls" if calls else ""),
        ("Findings", count(found), "no audit was made" if found is None else ""),
        (
            "Quarantined",
            count(report.quarantine.count),
            "lines that could not be read" if report.quarantine.count else "",
        ),
    ]
    return [
        tag("div", tag("dt", name), tag("dd", value, tag("small", note) if note else Html("")))
        for name, value, note in facts
    ]


def _health(report: Report) -> Html:
    statuses = report.totals.streams_by_status
    highest = max((number for _, number in statuses), default=0) or 1
    total = sum(number for _, number in statuses) or 1
    rows = [
        charts.Bar(status or "(none)", [(_status_class(status), n / highest)], f"{count(n)} · {share(n / total)}")
        for status, n in statuses
    ]
    left = (
        charts.bars("Runs by status", "", rows)
        if rows
        else tag("div", tag("h3", "Runs by status"), _nothing("No runs were found."))
    )
    quarantine = report.quarantine
    reasons = [("Reason", _named(0)), ("Lines", _counted(1))]
    right = (
        _table(f"{count(quarantine.count)} lines could not be read and were set aside", reasons, quarantine.by_reason)
        if quarantine.count
        else tag("p", "Every line could be read; nothing was set aside.", class_="clean muted")
    )
    quarantined = tag("div", tag("h3", "Quarantine"), right)
    return joined(tag("div", left, quarantined, class_="pair"), tag("h3", "Findings of the audit"), _findings(report))


def _findings(report: Report) -> Html:
    if report.findings is None:
        return _nothing("No audit was made.")
    if not report.findings:
        return tag("p", "The audit found nothing amiss.", class_="clean muted")
    columns = [
        ("Severity", lambda row: (tag("span", row.severity, class_=f"badge {_severity_class(row.severity)}"), None)),
        ("Code", lambda row: (tag("code", row.code), None)),
        ("Count", _counted("count")),
        ("For example", _named("stream")),
        ("What it means", _named("message")),
    ]
    return _table("What was found, by code", columns, report.findings)


def _throughput(report: Report) -> Html:
    hours = report.throughput
    if not hours:
        return _nothing("No events were stored.")
    events = [charts.Hour(row.hour, [row.events]) for row in hours]
    runs = [charts.Hour(row.hour, [row.runs_finished, row.runs_failed]) for row in hours]
    columns = [
        ("Hour (UTC)", lambda row: (moment(row.hour), None)),
        ("Events", _counted("events")),
        ("Runs finished", _counted("runs_finished")),
        ("Runs failed", _counted("runs_failed")),
    ]
    # The newest hours are those that somebody asks for, should there be too many.
    table = _table("By hour, the newest first", columns, hours[::-1])
    return joined(
        charts.timeline("Events stored", "Times are UTC.", events, [("accent", "events")]),
        charts.timeline("Runs ended", "Times are UTC.", runs, [("good", "finished"), ("bad", "failed")]),
        tag("details", tag("summary", "Throughput as a table"), table),
    )


def _steps(report: Report) -> Html:
    steps = report.steps
    if not steps:
        return _nothing("No steps were recorded.")
    slow = sorted((row for row in steps if row.p50_ms is not None), key=lambda row: -(row.p95_ms or 0))
    troubled = [row for row in steps if row.failed or row.retried]
    troubled.sort(key=lambda row: -max(row.failure_rate or 0, row.retry_rate or 0))
    widest = max((max(row.failure_rate or 0, row.retry_rate or 0) for row in troubled), default=0) or 1
    trouble = [
        charts.Bar(
            row.name,
            [("bad", (row.failure_rate or 0) / widest), ("warn", (row.retry_rate or 0) / widest)],
            f"{share(row.failure_rate)} · {share(row.retry_rate)}",
        )
        for row in troubled
    ]
    legend = [("bad", "failed"), ("warn", "retried")]
    durations = [(row.name, [row.p50_ms, row.p95_ms, row.p99_ms]) for row in slow]
    columns = [
        ("Step", _named("name")),
        ("Attempts", _counted("count")),
        ("Failed", _counted("failed")),
        ("Fail rate", _rated("failure_rate")),
        ("Retried", _counted("retried")),
        ("Retry rate", _rated("retry_rate")),
        *((name, _timed(field)) for name, field in (("p50", "p50_ms"), ("p95", "p95_ms"), ("p99", "p99_ms"))),
        ("Wait p50", _timed("wait_p50_ms")),
        ("Wait p95", _timed("wait_p95_ms")),
    ]
    return joined(
        charts.ranges("Duration by step", "Slowest p95 first, on a logarithmic scale.", durations),
        charts.bars("Failures and retries by step", "Share of attempts.", trouble, legend)
        if trouble
        else tag("p", "No attempt failed, and none was a retry.", class_="clean muted"),
        _table("All steps", columns, steps),
    )


def _attention(report: Report) -> Html:
    slow = [("Run", _named("stream")), ("Step", _named("name")), ("Attempt", _counted("attempt"))]
    retried = [("Run", _named("stream")), ("Step", _named("name")), ("Attempts", _counted("attempts"))]
    slowest = _table("Slowest attempts", [*slow, ("Duration", _timed("duration_ms"))], report.slowest)
    most = _table("Most retried steps", [*retried, ("Failed", _counted("failed"))], report.most_retried)
    return tag(
        "div",
        tag("div", slowest if report.slowest else _nothing("No attempt has ended yet.")),
        tag("div", most if report.most_retried else _nothing("No step was tried more than once.")),
        class_="pair",
    )


def _calls(report: Report) -> Html:
    if not report.calls:
        return _nothing("No calls of models were recorded.")
    priced = [row for row in report.calls if row.cost is not None]
    priced.sort(key=lambda row: -(row.cost or 0))
    highest = max((row.cost or 0 for row in priced), default=0) or 1
    rows = [charts.Bar(row.model, [("accent", (row.cost or 0) / highest)], money(row.cost)) for row in priced]
    columns = [
        ("Model", _named("model")),
        ("Calls", _counted("count")),
        ("Failed", _counted("failed")),
        ("Tokens in", _counted("tokens_in")),
        ("Tokens out", _counted("tokens_out")),
        ("Cost", _priced("cost")),
        ("p50", _timed("p50_ms")),
        ("p95", _timed("p95_ms")),
    ]
    note = "In the currency that the events are in."
    chart = charts.bars("Cost by model", note, rows) if rows else _nothing("No call says what it cost.")
    return joined(chart, _table("All models", columns, report.calls))


def _tenants(report: Report) -> Html:
    if not report.tenants:
        return _nothing("The events name no tenants.")
    columns = [
        ("Tenant", _named("tenant")),
        ("Runs", _counted("runs")),
        ("Failed runs", _counted("failed")),
        ("Events", _counted("events")),
        ("Cost of calls", _priced("cost")),
    ]
    return _table("All tenants", columns, report.tenants)


_sections: list[tuple[str, str, Callable[[Report], Html]]] = [
    ("health", "Health", _health),
    ("throughput", "Throughput", _throughput),
    ("steps", "Steps", _steps),
    ("attention", "Slowest and most retried", _attention),
    ("calls", "Model calls", _calls),
    ("tenants", "Tenants", _tenants),
]

# --- tables ----------------------------------------------------------------------------------------------------------

Cell = Callable[[Any], tuple[str, float | None]]
"""From a row to what is shown, and for a number what it is sorted by."""


class _Number(msgspec.Struct, frozen=True):
    """A column of numbers."""

    field: str | int
    words: Callable[[float | None], str]

    def __call__(self, row: Any) -> tuple[str, float | None]:
        value = row[self.field] if isinstance(self.field, int) else getattr(row, self.field)
        return self.words(value), value


def _counted(field: str | int) -> _Number:
    return _Number(field, count)


def _rated(field: str) -> _Number:
    return _Number(field, share)


def _timed(field: str) -> _Number:
    return _Number(field, duration)


def _priced(field: str) -> _Number:
    return _Number(field, money)


def _named(field: str | int) -> Cell:
    return lambda row: (identity(row[field] if isinstance(field, int) else getattr(row, field)), None)


def _table(caption: str, columns: Sequence[tuple[str, Any]], rows: Sequence[Any]) -> Html:
    if len(rows) > table_rows_max:
        caption = f"{caption}: the first {count(table_rows_max)} of {count(len(rows))}"
    numeric = [isinstance(cell, _Number) for _, cell in columns]
    heads = [
        tag("th", heading, scope="col", class_="num" if of_numbers else None)
        for (heading, _), of_numbers in zip(columns, numeric, strict=True)
    ]
    lines = [tag("tr", *_cells(columns, numeric, row)) for row in rows[:table_rows_max]]
    table = tag(
        "table", tag("caption", caption), tag("thead", tag("tr", *heads)), tag("tbody", *lines), class_="sortable"
    )
    # Focusable, so that a keyboard can scroll what does not fit.
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _cells(columns: Sequence[tuple[str, Any]], numeric: Sequence[bool], row: Any) -> list[Html]:
    cells = []
    for place, ((_, cell), of_numbers) in enumerate(zip(columns, numeric, strict=True)):
        words, value = cell(row)
        css = ("num" if value else "num none") if of_numbers else "long"
        exact = None if value is None or not math.isfinite(value) else repr(float(value))
        if place == 0:
            cells.append(tag("th", words, scope="row", class_=css))
        else:
            cells.append(tag("td", words, class_=css, data_value=exact))
    return cells


def _nothing(words: str) -> Html:
    return tag("p", words, class_="muted")


# --- words and colours -----------------------------------------------------------------------------------------------

_status_classes = {
    "good": {"COMPLETED", "FINISHED", "SUCCESS", "SUCCEEDED", "DONE"},
    "bad": {"FAILED", "ERROR", "DAMAGED"},
    "accent": {"RUNNING", "STARTED"},
    "warn": {"PAUSED", "STALE", "INCONSISTENT"},
    "idle": {"PENDING", "QUEUED", "APPROVED", "CREATED", "CANCELLED", "SKIPPED", ""},
}


def _status_class(status: str) -> str:
    return next((css for css, names in _status_classes.items() if status.upper() in names), "other")


def _severity_class(severity: str) -> str:
    if severity.lower() in ("p1", "error", "blocker", "critical", "damage"):
        return "bad"
    return "warn" if severity.lower() in ("p2", "warn", "warning") else "idle"
