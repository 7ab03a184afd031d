"""The audit on Spark: logs with planted faults, a healthy fleet, damaged files, and what a driver makes of it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.pipeline.fleet_logs import filled
from tests.tables import new_table

import runstate
from runstate.errors import LogDamaged, LogFailed
from runstate.logs.log import StoredSnapshot
from runstate.logs.registry import open_log
from runstate.models.canonical import digest
from runstate.models.engine import ENGINE, RunEventWrite
from runstate.models.model import stable_uuid
from runstate.models.rundir import RUNDIR, RunEvent
from runstate.pipeline.audit.findings_table import write_findings
from runstate.pipeline.audit.job import COVERED, audit, summary, view
from runstate.pipeline.jobs import ingest, replay
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.source.views import Request, Task
from runstate.pipeline.spark.failures import PipelineFailed
from runstate.pipeline.tables import sorted_files
from runstate.pipeline.tables.event_table import event_table_schema
from runstate.pipeline.tables.ingest import event_batch
from runstate.pipeline.tables.sorted_files import SortedWriter
from runstate.pipeline.tables.table import Commit, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

as_of = datetime(2026, 11, 15, 12, tzinfo=UTC)


class Row(NamedTuple):
    """A row of the view."""

    url: str | None
    stream: str | None
    seq: int | None
    severity: str
    code: str
    message: str
    details: dict[str, Any]


def _row(url: Any, stream: Any, seq: Any, severity: str, code: str, message: str, details: str) -> Row:
    return Row(url, stream, seq, severity, code, message, json.loads(details))


def _told(frame: DataFrame) -> list[Row]:
    return sorted((_row(*row) for row in frame.collect() if row["code"] != COVERED), key=repr)


def _here(urls: Sequence[str], model: str = "engine", count: int = 4, **options: str) -> list[Row]:
    """The rows of the view, made in this process."""
    request = Request(tuple(urls), "findings", model, (), {"as_of": as_of.isoformat(), **options})
    batches = (batch for shard in view.plan(request, count) for batch in view.rows(Task(request, shard)))
    return [_row(*row.values()) for batch in batches for row in batch.to_pylist()]


def _covered(rows: Sequence[Row]) -> tuple[int, int]:
    covered = [row.details for row in rows if row.code == COVERED]
    return sum(each["streams"] for each in covered), sum(each["events"] for each in covered)


# --- fleets ------------------------------------------------------------------------------------------------------


class Clock:
    """The clock of producers and of logs."""

    def __init__(self) -> None:
        self.at = as_of - timedelta(hours=1)

    def now(self) -> str:
        self.at += timedelta(milliseconds=1)
        return self.at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.fixture(scope="module")
def clock() -> Iterator[Clock]:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patched:
        for module in ("runstate.producer", "runstate.logs.sqlite.writer", "runstate.logs.ndjson.run"):
            patched.setattr(f"{module}.now", clock.now)
        yield clock


@pytest.fixture
def time(clock: Clock) -> Clock:
    clock.at = as_of - timedelta(hours=1)
    return clock


def _run(store: Any, stream: str, *, tenant: str = "acme", steps: int = 2, ends: bool = True) -> None:
    run = store.run(stream, tenant=tenant, plan="nightly")
    run.started()
    for number in range(steps):
        run.step_started(f"step-{number}")
        run.step_completed(f"step-{number}")
    if ends:
        run.completed()


def _event(stream: str, kind: str, emitted_at: str, step: str | None = None) -> RunEventWrite:
    return RunEventWrite(
        event_id=stable_uuid(stream, kind, emitted_at),
        event_type=kind,
        emitted_at=emitted_at,
        run_id=stream,
        tenant_id="acme",
        project_id="p",
        environment_id="e",
        plan_id="n",
        plan_version="1",
        engine_attempt_id=1,
        logical_attempt_id=1,
        idempotency_key=f"{kind}-{emitted_at}",
        step_id=msgspec.UNSET if step is None else step,
    )


@contextmanager
def _behind_the_logs_back(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        yield connection


_of = "stream_id = (SELECT id FROM streams WHERE stream = ?)"


def _flip(path: Path, text: bytes) -> None:
    """Change one bit in the middle of a text that the file holds once."""
    data = bytearray(path.read_bytes())
    assert data.count(text) == 1
    data[data.index(text) + len(text) // 2] ^= 1
    path.write_bytes(data)


class Fleet(NamedTuple):
    urls: list[str]
    rows: list[Row]
    """What Spark says about it."""
    streams: int

    def of(self, stream: str) -> list[tuple[str, str, int | None]]:
        return [(row.code, row.severity, row.seq) for row in self.rows if row.stream == stream]

    def row(self, stream: str, code: str) -> Row:
        (row,) = [row for row in self.rows if (row.stream, row.code) == (stream, code)]
        return row


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory, clock: Clock, spark: SparkSession) -> Fleet:
    """Three logs in which each stream has one fault, told by its name, among healthy ones."""
    root = tmp_path_factory.mktemp("planted")
    first, second, third = f"sqlite:{root / 'a.db'}", f"sqlite:{root / 'b.db'}", f"ndjson:{root / 'runs'}"
    with runstate.open(first) as store:
        clock.at = as_of - timedelta(days=3)
        _run(store, "silent", ends=False)
        clock.at = as_of - timedelta(hours=1)
        for stream in ("healthy-1", "gap", "changed", "snapshot-wrong", "snapshot-flipped", "snapshot-ahead", "twin"):
            _run(store, stream)
        _run(store, "snapshot-behind", ends=False)
        _run(store, "clash", tenant="one")
        store.append_event(_event("impossible", "StepCompleted", clock.now(), "load"))
        store.append_event(_event("impossible", "RunFailed", clock.now()))
        store.append_event(_event("skewed", "RunStarted", "2026-11-15T13:00:00Z"))
        store.append_event(_event("skewed", "RunFailed", "2026-11-15T12:30:00Z"))
        _run(store, "clock", steps=1, ends=False)
        clock.at -= timedelta(minutes=5)
        store.append_event(_event("clock", "RunCompleted", clock.now()))
        clock.at += timedelta(minutes=5)
        for stream, seq, body in (("snapshot-wrong", 6, b"{}"), ("snapshot-ahead", 9, b"{}")):
            store.log.save_snapshot(stream, StoredSnapshot("engine", ENGINE.version, seq, digest(body), body))
        # As an older version has stored it, without the name of its model.
        stream, draft = RUNDIR.draft(_created("foreign"))
        store.log.append(stream, [msgspec.structs.replace(draft, model="")])
        kept = store.snapshots.stored("snapshot-behind")
        _run(store, "snapshot-behind")
    with _behind_the_logs_back(root / "a.db") as connection:
        connection.execute(f"DELETE FROM events WHERE {_of} AND seq = 3", ("gap",))
        connection.execute(f"UPDATE events SET tenant = 'evil' WHERE {_of} AND seq = 2", ("changed",))
        connection.execute(f"UPDATE snapshots SET body = CAST(body || ' ' AS BLOB) WHERE {_of}", ("snapshot-flipped",))
        values = (kept.seq, kept.digest, kept.body, "snapshot-behind")  # type: ignore[union-attr]
        connection.execute(f"UPDATE snapshots SET seq = ?, digest = ?, body = ? WHERE {_of}", values)
    with runstate.open(second) as store:
        for stream in ("healthy-2", "twin"):
            _run(store, stream)
        _run(store, "clash", tenant="two")
    with runstate.open(third, "engine") as store:
        for stream in ("flipped", "healthy-3"):
            _run(store, stream)
    _flip(root / "runs/flipped/events.ndjson", b'"runSeq":4')
    frame = audit(spark, [first, second, third], model="engine", as_of=as_of, shards=3)
    return Fleet([first, second, third], _told(frame), 19)


def _created(stream: str, number: int = 0) -> RunEvent:
    payload: dict[str, Any] = {"config": {}, "parameters": {}}
    trace_id, span_id = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    event_id = f"{stream}-{number}"
    return RunEvent(
        event_id=event_id, run_id=stream, type="RUN_CREATED", payload=payload, trace_id=trace_id, span_id=span_id
    )


# --- planted faults -----------------------------------------------------------------------------------------------


def test_streams_without_a_fault_have_no_finding(planted: Fleet) -> None:
    for stream in ("healthy-1", "healthy-2", "healthy-3", "snapshot-behind"):
        assert planted.of(stream) == []


def test_nothing_is_found_beside_what_was_planted(planted: Fleet) -> None:
    faulty = {"silent", "gap", "changed", "snapshot-wrong", "snapshot-flipped", "snapshot-ahead", "twin", "clash"}
    assert {row.stream for row in planted.rows} == faulty | {"impossible", "skewed", "clock", "flipped", "foreign"}


def test_a_missing_event_is_told_by_its_log_and_not_a_second_time(planted: Fleet) -> None:
    codes = {code for code, severity, _ in planted.of("gap") if severity == "damage"}
    # The snapshot was kept when the event was there.
    assert codes == {"log.events_missing", "audit.snapshot_differs"}
    assert "audit.gap" not in [code for code, _, _ in planted.of("gap")]


def test_a_changed_row_is_named_and_not_read(planted: Fleet) -> None:
    assert planted.of("changed") == [("log.event_changed", "damage", 2)]


def test_a_snapshot_that_the_events_do_not_fold_into_is_damage(planted: Fleet) -> None:
    assert planted.of("snapshot-wrong") == [("audit.snapshot_differs", "damage", 6)]


def test_a_snapshot_ahead_of_its_events_is_damage(planted: Fleet) -> None:
    assert planted.of("snapshot-ahead") == [("snapshot.beyond_end", "damage", 9)]


def test_a_snapshot_that_its_log_has_found_changed_is_told_once(planted: Fleet) -> None:
    assert planted.of("snapshot-flipped") == [("snapshot.digest_mismatch", "damage", 6)]


def test_a_flipped_bit_in_a_file_is_told_once_and_with_its_place(planted: Fleet) -> None:
    assert planted.of("flipped") == [("log.line_damaged", "damage", 4)]
    assert planted.row("flipped", "log.line_damaged").details["intact"] == 3


def test_impossible_transitions_are_warnings(planted: Fleet) -> None:
    assert planted.of("impossible") == [
        ("INVALID_TRANSITION", "warning", 1),
        ("PROJECTOR_CAUSAL_VIOLATION", "warning", 1),
    ]
    assert planted.row("impossible", "INVALID_TRANSITION").details["priorState"] == "PENDING"


def test_clocks_are_told_with_how_far_they_are_off(planted: Fleet) -> None:
    assert planted.of("clock") == [("audit.clock_backwards", "warning", 4)]
    assert planted.row("clock", "audit.clock_backwards").details["backS"] == pytest.approx(300, abs=1)
    assert planted.of("skewed") == [("audit.clock_skew", "warning", 1)]
    assert planted.row("skewed", "audit.clock_skew").details["aheadS"] == pytest.approx(7200, abs=1)


def test_a_run_that_says_nothing_is_a_warning(planted: Fleet) -> None:
    assert planted.of("silent") == [("audit.silent", "warning", 5)]
    assert planted.row("silent", "audit.silent").details["silentS"] == pytest.approx(3 * 86_400, abs=1)


def test_a_stream_in_two_logs_is_a_warning_and_damage_where_they_conflict(planted: Fleet) -> None:
    assert planted.of("twin") == [("audit.stream_in_two_logs", "warning", None)]
    assert planted.of("clash") == [("audit.stream_in_two_logs", "damage", 1)]
    (row,) = [row for row in planted.rows if row.stream == "clash"]
    assert row.details == {"urls": planted.urls[:2], "conflicts": 6}


def test_a_stream_of_another_model_is_damage_and_stops_nothing(planted: Fleet) -> None:
    assert ("model.failed", "damage", 1) in planted.of("foreign")


def test_every_finding_names_the_log_that_it_is_about(planted: Fleet) -> None:
    urls = {row.stream: row.url for row in planted.rows}
    assert (urls["gap"], urls["flipped"], urls["clash"]) == (planted.urls[0], planted.urls[2], planted.urls[1])


@pytest.mark.parametrize("count", [1, 7, 100])
def test_the_findings_are_the_same_however_the_fleet_is_divided(planted: Fleet, count: int) -> None:
    rows = _here(planted.urls, count=count)
    assert sorted((row for row in rows if row.code != COVERED), key=repr) == planted.rows
    assert _covered(rows)[0] == planted.streams


# --- the driver ---------------------------------------------------------------------------------------------------


def test_a_healthy_fleet_has_no_finding_and_is_covered_as_a_whole(
    spark: SparkSession, tmp_path: Path, time: Clock
) -> None:
    url = f"sqlite:{tmp_path / 'log.db'}"
    with runstate.open(url) as store:
        for number in range(25):
            _run(store, f"run-{number}", steps=number % 3)
    result = summary(audit(spark, url, as_of=as_of))
    assert result.ok
    assert (result.damage, result.warnings, result.codes) == (0, 0, [])
    assert (result.streams, result.events) == (25, sum(2 + 2 * (number % 3) for number in range(25)))


def test_a_healthy_fleet_of_run_directories_is_covered_as_a_whole(
    spark: SparkSession, tmp_path: Path, time: Clock
) -> None:
    url = f"ndjson:{tmp_path / 'runs'}"
    with runstate.open(url, "rundir") as store:
        for number in range(5):
            store.append_event(_created(f"run-{number}"))
    result = summary(audit(spark, url, as_of=as_of))
    assert (result.ok, result.codes, result.streams, result.events) == (True, [], 5, 5)


def test_a_broken_chain_of_a_run_directory_is_damage(tmp_path: Path, time: Clock) -> None:
    url = f"ndjson:{tmp_path / 'runs'}"
    with runstate.open(url, "rundir") as store:
        for number in range(3):
            store.append_event(_created("run", number))
    _flip(tmp_path / "runs/run/events.ndjson", b'"run-1"')
    told, _ = _here([url], "rundir")
    assert (told.code, told.severity, told.seq) == ("EVENT_CHAIN_BROKEN", "damage", 2)


def test_a_summary_counts_by_severity_and_code_with_an_example_of_each(spark: SparkSession, planted: Fleet) -> None:
    result = summary(audit(spark, planted.urls, model="engine", as_of=as_of))
    assert not result.ok
    assert (result.streams, result.damage) == (
        planted.streams,
        sum(row.severity == "damage" for row in planted.rows),
    )
    counted = {(each.severity, each.code): each.count for each in result.codes}
    assert counted["warning", "audit.silent"] == 1
    assert counted["damage", "audit.snapshot_differs"] == 2
    (example,) = [each.example for each in result.codes if each.code == "audit.silent"]
    assert (example["stream"], example["details"]["status"]) == ("silent", "RUNNING")


def test_findings_that_were_only_counted_are_in_the_summary(spark: SparkSession, tmp_path: Path, time: Clock) -> None:
    url = f"sqlite:{tmp_path / 'log.db'}"
    with runstate.open(url, snapshot_every=0) as store:
        store.append_events([_event("run", "RunPaused", time.now()) for _ in range(130)])
    result = summary(audit(spark, url, as_of=as_of))
    (found,) = [each for each in result.codes if each.code == "INVALID_TRANSITION"]
    assert (found.count, found.example["seq"], result.warnings) == (130, 1, 130)


_columns = "url string, stream string, seq long, severity string, code string, message string, details string"


def test_an_audit_of_nothing_is_not_called_fine(spark: SparkSession) -> None:
    assert not summary(spark.createDataFrame([], _columns)).ok


def test_a_summary_takes_findings_with_any_details(spark: SparkSession) -> None:
    odd = ("memory:", "a", None, "warning", "ODD", "odd", '{"andMore":"many","streams":[1],"events":{}}')
    (found,) = summary(spark.createDataFrame([odd], _columns)).codes
    assert (found.count, found.example["details"]["andMore"]) == (1, "many")


def test_an_empty_log_is_covered(spark: SparkSession, tmp_path: Path) -> None:
    runstate.open(f"sqlite:{tmp_path / 'log.db'}").close()
    result = summary(audit(spark, f"sqlite:{tmp_path / 'log.db'}"))
    assert (result.ok, result.tasks, result.streams) == (True, 1, 0)


def test_written_findings_are_there_as_a_whole_and_only_once(
    spark: SparkSession, planted: Fleet, tmp_path: Path
) -> None:
    frame = audit(spark, planted.urls, model="engine", as_of=as_of)
    read = write_findings(frame, tmp_path / "findings")
    assert DeltaTable(tmp_path / "findings").to_pyarrow_table().num_rows == read.count()
    assert _told(read) == planted.rows
    assert summary(read).streams == planted.streams
    assert [path.name for path in tmp_path.iterdir()] == ["findings"]
    with pytest.raises(LogFailed, match="holds the findings of another audit"):
        write_findings(frame, tmp_path / "findings")


def test_an_audit_that_fails_leaves_nothing_where_it_was_to_be_written(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'log.db'}"
    runstate.open(url).close()
    frame = audit(spark, url)
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(PipelineFailed):
        write_findings(frame, tmp_path / "findings")
    assert list(tmp_path.iterdir()) == []


def test_a_narrower_schema_gives_those_columns(spark: SparkSession, planted: Fleet) -> None:
    options = {"url": planted.urls[1], "view": "findings", "as_of": as_of.isoformat()}
    rows = spark.read.format("runstate").schema("code string, stream string").options(**options).load().collect()
    assert {tuple(row) for row in rows} == {(COVERED, None)}


@pytest.mark.parametrize("wrong", [{"as_of": "yesterday"}, {"as_of": datetime(2026, 1, 1)}, {"silent_s": -1}])
def test_an_option_that_makes_no_sense_is_refused_at_once(spark: SparkSession, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        audit(spark, "sqlite:nowhere.db", **wrong)


def test_a_log_that_is_not_there_is_the_askers_mistake(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineFailed, match="There is no file"):
        summary(audit(spark, f"sqlite:{tmp_path / 'nowhere.db'}"))


# --- what stands in the way ---------------------------------------------------------------------------------------


def test_a_log_that_cannot_be_opened_is_damage_and_the_others_are_audited(tmp_path: Path, time: Clock) -> None:
    url, broken = f"sqlite:{tmp_path / 'a.db'}", f"sqlite:{tmp_path / 'b.db'}"
    with runstate.open(url) as store:
        _run(store, "run")
    (tmp_path / "b.db").write_bytes(b"no database at all" * 100)
    rows = _here([broken, url])
    (told,) = [row for row in rows if row.code != COVERED]
    assert (told.url, told.stream, told.severity, told.code) == (broken, None, "damage", "audit.cut_short")
    assert _covered(rows) == (1, 6)


def test_a_list_of_streams_that_breaks_off_is_damage_from_there_on(
    tmp_path: Path, time: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, other = f"sqlite:{tmp_path / 'a.db'}", f"ndjson:{tmp_path / 'runs'}"
    with runstate.open(url) as store, runstate.open(other, "engine") as runs:
        for stream in "abc":
            _run(store, stream)
            _run(runs, f"{stream}-1")
        kind = type(store.log)

    def broken(log: Any, **bounds: Any) -> Iterator[Any]:
        yield next(iter(heads(log, **bounds)))
        raise LogDamaged("a page is damaged")

    heads = kind.heads
    monkeypatch.setattr(kind, "heads", broken)
    rows = _here([url, other], count=1)
    (told,) = [row for row in rows if row.code != COVERED]
    assert (told.url, told.stream, told.severity, told.code) == (url, None, "damage", "audit.cut_short")
    assert "after 'a'" in told.message
    assert "a page is damaged" in told.message
    assert _covered(rows) == (4, 24)


def test_a_damaged_page_of_a_database_stops_nothing_else(tmp_path: Path, time: Clock) -> None:
    path, other = tmp_path / "a.db", f"sqlite:{tmp_path / 'b.db'}"
    with runstate.open(f"sqlite:{path}") as store:
        for number in range(40):
            _run(store, f"run-{number:02d}", steps=10)
    with runstate.open(other) as store:
        _run(store, "run-zz")
    data = bytearray(path.read_bytes())
    data[20 * 4096 : 24 * 4096] = bytes(4 * 4096)
    path.write_bytes(data)
    rows = _here([f"sqlite:{path}", other])
    assert any(row.severity == "damage" for row in rows)
    assert not [row for row in rows if row.url == other]
    assert _covered(rows)[0] >= 1


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path, time: Clock) -> Path:
    """An event table of two commits: the runs 0 to 9, then the runs 10 to 14 and the end of run 5."""
    url, to = f"sqlite:{tmp_path / 'log.db'}", tmp_path / "table"
    with runstate.open(url) as store:
        for number in range(10):
            _run(store, f"run-{number:02d}", ends=number != 5)
        ingest(spark, url, to, shards=1)
        for number in range(10, 15):
            _run(store, f"run-{number:02d}")
        _run(store, "run-05")
        ingest(spark, url, to, shards=1)
    return to


def test_an_event_table_is_audited_like_a_log(spark: SparkSession, table: Path) -> None:
    result = summary(audit(spark, f"table:{table}", as_of=as_of))
    assert (result.ok, result.codes, result.streams, result.events) == (True, [], 15, 90)


def test_a_table_beside_its_log_is_a_copy_and_no_finding(table: Path) -> None:
    rows = _here([f"table:{table}", f"sqlite:{table.parent / 'log.db'}"])
    assert [row.code for row in rows if row.code != COVERED] == []
    assert _covered(rows) == (30, 180)


def test_a_table_that_contradicts_its_log_is_damage(table: Path, tmp_path: Path) -> None:
    other = f"sqlite:{tmp_path / 'other.db'}"
    with runstate.open(other) as store:
        _run(store, "run-03", tenant="other")
    (told,) = [row for row in _here([f"table:{table}", other]) if row.code != COVERED]
    assert (told.stream, told.severity, told.code) == ("run-03", "damage", "audit.stream_in_two_logs")


def _events_file(table: Path, commit: int) -> Path:
    (entry,) = Table.open(table, as_of=commit).files("events", after=commit - 1)
    return table / "events" / entry.name


def _flip_column(path: Path, column: str, row_group: int = 0) -> None:
    """Change a bit in a column of a Parquet file."""
    with pq.ParquetFile(path) as file:
        place = file.schema_arrow.get_field_index(column)
        chunk = file.metadata.row_group(row_group).column(place)
    data = bytearray(path.read_bytes())
    begin = chunk.data_page_offset if chunk.dictionary_page_offset is None else chunk.dictionary_page_offset
    data[begin + chunk.total_compressed_size - 5] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("cut", [False, True], ids=["flipped", "cut short"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_damaged_file_of_a_table_is_named_and_gone_around(table: Path, cut: bool, count: int) -> None:
    path = _events_file(table, 2)
    if cut:
        path.write_bytes(path.read_bytes()[:-100])
    else:
        _flip_column(path, "body")
    rows = _here([f"table:{table}"], count=count)
    told = [row for row in rows if row.code != COVERED]
    assert {(row.severity, row.code, row.stream, row.details["file"]) for row in told} == {
        ("damage", "table.damaged", None, path.name)
    }
    assert all(path.name in row.message and "'run-05' to 'run-14'" in row.message for row in told)
    # All that the other file holds was gone through, and no gap is made of what the damaged one had.
    assert _covered(rows) == (10, 59)


def test_damage_in_a_column_that_only_a_fold_by_the_column_reads_is_found(table: Path) -> None:
    _flip_column(_events_file(table, 1), "engine_attempt_id")
    rows = _here([f"table:{table}"], count=1)
    assert [(row.code, row.severity) for row in rows] == [("table.damaged", "damage"), (COVERED, "info")]
    assert _covered(rows) == (15, 90)


def _written(directory: Path, *commits: Sequence[pa.RecordBatch]) -> Path:
    """A table with a file for each commit, in chunks of eight rows."""
    table = new_table(directory)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sorted_files, "chunk_rows", 8)
        for number, batches in enumerate(commits, 1):
            writer = SortedWriter(table.place("events"), "events", event_table_schema(ENGINE))
            for batch in batches:
                writer.write(batch)
            table.commit(Commit(number=number, files=writer.close()))
    return directory


@pytest.fixture
def batches(tmp_path: Path, time: Clock) -> dict[str, list[pa.RecordBatch]]:
    """The rows of the runs a, b and c, of 22 events each, by fours."""
    with runstate.open(f"sqlite:{tmp_path / 'batches.db'}") as store:
        for stream in "abc":
            _run(store, stream, steps=10)
        records = {stream: store.log.read(stream) for stream in "abc"}
    columns = ENGINE.column_fold()
    return {s: [event_batch(of[n : n + 4], columns) for n in range(0, 22, 4)] for s, of in records.items()}


def test_a_column_that_does_not_say_what_the_line_says_is_damage(
    tmp_path: Path, batches: dict[str, list[pa.RecordBatch]]
) -> None:
    batch = batches["b"][1]
    place = batch.schema.get_field_index("step_id")
    evil = pa.array(["evil", *batch.column("step_id").to_pylist()[1:]], pa.string())
    batches["b"][1] = batch.set_column(place, batch.schema.field("step_id"), evil)
    rows = _here([f"table:{_written(tmp_path / 'table', batches['a'] + batches['b'])}"], count=1)
    assert [(row.code, row.severity, row.stream, row.seq) for row in rows] == [
        ("audit.column_differs", "damage", "b", 5),
        (COVERED, "info", None, None),
    ]


def test_damage_in_the_middle_of_a_stream_is_gone_around(
    tmp_path: Path, batches: dict[str, list[pa.RecordBatch]]
) -> None:
    table = _written(tmp_path / "table", batches["a"] + batches["b"][:4], batches["b"][4:] + batches["c"])
    # The fifth chunk holds events of b alone, after others of b.
    _flip_column(_events_file(table, 1), "body", 4)
    rows = _here([f"table:{table}"], count=1)
    assert [(row.code, row.stream) for row in rows] == [("table.damaged", None), (COVERED, None)]
    # Of b there is what the other file holds, and nothing is said about the rest.
    assert _covered(rows) == (3, 22 + 6 + 22)


def test_a_table_whose_only_file_is_damaged_says_so(table: Path) -> None:
    for path in (table / "events").glob("*.parquet"):
        path.write_bytes(path.read_bytes()[:-9])
    rows = _here([f"table:{table}"], count=1)
    assert [row.code for row in rows] == ["table.damaged", "table.damaged", COVERED]
    assert _covered(rows) == (0, 0)


# --- snapshots of a replay ----------------------------------------------------------------------------------------


@pytest.fixture
def replayed(spark: SparkSession, tmp_path: Path, time: Clock) -> Path:
    """A table of snapshots of the runs a, b and c in log.db."""
    with runstate.open(f"sqlite:{tmp_path / 'log.db'}") as store:
        for stream in "abc":
            _run(store, stream)
    replay(spark, f"sqlite:{tmp_path / 'log.db'}", tmp_path / "snapshots")
    return tmp_path / "snapshots"


def test_the_snapshots_of_a_replay_are_held_against_the_events(spark: SparkSession, replayed: Path) -> None:
    url = f"sqlite:{replayed.parent / 'log.db'}"
    assert summary(audit(spark, url, as_of=as_of, snapshots=replayed)).codes == []
    with runstate.open(url) as store:
        store.append_event(_event("b", "SignalAccepted", "2026-11-15T11:00:00Z"))
        _run(store, "d", steps=1)
    # One that is behind is held against the events up to its place, and is no damage.
    found = summary(audit(spark, url, as_of=as_of, snapshots=replayed))
    (behind,) = found.codes
    assert (behind.severity, behind.code, behind.count, found.ok) == ("warning", "audit.snapshot_behind", 2, True)
    rows = _here([url], snapshots=str(replayed))
    assert [(row.stream, row.seq) for row in rows if row.code == behind.code] == [("b", 6), ("d", None)]


def test_a_replay_that_was_made_of_other_events_is_damage(replayed: Path, tmp_path: Path) -> None:
    other = f"sqlite:{tmp_path / 'other.db'}"
    with runstate.open(other) as store:
        _run(store, "a", steps=1)
        _run(store, "b", steps=3)
    rows = _here([other], snapshots=str(replayed))
    told = [(row.stream, row.code, row.severity, row.seq) for row in rows if row.code != COVERED]
    assert sorted(told) == [
        ("a", "audit.snapshot_differs", "damage", 6),
        ("b", "audit.snapshot_differs", "damage", 6),
        ("c", "audit.snapshot_orphan", "warning", None),
    ]


def test_snapshots_that_cannot_be_read_are_told_and_the_events_are_audited(replayed: Path) -> None:
    for path in (replayed / "snapshots").glob("*.parquet"):
        path.write_bytes(path.read_bytes()[:-9])
    rows = _here([f"sqlite:{replayed.parent / 'log.db'}"], count=1, snapshots=str(replayed))
    assert [row.code for row in rows] == ["audit.snapshots_unreadable", COVERED]
    assert _covered(rows) == (3, 18)


def test_a_snapshot_that_was_kept_after_the_streams_were_listed_is_not_ahead(tmp_path: Path, time: Clock) -> None:
    url = f"sqlite:{tmp_path / 'log.db'}"
    with runstate.open(url) as store:
        _run(store, "a", ends=False)
        _run(store, "b", ends=False)
        request = Request((url,), "findings", "engine", (), {"as_of": as_of.isoformat()})
        with pytest.MonkeyPatch.context() as patched:
            # The listing of the streams comes in pages: by the time that b is read, it has gone on.
            heads = type(store.log).heads

            def slow(log: Any, **bounds: Any) -> Iterator[Any]:
                listed = list(heads(log, **bounds))
                if not store.holds_key("b", "late"):
                    late = msgspec.structs.replace(_event("b", "RunCompleted", "2026-11-15T11:00:00Z"))
                    late.idempotency_key = "late"
                    store.append_event(late)
                return iter(listed)

            patched.setattr(type(store.log), "heads", slow)
            rows = [row for batch in view.rows(Task(request, Shard())) for row in batch.to_pylist()]
    assert [row["code"] for row in rows] == [COVERED]
    assert json.loads(rows[0]["details"])["events"] == 11


def test_what_belongs_to_no_stream_is_audited_too(spark: SparkSession, tmp_path: Path) -> None:
    url = filled("sqlite", "engine", tmp_path, runs=4)
    with open_log(url) as log:
        log.put_blob(b"something")
    with closing(sqlite3.connect(tmp_path / "sqlite-engine")) as file, file:
        file.execute("DELETE FROM streams WHERE stream = 'engine-0-0002'")
        file.execute("UPDATE blobs SET data = 'other'")
    found = summary(audit(spark, url, model="engine"))
    assert not found.ok
    assert {"sqlite.orphan_events", "blob.digest_mismatch"} <= {each.code for each in found.codes}
