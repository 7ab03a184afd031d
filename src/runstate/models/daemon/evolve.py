"""How events change a daemon's state: for each type exactly the effect that its table lists.

Applying a stretch of events a second time changes nothing, be it one event, a tail, or a whole history: whatever state
`s` and events `t` there are, `s + t + t` is `s + t`. Three rules are enough for that.

- What is created is created anew: whatever was known under its id is dropped first, with its links.
- What counts or lists remembers the events: a failure is counted once, and an event that brought a pipeline into a step
  before brings it back to that place of its way.
- Everything else sets what it names, whatever was there, and takes nothing from what was there.

An event about something that is not known changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from runstate.models.daemon import events as e
from runstate.models.daemon import pipelines, queues
from runstate.models.daemon.lines import decode, decode_fast
from runstate.models.daemon.state import MaterializedState


def apply(state: MaterializedState, event: e.DaemonEvent) -> None:
    """Change the maps of `state` as the event says; its records are left as they were."""
    effect = _effects.get(type(event))
    if effect is not None:
        effect(state, event)


def apply_lines(state: MaterializedState, lines: Iterable[bytes]) -> None:
    """
    Raises:
        InvalidEvent: a line is no event of a daemon.
    """
    effects = _effects
    for line in lines:
        try:
            event = decode_fast(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            event = decode(line)
        effect = effects.get(type(event))
        if effect is not None:
            effect(state, event)


_effects: dict[type[e.DaemonEvent], Callable[[MaterializedState, Any], None]] = {
    e.PipelineCreated: pipelines.pipeline_created,
    e.PipelineAdvanced: pipelines.pipeline_advanced,
    e.PipelineDeleted: pipelines.pipeline_deleted,
    e.PipelineUpdated: pipelines.pipeline_updated,
    e.StepStarted: pipelines.step_started,
    e.StepWaiting: pipelines.step_waiting,
    e.StepCompleted: pipelines.step_completed,
    e.StepFailed: pipelines.step_failed,
    e.ShellExited: pipelines.shell_exited,
    e.RunbookLoaded: pipelines.runbook_loaded,
    e.SessionCreated: pipelines.session_created,
    e.SessionDeleted: pipelines.session_deleted,
    e.WorkspaceCreated: pipelines.workspace_created,
    e.WorkspaceReady: pipelines.workspace_ready,
    e.WorkspaceFailed: pipelines.workspace_failed,
    e.WorkspaceDeleted: pipelines.workspace_deleted,
    e.AgentWorking: pipelines.agent_working,
    e.AgentExited: pipelines.agent_exited,
    e.AgentFailed: pipelines.agent_failed,
    e.AgentGone: pipelines.agent_gone,
    e.AgentSignal: pipelines.agent_signal,
    e.WorkerStarted: queues.worker_started,
    e.WorkerItemDispatched: queues.item_dispatched,
    e.WorkerStopped: queues.worker_stopped,
    e.QueuePushed: queues.queue_pushed,
    e.QueueTaken: queues.queue_taken,
    e.QueueCompleted: queues.queue_completed,
    e.QueueFailed: queues.queue_failed,
    e.QueueItemRetry: queues.item_retry,
    e.QueueItemDead: queues.item_dead,
}
"""What is not here is a signal: it is recorded, and changes nothing."""
