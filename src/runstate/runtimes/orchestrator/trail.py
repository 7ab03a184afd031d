"""The trail of a run: every event goes through here into the store, the state in memory, and telemetry.

Trace and span ids are derived from the run, its nodes and its work items, so they are the same after a resume.
"""

from __future__ import annotations

from typing import Any, Protocol
from uuid import uuid4

from runstate.models.canonical import digest
from runstate.models.rundir.events import RunEvent
from runstate.models.rundir.evolve import Fold
from runstate.models.rundir.state import RunDirectory
from runstate.store import Store

RunStore = Store[RunEvent, RunEvent, RunDirectory]


class Telemetry(Protocol):
    """Whoever else wants to know. It never fails a run."""

    def emit(self, event: RunEvent) -> None: ...

    def close(self) -> None: ...


class Trail:
    """Appends the events of one run, and keeps its state up to date in memory."""

    def __init__(self, store: RunStore, run_id: str, telemetry: list[Telemetry]) -> None:
        self._store, self.run_id, self._telemetry = store, run_id, telemetry
        self._fold = Fold(store.current_state(run_id))
        self._trace_id = digest(f"trace:{run_id}".encode())[:32]

    @property
    def state(self) -> RunDirectory:
        return self._fold.finish()

    def emit(self, kind: str, payload: dict[str, Any], *, of: str = "", within: str | None = None) -> None:
        """Append one event. `of` names what it is about: a node, a work item, or the run; `within` names its parent."""
        event = RunEvent(
            event_id=str(uuid4()),
            run_id=self.run_id,
            type=kind,
            payload=payload,
            trace_id=self._trace_id,
            span_id=self._span_id(of),
        )
        if of:
            event.parent_span_id = self._span_id(within or "")
        done = self._store.append_event(event)
        event.ts = done.persisted_at
        self._fold.apply(kind, done.persisted_at, payload)
        for telemetry in self._telemetry:
            telemetry.emit(event)

    def _span_id(self, of: str) -> str:
        return digest(f"span:{self.run_id}:{of}".encode())[:16]
