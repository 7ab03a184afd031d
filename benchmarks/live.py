"""How far behind the live projectors are, and how fast they catch up.

`python -m benchmarks.live lag`, `… catch-up` or `… steady`. A writer in a process of its own appends to a SQLite log at
a steady rate; a projector in another keeps its snapshots; this one looks at the snapshots every few milliseconds. An
event's lag is the time at which a snapshot that holds it was first seen, less the time at which it was stored. Spark
needs seconds to start and to warm up: that time is told, and not measured.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import linear_regression
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from benchmarks.pipeline_memory import _children, _resident
from benchmarks.workload import Run, batches, drafts
from runstate.errors import LogFailed, LogNotFound
from runstate.logbook import Entry, Logbook
from runstate.logs.registry import open_log

run_events = 50
look_s = 0.004
held_name = "held"
"""The file in which a projector says how many streams it holds in memory."""
aims_s = {"in_process": 0.05, "spark": 1.0}
"""The aim for p95."""
_seen = """
SELECT s.stream, n.seq FROM snapshots n JOIN streams s ON s.id = n.stream_id WHERE n.model = 'engine' AND n.seq > 0
"""


# --- the parts -------------------------------------------------------------------------------------------


def write(url: str, rate: float, runs: int, seconds: float) -> None:
    """Append at a steady rate, one event at a time, to so many runs at once; one that ends makes room for the next."""
    numbers = itertools.count()
    living = [Run(next(numbers)).transitions(run_events) for _ in range(runs)]
    with open_log(url) as log:
        start = time.perf_counter()
        for count in range(int(rate * seconds)):
            time.sleep(max(0.0, start + count / rate - time.perf_counter()))
            slot = count % runs
            event = next(living[slot], None)
            if event is None:
                living[slot] = Run(next(numbers)).transitions(run_events)
                event = next(living[slot])
            log.append(event.run_id, drafts([event]))


@contextmanager
def projecting(side: str, url: str, state: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.live_sides", side, url, str(state)])
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


class Watcher:
    """Looks at the snapshots of a log, and remembers when it first saw each event in one."""

    def __init__(self, path: Path) -> None:
        self._path, self._over = path, threading.Event()
        self.seen: dict[str, int] = {}
        self.visible_at: dict[tuple[str, int], float] = {}
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=10)) as connection:
            while not self._over.wait(look_s):
                rows = connection.execute(_seen).fetchall()
                at = time.time()
                for stream, seq in rows:
                    for number in range(self.seen.get(stream, 0) + 1, seq + 1):
                        self.visible_at[stream, number] = at
                    self.seen[stream] = max(seq, self.seen.get(stream, 0))

    @property
    def events(self) -> int:
        return sum(self.seen.values())


def stored_at(url: str) -> dict[tuple[str, int], float]:
    found, position = {}, None
    with open_log(url) as log:
        while (page := log.feed(after=position, limit=10_000)).records:
            position = page.next
            for record in page.records:
                found[record.stream, record.seq] = datetime.fromisoformat(record.persisted_at).timestamp()
    return found


def wait_for(condition: Any, process: subprocess.Popen[bytes], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("The projector has ended, or does not catch up")
        time.sleep(0.05)


# --- what is measured ------------------------------------------------------------------------------------


def measure_lag(side: str, rate: float, runs: int, seconds: float, warm_up_s: float) -> dict[str, Any]:
    with TemporaryDirectory() as name:
        path = Path(name) / "log.db"
        url = f"sqlite:{path}"
        open_log(url).close()
        with open_log(url) as log:
            log.append("warm-up", drafts([next(Run(10**6).transitions(2))]))
        started = time.perf_counter()
        with projecting(side, url, Path(name) / "state") as process, Watcher(path) as watcher:
            wait_for(lambda: watcher.events > 0, process, 120)
            start_s = time.perf_counter() - started
            writing = [sys.executable, "-m", "benchmarks.live", "write", url, str(rate), str(runs)]
            subprocess.run([*writing, str(warm_up_s + seconds)], check=True)
            expected = stored_at(url)
            wait_for(lambda: watcher.events >= len(expected), process, 60)
        begin = min(at for (stream, _), at in expected.items() if stream != "warm-up") + warm_up_s
        lags = sorted(watcher.visible_at[place] - at for place, at in expected.items() if at >= begin)
        return {
            "measure": "lag",
            "side": side,
            "eventsPerSecond": rate,
            "runs": runs,
            "seconds": seconds,
            "startSeconds": round(start_s, 1),
            "warmUpSeconds": warm_up_s,
            "events": len(lags),
            **{f"p{p}Seconds": round(lags[round((len(lags) - 1) * p / 100)], 4) for p in (50, 95, 99)},
            "maxSeconds": round(lags[-1], 4),
            "aimP95Seconds": aims_s.get(side),
        }


def measure_catch_up(side: str, filled: Path, backlog: int) -> dict[str, Any]:
    """How fast a projector works a backlog off, in a copy of a log that has it."""
    with TemporaryDirectory() as name:
        path = Path(shutil.copy(filled, Path(name) / "log.db"))
        url, state = f"sqlite:{path}", Path(name) / "state"
        if side == "replay":
            return _replayed(url, Path(name), backlog)
        started = time.perf_counter()
        with projecting(side, url, state) as process:
            # Not from the snapshots: to look through all of them again and again would take the projector's time.
            wait_for(lambda: _noted(state, url).events > 0, process, 300)
            first_s, first = time.perf_counter() - started, _noted(state, url).events
            wait_for(lambda: _noted(state, url).events >= backlog, process, 3600)
            whole_s = time.perf_counter() - started
        rate = (backlog - first) / (whole_s - first_s) if backlog > first else None
        return {
            "measure": "catch-up",
            "side": side,
            "events": backlog,
            "seconds": round(whole_s, 1),
            "startSeconds": round(first_s, 1),
            "eventsPerSecond": rate and round(rate),
        }


def _noted(state: Path, url: str) -> Entry:
    """How the projector says that it is."""
    nothing = Entry(url, "engine", 0)
    try:
        with closing(Logbook(state, create=False)) as book:
            return book.entry(url) or nothing
    except (LogNotFound, LogFailed):
        return nothing  # It is just being made.


def fill(path: Path, backlog: int) -> None:
    """Runs that lie side by side in the feed, as those of a fleet do."""
    with open_log(f"sqlite:{path}") as log, ThreadPoolExecutor(50) as pool:
        side_by_side = zip(*(batches(10, run_events, first, 100) for first in range(100)), strict=True)
        for group in itertools.islice(side_by_side, math.ceil(backlog / 1000)):
            list(pool.map(lambda events: log.append(events[0].run_id, drafts(events)), group))


def _replayed(url: str, directory: Path, backlog: int) -> dict[str, Any]:
    from benchmarks.live_sides import heap
    from runstate.pipeline.jobs import replay
    from runstate.pipeline.spark.session import spark_session

    with spark_session(master="local[2]", conf=heap) as spark:
        spark.range(1).count()
        started = time.perf_counter()
        replay(spark, url, directory / "snapshots")
        seconds = time.perf_counter() - started
    found = {"measure": "catch-up", "side": "replay", "events": backlog, "seconds": round(seconds, 1)}
    return {**found, "eventsPerSecond": round(backlog / seconds)}


def measure_steady(side: str, rate: float, runs: int, seconds: float, warm_up_s: float) -> dict[str, Any]:
    """Memory and files under load, at the end of each tenth of the time."""
    with TemporaryDirectory() as name:
        path, state = Path(name) / "log.db", Path(name) / "state"
        url = f"sqlite:{path}"
        with open_log(url) as log:
            log.append("warm-up", drafts([next(Run(10**6).transitions(2))]))
        samples = []
        with projecting(side, url, state) as process:
            wait_for(lambda: _noted(state, url).events > 0, process, 120)
            writing = [sys.executable, "-m", "benchmarks.live", "write", url, str(rate), str(runs)]
            writer = subprocess.Popen([*writing, str(warm_up_s + seconds)])
            start = time.perf_counter()
            for number in range(11):
                time.sleep(max(0.0, start + warm_up_s + number * seconds / 10 - time.perf_counter()))
                noted = _noted(state, url)
                sample = {"atSeconds": round(time.perf_counter() - start), "events": noted.events}
                samples.append({**sample, "lagSeconds": round(noted.lag_s, 3), **_sizes(process.pid, state)})
            writer.wait(60)
            wait_for(lambda: _noted(state, url).events > rate * (warm_up_s + seconds) - 1, process, 60)
        found = {"measure": "steady", "side": side, "eventsPerSecond": rate, "runs": runs, "seconds": seconds}
        return {**found, "perMinute": _slopes(samples), "samples": samples}


def _slopes(samples: list[dict[str, Any]]) -> dict[str, int]:
    """What each size grows by in a minute: the slope of the line through the later half, where all is warm."""
    later = samples[len(samples) // 2 :]
    minutes = [sample["atSeconds"] / 60 for sample in later]
    if len(set(minutes)) < 2:
        return {}
    sizes = [name for name in later[0] if name.endswith(("Bytes", "Files", "Streams"))]
    return {name: round(linear_regression(minutes, [sample[name] for sample in later]).slope) for name in sizes}


def _sizes(pid: int, state: Path) -> dict[str, int]:
    children = _children()
    found, waiting = {"driverBytes": _resident(pid), "jvmBytes": 0, "workerBytes": 0}, list(children.get(pid, []))
    while waiting:
        child, command = waiting.pop()
        found["jvmBytes" if command == "java" else "workerBytes"] += _resident(child)
        waiting += children.get(child, [])
    files = [file for file in state.rglob("*") if file.is_file()]
    checkpoints = [file for file in files if "checkpoint" in str(file.relative_to(state))]
    found["stateFiles"], found["stateBytes"] = len(files), _bytes(files)
    found["checkpointFiles"], found["checkpointBytes"] = len(checkpoints), _bytes(checkpoints)
    held = state / held_name
    # Spark's tasks hold no stream from one batch to the next: there is no state store.
    found["heldStreams"] = int(held.read_text()) if held.exists() else 0
    return found


def _bytes(files: list[Path]) -> int:
    total = 0
    for file in files:
        try:
            total += os.stat(file).st_size
        except FileNotFoundError:
            continue  # Spark has removed it meanwhile.
    return total


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live")
    parser.add_argument("measure", nargs="?", default="lag", choices=["lag", "catch-up", "steady"])
    parser.add_argument("--sides", help="default: in_process,spark, and with catch-up also replay, as the measure")
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seconds", type=float, help="default: 60, or 600 with steady")
    parser.add_argument("--warm-up", type=float, default=20)
    parser.add_argument("--backlog", type=int, default=1_000_000)
    given = parser.parse_args()
    sides = given.sides or ("replay,in_process,spark" if given.measure == "catch-up" else "in_process,spark")
    with TemporaryDirectory() as name:
        filled = Path(name) / "filled.db"
        if given.measure == "catch-up":
            fill(filled, given.backlog)
        _measure(given, sides.split(","), filled)


def _measure(given: argparse.Namespace, sides: list[str], filled: Path) -> None:
    replayed = None
    for side in sides:
        if given.measure == "lag":
            found = measure_lag(side, given.rate, given.runs, given.seconds or 60, given.warm_up)
        elif given.measure == "catch-up":
            found = measure_catch_up(side, filled, given.backlog)
            replayed = found["eventsPerSecond"] if side == "replay" else replayed
            if replayed and found["eventsPerSecond"]:
                found["ofReplay"] = round(found["eventsPerSecond"] / replayed, 2)
        else:
            found = measure_steady(side, given.rate, given.runs, given.seconds or 600, given.warm_up)
        found["measuredAt"] = datetime.now(UTC).isoformat(timespec="seconds")
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        write(sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
    else:
        main()
