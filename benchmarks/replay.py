"""Reads, folds, rebuilds and projection of one run of 10,000 events, in both of its shapes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import repeat
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType

from benchmarks.case import Aim, Case, Side, Thunk
from benchmarks.workload import Run, connect_like, copy_of, fill, lines, shape
from runstate.logs.sqlite import SqliteLog
from runstate.models.engine import ENGINE, RunEventRecord, RunSnapshot
from runstate.models.engine.model import EngineEvent
from runstate.projector import Projector
from runstate.store import Store

RunStore = Store[EngineEvent, RunEventRecord, RunSnapshot]

events = 10_000
backlog_runs = 10

_select_bodies = "SELECT body FROM events WHERE stream_id = 1 ORDER BY seq"
_select_records = """
SELECT seq, event_id, type, key, tenant, emitted_at, persisted_at, body FROM events WHERE stream_id = 1 ORDER BY seq
"""
_select_snapshot = "SELECT body FROM snapshots WHERE stream_id = 1"


class Needed(msgspec.Struct, rename="camel", gc=False):
    """What any fold has to know of an event: decoding less than this is no replay."""

    run_seq: int
    event_type: str
    emitted_at: str
    engine_attempt_id: int
    logical_attempt_id: int
    step_id: str | UnsetType = UNSET
    payload: msgspec.Raw | UnsetType = UNSET


def filled(directory: Path, kind: str) -> Path:
    """A store with one whole run in it, and its snapshot."""

    def build(path: Path) -> None:
        stream, made = shape(kind, events)
        with Store(SqliteLog(path), ENGINE) as store:
            fill(store.log, stream, made)
            store.rebuild_snapshot(stream)

    return copy_of(kind, directory, build)


def of_store(kind: str, call: Callable[[RunStore, str], object], per_call: int = events) -> Side:
    """One of the store's own calls on the filled store."""

    @contextmanager
    def opened(directory: Path) -> Iterator[Iterator[Thunk]]:
        with Store(SqliteLog(filled(directory, kind)), ENGINE) as store:
            yield repeat(partial(call, store, Run(0).run_id))

    return Side("runstate", opened, per_call)


def of_rows(name: str, kind: str, call: Callable[[sqlite3.Connection], object], per_call: int = events) -> Side:
    """The same rows, without Runstate."""

    @contextmanager
    def opened(directory: Path) -> Iterator[Iterator[Thunk]]:
        with closing(connect_like(filled(directory, kind))) as connection:
            yield repeat(partial(call, connection))

    return Side(name, opened, per_call)


def of_lines(name: str, kind: str, call: Callable[[str, list[bytes]], object]) -> Side:
    """The run's lines in memory: no log at all."""

    @contextmanager
    def opened(directory: Path) -> Iterator[Iterator[Thunk]]:
        stream, made = shape(kind, events)
        yield repeat(partial(call, stream, lines(made)))

    return Side(name, opened, events)


def read_pages(store: RunStore, stream: str) -> None:
    after = 0
    while page := store.log.read(stream, after_seq=after):
        after = page[-1].seq


def fetch_pages(store: RunStore, stream: str) -> None:
    after = 0
    while page := store.fetch_events(stream, after_seq=after):
        after = page[-1].run_seq


def fold(stream: str, held: list[bytes]) -> None:
    ENGINE.fold(ENGINE.initial(stream), held)


def decode_needed(_: str, held: list[bytes]) -> None:
    decode = msgspec.json.Decoder(Needed).decode
    for line in held:
        decode(line)


def decode_whole(_: str, held: list[bytes]) -> None:
    decode = msgspec.json.Decoder(RunEventRecord).decode
    for line in held:
        decode(line)


def select_and_decode(connection: sqlite3.Connection) -> None:
    decode = msgspec.json.Decoder(Needed).decode
    for (body,) in connection.execute(_select_bodies):
        decode(body)


def select_snapshot(connection: sqlite3.Connection) -> None:
    (body,) = connection.execute(_select_snapshot).fetchone()
    msgspec.json.Decoder(RunSnapshot).decode(body)


@contextmanager
def projections(directory: Path) -> Iterator[Iterator[Thunk]]:
    """A projector that has been away: the backlog, copied anew for each call, to its end."""

    def build(path: Path) -> None:
        with SqliteLog(path) as log:
            for number in range(backlog_runs):
                run = Run(number)
                fill(log, run.run_id, list(run.transitions(events // backlog_runs)))

    # The clock stands still: an older backlog takes another path, and this one ages while it is measured.
    away_since = datetime.now(UTC)

    def thunks() -> Iterator[Thunk]:
        while True:
            with Store(SqliteLog(copy_of("backlog", directory, build)), ENGINE) as store:
                yield partial(_catch_up, Projector(store, clock=lambda: away_since))

    yield thunks()


def _catch_up(projector: Projector) -> None:
    while projector.poll():
        pass


def _shaped(kind: str) -> list[Case]:
    select_decode = of_rows("select + decode", kind, select_and_decode)
    needed = of_lines("decode alone", kind, decode_needed)
    return [
        Case(f"fold-{kind}", of_lines("fold", kind, fold), (needed,), Aim("rate", 300_000)),
        Case(f"rebuild-{kind}", of_store(kind, Store.project_snapshot), (select_decode,), Aim("seconds", 0.030)),
        Case(
            f"snapshot-read-{kind}",
            of_store(kind, Store.get_snapshot, per_call=1),
            (of_rows("select + decode", kind, select_snapshot, per_call=1),),
            Aim("seconds", 0.001),
        ),
    ]


def cases() -> list[Case]:
    return [
        Case(
            "read",
            of_store("transitions", read_pages),
            (of_rows("select", "transitions", lambda rows: rows.execute(_select_records).fetchall()),),
        ),
        Case(
            "lines",
            of_store("transitions", lambda store, stream: list(store.log.lines(stream))),
            (of_rows("select", "transitions", lambda rows: rows.execute(_select_bodies).fetchall()),),
        ),
        Case(
            "fetch",
            of_store("transitions", fetch_pages),
            (of_lines("decode alone", "transitions", decode_whole),),
            Aim("ratio", 0.35),
        ),
        *_shaped("transitions"),
        *_shaped("progress"),
        Case(
            "projection",
            Side("projector", projections, events),
            (of_lines("fold alone", "transitions", fold),),
        ),
    ]
