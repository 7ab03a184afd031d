"""Appends: one and a hundred per call, many threads, two processes; beside the same bytes without Runstate."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from itertools import repeat
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Barrier

from benchmarks.case import Aim, Case, Side, Thunk
from benchmarks.workload import append_new, batches, connect_like, draft_batches, row_batches
from runstate.logs.sqlite import SqliteLog
from runstate.logs.sqlite.appends import insert_event
from runstate.models.engine import ENGINE
from runstate.store import Store

run_events = 1000
run_events_short = 100
"""A snapshot is written whole with every append, so the store's figures are those of runs of this length."""


@contextmanager
def log_appends(directory: Path, size: int) -> Iterator[Iterator[Thunk]]:
    with SqliteLog(directory / "log.db") as log:
        yield (partial(append_new, log.append, stream, ready) for stream, ready in draft_batches(size, run_events))


@contextmanager
def store_appends(directory: Path, size: int, snapshot_every: int) -> Iterator[Iterator[Thunk]]:
    log = SqliteLog(directory / "log.db")
    with Store(log, ENGINE, snapshot_every=snapshot_every) as store:
        yield (
            partial(append_new, store.append_events, events) for events in batches(size, max(size, run_events_short))
        )


@contextmanager
def raw_inserts(directory: Path, size: int) -> Iterator[Iterator[Thunk]]:
    """Ready rows into the log's own tables: what SQLite takes for them, whoever calls it."""
    path = directory / "raw.db"
    SqliteLog(path).close()
    with closing(connect_like(path)) as connection:
        yield (partial(_insert, connection, rows) for rows in row_batches(size, run_events))


def _insert(connection: sqlite3.Connection, rows: list[tuple[object, ...]]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(insert_event, rows)
    connection.execute("COMMIT")


@contextmanager
def raw_writes(directory: Path, size: int) -> Iterator[Iterator[Thunk]]:
    """The same lines at the end of a file: what the disk takes for them."""
    file = os.open(directory / "raw.bin", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        yield (partial(_write, file, b"".join(_bodies(rows))) for rows in row_batches(size, run_events))
    finally:
        os.close(file)


def _bodies(rows: list[tuple[object, ...]]) -> list[bytes]:
    return [body for *_, body in rows if isinstance(body, bytes)]


def _write(file: int, data: bytes) -> None:
    os.write(file, data)
    os.fdatasync(file)


@contextmanager
def threaded_appends(directory: Path, threads: int, calls: int) -> Iterator[Iterator[Thunk]]:
    """Each thread writes runs of its own, one event per call; the call returns when all have done their share."""
    sources = [draft_batches(1, run_events, thread, threads) for thread in range(threads)]
    with SqliteLog(directory / "log.db") as log, ThreadPoolExecutor(threads) as pool:
        start = Barrier(threads)

        def share(ready: list[Thunk]) -> None:
            start.wait()  # One share per thread: without it a quick thread would take a second one.
            for append in ready:
                append()

        def bursts() -> Iterator[Thunk]:
            while True:
                shares = [[partial(append_new, log.append, *next(source)) for _ in range(calls)] for source in sources]
                yield lambda: list(pool.map(share, shares))  # noqa: B023 - called before the next one is made

        yield bursts()


@contextmanager
def process_appends(directory: Path, processes: int, calls: int) -> Iterator[Iterator[Thunk]]:
    """The same with processes, which share nothing but the file."""
    path = directory / "log.db"
    SqliteLog(path).close()
    spawn = get_context("spawn")
    pipes, children = [], []
    for number in range(processes):
        ours, theirs = spawn.Pipe()
        child = spawn.Process(target=_append_on_demand, args=(path, number, processes, theirs), daemon=True)
        child.start()
        pipes.append(ours)
        children.append(child)

    def burst() -> None:
        for pipe in pipes:
            pipe.send(calls)
        for pipe in pipes:
            pipe.recv()

    try:
        yield repeat(burst)
    finally:
        for pipe, child in zip(pipes, children, strict=True):
            pipe.send(0)
            child.join()


def _append_on_demand(path: Path, number: int, stride: int, pipe: Connection) -> None:
    with SqliteLog(path) as log:
        source = draft_batches(1, run_events, number, stride)
        ready = [next(source) for _ in range(200)]
        while calls := pipe.recv():
            for stream, drafts in ready[:calls]:
                append_new(log.append, stream, drafts)
            pipe.send(calls)
            ready = [*ready[calls:], *(next(source) for _ in range(calls))]


def _log(size: int) -> Side:
    return Side(f"log.append of {size}", partial(log_appends, size=size), size)


def _inserts(size: int) -> Side:
    return Side("raw executemany", partial(raw_inserts, size=size), size)


def _writes(size: int) -> Side:
    return Side("write + fdatasync", partial(raw_writes, size=size), size)


def _store(size: int, snapshot_every: int) -> Side:
    opener = partial(store_appends, size=size, snapshot_every=snapshot_every)
    return Side(f"store.append_events of {size}", opener, size)


def _threads(threads: int, calls: int) -> Side:
    name = "one thread" if threads == 1 else f"{threads} threads"
    return Side(name, partial(threaded_appends, threads=threads, calls=calls), threads * calls)


def _processes(processes: int, calls: int) -> Side:
    name = "one process" if processes == 1 else f"{processes} processes"
    return Side(name, partial(process_appends, processes=processes, calls=calls), processes * calls)


def cases() -> list[Case]:
    return [
        Case("append-1", _log(1), (_inserts(1), _writes(1)), Aim("ratio", 0.9)),
        Case("append-100", _log(100), (_inserts(100), _writes(100)), Aim("ratio", 0.95)),
        Case("append-8-threads", _threads(8, 10), (_threads(1, 40), _inserts(1)), Aim("ratio", 1.5)),
        Case("append-64-threads", _threads(64, 5), (_threads(1, 40), _inserts(1)), Aim("ratio", 5)),
        Case("append-2-processes", _processes(2, 50), (_processes(1, 50), _inserts(1)), Aim("ratio", 1)),
        Case("store-append-1", _store(1, 0), (_inserts(1), _log(1))),
        Case("store-append-100", _store(100, 0), (_inserts(100), _log(100))),
        Case("store-append-1-snapshots", _store(1, 1), (_inserts(1), _log(1)), Aim("ratio", 0.65)),
        Case("store-append-100-snapshots", _store(100, 1), (_inserts(100), _log(100))),
    ]
