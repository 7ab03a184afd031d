"""The report's page: inert whatever ids are in it, complete in itself, the same bytes every time, and readable."""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runstate.errors import NotALog, shown_url
from runstate.pipeline.report.page import check_report_target, render
from runstate.pipeline.report.page_charts import rows_max
from runstate.pipeline.report.page_markup import count, duration, missing, moment, money, share
from runstate.pipeline.report.page_report import (
    BinRow,
    CallRow,
    Clock,
    FindingRow,
    Quarantine,
    Report,
    RetriedRow,
    RunRow,
    SlowRow,
    StatusRow,
    StepRow,
    TenantRow,
    Throughput,
    Totals,
    clocks,
    runs_max,
)
from runstate.pipeline.report.page_tables import rows_max as table_rows_max
from runstate.pipeline.report.time_bins import bins_max, time_text

void = {"meta", "input"}


class Page(HTMLParser):
    """A page taken apart: its elements in order, and whether each ends where it should."""

    def __init__(self, page: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.parts: dict[str, str] = {}
        self.policy = ""
        self._open: list[str] = []
        self.feed(page.decode())
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        given = dict(attrs)
        self.links += [given[name] or "" for name in ("href", "src", "action", "xlink:href", "srcset") if name in given]
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""
        if tag not in void:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside in ("style", "script"):
            self.parts[inside] = data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def full(text: str = "run-1", hour: str = "2026-11-15T09:00:00Z") -> Report:
    """A report with something in every section, and the same text wherever one comes from outside."""
    bins = [BinRow(hour, 1000, 3, 1), BinRow("2026-11-15T12:00:00Z", 3000, 2, 0), BinRow(text, 1)]
    return Report(
        title=text,
        generated_from=[text],
        as_of=text,
        totals=Totals(3, 4000, [StatusRow("unknown", text, text, 2), StatusRow("failed", "engine", "FAILED", 1)]),
        steps=[
            StepRow(text, 1200, 12, 6, 0.01, 0.005, 45.0, 830.0, 12_400.0, 2.0, 64_000.0),
            StepRow("quick", 3),
        ],
        throughput=[Throughput(clock, 3_600_000, bins, text, "2026-11-15T09:30:00.123Z") for clock in clocks],
        runs=[RunRow(text, text, text, text, "unknown", 4000, text, text, text, text)],
        slowest=[SlowRow(text, text, 2, 7_500_000.0)],
        most_retried=[RetriedRow(text, text, 5, 4)],
        calls=[CallRow(text, 1_000_000, 2, 123_456_789, None, 1234.5, 300.0, 900.0), CallRow("free", 1)],
        tenants=[TenantRow(text, 3, 1, 4000, 0.25)],
        findings=[FindingRow(text, text, 2, text, text)],
        quarantine=Quarantine(2, [(text, 2)]),
    )


def test_a_run_that_is_called_like_a_script_is_text() -> None:
    page = render(full("<script>alert(1)</script>"))
    assert b"<script>alert" not in page
    assert "<script>alert(1)</script>" in Page(page).text


plain_elements = Page(render(full())).elements


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.text(min_size=1, max_size=40),
        st.text(alphabet="<>\"'&/=-! \n\x00\u202e\ud800;#script", min_size=1, max_size=40),
        st.sampled_from(["</script><img src=x onerror=alert(1)>", '" onload="alert(1)', "<!--", "]]>", "x" * 5000]),
    )
)
def test_no_text_changes_what_the_page_is_made_of(text: str) -> None:
    assert Page(render(full(text))).elements == plain_elements


def test_text_that_turns_lines_around_is_made_visible() -> None:
    page = render(full("a\u202eb\x00c"))
    assert b"a\\u202eb\\u0000c" in page
    assert "\u202e" not in page.decode()


def test_the_same_report_gives_the_same_bytes_in_every_process() -> None:
    script = "import sys, msgspec; from runstate.pipeline.report.page import render;"
    script += "from runstate.pipeline.report.page_report import *;"
    script += "sys.stdout.buffer.write(render(msgspec.json.decode(sys.stdin.buffer.read(), type=Report)))"
    pages = {
        subprocess.run(
            [sys.executable, "-c", script],
            input=msgspec.json.encode(full()),
            env=os.environ | {"PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": "C"},
            capture_output=True,
            check=True,
        ).stdout
        for seed, zone in (("1", "UTC"), ("2", "Asia/Tokyo"))
    }
    assert pages == {render(full())}


