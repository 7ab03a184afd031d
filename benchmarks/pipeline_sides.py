"""What the pipeline's benchmark times: Spark's jobs, one plain Python process, and scans that fold nothing.

Plain Python works in processes of their own, which have not loaded Spark and are started before anything is timed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.case import Side, Thunk
from benchmarks.fleet import Fleet
from benchmarks.replay import Needed
from runstate.logs.registry import open_log
from runstate.models.canonical import digest
from runstate.models.registry import find_model
from runstate.pipeline.jobs import read_view
from runstate.pipeline.tables.event_table import open_event_table

processes = 2


class _Framed(msgspec.Struct, gc=False):
    event: Needed


class _Bare(msgspec.Struct, gc=False):
    type: str
    ts: str
    payload: msgspec.Raw


_line_types: dict[str, type[msgspec.Struct]] = {"rundir": _Bare, "framed": _Framed, "sqlite": Needed}
_count = "SELECT max(position) FROM events"
_bodies = "SELECT body FROM events WHERE position > ? AND position <= ?"


class Bench(NamedTuple):
    """What the sides share."""

    spark: SparkSession
    pool: ProcessPoolExecutor
    root: Path
    """Where fleets are, and whatever a case writes."""
    tables: Path
    """Where event tables are, for as long as the benchmark runs."""


@contextmanager
def plain_processes() -> Iterator[ProcessPoolExecutor]:
    """Two Python processes that are up and have imported all they need."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        list(pool.map(_import_all, range(processes * 4)))
        yield pool


def _import_all(_: int) -> None:
    find_model("engine")
    find_model("rundir")


def replay_plainly(url: str, model_name: str, part: int = 0, parts: int = 1) -> int:
    """Every stream's snapshot, by the same fold in one process. Returns the events, so that none can be left out."""
    model, events = find_model(model_name), 0
    with open_log(url, create=False) as log:
        heads = list(log.heads())
        for head in heads[len(heads) * part // parts : len(heads) * (part + 1) // parts]:
            lines = list(log.lines(head.stream))
            body = model.dump(model.fold(model.initial(head.stream), lines))
            # A snapshot is kept with its digest, here as there.
            events += len(lines) if digest(body) else 0
    return events


def decode_part(name: str, path: Path, part: int, parts: int) -> int:
    """Decode one part of a fleet's lines, read with nothing of Runstate's, into what any fold has to know."""
    decoder, count = msgspec.json.Decoder(_line_types[name]), 0
    if name == "sqlite":
        with closing(sqlite3.connect(path)) as connection:
            (last,) = connection.execute(_count).fetchone()
            for (body,) in connection.execute(_bodies, (last * part // parts, last * (part + 1) // parts)):
                decoder.decode(body)
                count += 1
        return count
    names = [each for each in sorted(os.listdir(path)) if each[0] != "."]
    for run in names[len(names) * part // parts : len(names) * (part + 1) // parts]:
        with open(f"{path}/{run}/events.ndjson", "rb") as file:
            count += len(decoder.decode_lines(file.read()))
    return count


def read_columns_part(table: Path, part: int, parts: int) -> int:
    """Read the columns that the column-wise fold wants from one part of a table's row groups, and no more."""
    opened = open_event_table(table)
    model = find_model(opened.info.model).column_fold()
    columns = ["stream", "seq", "type", "emitted_at", *(model.schema.names if model is not None else ["body"])]
    groups = [(entry.name, number) for entry in opened.files("events") for number in range(len(entry.chunks))]
    rows = 0
    for name, number in groups[part::parts]:
        with pq.ParquetFile(opened.place("events") / name) as file:
            rows += file.read_row_group(number, columns=columns, use_threads=False).num_rows
    return rows


# --- sides -----------------------------------------------------------------------------------------------------


def again(name: str, thunk: Thunk, events: int) -> Side:
    """The same call each time."""

    @contextmanager
    def opened(_: Path) -> Iterator[Iterator[Thunk]]:
        yield repeat(thunk)

    return Side(name, opened, events)


def one_process(bench: Bench, fleet: Fleet) -> Side:
    def replay() -> None:
        _expect(bench.pool.submit(replay_plainly, fleet.url, fleet.format.model).result(), fleet.events)

    return again(f"one process, {fleet.name}", replay, fleet.events)


def two_processes(bench: Bench, fleet: Fleet) -> Side:
    """What the machine gives to two such processes, each with half of the streams: the most that Spark could reach."""

    def replay() -> None:
        _expect(_in_parts(bench, replay_plainly, fleet.url, fleet.format.model), fleet.events)

    return again("the same, two processes", replay, fleet.events)


def decodes(bench: Bench, fleet: Fleet) -> Side:
    def decode() -> None:
        _expect(_in_parts(bench, decode_part, fleet.name, fleet.path), fleet.events)

    return again("decode, two processes", decode, fleet.events)


def column_reads(bench: Bench, table: Path, events: int) -> Side:
    def read() -> None:
        _expect(_in_parts(bench, read_columns_part, table), events)

    return again("read columns, two processes", read, events)


def _in_parts(bench: Bench, function: Callable[..., int], *arguments: object) -> int:
    waiting = [bench.pool.submit(function, *arguments, part, processes) for part in range(processes)]
    return sum(each.result() for each in waiting)


def counts(bench: Bench, url: str, events: int, model: str) -> Side:
    def count() -> None:
        _expect(read_view(bench.spark, url, "events", model=model).count(), events)

    return again("Spark count", count, events)


def snapshots(bench: Bench, urls: str | Sequence[str], events: int, model: str, name: str = "Spark local[2]") -> Side:
    """The view `snapshots`, every row of which is made and crosses into the JVM, where nothing is done with it."""

    def fold() -> None:
        frame = read_view(bench.spark, urls, "snapshots", model=model)
        frame.write.format("noop").mode("overwrite").save()

    return again(name, fold, events)


def _expect(found: int, events: int) -> None:
    if found != events:
        raise RuntimeError(f"The benchmark read {found} events of {events}; its figures would mean nothing")
