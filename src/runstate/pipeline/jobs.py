"""Jobs that a driver runs: read a view, and make what its tasks have written count, all at once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from runstate.errors import RunstateError, shown_url
from runstate.logs.log import now
from runstate.models.registry import find_model, resolve_model
from runstate.pipeline.replay.fold import snapshot_schema
from runstate.pipeline.source.census import Seen, check_seen
from runstate.pipeline.source.data_source import RunstateSource, register
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.source.origins import Origins, model_of
from runstate.pipeline.source.plain_files import find_files
from runstate.pipeline.source.views import Request
from runstate.pipeline.spark.failures import readable
from runstate.pipeline.spark.session import is_remote
from runstate.pipeline.spark.shared_storage import marked
from runstate.pipeline.spark.small_jobs import few_rows
from runstate.pipeline.tables.compaction import check_compactable
from runstate.pipeline.tables.event_table import event_schemas, open_event_table
from runstate.pipeline.tables.file_events import assembled, file_counts
from runstate.pipeline.tables.file_progress import consumed_before, keep_plan, new_parts, planned
from runstate.pipeline.tables.sorted_files import FileEntry
from runstate.pipeline.tables.table import Commit, Table, TableInfo
from runstate.store_options import event_bytes_default

_cores_default = 8
_tasks_per_core = 4
"""More tasks than cores: one that has drawn the long streams is then no long wait for the others."""


def read_view(
    spark: SparkSession,
    urls: str | Sequence[str],
    view: str = "events",
    *,
    model: str | None = None,
    shards: int | None = None,
    **options: str,
) -> DataFrame:
    """A view of logs and tables as a DataFrame. Nothing is read before its rows are asked for.

    Raises:
        InvalidOption, InvalidUrl, UnknownModel: at once, with what to write instead.
    """
    return _frame(spark, _options(spark, urls, view, model, shards, options))


def planned_view(
    spark: SparkSession,
    urls: str | Sequence[str],
    view: str,
    *,
    model: str | None = None,
    shards: int | None = None,
    **options: str,
) -> DataFrame:
    """The same, planned by this process, so that `check_seen` can compare what it sees with what the tasks have seen.

    What keeps a log from being planned here is raised when rows are asked for.
    """
    wanted = _options(spark, urls, view, model, shards, options)
    with suppress(RunstateError):
        wanted["planned"] = RunstateSource(wanted).planned()
    return _frame(spark, wanted)


def _options(
    spark: SparkSession,
    urls: str | Sequence[str],
    view: str,
    model: str | None,
    shards: int | None,
    options: Mapping[str, str],
) -> dict[str, str]:
    named = [urls] if isinstance(urls, str) else list(urls)
    wanted = {"url": msgspec.json.encode(named).decode(), "view": view, "base": os.getcwd(), **options}
    if shards is not None:
        wanted["shards"] = str(shards)
    else:
        wanted["shards_max"] = str(_tasks_per_core * _cores(spark))
    if model is not None:
        wanted["model"] = model
    RunstateSource(wanted).check_options()
    return wanted


def _frame(spark: SparkSession, wanted: Mapping[str, str]) -> DataFrame:
    register(spark)
    with readable(wanted["view"]):
        return spark.read.format("runstate").options(**wanted).load()


def _cores(spark: SparkSession) -> int:
    if is_remote(spark):
        # A Connect client cannot ask how many cores there are.
        return int(spark.conf.get("spark.default.parallelism", str(_cores_default)) or _cores_default)
    return spark.sparkContext.defaultParallelism


def seen_in(rows: Iterable[Any]) -> list[Seen | None]:
    """What the tasks of a view have seen, by the rows that they have handed back."""
    return [msgspec.json.decode(row["seen"], type=Seen | None) for row in rows]


class Written(msgspec.Struct, frozen=True):
    """What came of a job that writes a table."""

    commit: int
    """The table's last commit; a job that found nothing new makes none."""
    counts: dict[str, int]