def test_the_page_needs_nothing_but_itself() -> None:
    page = Page(render(full("postgresql://db.example/runs")))
    assert page.links
    assert all(re.fullmatch(r"#[a-z]+", link) for link in page.links)
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & {name for name, _ in page.elements}
    assert not re.search(r"url\(|@import|//|fetch\(|import\(", page.parts["style"])
    assert not re.search(r"https?:|fetch\(|import\(|XMLHttp|WebSocket|innerHTML", page.parts["script"])
    assert not re.search(rb"https?://", render(full()))


def test_the_policy_allows_the_two_parts_that_the_page_carries_and_nothing_else() -> None:
    page = Page(render(full()))
    rules = dict(rule.strip().split(" ", 1) for rule in page.policy.split(";"))
    for part in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(page.parts[part].encode()).digest()).decode()
        assert rules.pop(f"{part}-src") == f"'sha256-{digest}'"
    assert rules == {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'"}
    # The policy would drop these without a word.
    assert not any(name == "style" or name.startswith("on") for _, names in page.elements for name in names)


def test_an_empty_fleet_says_so() -> None:
    text = Page(render(Report())).text
    for words in (
        "The logs hold no events.",
        "No runs were found.",
        "Every line could be read",
        "The audit found nothing amiss.",
        "No events were stored.",
        "No steps were recorded.",
        "No attempt has ended yet.",
        "No step was tried more than once.",
        "No calls of models were recorded.",
        "The events name no tenants.",
    ):
        assert words in text


def test_no_audit_is_not_an_audit_that_found_nothing() -> None:
    text = Page(render(Report(findings=None))).text
    assert "No audit was made." in text
    assert "nothing amiss" not in text


def test_steps_without_trouble_say_so() -> None:
    assert "No attempt failed" in Page(render(Report(steps=[StepRow("load", 3, p50_ms=1.0)]))).text


def test_headings_tables_and_charts_can_be_heard() -> None:
    page = render(full()).decode()
    tables = re.findall(r"<table.*?</table>", page, re.DOTALL)
    assert len(tables) == 11
    assert all("<caption>" in table and 'scope="col"' in table and 'scope="row"' in table for table in tables)
    assert re.findall(r"<h(\d)", page)[0] == "1"
    assert len(re.findall(r"<figure aria-label=", page)) == len(re.findall("<figure", page)) == 8
    hidden = len(re.findall(r'<svg[^>]*aria-hidden="true"', page)) + len(
        re.findall(r'<svg[^>]*role="img" aria-label="', page)
    )
    assert hidden == len(re.findall("<svg", page))


def test_figures_are_written_for_people() -> None:
    text = Page(render(full())).text
    for words in ("4,000", "12.4 s", "1 min 4 s", "2 h 5 min", "123,456,789", "1,234.50", "0.5%", "0.2500"):
        assert words in text


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [
        (None, missing),
        (math.nan, missing),
        (math.inf, missing),
        (0, "0 ms"),
        (0.42, "0.4 ms"),
        (830.4, "830 ms"),
        (999.7, "1 s"),
        (12_400, "12.4 s"),
        (59_970, "1 min"),
        (192_000, "3 min 12 s"),
        (3_599_900, "1 h"),
        (7_500_000, "2 h 5 min"),
        (86_400_000, "1 d"),
        (273_600_000, "3 d 4 h"),
    ],
)
def test_durations_have_the_unit_that_fits(milliseconds: float | None, words: str) -> None:
    assert duration(milliseconds) == words


def test_other_figures_read_well() -> None:
    assert [count(1234567), count(None)] == ["1,234,567", missing]
    assert [share(0), share(0.0004), share(0.0125), share(1), share(None)] == ["0%", "<0.1%", "1.2%", "100%", missing]
    assert [money(0), money(12), money(0.0125), money(0.00001)] == ["0.00", "12.00", "0.0125", "<0.0001"]
    assert moment("2026-11-15t09:30:00.123z") == "2026-11-15 09:30:00 UTC"
    assert [moment("2026-11-15T09:30:00.123Z"), moment("soon"), moment("")] == [
        "2026-11-15 09:30:00 UTC",
        "soon",
        missing,
    ]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:hunter2@db/runs", "postgresql://me@db/runs"),
        ("postgresql://me:p@ss/w:rd@db/runs", "postgresql://me@db/runs"),
        ("snowflake://acc/db?password=hunter2&role=r", "snowflake://acc/db?role=r"),
        ("dynamodb://runs?region=eu&secret_key=hunter2", "dynamodb://runs?region=eu"),
        ("ndjson:/srv/runs", "ndjson:/srv/runs"),
    ],
)
def test_a_password_is_not_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown
    assert b"hunter2" not in render(Report(generated_from=[url]))


