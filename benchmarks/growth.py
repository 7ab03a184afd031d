"""What a full store costs: single appends into a store of 1,000 events and one of 1,000,000, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count, islice
from pathlib import Path
from random import Random

from benchmarks.case import Aim, Case, Side, Thunk
from benchmarks.workload import Run, append_new, copy_of, draft_batches, drafts
from runstate.logs.sqlite import SqliteLog
from runstate.models.model import Draft

run_events = 100
few = 1000
many = 1_000_000
many_quick = 20_000
"""Enough to see that the case works; too few to say anything about growth, so there is no aim for it."""

Source = Callable[[int], Iterator[tuple[str, list[Draft]]]]


def new_runs(held: int) -> Iterator[tuple[str, list[Draft]]]:
    """Appends as they usually come: to runs that have just begun."""
    return draft_batches(1, run_events, held // run_events)


def any_run(held: int) -> Iterator[tuple[str, list[Draft]]]:
    """The worst case: each goes to another of the runs that are there, and so to pages that nobody has touched."""
    numbers = Random(held)
    for report in count():
        run = Run(numbers.randrange(held // run_events))
        yield run.run_id, drafts([run.report(report)])


@contextmanager
def appends(directory: Path, held: int, source: Source) -> Iterator[Iterator[Thunk]]:
    def build(path: Path) -> None:
        with SqliteLog(path) as log:
            for stream, ready in islice(draft_batches(run_events, run_events), held // run_events):
                log.append(stream, ready)

    with SqliteLog(copy_of(f"held-{held}", directory, build)) as log:
        yield (partial(append_new, log.append, stream, ready) for stream, ready in source(held))


def _holding(held: int, source: Source) -> Side:
    return Side(f"at {held:,}", partial(appends, held=held, source=source))


def cases(quick: bool) -> list[Case]:
    full, aim = (many_quick, None) if quick else (many, Aim("ratio", 0.5))
    return [
        Case(f"growth-{name}", _holding(full, source), (_holding(few, source),), aim)
        for name, source in (("new-runs", new_runs), ("any-run", any_run))
    ]
