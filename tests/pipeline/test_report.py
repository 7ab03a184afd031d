"""The report's figures against those that one process counts from the same events."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.fleets import histories, models
from tests.pipeline.fleet_logs import filled

from runstate.models.registry import find_model
from runstate.pipeline.jobs import ingest, read_view
from runstate.pipeline.report.figures import Part, report
from runstate.pipeline.report.page import render
from runstate.pipeline.report.page_report import FindingRow, Quarantine, Throughput
from runstate.pipeline.report.spans import Span, spans
from runstate.pipeline.spark.failures import PipelineFailed
from runstate.store import open as open_store


def events_in(found: Throughput) -> int:
    return sum(row.events for row in found.bins)


def local_spans(url: str, name: str) -> list[Span]:
    model, found = find_model(name), list[Span]()
    with open_store(url, name, create=False) as store:
        for head in store.log.heads():
            records = store.log.read(head.stream, limit=10_000)
            told = [(r.emitted_at, r.persisted_at, model.activities(model.decode(r.body))) for r in records]
            found += spans(head.stream, records[0].tenant, told)
    return found


@pytest.mark.parametrize("model", models())
def test_spans_are_those_of_one_process(spark: SparkSession, tmp_path: Path, model: str) -> None:
    url = filled("sqlite", model, tmp_path, runs=6)
    expected = sorted(local_spans(url, model), key=repr)
    names = Span.__struct_fields__
    rows = read_view(spark, url, "spans", model=model).collect()
    assert sorted((Span(*(row[name] for name in names)) for row in rows), key=repr) == expected
    assert expected


def test_the_figures_are_those_of_one_process(spark: SparkSession, tmp_path: Path) -> None:
    urls = {"engine": filled("sqlite", "engine", tmp_path), "rundir": filled("ndjson", "rundir", tmp_path)}
    tables = []
    for model, url in urls.items():
        ingest(spark, url, tmp_path / model, model=model)
        tables.append(Part([f"table:{tmp_path / model}"], model))
    found = report(
        spark,
        tables,
        findings=[FindingRow("damage", "log.damaged", 1, "s", "<b>")],
        quarantine=Quarantine(2, [("line.empty", 2)]),
        generated_from=list(urls.values()),
    )
    everything = [span for model, url in urls.items() for span in local_spans(url, model)]
    steps = [span for span in everything if span.kind == "step"]
    assert {row.name: row.count for row in found.steps} == Counter(span.name for span in steps)
    assert {row.name: row.failed for row in found.steps if row.failed} == Counter(
        span.name for span in steps if span.outcome == "failed"
    )
    assert {row.name: row.retried for row in found.steps if row.retried} == Counter(
        span.name for span in steps if span.attempt > 1
    )
    durations = sorted(s.duration_ms for s in steps if s.name == "extract" and s.duration_ms is not None)
    (extract,) = [row for row in found.steps if row.name == "extract"]
    assert extract.p50_ms in durations
    assert (extract.p99_ms or 0) == durations[-1]
    calls = [span for span in everything if span.kind == "call"]
    (call,) = found.calls
    assert (call.model, call.count, call.tokens_in, call.cost) == ("large", 36, 36 * 12, 18.0)
    assert len(calls) == 36
    slowest = max(span.duration_ms for span in steps if span.duration_ms is not None)
    assert found.slowest[0].duration_ms == slowest
    assert found.most_retried[0].attempts == max(span.attempt for span in steps)
    assert [events_in(each) + each.events_without_time for each in found.throughput] == [found.totals.events] * 2
    assert found.totals.events == sum(row.events for row in found.tenants)
    ended = Counter(span.outcome for span in everything if span.kind == "run")
    for each in found.throughput:
        assert sum(row.runs_finished for row in each.bins) == ended["finished"] > 0
        assert sum(row.runs_failed for row in each.bins) == ended["failed"] > 0
    assert found.totals.runs == len(found.runs) == 24
    assert sum(row.events for row in found.runs) == found.totals.events
    assert sum(row.runs for row in found.totals.statuses if row.status == "RENDERING") == 3
    completed = [row for row in found.totals.statuses if row.group == "completed"]
    assert {row.model for row in completed} == {"engine", "rundir"}
    assert sum(row.runs for row in completed) == sum(row.group == "completed" for row in found.runs)
    page = render(found)
    assert b"log.damaged" in page
    assert b"<b>" not in page


def test_a_stream_in_two_logs_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    first, second = filled("sqlite", "engine", tmp_path, runs=3), f"sqlite:{tmp_path}/second.db"
    with open_store(second, "engine", snapshot_every=0, on_alert=lambda alert: None) as store:
        for lines in (*histories("engine", runs=2).values(), *histories("engine", seed=1, runs=1).values()):
            store.append_events([store.model.parse(line) for line in lines])
    alone, both = (report(spark, [Part(urls, "engine")]) for urls in ([first], [first, second]))
    assert (alone.totals.runs, both.totals.runs) == (3, 4)
    (other,) = histories("engine", seed=1, runs=1).values()
    assert both.totals.events == alone.totals.events + len(other)
    assert {events_in(each) for each in both.throughput} == {both.totals.events}
    assert sum(row.events for row in both.tenants) == sum(row.events for row in both.runs) == both.totals.events
    expected = Counter(span.name for span in local_spans(first, "engine") if span.kind == "step")
    expected.update(s.name for s in local_spans(second, "engine") if s.kind == "step" and s.stream == "engine-1-0000")
    assert {row.name: row.count for row in both.steps} == expected


def test_an_empty_fleet_has_a_report(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/empty.db"
    open_store(url, "engine").close()
    found = report(spark, [Part([url], "engine")])
    assert (found.totals.runs, found.totals.events, found.steps) == (0, 0, [])
    assert render(found).startswith(b"<!doctype html>")


def test_a_log_that_is_not_there_is_named(spark: SparkSession) -> None:
    with pytest.raises(PipelineFailed, match=r"The stage report failed: There is no file /nowhere/x\.db"):
        report(spark, [Part(["sqlite:/nowhere/x.db"], "engine")])
