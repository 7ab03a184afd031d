"""How events change a run directory's snapshot. An event about something unknown changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runstate.models.rundir.events import (
    ArtifactStaled,
    ArtifactWritten,
    IssueOpened,
    IssueResolved,
    RunStateChanged,
    SectionStateChanged,
    WorkItemFinished,
    WorkItemQueued,
    WorkItemStarted,
    read_payload,
)
from runstate.models.rundir.state import Artifact, RunDirectory, WorkItem, issue_order

terminal_states = {"RUN_COMPLETED": "COMPLETED", "RUN_FAILED": "FAILED", "RUN_CANCELLED": "CANCELLED"}


class Fold:
    """Applies events in place, with an index over the work items so that long runs fold fast."""

    def __init__(self, state: RunDirectory) -> None:
        self.state = state
        self._items = {item.work_item_id: item for item in state.work_items}
        self._issues = {issue.issue_id: issue for issue in state.issues}

    def apply(self, kind: str, ts: str, payload: dict[str, Any]) -> None:
        """
        Raises:
            InvalidEvent: the payload lacks what its type needs.
        """
        if kind == "RUN_CREATED":
            self.state.run_state = "CREATED"
        elif kind in terminal_states:
            self.state.run_state = terminal_states[kind]
        elif (effect := _effects.get(kind)) is not None:
            effect(self, ts, read_payload(kind, payload))

    def finish(self) -> RunDirectory:
        self.state.issues = sorted(self._issues.values(), key=issue_order)
        return self.state

    def _run_state(self, ts: str, payload: RunStateChanged) -> None:
        self.state.run_state = payload.new_state

    def _section(self, ts: str, payload: SectionStateChanged) -> None:
        self.state.section_states[payload.section] = payload.new_state

    def _queued(self, ts: str, payload: WorkItemQueued) -> None:
        if payload.work_item_id in self._items:
            return
        item = WorkItem(
            payload.work_item_id, payload.worker, payload.attempt, payload.scope_key, payload.inputs, payload.outputs
        )
        self._items[item.work_item_id] = item
        self.state.work_items.append(item)

    def _started(self, ts: str, payload: WorkItemStarted) -> None:
        if (item := self._items.get(payload.work_item_id)) is not None:
            item.status, item.started_at = "running", ts

    def _finished(self, ts: str, payload: WorkItemFinished) -> None:
        if (item := self._items.get(payload.work_item_id)) is not None:
            item.status, item.finished_at, item.error = payload.status, ts, payload.error

    def _written(self, ts: str, payload: ArtifactWritten) -> None:
        self.state.artifacts_index[payload.name] = Artifact(
            payload.path, payload.sha256, payload.schema_id, payload.writer_worker, ts
        )

    def _staled(self, ts: str, payload: ArtifactStaled) -> None:
        if (artifact := self.state.artifacts_index.get(payload.name)) is not None:
            artifact.stale, artifact.because = True, payload.because

    def _opened(self, ts: str, payload: IssueOpened) -> None:
        self._issues[payload.issue.issue_id] = payload.issue

    def _resolved(self, ts: str, payload: IssueResolved) -> None:
        if (issue := self._issues.get(payload.issue_id)) is not None:
            issue.status = "RESOLVED"


_effects: dict[str, Callable[[Fold, str, Any], None]] = {
    "RUN_STATE_CHANGED": Fold._run_state,
    "SECTION_STATE_CHANGED": Fold._section,
    "WORK_ITEM_QUEUED": Fold._queued,
    "WORK_ITEM_STARTED": Fold._started,
    "WORK_ITEM_FINISHED": Fold._finished,
    "ARTIFACT_WRITTEN": Fold._written,
    "ARTIFACT_STALED": Fold._staled,
    "ISSUE_OPENED": Fold._opened,
    "ISSUE_RESOLVED": Fold._resolved,
}
