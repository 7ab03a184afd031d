"""A fleet report as one HTML page that needs nothing else: no host, no file, no font.

The same report always gives the same bytes. Ids and messages come from outside and are shown as the text that they are;
the page's own policy forbids every script and style but the two that it carries.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from runstate.errors import shown_url
from runstate.pipeline.report import page_charts as charts
from runstate.pipeline.report import page_clocks as clocks
from runstate.pipeline.report import page_runs as runs
from runstate.pipeline.report.page_markup import Html, count, joined, missing, money, share, tag
from runstate.pipeline.report.page_report import Report
from runstate.pipeline.report.page_tables import counted, named, nothing, priced, rated, table, timed
from runstate.storage.disk import TEMP
from runstate.storage.target_directory import check_target

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
        tag("header", *_header(report), class_="top"),
        _bar(report, [(anchor, heading) for anchor, heading, _ in shown]),
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
    check_target(directory, _leftovers, has_marker=path.is_file() and _marker.encode() in path.read_bytes())


def _asset(name: str) -> str:
    return (files("runstate.pipeline.report") / name).read_text("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


_marker = "Made by Runstate from the logs alone."
"""Tells our reports from other files, also those of other versions."""
_colophon = (
    f"{_marker} Durations and waits are measured with the clocks of those who wrote the "
    "events, or that of the log where these say nothing; where they go backwards, nothing is measured. "
    "p95 is the duration that 95 of 100 attempts do not exceed."
)

# --- sections --------------------------------------------------------------------------------------------------------


def _header(report: Report) -> list[Html]:
    sources = [joined(" · " if n else "", tag("code", shown_url(url))) for n, url in enumerate(report.generated_from)]
    return [
        tag("h1", report.title),
        clocks.period(report),
        tag("p", "From ", *sources, class_="sources muted") if sources else Html(""),
        tag("dl", *_tiles(report), class_="tiles"),
    ]


def _bar(report: Report, anchors: Sequence[tuple[str, str]]) -> Html:
    """Where to go, and by which clock: it stays in sight."""
    links = [tag("li", tag("a", heading, href=f"#{anchor}")) for anchor, heading in anchors]
    inside = [tag("nav", tag("ul", *links), aria_label="Sections"), clocks.switch(report)]
    return tag("div", tag("div", *inside), class_="bar")


def _tiles(report: Report) -> list[Html]:
    totals, failed = report.totals, runs.failed_runs(report)
    costs = [row.cost for row in report.calls if row.cost is not None]
    found = None if report.findings is None else sum(row.count for row in report.findings)
    attempts, failures = sum(row.count for row in report.steps), sum(row.failed for row in report.steps)
    calls = sum(row.count for row in report.calls)
    facts = [
        ("Runs", count(totals.runs), ""),
        ("Failed runs", count(failed), f"{share(failed / totals.runs)} of all" if totals.runs else ""),
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
    quarantine = report.quarantine
    reasons = [("Reason", named(0)), ("Lines", counted(1))]
    right = (
        table(f"{count(quarantine.count)} lines could not be read and were set aside", reasons, quarantine.by_reason)
        if quarantine.count
        else tag("p", "Every line could be read; nothing was set aside.", class_="clean muted")
    )
    quarantined = tag("div", tag("h3", "Quarantine"), right)
    pair = tag("div", runs.by_status(report), quarantined, class_="pair")
    return joined(pair, tag("h3", "Findings of the audit"), _findings(report))


def _findings(report: Report) -> Html:
    if report.findings is None:
        return nothing("No audit was made.")
    if not report.findings:
        return tag("p", "The audit found nothing amiss.", class_="clean muted")
    columns = [
        ("Severity", lambda row: (tag("span", row.severity, class_=f"badge {_severity_class(row.severity)}"), None)),
        ("Code", lambda row: (tag("code", row.code), None)),
        ("Count", counted("count")),
        ("For example", named("stream")),
        ("What it means", named("message")),
    ]
    return table("What was found, by code", columns, report.findings)


def _steps(report: Report) -> Html:
    steps = report.steps
    if not steps:
        return nothing("No steps were recorded.")
    slow = sorted((row for row in steps if row.p50_ms is not None), key=lambda row: -(row.p95_ms or 0))
    troubled = [row for row in steps if row.failed or row.retried]
    troubled.sort(key=lambda row: -max(row.failure_rate or 0, row.retry_rate or 0))
    trouble = [
        charts.Bar(
            row.name,
            [("bad", row.failure_rate), ("warn", row.retry_rate)],
            f"{share(row.failure_rate)} · {share(row.retry_rate)}",
        )
        for row in troubled
    ]
    legend = [("bad", "failed"), ("warn", "retried")]
    shares = "Failed: of the attempts that have ended. Retried: of all attempts."
    durations = [(row.name, [row.p50_ms, row.p95_ms, row.p99_ms]) for row in slow]
    columns = [
        ("Step", named("name")),
        ("Attempts", counted("count")),
        ("Failed", counted("failed")),
        ("Fail rate", rated("failure_rate")),
        ("Retried", counted("retried")),
        ("Retry rate", rated("retry_rate")),
        *((name, timed(field)) for name, field in (("p50", "p50_ms"), ("p95", "p95_ms"), ("p99", "p99_ms"))),
        ("Wait p50", timed("wait_p50_ms")),
        ("Wait p95", timed("wait_p95_ms")),
    ]
    return joined(
        charts.ranges("Duration by step", "Slowest p95 first, on a logarithmic scale.", durations),
        charts.bars("Failures and retries by step", shares, trouble, charts.shares, legend)
        if trouble
        else tag("p", "No attempt failed, and none was a retry.", class_="clean muted"),
        table("All steps", columns, steps),
    )


def _attention(report: Report) -> Html:
    slow = [("Run", named("stream")), ("Step", named("name")), ("Attempt", counted("attempt"))]
    retried = [("Run", named("stream")), ("Step", named("name")), ("Attempts", counted("attempts"))]
    slowest = table("Slowest attempts", [*slow, ("Duration", timed("duration_ms"))], report.slowest)
    most = table("Most retried steps", [*retried, ("Failed", counted("failed"))], report.most_retried)
    return tag(
        "div",
        tag("div", slowest if report.slowest else nothing("No attempt has ended yet.")),
        tag("div", most if report.most_retried else nothing("No step was tried more than once.")),
        class_="pair",
    )


def _calls(report: Report) -> Html:
    if not report.calls:
        return nothing("No calls of models were recorded.")
    with_cost = [row for row in report.calls if row.cost is not None]
    with_cost.sort(key=lambda row: -(row.cost or 0))
    rows = [charts.Bar(row.model, [("accent", row.cost)], money(row.cost)) for row in with_cost]
    columns = [
        ("Model", named("model")),
        ("Calls", counted("count")),
        ("Failed", counted("failed")),
        ("Tokens in", counted("tokens_in")),
        ("Tokens out", counted("tokens_out")),
        ("Cost", priced("cost")),
        ("p50", timed("p50_ms")),
        ("p95", timed("p95_ms")),
    ]
    note = "In the currency that the events are in."
    chart = charts.bars("Cost by model", note, rows, charts.amounts) if rows else nothing("No call says what it cost.")
    return joined(chart, table("All models", columns, report.calls))


def _tenants(report: Report) -> Html:
    if not report.tenants:
        return nothing("The events name no tenants.")
    columns = [
        ("Tenant", named("tenant")),
        ("Runs", counted("runs")),
        ("Failed runs", counted("failed")),
        ("Events", counted("events")),
        ("Cost of calls", priced("cost")),
    ]
    return table("All tenants", columns, report.tenants)


_sections: list[tuple[str, str, Callable[[Report], Html]]] = [
    ("health", "Health", _health),
    ("throughput", "Throughput", clocks.throughput),
    ("steps", "Steps", _steps),
    ("runs", "Runs", runs.listed),
    ("attention", "Slowest and most retried", _attention),
    ("calls", "Model calls", _calls),
    ("tenants", "Tenants", _tenants),
]

# --- colours ---------------------------------------------------------------------------------------------------------


def _severity_class(severity: str) -> str:
    if severity.lower() in ("p1", "error", "blocker", "critical", "damage"):
        return "bad"
    return "warn" if severity.lower() in ("p2", "warn", "warning") else "idle"
