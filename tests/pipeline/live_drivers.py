"""The two live projectors behind one face, so that one set of tests runs both; and logs with gaps for them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from runstate.cli.projection import sink_named
from runstate.following import Follower
from runstate.logbook import Entry, Logbook
from runstate.logs.log import EventLog, now
from runstate.logs.registry import open_log
from runstate.logs.sqlite.appends import insert_event
from runstate.logs.stored_rows import checksum
from runstate.models.engine import ENGINE
from runstate.models.model import stable_uuid
from runstate.pipeline.live.parquet_sink import read_version
from runstate.store import open as open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

wait_s = 300


def until(condition: Callable[[], bool], what: str = "") -> None:
    """Wait for a condition, with a bound."""
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline, f"not in {wait_s} s: {what}"
        time.sleep(0.02)


class Driver(Protocol):
    def start(self, urls: Sequence[str], to: str, state: Path, *, model: str = "engine") -> None: ...

    def caught_up(self) -> None:
        """Wait until everything that is in the logs now is projected."""
        ...

    def entries(self) -> list[Entry]: ...

    def stop(self) -> None: ...

    def forget_position(self) -> None:
        """While it is stopped: let the next start go over everything again."""
        ...


class InProcess:
    """`runstate project`."""

    def start(self, urls: Sequence[str], to: str, state: Path, *, model: str = "engine") -> None:
        self._stack, self._state = ExitStack(), state
        self.book = self._stack.enter_context(closing(Logbook(state)))
        stores = [self._stack.enter_context(open_store(url, model, create=False, snapshot_every=0)) for url in urls]
        sink_of = sink_named(to, as_json=False)
        self._followers = [Follower(url, store, self.book, sink_of) for url, store in zip(urls, stores, strict=True)]

    def caught_up(self) -> None:
        for follower in self._followers:
            follower.catch_up()
            follower.note()

    def entries(self) -> list[Entry]:
        return self.book.entries()

    def stop(self) -> None:
        self._stack.close()

    def forget_position(self) -> None:
        with closing(Logbook(self._state)) as book:
            for entry in book.entries():
                book.note(msgspec.structs.replace(entry, position=None))


class OnSpark:
    """`runstate pipeline stream`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def start(self, urls: Sequence[str], to: str, state: Path, *, model: str = "engine") -> None:
        from runstate.pipeline.live.stream import live_projection

        self._urls, self._state = urls, state
        self.projection = live_projection(self._spark, urls, to, state, model=model, trigger_ms=20)
        self.book = self.projection.book

    def caught_up(self) -> None:
        for url in self._urls:
            with open_log(url) as log:
                until(partial(self._is_caught_up, url, log), f"all of {url} is projected: {self.entries()}")

    def _is_caught_up(self, url: str, log: EventLog) -> bool:
        self.projection.wait(0)
        entry = self.book.entry(url)
        return entry is not None and not log.feed(after=entry.position, limit=1).records

    def entries(self) -> list[Entry]:
        return self.book.entries()

    def stop(self) -> None:
        self.projection.stop()

    def forget_position(self) -> None:
        import shutil

        shutil.rmtree(self._state / "checkpoints")


def event(run: str, number: int, kind: str = "Note", step: str | None = None) -> Any:
    """An event of the engine, told from others of its run by its number."""
    members: dict[str, Any] = {
        "runId": run,
        "eventId": stable_uuid(run, str(number)),
        "eventType": kind,
        "eventData": {},
        "idempotencyKey": f"{run}-{number}",
        "emittedAt": "2026-11-15T12:00:00.000Z",
        "logicalAttemptId": "1",
    }
    return ENGINE.parse(msgspec.json.encode(members if step is None else {**members, "stepId": step}))


def append(url: str, *events: Any) -> None:
    with open_store(url, "engine", snapshot_every=0, on_alert=lambda alert: None) as store:
        store.append_events(list(events))


def place(url: str, seq: int, placed: Any) -> None:
    """Put an event at a place of its stream, late or beyond a gap, as logs of contract v1 may. Ours never do."""
    stream, draft = ENGINE.draft(placed)
    persisted_at = now()
    envelope = (draft.event_id, draft.type, draft.key, draft.tenant, draft.emitted_at, persisted_at)
    body = draft.render(seq, persisted_at)
    with closing(sqlite3.connect(url.partition(":")[2], timeout=30)) as connection, connection:
        connection.execute(
            "INSERT INTO streams (stream, tenant, last_seq, events, first_persisted_at, last_persisted_at) "
            "VALUES (?, '', ?, 1, ?, ?) ON CONFLICT (stream) DO UPDATE SET "
            "last_seq = max(last_seq, excluded.last_seq), events = events + 1",
            (stream, seq, persisted_at, persisted_at),
        )
        (stream_id,) = connection.execute("SELECT id FROM streams WHERE stream = ?", (stream,)).fetchone()
        connection.execute(insert_event, (stream_id, seq, *envelope, checksum(stream, seq, *envelope, body), body))


def rows(to: str, url: str, model: str = "engine") -> dict[str, tuple[int, bytes]]:
    """What the sink has of every stream."""
    if to.startswith("parquet:"):
        table = read_version(Path(to.removeprefix("parquet:")))
        columns = (table[name].to_pylist() for name in ("stream", "last_event_seq", "body"))
        return {stream: (seq, body.encode()) for stream, seq, body in zip(*columns, strict=True)}
    with open_store(url, model, create=False) as store:
        found = {head.stream: store.snapshots.stored(head.stream) for head in store.log.heads()}
    return {stream: (stored.seq, stored.body) for stream, stored in found.items() if stored is not None}


def replayed(url: str, model: str = "engine") -> dict[str, tuple[int, bytes]]:
    """What a full replay makes of every stream."""
    with open_store(url, model, create=False) as store:
        found = {head.stream: store.fresh_snapshot(head.stream) for head in store.log.heads()}
    return {stream: (snapshot.seq, snapshot.body) for stream, snapshot in found.items()}
