"""Which events are impossible in a state: those about something that is not known, or not as they say.

In a log such an event changes nothing, or what it says. A daemon refuses to write it at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runstate.models.daemon import events as e
from runstate.models.daemon.state import MaterializedState, Pipeline, QueueItem, WorkerRecord, scoped


def refusal(state: MaterializedState, event: e.DaemonEvent) -> str | None:
    """Why the event is impossible in this state, in words; None when it is possible."""
    rule = _rules.get(type(event))
    return None if rule is None else rule(state, event)


def _new_pipeline(state: MaterializedState, event: e.PipelineCreated) -> str | None:
    return f"There is a pipeline {event.id!r} already" if event.id in state.pipelines else None


def _known_pipeline(state: MaterializedState, event: Any) -> str | None:
    return None if event.id in state.pipelines else f"There is no pipeline {event.id!r}"


def _current_step(state: MaterializedState, event: Any) -> str | None:
    pipeline: Pipeline | None = state.pipelines.get(event.pipeline_id)
    if pipeline is None:
        return f"There is no pipeline {event.pipeline_id!r}"
    if pipeline.current.name != event.step:
        return f"The pipeline {event.pipeline_id!r} is in step {pipeline.current.name!r}, not in {event.step!r}"
    return None


def _new_session(state: MaterializedState, event: e.SessionCreated) -> str | None:
    return f"There is a session {event.id!r} already" if event.id in state.sessions else None


def _known_session(state: MaterializedState, event: e.SessionDeleted) -> str | None:
    return None if event.id in state.sessions else f"There is no session {event.id!r}"


def _new_workspace(state: MaterializedState, event: e.WorkspaceCreated) -> str | None:
    return f"There is a workspace {event.id!r} already" if event.id in state.workspaces else None


def _known_workspace(state: MaterializedState, event: Any) -> str | None:
    return None if event.id in state.workspaces else f"There is no workspace {event.id!r}"


def _known_worker(state: MaterializedState, event: Any) -> str | None:
    key = scoped(event.namespace, event.worker_name)
    return None if key in state.workers else f"There is no worker {key!r}"


def _dispatchable(state: MaterializedState, event: e.WorkerItemDispatched) -> str | None:
    key = scoped(event.namespace, event.worker_name)
    worker: WorkerRecord | None = state.workers.get(key)
    if worker is None:
        return f"There is no worker {key!r}"
    item = state.queue_items.get(scoped(event.namespace, worker.queue_name), {}).get(event.item_id)
    if item is None or item.status != "taken" or item.worker_name != event.worker_name:
        return f"The worker {key!r} has not taken the item {event.item_id!r}"
    return None


def _new_item(state: MaterializedState, event: e.QueuePushed) -> str | None:
    return f"The queue holds an item {event.item_id!r} already" if _item(state, event) is not None else None


def _available_item(state: MaterializedState, event: e.QueueTaken) -> str | None:
    item = _item(state, event)
    if item is None or item.status in ("taken", "dead"):
        return _not("available", item, event)
    key = scoped(event.namespace, event.worker_name)
    worker: WorkerRecord | None = state.workers.get(key)
    if worker is None:
        return f"There is no worker {key!r}"
    return None if worker.queue_name == event.queue_name else f"The worker {key!r} works on {worker.queue_name!r}"


def _taken_item(state: MaterializedState, event: Any) -> str | None:
    item = _item(state, event)
    return None if item is not None and item.status == "taken" else _not("taken", item, event)


def _begun_item(state: MaterializedState, event: e.QueueItemRetry) -> str | None:
    item = _item(state, event)
    return None if item is not None and item.status != "pending" else _not("taken, failed or dead", item, event)


def _failed_item(state: MaterializedState, event: e.QueueItemDead) -> str | None:
    item = _item(state, event)
    return None if item is not None and item.status != "dead" else _not("alive", item, event)


def _item(state: MaterializedState, event: Any) -> QueueItem | None:
    return state.queue_items.get(scoped(event.namespace, event.queue_name), {}).get(event.item_id)


def _not(wanted: str, item: QueueItem | None, event: Any) -> str:
    queue = scoped(event.namespace, event.queue_name)
    if item is None:
        return f"The queue {queue!r} holds no item {event.item_id!r}"
    return f"The item {event.item_id!r} of the queue {queue!r} is {item.status}, not {wanted}"


_rules: dict[type[e.DaemonEvent], Callable[[MaterializedState, Any], str | None]] = {
    e.PipelineCreated: _new_pipeline,
    e.PipelineAdvanced: _known_pipeline,
    e.PipelineDeleted: _known_pipeline,
    e.PipelineUpdated: _known_pipeline,
    e.StepStarted: _current_step,
    e.StepWaiting: _current_step,
    e.StepCompleted: _current_step,
    e.StepFailed: _current_step,
    e.ShellExited: _current_step,
    e.SessionCreated: _new_session,
    e.SessionDeleted: _known_session,
    e.WorkspaceCreated: _new_workspace,
    e.WorkspaceReady: _known_workspace,
    e.WorkspaceFailed: _known_workspace,
    e.WorkspaceDeleted: _known_workspace,
    e.WorkerItemDispatched: _dispatchable,
    e.WorkerStopped: _known_worker,
    e.QueuePushed: _new_item,
    e.QueueTaken: _available_item,
    e.QueueCompleted: _taken_item,
    e.QueueFailed: _taken_item,
    e.QueueItemRetry: _begun_item,
    e.QueueItemDead: _failed_item,
}
"""Agents are not here: what they do is seen from outside, and may be seen when their pipeline is long gone."""