def write_table(
    table: Table,
    rows: Iterable[Any],
    consumed: Mapping[str, Any],
    *,
    replaces: bool = False,
    counted: Mapping[str, int] | None = None,
) -> Written:
    """Commit what the tasks of a view have written; each tells it in a row. The caller is `writing` to the table.

    `counted` is what the caller has met itself.
    """
    files, removes = list[FileEntry](), list[str]()
    counts = Counter(counted or {})
    for row in rows:
        files += msgspec.json.decode(row["files"], type=list[FileEntry])
        removes += msgspec.json.decode(row["removes"], type=list[str])
        counts.update(msgspec.json.decode(row["counts"], type=dict[str, int]))
    if "urls" in consumed:
        consumed = {**consumed, "urls": list(map(shown_url, consumed["urls"]))}
    number = table.version()
    # A table without a commit is one that no job has finished.
    if files or replaces or consumed.get("files") or not number:
        number = table.next_number()
        files.sort(key=lambda entry: (entry.kind, entry.chunks[0].first))
        table.commit(
            Commit(
                number=number,
                at=now(),
                files=files,
                removes=removes,
                replaces=replaces,
                consumed=dict(consumed),
                counts=dict(counts),
            )
        )
    return Written(number, dict(counts))


def ingest(
    spark: SparkSession,
    urls: str | Sequence[str],
    to: Path,
    *,
    model: str | None = None,
    shards: int | None = None,
    event_bytes_max: int = event_bytes_default,
) -> Written:
    """Bring an event table up to date with logs. Run it as often as you like: what is there already is not read.

    Plain files of events, one a line, are ingested as `files:PATH`, with a file, a directory or a glob. A line longer
    than `event_bytes_max` is quarantined, as is every other that is no event.

    Raises:
        PipelineFailed: a task failed; the table is as it was.
        FileChanged: a file is not what was ingested of it before; the table is as it was.
        LogBusy: another job is writing to the table.
        NotALog, LogFailed: the target is something else, or cannot be written.
    """
    named = [urls] if isinstance(urls, str) else list(urls)
    name = model_of(named, model)
    found = find_model(name)
    info = TableInfo("events", found.name, found.version)
    if any(url.startswith("files:") for url in named):
        check_files(named)
        table = Table.make(to, info, event_schemas(found), is_model_given=model is not None)
        return _ingest_files(spark, named, table, name, shards or _tasks_per_core * _cores(spark), event_bytes_max)
    Origins(named).close()  # What is not there is told before a table is made for it.
    table = Table.make(to, info, event_schemas(found), is_model_given=model is not None)
    with table.writing(), readable("ingest"), marked(table.directory / "table.json") as marker:
        options = {"to": str(to.absolute()), "marker": marker}
        rows = planned_view(spark, named, "ingest", model=name, shards=shards, **options).collect()
        check_seen("ingest", named, seen_in(rows))
        return write_table(table, rows, {"urls": named})


def compact(spark: SparkSession, to: Path, *, model: str | None = None, shards: int | None = None) -> Written:
    """Write a table's files anew, as few large ones whose streams do not overlap. What it holds stays the same.

    Raises:
        PipelineFailed: a task failed; the table is as it was.
        LogBusy: another job is writing to the table.
        LogNotFound, NotALog: there is no table.
        UnknownModel, ModelMismatch: its model is not installed, and was not given.
        InvalidOption: it was made for another version of its model.
    """
    table, url = open_event_table(to), f"table:{to.absolute()}"
    check_compactable(table, resolve_model(table.info.model, model, f"The table in {to}").version)
    name = model or table.info.model
    with table.writing(), readable("compact"), marked(table.directory / "table.json") as marker:
        commits = table.commits()
        if not commits or commits[-1].consumed.get("compacts"):
            return Written(table.version(), {"rows": 0})
        consumed = {**commits[-1].consumed, "files": consumed_before(table), "compacts": commits[-1].number}
        options = {"to": str(to.absolute()), "marker": marker}
        frame = read_view(spark, url, "compact", model=name, shards=shards, **options)
        return write_table(table, frame.collect(), consumed, replaces=True)


def check_files(urls: Sequence[str]) -> None:
    """
    Raises:
        InvalidOption: there are logs among them.
        LogNotFound: one names no file.
    """
    if other := [url for url in urls if not url.startswith("files:")]:
        raise InvalidOption(f"Files and logs are ingested one after the other: leave out {other[0][:80]!r}")
    for url in urls:
        find_files(url)


