"""The daemon over its WAL: how long it takes to come up, and how long a checkpoint of much state holds up writers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from pathlib import Path
from statistics import median
from threading import Event
from time import perf_counter

import msgspec

from runstate.logs.wal import WalLog
from runstate.models.daemon import DAEMON
from runstate.models.daemon.events import DaemonEvent, QueueCompleted, QueuePushed
from runstate.models.model import Draft
from runstate.runtimes.daemon import Daemon

Stall = tuple[float, float, float]
"""Seconds: the longest append during a checkpoint, and without one the usual and the longest."""


def fill(root: Path, events: int, *, open_items: int) -> None:
    """A daemon's log of items that were pushed and completed, and so many at the end that were not."""
    pairs = (event for number in range((events - open_items) // 2) for event in _pushed_and_completed(number))
    rest = (QueuePushed("builds", f"open-{number}", {"commit": f"c{number}"}, 0) for number in count())
    drafts = map(_draft, count(), (*islice(pairs, events - open_items), *islice(rest, open_items)))
    with WalLog(root) as log:
        while batch := list(islice(drafts, 10_000)):
            log.append("daemon", batch)


def _pushed_and_completed(number: int) -> tuple[DaemonEvent, DaemonEvent]:
    name = f"build-{number}"
    return QueuePushed("builds", name, {"commit": f"c{number}"}, 0), QueueCompleted("builds", name)


def _draft(number: int, event: DaemonEvent) -> Draft:
    return DAEMON.draft(msgspec.structs.replace(event, event_id=f"e{number}"))[1]


def seconds_to_come_up(root: Path, open_items: int) -> float:
    """Open the log, recover it, and fold all of it."""
    started = perf_counter()
    with Daemon.open(root, create=False, checkpoint_every_s=None) as daemon:
        seconds = perf_counter() - started
        if len(daemon.items("builds")) != open_items:
            raise RuntimeError("The daemon has another state than it was given; its figures would mean nothing")
    return seconds


def stall(root: Path) -> Stall:
    """How long pushes take while a checkpoint is made of whatever is there."""
    with Daemon.open(root, checkpoint_every_s=None) as daemon, ThreadPoolExecutor(1) as pool:
        is_over, found = Event(), list[tuple[float, float]]()

        def push() -> None:
            for number in count():
                if is_over.is_set():
                    return
                began = perf_counter()
                daemon.push("others", {"n": number})
                found.append((began, perf_counter() - began))

        pushing = pool.submit(push)
        _until(found, 200)
        started = perf_counter()
        daemon.checkpoint()
        stopped = perf_counter()
        _until(found, len(found) + 400)
        is_over.set()
        pushing.result()
    during = [took for began, took in found if started <= began + took and began <= stopped]
    without = [took for began, took in found if not (started <= began + took and began <= stopped)]
    return max(during, default=0.0), median(without), max(without)


def _until(found: list[tuple[float, float]], size: int) -> None:
    while len(found) < size:
        Event().wait(0.01)


def figures(root: Path, scale: int) -> Iterator[tuple[str, str, str, str, bool]]:
    """Rows of the report: what, measured, beside it, aim, met."""
    events, items = 1_000_000 // scale, 100_000 // scale
    fill(root / "all", events, open_items=1_000)
    seconds = seconds_to_come_up(root / "all", 1_000)
    yield f"a daemon comes up from {events:,} entries", f"{seconds:.2f} s", "", "5 s", seconds < 5
    fill(root / "items", items, open_items=items)
    longest, usual, otherwise = stall(root / "items")
    beside = f"{usual * 1000:.1f} ms usually, at most {otherwise * 1000:.1f} ms"
    yield (
        f"a push during a checkpoint of {items:,} items",
        f"at most {longest * 1000:.1f} ms",
        beside,
        "20 ms more than usual",
        longest - usual < 0.02,
    )
