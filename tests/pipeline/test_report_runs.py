"""The report by either clock, and run by run: imported history, models of one's own, and what is read for it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.pipeline.fleet_logs import filled

from runstate import Fact
from runstate.errors import ModelFailed
from runstate.models.registry import find_model
from runstate.pipeline import jobs
from runstate.pipeline.report import figures as report_module
from runstate.pipeline.report import runs as report_runs
from runstate.pipeline.report.figures import Part, report
from runstate.pipeline.report.page_report import Report
from runstate.pipeline.report.spans_view import view as span_view
from runstate.pipeline.report.time_bins import bins_max, time_text
from runstate.pipeline.report.times import milliseconds
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.source.views import Request, Task
from runstate.pipeline.tables.table import Table
from runstate.store import open as open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

bakery = """
import msgspec
from runstate import TaggedModel
from runstate.models.activity import Activity

class Began(msgspec.Struct, tag="began", frozen=True):
    step: str = ""

class Ended(msgspec.Struct, tag="ended", frozen=True):
    step: str = ""
    ok: bool = True

class Loaf(msgspec.Struct):
    events: int = 0

class Bakery(TaggedModel[Began | Ended, Loaf]):
    name, version = "bakery", 1
    events, state = Began | Ended, Loaf

    def evolve(self, state, fact):
        if getattr(fact.event, "step", "") == "burn":
            raise ValueError("burnt")
        return Loaf(state.events + 1)

    def activities(self, fact):
        step = fact.event.step
        if isinstance(fact.event, Began):
            return [Activity(kind="started" if step else "run_started", name=step)]
        ends = ("finished", "failed") if step else ("run_finished", "run_failed")
        return [Activity(kind=ends[not fact.event.ok], name=step)]

class Counter(Bakery):
    name = "counter"

    def status(self, state):
        return "sold out" if state.events > 2 else "open"

    def status_group(self, status):
        return {"sold out": "completed", "open": "running"}[status]

class Vague(Counter):
    name = "vague"

    def status_group(self, status):
        return "splendid"

class Broken(Counter):
    name = "broken"

    def status_group(self, status):
        return {}[status]
