"""Run directories: durable appends beside raw fsync, replay, and opening a long run from its snapshot."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count, islice, repeat
from pathlib import Path
from threading import Barrier
from typing import Any

import msgspec

from benchmarks.case import Aim, Case, Side, Thunk
from benchmarks.workload import append_new, build_batch
from runstate.logs.ndjson import NdjsonLog
from runstate.models.model import Draft
from runstate.models.rundir import RUNDIR, RunEvent
from runstate.store import Store

run_id = "bench"
replayed = 20_000
long_run = 1_000_000
long_run_quick = 50_000
tail = 1_000
persisted_at = "2026-11-15T09:30:00.000Z"


def history(first: int = 0) -> Iterator[RunEvent]:
    """What an orchestrator writes for one work item after the other: queued, started, an artifact, finished."""
    for number in count(first):
        name = f"{run_id}:render:1:page-{number:07d}"
        artifact = f"site/page-{number:07d}.html"
        outputs = {"inputs": ["pages.json"], "outputs": [artifact]}
        scope = {"worker": "render", "attempt": 1, "scope_key": f"page-{number:07d}"}
        written = {"name": artifact, "path": f"artifacts/{artifact}", "sha256": f"{number:064x}"}
        yield _event("WORK_ITEM_QUEUED", number, 0, {"work_item_id": name, **scope, **outputs})
        yield _event("WORK_ITEM_STARTED", number, 1, {"work_item_id": name})
        yield _event("ARTIFACT_WRITTEN", number, 2, {**written, "schema_id": None, "writer_worker": "render"})
        yield _event("WORK_ITEM_FINISHED", number, 3, {"work_item_id": name, "status": "finished", "error": None})


def calls(first: int = 0) -> Iterator[RunEvent]:
    """What an agent writes: model calls, which are recorded and change no state."""
    for number in count(first):
        payload = {"model": "large", "tokens_in": 1200, "tokens_out": number % 700, "cost": 0.01, "latency_ms": 900}
        yield _event("LLM_CALL_FINISHED", number, 9, payload)


def _event(kind: str, number: int, part: int, payload: dict[str, object]) -> RunEvent:
    return RunEvent(
        event_id=f"{number:026d}-{part}",
        run_id=run_id,
        type=kind,
        payload=payload,
        trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
        span_id="00f067aa0ba902b7",
    )


def drafts(events: Iterator[RunEvent], size: int) -> Iterator[list[Draft]]:
    while True:
        yield [RUNDIR.draft(event)[1] for event in islice(events, size)]


@contextmanager
def log_appends(directory: Path, size: int) -> Iterator[Iterator[Thunk]]:
    with NdjsonLog(directory / "runs") as log:
        yield (partial(append_new, log.append, run_id, ready) for ready in drafts(history(), size))


@contextmanager
def raw_writes(directory: Path, size: int) -> Iterator[Iterator[Thunk]]:
    """The same lines at the end of a file: what the disk takes for them."""
    file = os.open(directory / "raw.ndjson", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        yield (partial(_write, file, _text(ready)) for ready in drafts(history(), size))
    finally:
        os.close(file)


def _text(ready: list[Draft]) -> bytes:
    lines, previous = list[bytes](), None
    for draft in ready:
        previous = draft.render(0, persisted_at, previous)
        lines.append(previous + b"\n")
    return b"".join(lines)


def _write(file: int, data: bytes) -> None:
    os.write(file, data)
    os.fdatasync(file)


@contextmanager
def threaded_appends(directory: Path, threads: int, each: int) -> Iterator[Iterator[Thunk]]:
    """All threads write to one run, one event per call, and share its fsyncs."""
    source = drafts(history(), 1)
    with NdjsonLog(directory / "runs") as log, ThreadPoolExecutor(threads) as pool:
        start = Barrier(threads)

        def share(ready: list[list[Draft]]) -> None:
            start.wait()
            for each in ready:
                append_new(log.append, run_id, each)

        def bursts() -> Iterator[Thunk]:
            while True:
                shares = [[next(source) for _ in range(each)] for _ in range(threads)]
                yield lambda: list(pool.map(share, shares))  # noqa: B023 - called before the next one is made

        yield bursts()


def _lines() -> list[bytes]:
    return _text([draft for [draft] in islice(drafts(history(), 1), replayed)]).split(b"\n")[:-1]


@contextmanager
def folds(directory: Path) -> Iterator[Iterator[Thunk]]:
    lines = _lines()
    yield repeat(lambda: RUNDIR.fold(RUNDIR.initial(run_id), lines))


@contextmanager
def decodes(directory: Path) -> Iterator[Iterator[Thunk]]:
    lines, decode = _lines(), msgspec.json.Decoder(_Needed).decode
    yield repeat(lambda: [decode(line) for line in lines])


class _Needed(msgspec.Struct, gc=False):
    """What any fold has to know of an event: decoding less than this is no replay."""

    type: str
    ts: str
    payload: dict[str, Any]


@contextmanager
def rebuilds(directory: Path) -> Iterator[Iterator[Thunk]]:
    with Store(NdjsonLog(_filled(directory, replayed, 0)), RUNDIR) as store:
        yield repeat(partial(store.project_snapshot, run_id))


@contextmanager
def opens(directory: Path, events: int) -> Iterator[Iterator[Thunk]]:
    """From nothing in memory to the state of now: the log is opened each time."""
    runs = _filled(directory, events, tail)

    def opened() -> object:
        with Store(NdjsonLog(runs), RUNDIR) as store:
            return store.current_state(run_id)

    yield repeat(opened)


def _filled(directory: Path, events: int, behind: int) -> Path:
    """A run of so many events with its snapshot, and so many more behind it; built once, and only read after that."""
    runs = directory.parent / f"rundir-{events}-{behind}"
    if not runs.exists():
        with Store(NdjsonLog(runs), RUNDIR, snapshot_every=0) as store:
            source = calls() if behind else history()
            for done in range(0, events, build_batch):
                store.append_events(list(islice(source, min(build_batch, events - done))))
            store.rebuild_snapshot(run_id)
            if behind:
                store.append_events(list(islice(source, behind)))
    return runs


def _threads(threads: int, each: int) -> Side:
    name = "one thread" if threads == 1 else f"{threads} threads"
    return Side(name, partial(threaded_appends, threads=threads, each=each), threads * each)


def cases(quick: bool) -> list[Case]:
    events = long_run_quick if quick else long_run
    appends = [
        Case(
            f"rundir-append-{size}",
            Side(f"log.append of {size}", partial(log_appends, size=size), size),
            (Side("write + fdatasync", partial(raw_writes, size=size), size),),
        )
        for size in (1, 100)
    ]
    return [
        *appends,
        Case("rundir-append-8-threads", _threads(8, 10), (_threads(1, 40),)),
        Case("rundir-fold", Side("fold", folds, replayed), (Side("decode", decodes, replayed),), Aim("rate", 300_000)),
        Case(
            "rundir-replay",
            Side("project_snapshot", rebuilds, replayed),
            (Side("fold", folds, replayed),),
            Aim("rate", 300_000),
        ),
        Case(
            "rundir-open-long",
            Side(f"{events:,} events", partial(opens, events=events), tail),
            (Side(f"{tail:,} events", partial(opens, events=tail), tail),),
        ),
    ]
