"""The events that are measured with: the same ones in every run, of the shape that engines write.

Two shapes of a run are kept apart, because they cost different things: in `transitions` every event changes the
state, in `progress` most events are opaque to the fold and only have to be read past.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID
from zlib import crc32

from msgspec import UNSET

from runstate.logs.log import AppendResult, EventLog
from runstate.models.engine import ENGINE, RunEventWrite, idempotency_key
from runstate.models.model import Draft

Row = tuple[object, ...]
persisted_at = "2026-11-15T09:30:00.000Z"
build_batch = 5000
"""Events per append while a store is filled, which is not measured."""


class Run:
    """Writes the events of one run, in an order that its engine could have written."""

    def __init__(self, number: int) -> None:
        self.run_id = f"run-{number:06d}"
        self._random = random.Random(number)
        self._clock_ms = 0

    def transitions(self, events: int) -> Iterator[RunEventWrite]:
        """Steps that start and complete, every third with an artifact."""
        yield self._event("RunStarted")
        for step in range(events // 2 - 1):
            yield self._event("StepStarted", f"step-{step:05d}")
            yield self._event("StepCompleted", f"step-{step:05d}", self._artifact(step) if step % 3 == 0 else None)
        yield self._event("RunCompleted")

    def progress(self, events: int, steps: int) -> Iterator[RunEventWrite]:
        """The same with few steps, each of which reports its progress again and again."""
        reports, more = divmod(events - 2 - 2 * steps, steps)
        yield self._event("RunStarted")
        for step in range(steps):
            yield self._event("StepStarted", f"step-{step:05d}")
            for done in range(reports + (step < more)):
                # An attempt of its own keeps the keys apart, as the contract has no other counter in the key.
                payload = {"done": done, "total": reports, "message": f"chunk {done} of {reports}"}
                yield self._event("StepProgress", f"step-{step:05d}", payload, attempt=done + 1)
            yield self._event("StepCompleted", f"step-{step:05d}", self._artifact(step) if step % 3 == 0 else None)
        yield self._event("RunCompleted")

    def report(self, number: int) -> RunEventWrite:
        """One more event of a run that is there already."""
        return self._event("StepProgress", "step-00000", {"done": number}, attempt=number + 1)

    def _artifact(self, step: int) -> dict[str, object]:
        uri = f"s3://artifacts/{self.run_id}/step-{step:05d}/model.parquet"
        return {"artifacts": [{"name": "model", "uri": uri, "bytes": 1024 + step}]}

    def _event(
        self, kind: str, step_id: str | None = None, payload: dict[str, object] | None = None, attempt: int = 1
    ) -> RunEventWrite:
        self._clock_ms += 7
        minutes, ms = divmod(self._clock_ms, 60_000)
        return RunEventWrite(
            event_id=str(UUID(int=self._random.getrandbits(128), version=4)),
            event_type=kind,
            emitted_at=f"2026-11-15T{8 + minutes // 60:02d}:{minutes % 60:02d}:{ms // 1000:02d}.{ms % 1000:03d}Z",
            run_id=self.run_id,
            tenant_id="acme",
            project_id="warehouse",
            environment_id="production",
            plan_id="nightly",
            plan_version="42",
            engine_attempt_id=attempt,
            logical_attempt_id=attempt,
            idempotency_key=idempotency_key(
                run_id=self.run_id,
                step_id=step_id,
                logical_attempt_id=attempt,
                event_type=kind,
                plan_id="nightly",
                plan_version="42",
            ),
            step_id=UNSET if step_id is None else step_id,
            payload=UNSET if payload is None else payload,
        )


def batches(size: int, run_events: int, first: int = 0, stride: int = 1) -> Iterator[list[RunEventWrite]]:
    """Runs without end, cut into batches of `size`, each of one run; `first` and `stride` keep threads apart."""
    number = first
    while True:
        batch: list[RunEventWrite] = []
        for event in Run(number).transitions(run_events):
            batch.append(event)
            if len(batch) == size:
                yield batch
                batch = []
        number += stride


def draft_batches(size: int, run_events: int, first: int = 0, stride: int = 1) -> Iterator[tuple[str, list[Draft]]]:
    """The same, ready for a log."""
    for events in batches(size, run_events, first, stride):
        yield events[0].run_id, drafts(events)


def drafts(events: list[RunEventWrite]) -> list[Draft]:
    return [ENGINE.draft(event)[1] for event in events]


def shape(name: str, events: int) -> tuple[str, list[RunEventWrite]]:
    """A whole run of one of the two shapes, and its id."""
    run = Run(0)
    made = run.transitions(events) if name == "transitions" else run.progress(events, steps=events // 20)
    return run.run_id, list(made)


def append_new(append: Callable[..., list[AppendResult]], *arguments: object) -> None:
    """Append, and make sure that it wrote: a key that is known already costs no fsync, and would look like speed.

    Raises:
        RuntimeError: the case appends the same events twice, and measures nothing.
    """
    if not append(*arguments)[-1].persisted:
        raise RuntimeError("The benchmark appended an event that was there already; its figures would mean nothing")


def fill(log: EventLog, stream: str, events: list[RunEventWrite]) -> None:
    """Append a run in few large batches."""
    for start in range(0, len(events), build_batch):
        log.append(stream, drafts(events[start : start + build_batch]))


def copy_of(name: str, directory: Path, build: Callable[[Path], None]) -> Path:
    """A copy of a store that is built once per run of the benchmarks, however many sides start from it."""
    source, copy = directory.parent / f"{name}.db", directory / "log.db"
    if not source.exists():
        build(source)
    shutil.copy(source, copy)
    # Otherwise the first fsyncs that are measured would write this copy out.
    with copy.open("rb") as file:
        os.fsync(file.fileno())
    return copy


def lines(events: list[RunEventWrite]) -> list[bytes]:
    """The run's lines, as a log would hold them."""
    return [draft.render(seq, persisted_at) for seq, draft in enumerate(drafts(events), 1)]


def connect_like(log_path: Path) -> sqlite3.Connection:
    """A bare connection with the settings that the log gives its own, so that the limit has the same durability."""
    connection = sqlite3.connect(log_path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -65536")
    return connection


def row_batches(size: int, run_events: int) -> Iterator[list[Row]]:
    """The rows that the log would make of the same batches."""
    seqs: dict[str, int] = {}
    for stream, ready in draft_batches(size, run_events):
        seq = seqs.get(stream, 0)
        seqs = {stream: seq + len(ready)}
        number = int(stream.removeprefix("run-")) + 1
        yield [row(number, at, draft) for at, draft in enumerate(ready, seq + 1)]


def row(stream_id: int, seq: int, draft: Draft) -> Row:
    body = draft.render(seq, persisted_at)
    envelope = (draft.event_id, draft.type, draft.key, draft.tenant, draft.emitted_at)
    return (stream_id, seq, *envelope, persisted_at, crc32(body), body)