"""


@pytest.fixture
def place(tmp_path: Path) -> str:
    (tmp_path / "bakery.py").write_text(bakery)
    return f"{tmp_path}/bakery.py:Bakery"


_start_ms = 1_550_000_000_000
"""In February 2019."""


def _bake(tmp_path: Path, place: str, runs: dict[str, list[tuple[int, str, str, bool]]]) -> Part:
    """A log of runs. An event: seconds since the start, `began` or `ended`, its step, and whether it went well."""
    url = f"sqlite:{tmp_path}/{place.rpartition(':')[2]}.db"
    module: Any = find_model(place)
    Began, Ended = module.events.__args__  # noqa: N806 - classes
    with open_store(url, place, snapshot_every=0, on_alert=lambda alert: None) as store:
        for stream, events in runs.items():
            for number, (second, kind, step, ok) in enumerate(events):
                event = Began(step) if kind == "began" else Ended(step, ok)
                at = time_text(_start_ms + second * 1000)
                store.append_event(Fact(stream, event, key=f"k{number}", tenant="acme", emitted_at=at))
    return Part([url], place)


loaf = [(0, "began", "", True), (1, "began", "mix", True), (3, "ended", "mix", True)]
burnt = [*loaf, (4, "began", "bake", True), (10, "ended", "bake", False), (11, "began", "bake", True)]
good = [*burnt, (20, "ended", "bake", True), (290, "ended", "", True)]


def test_a_model_of_one_s_own_is_in_every_part_of_the_report(spark: SparkSession, tmp_path: Path, place: str) -> None:
    runs = {"good": good, "open": burnt, "lost": [*burnt, (12, "ended", "", False)]}
    found = report(spark, [_bake(tmp_path, place, runs)])
    steps = {row.name: row for row in found.steps}
    assert (steps["mix"].count, steps["mix"].p50_ms, steps["mix"].retried) == (3, 2000.0, 0)
    assert (steps["bake"].count, steps["bake"].failed, steps["bake"].retried) == (6, 3, 3)
    assert steps["bake"].p95_ms == 9000.0
    assert {row.stream: (row.group, row.status, row.events) for row in found.runs} == {
        "good": ("completed", "finished", 8),
        "open": ("running", "running", 6),
        "lost": ("failed", "failed", 7),
    }
    (first,) = [row for row in found.runs if row.stream == "good"]
    assert (first.first_emitted_at, first.last_emitted_at) == (time_text(_start_ms), time_text(_start_ms + 290_000))
    emitted, _ = found.throughput
    assert [sum(row.runs_finished for row in emitted.bins), sum(row.runs_failed for row in emitted.bins)] == [1, 1]


def test_imported_history_is_in_order_by_either_clock(spark: SparkSession, tmp_path: Path, place: str) -> None:
    """Emitted in 2019, within five minutes, and stored now: neither is squeezed by the other."""
    steady = [(second, "began", "mix", True) for second in range(0, 300, 5)]
    found = report(spark, [_bake(tmp_path, place, {"a": steady, "b": good})])
    emitted, persisted = found.throughput
    assert (emitted.clock, emitted.bin_ms, len(emitted.bins)) == ("emitted", 5000, 60)
    assert emitted.last_event_at == time_text(_start_ms + 295_000)
    assert all(row.start.startswith("2019-02-12") for row in emitted.bins)
    assert all(row.start >= "2026" for row in persisted.bins)
    assert sum(row.runs_finished for row in persisted.bins) == 1
    assert 1 <= len(persisted.bins) <= bins_max
    assert found.as_of == persisted.last_event_at
    assert [found.clock, emitted.events_without_time, persisted.events_without_time] == ["emitted", 0, 0]


def test_events_without_a_time_of_their_producer_are_not_among_the_others(
    spark: SparkSession, tmp_path: Path, place: str
) -> None:
    """Daemons tell no time: at the log's, they would squeeze the history of the others."""
    daemon = filled("sqlite", "daemon", tmp_path, runs=3)
    found = report(spark, [_bake(tmp_path, place, {"a": good}), Part([daemon], "daemon")])
    emitted, persisted = found.throughput
    assert sum(row.events for row in emitted.bins) == len(good)
    assert all(row.start.startswith("2019-02-12") for row in emitted.bins)
    assert emitted.events_without_time == found.totals.events - len(good) > len(good)
    assert sum(row.events for row in persisted.bins) == found.totals.events
    assert found.clock == "persisted"
    assert {row.first_emitted_at for row in found.runs if row.model == "daemon"} == {None}


def test_a_model_says_what_its_statuses_mean(spark: SparkSession, tmp_path: Path, place: str) -> None:
    part = _bake(tmp_path, place.replace("Bakery", "Counter"), {"a": good, "b": good[:1]})
    found = report(spark, [part])
    assert {(row.group, row.status, row.runs) for row in found.totals.statuses} == {
        ("completed", "sold out", 1),
        ("running", "open", 1),
    }


@pytest.mark.parametrize(
    ("name", "said"),
    [("Vague", r"returns 'splendid' for 'open'; it must be one of waiting"), ("Broken", r"fails for 'open': KeyError")],
)
def test_a_model_that_does_not_say_it_is_named(
    spark: SparkSession, tmp_path: Path, place: str, name: str, said: str
) -> None:
    part = _bake(tmp_path, place.replace("Bakery", name), {"b": good[:1]})
    with pytest.raises(ModelFailed, match=said):
        report(spark, [part])


def test_a_run_that_cannot_be_folded_is_unreadable_and_listed(spark: SparkSession, tmp_path: Path, place: str) -> None:
    found = report(spark, [_bake(tmp_path, place, {"a": [*loaf, (5, "began", "burn", True)], "b": good})])
    assert {row.stream: (row.group, row.status) for row in found.runs}["a"] == ("unreadable", "unreadable")
    assert found.totals.runs == 2


