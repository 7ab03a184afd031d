"""`python -m benchmarks.wal`: the write-ahead log beside its limit, a raw `write` and `fdatasync` of the same bytes.

Everything is measured in one run, on the disk of the current directory. What was missed is said, and ends with code 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from _thread import LockType
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import count, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event, Lock
from time import perf_counter

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks import daemon
from runstate.conformance.notes import note
from runstate.logs.log import StoredSnapshot
from runstate.logs.wal import WalLog
from runstate.models.canonical import digest
from runstate.models.model import Draft

flush_entries = 100
state_items = 100_000
tail = 1_000


class Figure(msgspec.Struct):
    """One line of the report."""

    what: str
    measured: str
    limit: str = ""
    aim: str = ""
    is_met: bool | None = None


def drafts(prefix: str, size: int) -> list[Draft]:
    return [note(f"{prefix}-{number:07d}", "x" * 60) for number in range(size)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wal", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes")
    options = parser.parse_args(arguments)
    scale = 10 if options.quick else 1
    # In the current directory, because /tmp is in memory on many machines, where an fsync costs nothing.
    with TemporaryDirectory(prefix=".benchmarks-", dir=Path.cwd()) as directory:
        root = Path(directory)
        figures = [
            *buffered(root / "buffered", 200_000 // scale),
            *waiting(root / "waiting", 4_000 // scale),
            *recovery(root / "recovery", 1_000_000 // scale),
            *stall(root / "stall", state_items // scale),
            *(Figure(*row) for row in daemon.figures(root, scale)),
        ]
    table = Table("what", "measured", "limit", "aim", "")
    for figure in figures:
        verdict = "" if figure.is_met is None else "met" if figure.is_met else "MISSED"
        table.add_row(figure.what, figure.measured, figure.limit, figure.aim, verdict)
    (Console() if sys.stdout.isatty() else Console(width=140, no_color=True, highlight=False)).print(table)
    return 0 if all(figure.is_met is not False for figure in figures) else 1


def buffered(root: Path, size: int) -> Iterator[Figure]:
    """Appends that nobody waits for, flushed whenever 100 have gathered; and the same bytes written raw."""
    ready = drafts("b", size)
    rates, limits = [], []
    for turn in range(3):
        with WalLog(root.with_name(f"{root.name}-{turn}")) as log:
            log.append("s", drafts("first", 1))
            started = perf_counter()
            for draft in ready:
                log.append_buffered("s", [draft])
            log.flush("s")
            rates.append(size / (perf_counter() - started))
            data = (log.root / "s" / "wal.jsonl").read_bytes()  # type: ignore[attr-defined]
        limits.append(size / raw(root.with_name(f"raw-{turn}"), data, size // flush_entries))
    rate, limit = median(rates), median(limits)
    yield Figure(
        "buffered append, flush of 100",
        f"{rate:,.0f} events/s, {rate / limit:.2f}x",
        f"{limit:,.0f} events/s",
        "100,000 events/s and 0.5x of the limit",
        rate >= 100_000 and rate >= 0.5 * limit,
    )


def raw(path: Path, data: bytes, writes: int) -> float:
    """Seconds for the same bytes in so many writes, each flushed."""
    step = -(-len(data) // writes)
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    started = perf_counter()
    for offset in range(0, len(data), step):
        os.write(file, data[offset : offset + step])
        os.fdatasync(file)
    seconds = perf_counter() - started
    os.close(file)
    return seconds


def waiting(root: Path, size: int) -> Iterator[Figure]:
    """Threads that each wait until their one event is durable, beside threads that do nothing but share flushes."""
    rates: dict[int, list[float]] = {1: [], 8: [], 64: []}
    limits: dict[int, list[float]] = {1: [], 8: [], 64: []}
    for turn in range(3):
        with WalLog(root.with_name(f"{root.name}-{turn}")) as log:
            log.append("s", drafts("first", 1))
            for threads in rates:
                each = max(size // 8 if threads == 1 else size * 2 // threads, 10)
                mine = [drafts(f"{threads}-{number}", each) for number in range(threads)]
                rates[threads].append(threads * each / seconds_together([partial(append_each, log, m) for m in mine]))
                with closing(SharedFlushes(root.with_name("raw-waiting"))) as bare:
                    limits[threads].append(threads * each / seconds_together([partial(bare.turns, each)] * threads))
    for threads, found in rates.items():
        rate, one = median(found), median(rates[1])
        aim, is_met = ("5x one thread", rate >= 5 * one) if threads == 64 else ("", None)
        beside = f"{median(limits[threads]):,.0f} with nothing else to do"
        yield Figure(
            f"{threads} threads, each waiting", f"{rate:,.0f} events/s, {rate / one:.1f}x", beside, aim, is_met
        )


def seconds_together(tasks: Sequence[Callable[[], None]]) -> float:
    with ThreadPoolExecutor(len(tasks)) as pool:
        started = perf_counter()
        for done in [pool.submit(task) for task in tasks]:
            done.result()
        return perf_counter() - started


class SharedFlushes:
    """Group commit with nothing in it: whoever comes first writes and flushes for all, and wakes them."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self._gate, self._is_led = Lock(), False
        self._waiting: list[tuple[LockType, list[bool]]] = []

    def turns(self, size: int) -> None:
        for _ in range(size):
            wake, leads = Lock(), [False]
            wake.acquire()
            with self._gate:
                if self._is_led:
                    self._waiting.append((wake, leads))
                else:
                    self._is_led = leads[0] = True
            if leads[0] or (wake.acquire() and leads[0]):
                self._flush()

    def _flush(self) -> None:
        with self._gate:
            flushed, self._waiting = self._waiting, []
        os.write(self._file, b"x" * 400 * (len(flushed) + 1))
        os.fdatasync(self._file)
        with self._gate:
            for wake, _ in flushed:
                wake.release()
            self._is_led = bool(self._waiting)
            if self._waiting:
                wake, leads = self._waiting.pop(0)
                leads[0] = True
                wake.release()

    def close(self) -> None:
        os.close(self._file)


