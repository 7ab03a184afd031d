"""What the checksum of each row costs a reader of SQLite: reads as they are, beside the same without a look at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.case import Aim, Case, Side, Thunk
from benchmarks.workload import copy_of, draft_batches
from runstate.logs.log import Record
from runstate.logs.sqlite import SqliteLog
from runstate.models.engine import ENGINE
from runstate.store import Store

events = 2000
Read = Callable[[Store[Any, Any, Any], str], object]

reads: dict[str, Read] = {
    "records": lambda store, stream: store.log.read(stream, limit=events),
    "fetch": lambda store, stream: store.fetch_events(stream, limit=events),
    "fold": lambda store, stream: store.project_snapshot(stream),
}


def _unchecked_records(stream: str, rows: Sequence[Sequence[Any]]) -> list[Record]:
    return [Record(stream, *row[:-1]) for row in rows]


def _unchecked_lines(_stream: str, rows: Sequence[tuple[Any, bytes, Any]]) -> list[bytes]:
    return [body for _, body, _ in rows]


@contextmanager
def _reading(directory: Path, read: Read, is_checked: bool) -> Iterator[Iterator[Thunk]]:
    def build(path: Path) -> None:
        with SqliteLog(path) as log:
            stream, ready = next(draft_batches(events, events))
            log.append(stream, ready)

    with SqliteLog(copy_of("checked-reads", directory, build)) as log:
        store = Store(log, ENGINE, snapshot_every=0)
        (head,) = log.heads()

        def call() -> object:
            if is_checked:
                return read(store, head.stream)
            at = "runstate.logs.sqlite.log"
            with patch(f"{at}.read_records", _unchecked_records), patch(f"{at}.read_lines", _unchecked_lines):
                return read(store, head.stream)

        yield iter(lambda: call, None)


def _side(read: Read, is_checked: bool) -> Side:
    return Side("checked" if is_checked else "unchecked", partial(_reading, read=read, is_checked=is_checked), events)


def cases() -> list[Case]:
    return [
        Case(f"checked-{name}", _side(read, True), (_side(read, False),), Aim("ratio", 0.95))
        for name, read in reads.items()
    ]
