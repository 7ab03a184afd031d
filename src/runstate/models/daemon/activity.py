"""What a daemon's events say about work: steps of pipelines, and items of queues.

The events tell no time but an item's `pushed_at_epoch_ms` and a pipeline's creation; all other times are the log's.
"""

from __future__ import annotations

from typing import Any

from runstate.models.activity import Activity, ActivityKind, read_name
from runstate.models.daemon import events as e
from runstate.models.daemon.state import scoped

_steps: dict[type[e.DaemonEvent], ActivityKind] = {
    e.StepStarted: "started",
    e.StepCompleted: "finished",
    e.StepFailed: "failed",
}
_items: dict[type[e.DaemonEvent], ActivityKind] = {
    e.QueuePushed: "queued",
    e.QueueTaken: "started",
    e.QueueCompleted: "finished",
    e.QueueFailed: "failed",
}


def activities(event: e.DaemonEvent) -> list[Activity]:
    """What the event says about work: the step of a pipeline, or an item by its queue."""
    said: Any = event
    kind = _steps.get(type(event))
    if kind is not None:
        return [Activity(kind=kind, name=read_name(said.step), scope=f"step|{said.pipeline_id}|{said.step}")]
    if isinstance(event, e.ShellExited):
        outcome: ActivityKind = "finished" if event.exit_code == 0 else "failed"
        return [Activity(kind=outcome, name=read_name(event.step), scope=f"step|{event.pipeline_id}|{event.step}")]
    kind = _items.get(type(event))
    if kind is not None:
        queue = scoped(said.namespace, said.queue_name)
        return [Activity(kind=kind, name=read_name(queue), scope=f"item|{queue}|{said.item_id}")]
    return []