def append_each(log: WalLog, mine: list[Draft]) -> None:
    for draft in mine:
        log.append("s", [draft])


def recovery(root: Path, size: int) -> Iterator[Figure]:
    """Opening for writing, and reading every line that a fold would need."""
    with WalLog(root) as log:
        ready = iter(drafts("r", size))
        while batch := list(islice(ready, 10_000)):
            log.append("s", batch)
    seconds = recovered(root, size)
    yield Figure(f"recovery of {size:,} entries", f"{seconds:.2f} s", "", "5 s", seconds < 5)
    with WalLog(root) as log:
        # The first checkpoint removes nothing; the second one, what the first one holds.
        for seq, mark in ((size, "t"), (size + tail, "u")):
            log.checkpoint("s", snapshot_of(seq, 1_000))
            log.append("s", drafts(mark, tail))
    seconds = recovered(root, tail, snapshot_seq=size + tail)
    yield Figure(f"from a checkpoint with {tail:,} entries", f"{seconds * 1000:.0f} ms", "", "100 ms", seconds < 0.1)


def recovered(root: Path, expected: int, snapshot_seq: int = 0) -> float:
    started = perf_counter()
    log = WalLog(root)
    log.recover("s")
    kept = log.load_snapshot("s", "notes")
    lines = sum(1 for _ in log.lines("s", after_seq=0 if kept is None else kept.seq))
    seconds = perf_counter() - started
    log.close()
    if (lines, 0 if kept is None else kept.seq) != (expected, snapshot_seq):
        raise RuntimeError(f"{lines} lines were recovered, not {expected}")
    return seconds


def snapshot_of(seq: int, items: int) -> StoredSnapshot:
    state = {
        f"item-{number:07d}": {"status": "Pending", "data": {"repo": "a/b", "n": number}} for number in range(items)
    }
    body = msgspec.json.encode(state)
    return StoredSnapshot("notes", 1, seq, digest(body), body)


def stall(root: Path, items: int) -> Iterator[Figure]:
    """The longest that an append has to wait while a checkpoint is taken, beside the longest without one."""
    with WalLog(root) as log, ThreadPoolExecutor(1) as pool:
        ready = iter(drafts("s", 100_000))
        while batch := list(islice(ready, 10_000)):
            log.append("s", batch)
        snapshot = snapshot_of(100_000, items)
        is_over = Event()
        writer = pool.submit(latencies, log, is_over)
        while log.stream("s").last_seq < 100_200:  # type: ignore[union-attr]
            is_over.wait(0.01)
        started = perf_counter()
        log.checkpoint("s", snapshot)
        stopped = perf_counter()
        while log.stream("s").last_seq < 100_600:  # type: ignore[union-attr]
            is_over.wait(0.01)
        is_over.set()
        found = writer.result()
    during = [s for at, s in found if started <= at + s and at <= stopped]
    without = [s for at, s in found if not (started <= at + s and at <= stopped)]
    usual = median(without)
    yield Figure(
        f"an append during a checkpoint of {items:,} items",
        f"at most {max(during, default=0) * 1000:.1f} ms",
        f"{usual * 1000:.1f} ms usually, at most {max(without) * 1000:.1f} ms",
        "20 ms more than usual",
        max(during, default=0) - usual < 0.02,
    )


def latencies(log: WalLog, is_over: Event) -> list[tuple[float, float]]:
    """When each append began, and how long it took."""
    found: list[tuple[float, float]] = []
    for number in count():
        if is_over.is_set():
            return found
        started = perf_counter()
        log.append("s", [note(f"w{number}")])
        found.append((started, perf_counter() - started))
    return found


if __name__ == "__main__":
    sys.exit(main())
