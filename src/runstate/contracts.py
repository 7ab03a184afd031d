"""The two published contracts of a run state store, each with its own shapes, over one `Store`.

Both see the same runs: v1 events are upcast when they are read through v2, and v2 events downcast through v1.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from runstate.logs.log import check_after
from runstate.models.engine.events import CanonicalEngineEvent, RunEventRecord, RunEventWrite, decode_v1
from runstate.models.engine.model import EngineEvent
from runstate.models.engine.state import RunSnapshot
from runstate.sinks import is_stale
from runstate.store import Store

EngineStore = Store[EngineEvent, RunEventRecord, RunSnapshot]


class AppendResultV1(msgspec.Struct, frozen=True, rename="camel"):
    """What contract v1 answers to an append."""

    run_seq: int
    idempotent: bool
    persisted: bool


class AppendResultV2(msgspec.Struct, frozen=True, rename="camel"):
    """What contract v2 answers to an append."""

    event_id: str
    run_seq: int
    persisted_at: str
    idempotent: bool
    persisted: bool


class ProjectedRun(RunSnapshot, kw_only=True, rename="camel"):
    """A run's snapshot, and whether its projector has found a gap that it has not filled yet."""

    projection: Literal["LIVE", "STALE"] = "LIVE"


def _get_snapshot(store: EngineStore, run_id: str) -> ProjectedRun | None:
    found = store.get_snapshot(run_id)
    if found is None:
        return None
    fields = {name: getattr(found, name) for name in RunSnapshot.__struct_fields__}
    return ProjectedRun(**fields, projection="STALE" if is_stale(store.log, store.model.name, run_id) else "LIVE")


class RunStateStoreV2:
    """`IRunStateStore` of contract v2."""

    def __init__(self, store: EngineStore) -> None:
        self._store = store

    def append_event(self, event: RunEventWrite) -> AppendResultV2:
        done = self._store.append_event(event)
        return AppendResultV2(done.event_id, done.seq, done.persisted_at, done.idempotent, done.persisted)

    def fetch_events(self, run_id: str, *, after_seq: int = 0, limit: int = 1000) -> list[RunEventRecord]:
        return self._store.fetch_events(run_id, after_seq=after_seq, limit=limit)

    def get_snapshot(self, run_id: str) -> ProjectedRun | None:
        return _get_snapshot(self._store, run_id)

    def project_snapshot(self, run_id: str) -> RunSnapshot:
        return self._store.project_snapshot(run_id)


class RunStateStoreV1:
    """`IRunStateStore` of contract v1."""

    def __init__(self, store: EngineStore) -> None:
        self._store = store

    def append_event(self, event: CanonicalEngineEvent) -> AppendResultV1:
        done = self._store.append_event(event)
        return AppendResultV1(done.seq, done.idempotent, done.persisted)

    def fetch_events(self, run_id: str, *, after_seq: int = 0, limit: int = 1000) -> list[CanonicalEngineEvent]:
        check_after(after_seq)
        return [decode_v1(record.body) for record in self._store.log.read(run_id, after_seq=after_seq, limit=limit)]

    def get_snapshot(self, run_id: str) -> ProjectedRun | None:
        return _get_snapshot(self._store, run_id)

    def project_snapshot(self, run_id: str) -> RunSnapshot:
        return self._store.project_snapshot(run_id)
