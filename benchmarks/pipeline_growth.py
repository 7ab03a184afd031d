"""The event table's cases: made from the SQLite log, replayed whole, and brought up to date when the log has grown."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.case import Side, Thunk
from benchmarks.fleet import Fleet, Slice, events_in, first_part, is_open, rest_of, runs_for, write_sqlite
from benchmarks.pipeline_sides import Bench
from runstate.pipeline.jobs import ingest, replay

growth_share = 0.01


def table_of(bench: Bench, fleet: Fleet) -> Path:
    """The event table of a fleet. Unlike fleets, tables are never kept for the next run: their format is ours."""
    table = bench.tables / str(fleet.runs)
    if not table.exists():
        ingest(bench.spark, fleet.url, table, model=fleet.format.model)
    return table


class Growth:
    """A fleet that goes on: with each step about a hundredth more, half of it by runs that were open."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._next = fleet.runs
        self._open = iter([number for number in range(fleet.runs) if is_open(number)])

    def grow(self) -> int:
        """Returns how many events came."""
        of = self._fleet.format.shapes
        wanted = max(1, round(self._fleet.events * growth_share))
        parts: list[Slice] = []
        while events_in(of, parts) < wanted // 4 and (number := next(self._open, None)) is not None:
            parts += [rest_of(number, len(of()[number % len(of())]))]
        more = runs_for(of, wanted - events_in(of, parts))
        parts += [first_part(number, len(of()[number % len(of())])) for number in range(self._next, self._next + more)]
        self._next += more
        write_sqlite(self._fleet.path, parts)
        return events_in(of, parts)


def full_ingests(bench: Bench, fleet: Fleet, events: int) -> Side:
    """The whole log into a new table, each time."""
    return _into_new(bench, "whole log", lambda to: ingest(bench.spark, fleet.url, to), events)


def full_replays(bench: Bench, url: str, events: int, model: str) -> Side:
    """The job `replay` into a new table of snapshots: folded, written, synced and committed."""
    return _into_new(bench, "replay job, whole", lambda to: replay(bench.spark, url, to, model=model), events)


def _into_new(bench: Bench, name: str, job: Any, events: int) -> Side:
    @contextmanager
    def opened(directory: Path) -> Iterator[Iterator[Thunk]]:
        def thunks() -> Iterator[Thunk]:
            for number in count():
                to = directory / f"target-{number}"
                yield lambda: job(to)  # noqa: B023 - called before the next one is made
                shutil.rmtree(to)

        yield thunks()

    return Side(name, opened, events)


def grown_ingests(bench: Bench, growth: Growth, fleet: Fleet, table: Path) -> Side:
    """A log that has grown, into the table that has all but what is new."""

    @contextmanager
    def opened(_: Path) -> Iterator[Iterator[Thunk]]:
        def thunks() -> Iterator[Thunk]:
            ingest(bench.spark, fleet.url, table)
            while True:
                growth.grow()
                yield lambda: ingest(bench.spark, fleet.url, table)

        yield thunks()

    return Side("1 % more", opened)


def grown_replays(bench: Bench, growth: Growth, fleet: Fleet, table: Path) -> Side:
    """The snapshots of a table that has grown; that it has is not timed."""

    @contextmanager
    def opened(directory: Path) -> Iterator[Iterator[Thunk]]:
        snapshots = directory / "snapshots"

        def thunks() -> Iterator[Thunk]:
            replay(bench.spark, f"table:{table}", snapshots)
            while True:
                growth.grow()
                ingest(bench.spark, fleet.url, table)
                yield lambda: replay(bench.spark, f"table:{table}", snapshots)

        yield thunks()

    return Side("1 % more", opened)