def test_bins_without_events_leave_a_gap_and_too_many_are_put_together() -> None:
    bins = [BinRow("2026-11-15T09:00:00Z", 10), BinRow("2026-11-15T12:00:00Z", 30)]
    page = render(Report(throughput=[Throughput("emitted", 3_600_000, bins)])).decode()
    assert len(re.findall(r"<title>2026-11-15 \d\d:00:00 UTC: \d+ events</title>", page)) == 4
    bins = [BinRow("0001-01-01T00:00:00Z", 1), BinRow("9999-12-31T23:00:00Z", 2)]
    years = render(Report(throughput=[Throughput("emitted", 3_600_000, bins)])).decode()
    assert 20 <= len(re.findall(r"UTC: \d+ events</title>", years)) <= bins_max
    assert "3 events, from" in years


def test_what_does_not_fit_is_counted() -> None:
    many = [StepRow(f"step-{n}", 1, 1, 0, 1.0, 0.0, 5.0, 6.0, 7.0) for n in range(table_rows_max + 1)]
    text = Page(render(Report(steps=many))).text
    assert f"The first {rows_max} of 501" in text
    assert f"the first {table_rows_max} of 501" in text


figures = st.one_of(st.none(), st.floats(), st.integers(0, 2**53), st.sampled_from([0.0, 1e-300, 1e300]))
bins = st.builds(
    BinRow, st.one_of(st.text(max_size=12), st.datetimes().map(lambda at: f"{at.isoformat()}Z")), st.integers(0, 2**53)
)
rows = st.builds(StepRow, st.text(max_size=3), st.integers(0, 2**53), p50_ms=figures, p95_ms=figures, p99_ms=figures)


@settings(max_examples=60, deadline=None)
@given(st.lists(rows, max_size=4), st.integers(-1, 2**60), st.lists(bins, max_size=4), figures)
def test_no_figure_stops_the_page(steps: list[StepRow], width: int, found: list[BinRow], cost: float | None) -> None:
    report = Report(steps=steps, throughput=[Throughput("emitted", width, found)], calls=[CallRow("m-1", 1, cost=cost)])
    page = render(report)
    Page(page)
    assert not re.search(rb'="-?(?:nan|inf)', page)


# --- clocks ----------------------------------------------------------------------------------------------------------


def by_clock(start: dict[Clock, str], clock: Clock = "emitted") -> Report:
    found = [Throughput(each, 1000, [BinRow(at, 7)], at, at) for each, at in start.items()]
    return Report(totals=Totals(1, 7), throughput=found, clock=clock)


@pytest.mark.parametrize("clock", clocks)
def test_the_clock_of_the_report_is_the_one_that_is_checked(clock: Clock) -> None:
    page = render(by_clock({"emitted": "2019-03-01T00:00:00Z"}, clock)).decode()
    assert re.findall(r'<input type="radio"[^>]*id="clock-(\w+)"[^>]* checked>', page) == [clock]


def test_each_clock_has_charts_of_its_own_times_alone() -> None:
    page = render(by_clock({"emitted": "2019-03-01T00:00:00Z", "persisted": "2026-11-15T09:30:00Z"})).decode()
    emitted, persisted = re.findall(r'<div class="on-\w+">.*?</details></div>', page)
    assert "2019-03-01" in emitted
    assert "2026-11-15" in persisted
    assert "2026-11-15" not in emitted
    assert "2019-03-01" not in persisted


def test_events_that_a_clock_cannot_show_are_counted() -> None:
    persisted = Throughput("persisted", 1000, [BinRow("2026-11-15T09:30:00Z", 7)])
    text = Page(render(Report(throughput=[Throughput("emitted", events_without_time=7), persisted]))).text
    assert "7 events have no time emitted and cannot be shown by this clock: choose the other one." in text


def test_the_style_hides_what_is_by_the_other_clock() -> None:
    style = Page(render(Report())).parts["style"]
    for chosen, other in (clocks, clocks[::-1]):
        assert f"body:has(#clock-{chosen}:checked) .on-{other}" in style