def test_a_run_whose_first_event_is_damaged_is_listed_without_events(
    spark: SparkSession, tmp_path: Path, place: str
) -> None:
    part = _bake(tmp_path, place, {"a": loaf, "b": good})
    with closing(sqlite3.connect(part.urls[0].removeprefix("sqlite:"))) as database, database:
        database.execute("DROP TRIGGER events_are_never_updated")
        database.execute("UPDATE events SET crc = crc + 1 WHERE position = 1")
    found = report(spark, [part])
    assert {row.stream: (row.group, row.events) for row in found.runs} == {
        "a": ("unreadable", 0),
        "b": ("completed", 8),
    }
    assert (found.totals.runs, found.totals.events) == (2, 8)


def test_failed_runs_are_listed_before_newer_ones(
    spark: SparkSession, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_runs, "runs_max", 4)
    ended = {False: [*loaf, (9, "ended", "", False)], True: [*loaf, (9, "ended", "", True)]}
    found = report(spark, [_bake(tmp_path, place, {f"r-{n}": ended[n > 3] for n in range(10)})])
    assert [row.stream for row in found.runs] == ["r-9", "r-8", "r-3", "r-2"]
    assert found.totals.runs == 10


def test_only_the_columns_that_are_needed_cross_into_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, list[str]] = {}

    def noted(spark: SparkSession, urls: Any, view: str, **options: Any) -> Any:
        frame = read_view(spark, urls, view, **options)
        asked[view] = frame.columns
        return frame

    read_view = jobs.read_view
    monkeypatch.setattr(report_module, "read_view", noted)
    report(spark, [Part([filled("sqlite", "engine", tmp_path, runs=2)], "engine")])
    assert asked["events"] == ["stream", "tenant", "emitted_at", "persisted_at", "finding"]
    assert asked["snapshots"] == ["stream", "status"]
    assert "queued_at" not in asked["spans"]


def test_spans_of_a_table_read_only_the_columns_they_are_made_of(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = filled("sqlite", "rundir", tmp_path, runs=3)
    jobs.ingest(spark, url, tmp_path / "events", model="rundir")
    read: list[str] = []
    pieces = Table.pieces

    def noted(table: Table, files: Any, shard: Shard, columns: list[str], *more: Any) -> Any:
        read.extend(columns)
        return pieces(table, files, shard, columns, *more)

    monkeypatch.setattr(Table, "pieces", noted)
    found = [
        list(span_view.rows(Task(Request((u,), "spans", "rundir"), Shard()))) for u in (f"table:{tmp_path}/events", url)
    ]
    of_table, of_log = ([row for batch in batches for row in batch.to_pylist()] for batches in found)
    assert of_table == of_log != []
    assert sorted(set(read)) == ["body", "emitted_at", "persisted_at", "seq", "stream", "tenant"]


def test_times_are_read_as_producers_write_them(spark: SparkSession) -> None:
    at = _start_ms + 123
    texts = {
        "2019-02-12T19:33:20.123Z": at,
        "2019-02-12t19:33:20.123456789z": at,
        "2019-02-12T21:33:20.123+02:00": at,
        "0000-01-01T00:00:00Z": None,
        "9999-12-31T23:59:59.999Z": 253_402_300_799_999,
        "12019-01-01T00:00:00Z": None,
        "soon": None,
        "": None,
    }
    frame = spark.createDataFrame([(text,) for text in texts], "at string")
    rows = frame.select("at", milliseconds("at").alias("ms")).collect()
    assert {row["at"]: row["ms"] for row in rows} == texts


def test_a_report_is_json_and_back(spark: SparkSession, tmp_path: Path, place: str) -> None:
    found = report(spark, [_bake(tmp_path, place, {"a": good})], clock="persisted")
    assert msgspec.json.decode(msgspec.json.encode(found), type=Report) == found
    assert json.loads(msgspec.json.encode(found))["clock"] == "persisted"