def _ingest_files(
    spark: SparkSession, urls: list[str], table: Table, name: str, tasks: int, event_bytes_max: int
) -> Written:
    with table.writing(), readable("ingest"), marked(table.directory / "table.json") as marker:
        model = find_model(name)
        parts, consumed = new_parts(urls, consumed_before(table), model, event_bytes_max)
        unfinished = sum(each.unfinished is not None for each in consumed.values())
        counted = {**dict.fromkeys(file_counts, 0), "lines": unfinished, "quarantined": unfinished}
        rows: list[Any] = []
        if parts:
            plan = planned(parts, tasks, model)
            options = {"plan": str(keep_plan(table, plan).absolute()), "event_bytes_max": str(event_bytes_max)}
            lines = read_view(spark, urls, "lines", model=name, shards=tasks, marker=marker, **options)
            rows = assembled(lines, table, name, len(plan.bounds) + 1, marker).collect()
        return write_table(table, rows, {"urls": urls, "files": consumed}, counted=counted)


def replay(
    spark: SparkSession,
    urls: str | Sequence[str],
    to: Path,
    *,
    model: str | None = None,
    full: bool = False,
    shards: int | None = None,
) -> Written:
    """Bring a table of snapshots up to date: only streams with new events are folded, on from their last snapshot.

    Everything is folded anew if `full` says so, if the model's version has changed, or if the logs are others.

    Raises:
        PipelineFailed: a task failed; the table is as it was.
        LogBusy: another job is writing to the table.
        NotALog, LogFailed: the target is something else, or cannot be written.
    """
    named = [urls] if isinstance(urls, str) else list(urls)
    name = model_of(named, model)
    found = find_model(name)
    version = found.version
    Origins(named).close()  # What is not there is told before a table is made for it.
    info = TableInfo("snapshots", found.name, version)
    table = Table.make(to, info, {"snapshots": snapshot_schema}, is_model_given=model is not None)
    with table.writing(), readable("replay"), marked(table.directory / "table.json") as marker:
        position = _position(named)
        consumed = {"urls": named, "version": version, "position": position}
        commits = table.commits()
        since = "" if full or not commits else _since(commits[-1].consumed, consumed)
        options = {"to": str(to.absolute()), "since": since}
        rows = few_rows(Request(tuple(named), "replay", name, options=options)) if since and shards is None else None
        if rows is None:
            options["marker"] = marker
            rows = planned_view(spark, named, "replay", model=name, shards=shards, **options).collect()
            check_seen("replay", named, seen_in(rows))
        return write_table(table, rows, consumed, replaces=not since)


def _position(urls: Sequence[str]) -> str:
    """Where the logs are now: for the next replay to go on from there. Empty: it cannot.

    The streams of logs tell for themselves what is new in them.
    """
    with Origins(urls) as origins:
        table = origins.table()
        if table is not None:
            return f"{table.table.id()}:{table.table.version()}"
    # Streams of a table do not tell: beside logs, everything is folded anew.
    return "" if any(url.startswith("table:") for url in urls) else "heads"


def _since(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """From where a replay goes on; empty if it is of other logs, or by another version of the model."""
    is_same_log = list(map(shown_url, before.get("urls", ()))) == list(map(shown_url, now["urls"]))
    if not is_same_log or before.get("version") != now["version"]:
        return ""
    position = str(before.get("position", ""))
    if position in ("", "heads"):
        return position
    with Origins(now["urls"]) as origins:
        table = origins.table()
        return "" if table is None else _number_since(table.table, position)


def _number_since(table: Table, position: str) -> str:
    """The commit after which everything is new to a reader who was at a position."""
    name, _, number = position.rpartition(":")
    if name != table.id() or not number.isdigit():
        return ""
    read = int(number)
    for commit in table.commits():
        if commit.number > read and commit.replaces:
            if commit.consumed.get("compacts") != read:
                return ""
            read = commit.number  # It has what all before it have: who has read up to there has read it.
    return str(read)