# --- axes ------------------------------------------------------------------------------------------------------------


def axis_of(page: str, title: str) -> list[str]:
    (figure,) = re.findall(rf'<figure aria-label="{title}">.*?</figure>', page, re.DOTALL)
    (axis,) = re.findall(r'<svg class="axis".*?</svg>', figure)
    (unit,) = re.findall(r'<span class="unit">(.*?)</span>', figure)
    return [*re.findall(r">([^<]+)</text>", axis), unit]


def test_shares_counts_and_costs_have_an_axis_with_a_unit() -> None:
    steps = [StepRow("load", 100, 8, 2, failure_rate=0.08, retry_rate=0.02)]
    report = Report(steps=steps, totals=Totals(30, 9, [StatusRow("failed", "engine", "FAILED", 30)]))
    page = render(msgspec.structs.replace(report, calls=[CallRow("m-1", 1, cost=1200.0)])).decode()
    assert axis_of(page, "Failures and retries by step") == ["0%", "2%", "4%", "6%", "8%", "share of attempts"]
    assert axis_of(page, "Runs by status") == ["0", "10", "20", "30", "runs"]
    assert axis_of(page, "Cost by model") == ["0", "500", "1k", "1.5k", "cost"]


def test_a_bar_is_as_long_as_the_axis_says() -> None:
    report = Report(steps=[StepRow("load", 100, 5, 0, failure_rate=0.05, retry_rate=0.0)])
    page = render(report).decode()
    assert axis_of(page, "Failures and retries by step")[-2] == "5%"
    assert '<rect class="bad" y="0" width="100.00%"' in page


def test_an_axis_of_shares_ends_at_all_of_them() -> None:
    report = Report(steps=[StepRow("load", 100, 100, 0, failure_rate=1.0, retry_rate=0.3)])
    assert axis_of(render(report).decode(), "Failures and retries by step")[-2] == "100%"


# --- runs ------------------------------------------------------------------------------------------------------------


def test_statuses_that_mean_the_same_are_one_bar() -> None:
    rows = [
        StatusRow("completed", "engine", "COMPLETED", 6),
        StatusRow("completed", "session", "complete_with_gaps", 2),
        StatusRow("failed", "door", "jammed", 2),
    ]
    page = render(Report(totals=Totals(10, 99, rows)))
    text = Page(page).text
    assert "completed 8 · 80% failed 2 · 20%" in text
    assert "Failed runs 2 20% of all" in text
    assert "complete_with_gaps" in text
    assert "jammed" in text


def runs(number: int) -> list[RunRow]:
    at = [time_text(1_780_000_000_000 + ms) for ms in (0, 90_000, 5000, 6000)]
    return [RunRow(f"run-{n}", "engine", "acme", "COMPLETED", "completed", 12, *at) for n in range(number)]


def test_a_run_has_its_status_start_duration_and_events() -> None:
    text = Page(render(Report(totals=Totals(1, 12), runs=runs(1)))).text
    assert "run-0 completed 2026-05-28 20:26:40 UTC 1 min 30 s 2026-05-28 20:26:45 UTC 1 s 12 engine acme" in text
    assert "All runs are listed." in text


def test_runs_that_are_left_out_are_counted_and_can_be_listed() -> None:
    report = Report(generated_from=["sqlite:my fleet.db"], totals=Totals(5000, 9), runs=runs(runs_max + 1))
    page = Page(render(report))
    assert "The newest 1,000 of 5,000 runs are listed" in page.text
    assert "4,000 are left out" in page.text
    assert "runstate streams 'sqlite:my fleet.db' --sort last --reverse" in page.text
    assert page.text.count("run-") == runs_max


def test_runs_of_a_table_are_queried_with_spark() -> None:
    text = Page(render(Report(generated_from=["table:events"], totals=Totals(5000, 9), runs=runs(2)))).text
    assert "To query all of them, read the view snapshots with Spark." in text


def test_a_report_of_an_earlier_version_is_recognized(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<p>Made by Runstate from the logs alone. Hours are those in which</p>")
    check_report_target(tmp_path)
    (tmp_path / "report.html").write_text("<p>Quarterly figures</p>")
    with pytest.raises(NotALog):
        check_report_target(tmp_path)


def test_a_figure_that_no_page_is_wide_enough_for_is_short() -> None:
    assert [count(1e300), money(1e300), duration(1e300)] == ["1.00e+300", "1.00e+300", "1.16e+292 d"]
