"""The report in a real Chromium: at every width, by both clocks, filtered and sorted, inert whatever ids are in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.chromium import Browser, program

from runstate.pipeline.report.page import render
from runstate.pipeline.report.page_report import (
    BinRow,
    CallRow,
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
)
from runstate.pipeline.report.time_bins import time_text

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(program is None, reason="apt-get install chromium"),
]

hostile = "<img src=x onerror='document.title=1'><script>document.title=2</script>"
long = "a-very-long-name-" + "x" * 183
_midnight = 1_794_700_800_000


def _report(number: int = 40) -> Report:
    """Something in every section, with texts as long as the page takes them."""
    runs = []
    for n in range(number):
        emitted, persisted = _midnight - n * 86_400_000, _midnight + n * 1000
        at = [time_text(ms) for ms in (emitted, emitted + 60_000 * (n + 1), persisted, persisted + 500)]
        group, status = ("failed", "FAILED") if n % 10 == 0 else ("completed", "complete_with_gaps")
        runs.append(RunRow(f"run-{n:03}", "engine", "acme", status, group, n, *at))  # type: ignore[arg-type]
    runs[1].stream, runs[2].stream, runs[2].tenant = hostile, long, long
    years = [BinRow(time_text(_midnight - n * 30 * 86_400_000), 1000 * n, n, 1) for n in range(45)]
    seconds = [BinRow(time_text(_midnight + n * 10_000), 10, 1, 0) for n in range(31)]
    return Report(
        title="Fleet",
        generated_from=["sqlite:shop.db", f"postgresql://db.example/{long}"],
        as_of=time_text(_midnight),
        totals=Totals(
            12_345,
            1_234_567,
            [StatusRow("completed", "engine", long, 12_000), StatusRow("failed", long, "FAILED", 345)],
        ),
        throughput=[Throughput("emitted", 30 * 86_400_000, years), Throughput("persisted", 10_000, seconds)],
        runs=runs,
        steps=[
            StepRow(name, 120_000, 12, 6, 0.01, 0.005, 45.0, 830.0, 12_400.0, 2.0, 64_000.0)
            for name in ("load", long, hostile)
        ],
        slowest=[SlowRow(long, long, 2, 7_500_000.0)],
        most_retried=[RetriedRow(long, hostile, 5, 4)],
        calls=[CallRow(long, 1_000_000, 2, 2**53, 2**53, 123_456_789.5, 300.0, 900.0), CallRow("m", 1, cost=1e300)],
        tenants=[TenantRow(long, 3000, 1000, 4_000_000, 0.25)],
        findings=[FindingRow("damage", "log.damaged", 2, long, f"The event was changed: {long}")],
        quarantine=Quarantine(2, [(long, 2)]),
    )


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("page") / "report.html"
    made.write_bytes(render(_report()))
    return made


cut_off = """
[...document.querySelectorAll("body *")].filter((element) => {
  const box = element.getBoundingClientRect();
  const clips = getComputedStyle(element).overflowX !== "visible" && element.scrollWidth > element.clientWidth + 1;
  return box.width > 0 && !element.matches(".skip") && (clips || box.right > innerWidth + 0.5 || box.left < -0.5);
}).map((element) => element.outerHTML.slice(0, 120))
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 400, 800, 1400])
@pytest.mark.parametrize("clock", ["emitted", "persisted"])
def test_nothing_is_cut_off(browser: Browser, page: Path, width: int, scheme: str, clock: str) -> None:
    browser.open(page, width, scheme=scheme)
    browser.click(f"#clock-{clock}")
    browser.run("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(cut_off) == []


_overlaps = """
[...document.querySelectorAll("svg")].flatMap((svg) => {
  const boxes = [...svg.querySelectorAll("text")].map((text) => text.getBoundingClientRect());
  const texts = boxes.filter((box) => box.width);
  return texts.filter((one, n) => texts.some((other, m) => m > n && one.left < other.right && other.left < one.right
    && one.top < other.bottom && other.top < one.bottom)).map(() => svg.textContent);
})
"""


@pytest.mark.parametrize("width", [400, 800, 1400])
@pytest.mark.parametrize("clock", ["emitted", "persisted"])
def test_labels_of_an_axis_do_not_overlap(browser: Browser, page: Path, width: int, clock: str) -> None:
    browser.open(page, width)
    browser.click(f"#clock-{clock}")
    assert browser.run(_overlaps) == []


def _shown(browser: Browser, elements: str, value: str) -> list[str]:
    """What is to be seen of those elements."""
    found: list[str] = browser.run(f"[...{elements}].filter((each) => each.offsetParent).map((each) => each.{value})")
    return found


def _shown_runs(browser: Browser) -> list[str]:
    return _shown(browser, "document.querySelectorAll('#runs tbody tr')", "cells[0].innerText")


def test_the_filter_box_keeps_the_runs_that_have_every_word(browser: Browser, page: Path) -> None:
    browser.open(page, 1400)
    assert len(_shown_runs(browser)) == 40
    browser.click(".filter input")
    browser.write("FAILED run-03")
    assert _shown_runs(browser) == ["run-030"]
    assert browser.run("document.querySelector('.filter output').innerText") == "1 of 40 runs"


def test_an_id_that_is_markup_can_be_filtered_for_and_is_text(browser: Browser, page: Path) -> None:
    browser.open(page, 400)
    browser.click(".filter input")
    browser.write("<script>")
    assert _shown_runs(browser) == [hostile]
    assert browser.run("document.title") == "Fleet"


def test_a_filter_that_nothing_fits_says_so(browser: Browser, page: Path) -> None:
    browser.open(page, 800)
    browser.click(".filter input")
    browser.write("nowhere")
    assert _shown_runs(browser) == []
    assert browser.run("document.querySelector('.filter output').innerText") == "0 of 40 runs"


def _charts(browser: Browser) -> list[str]:
    return _shown(browser, "document.querySelectorAll('#throughput figure')", "ariaLabel")


def test_the_reader_chooses_the_clock(browser: Browser, page: Path) -> None:
    browser.open(page, 1400)
    assert _charts(browser) == ["Events emitted", "Runs ended"]
    cells = "document.querySelectorAll('#runs tbody tr')[5].cells"
    assert _shown(browser, cells, "innerText")[2:4] == ["2026-11-10 00:00:00 UTC", "6 min"]
    browser.click("#clock-persisted")
    assert _charts(browser) == ["Events persisted", "Runs ended"]
    assert _shown(browser, cells, "innerText")[2:4] == ["2026-11-15 00:00:05 UTC", "500 ms"]


@pytest.mark.parametrize("width", [400, 1400])
def test_a_heading_sorts_by_the_clock_that_is_chosen(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width)
    browser.click("#runs th.on-emitted button")  # Start: the newest first
    newest = _shown_runs(browser)[0]
    browser.click("#runs th.on-emitted button")
    assert (newest, _shown_runs(browser)[0]) == ("run-000", "run-039")


def test_the_page_asks_for_nothing_and_its_policy_stops_nothing_of_its_own(browser: Browser, page: Path) -> None:
    browser.open(page, 1400)
    browser.click("#clock-persisted")
    assert browser.requests == [page.as_uri()]
