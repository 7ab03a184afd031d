"""The trail of a run: every event goes through here into the store, the state in memory, and telemetry.

Trace and span ids are derived from the run, its nodes and its work items, so they are the same after a resume.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from runstate.models.canonical import digest
from runstate.models.rundir.events import RunEvent
from runstate.models.rundir.evolve import Fold, terminal_states
from runstate.models.rundir.state import RunDirectory
from runstate.runtimes.telemetry import Telemetry
from runstate.store import Store

logger = logging.getLogger("runstate.orchestrator")

RunStore = Store[RunEvent, RunEvent, RunDirectory]


@contextmanager
def watching() -> Iterator[None]:
    """Around whoever looks on: what goes wrong there is logged, and never fails a run."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - see above
        logger.warning("Somebody who watches the run has failed: %r", error)


class Trail:
    """Appends the events of one run, and keeps its state up to date in memory.

    It is the only one to append: somebody else's event between two of its own is a SequenceConflict, at once.
    """

    def __init__(self, store: RunStore, run_id: str, telemetry: list[Telemetry], state: RunDirectory) -> None:
        self._store, self.run_id, self._telemetry = store, run_id, telemetry
        info = store.log.stream(run_id)
        self._last_seq = 0 if info is None else info.last_seq
        self._fold = Fold(state)
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
        done = self._store.append_event(event, expected_seq=self._last_seq)
        self._last_seq = done.seq
        event.ts = done.persisted_at
        self._fold.apply(kind, done.persisted_at, payload)
        if kind in terminal_states:
            # snapshot.json shows the end of the run as soon as there is one, also while the store stays open.
            self._store.snapshots.save_now(self.run_id)
        for telemetry in self._telemetry:
            with watching():
                telemetry.emit(event)

    def _span_id(self, of: str) -> str:
        return digest(f"span:{self.run_id}:{of}".encode())[:16]
