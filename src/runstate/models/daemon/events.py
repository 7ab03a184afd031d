"""The events of a daemon: one closed, typed struct for each tag.

An event's JSON is its tag and its fields, and two members that are optional everywhere: `daemon`, the stream that it
belongs to, and `event_id`, under which a retry is recognised. The JSON Schema `specs/schemas/daemon.event.schema.json`
is the authority; a property test holds this module and `lines` to it.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from runstate.models.canonical import integer_max

default_daemon = "daemon"
"""The stream of an event that names none: most machines have one daemon."""

text_max = 4096
"""Characters in a name, a path or an id."""

Name = Annotated[str, Meta(min_length=1, max_length=text_max)]
Text = Annotated[str, Meta(max_length=text_max)]
Scoped = Annotated[str, Meta(min_length=1, max_length=text_max)]
"""The name of a worker or a queue. It holds no slash, so that `namespace/name` is the key of one thing alone."""
Count = Annotated[int, Meta(ge=0, le=integer_max)]
Concurrency = Annotated[int, Meta(ge=1, le=integer_max)]
ExitCode = Annotated[int, Meta(ge=-integer_max, le=integer_max)]


class DaemonEvent(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    gc=False,
    tag_field="type",
):
    """What every event may say beside its own fields."""

    daemon: Annotated[str, Meta(min_length=1, max_length=200)] = default_daemon
    event_id: Annotated[str, Meta(max_length=128)] = ""
    """Names the event in its stream. Without one, the same event sent twice is one event."""


# --- pipelines and their steps -------------------------------------------------------------------------------------


class PipelineCreated(DaemonEvent, frozen=True, tag="pipeline:created"):
    id: Name
    kind: Name
    name: Text
    vars: dict[str, Any]
    runbook_hash: Text
    cwd: Text
    initial_step: Name
    created_at_epoch_ms: Count
    namespace: Text = ""


class PipelineAdvanced(DaemonEvent, frozen=True, tag="pipeline:advanced"):
    id: Name
    step: Name


class PipelineDeleted(DaemonEvent, frozen=True, tag="pipeline:deleted"):
    id: Name


class PipelineUpdated(DaemonEvent, frozen=True, tag="pipeline:updated"):
    id: Name
    vars: dict[str, Any]


class StepStarted(DaemonEvent, frozen=True, tag="step:started"):
    pipeline_id: Name
    step: Name
    agent_id: Name | None = None


class StepWaiting(DaemonEvent, frozen=True, tag="step:waiting"):
    pipeline_id: Name
    step: Name
    reason: str | None = None


class StepCompleted(DaemonEvent, frozen=True, tag="step:completed"):
    pipeline_id: Name
    step: Name


class StepFailed(DaemonEvent, frozen=True, tag="step:failed"):
    pipeline_id: Name
    step: Name
    error: str


class ShellExited(DaemonEvent, frozen=True, tag="shell:exited"):
    pipeline_id: Name
    step: Name
    exit_code: ExitCode | None


class RunbookLoaded(DaemonEvent, frozen=True, tag="runbook:loaded"):
    hash: Name
    version: Count
    runbook: Any


# --- sessions and workspaces ---------------------------------------------------------------------------------------


class SessionCreated(DaemonEvent, frozen=True, tag="session:created"):
    id: Name
    pipeline_id: Name


class SessionDeleted(DaemonEvent, frozen=True, tag="session:deleted"):
    id: Name


class WorkspaceCreated(DaemonEvent, frozen=True, tag="workspace:created"):
    id: Name
    path: Name
    branch: Text | None = None
    owner: Name | None = None
    """The pipeline that it was made for."""
    mode: Text | None = None


class WorkspaceReady(DaemonEvent, frozen=True, tag="workspace:ready"):
    id: Name


class WorkspaceFailed(DaemonEvent, frozen=True, tag="workspace:failed"):
    id: Name
    reason: str


class WorkspaceDeleted(DaemonEvent, frozen=True, tag="workspace:deleted"):
    id: Name


# --- agents --------------------------------------------------------------------------------------------------------


class AgentWorking(DaemonEvent, frozen=True, tag="agent:working"):
    agent_id: Name


class AgentWaiting(DaemonEvent, frozen=True, tag="agent:waiting"):
    agent_id: Name


class AgentExited(DaemonEvent, frozen=True, tag="agent:exited"):
    agent_id: Name
    exit_code: ExitCode | None


class AgentFailed(DaemonEvent, frozen=True, tag="agent:failed"):
    agent_id: Name
    error: str


class AgentGone(DaemonEvent, frozen=True, tag="agent:gone"):
    agent_id: Name


class AgentSignal(DaemonEvent, frozen=True, tag="agent:signal"):
    agent_id: Name
    kind: Name
    message: str | None = None


# --- workers and queues --------------------------------------------------------------------------------------------


class WorkerStarted(DaemonEvent, frozen=True, tag="worker:started"):
    worker_name: Scoped
    project_root: Text
    runbook_hash: Text
    queue_name: Scoped
    concurrency: Concurrency
    namespace: Text = ""


class WorkerItemDispatched(DaemonEvent, frozen=True, tag="worker:item_dispatched"):
    worker_name: Scoped
    item_id: Name
    pipeline_id: Name
    namespace: Text = ""


class WorkerStopped(DaemonEvent, frozen=True, tag="worker:stopped"):
    worker_name: Scoped
    namespace: Text = ""


class QueuePushed(DaemonEvent, frozen=True, tag="queue:pushed"):
    queue_name: Scoped
    item_id: Name
    data: Any
    pushed_at_epoch_ms: Count
    namespace: Text = ""


class QueueTaken(DaemonEvent, frozen=True, tag="queue:taken"):
    queue_name: Scoped
    item_id: Name
    worker_name: Scoped
    namespace: Text = ""


class QueueCompleted(DaemonEvent, frozen=True, tag="queue:completed"):
    queue_name: Scoped
    item_id: Name
    namespace: Text = ""


class QueueFailed(DaemonEvent, frozen=True, tag="queue:failed"):
    queue_name: Scoped
    item_id: Name
    error: str
    namespace: Text = ""


class QueueItemRetry(DaemonEvent, frozen=True, tag="queue:item_retry"):
    queue_name: Scoped
    item_id: Name
    namespace: Text = ""


class QueueItemDead(DaemonEvent, frozen=True, tag="queue:item_dead"):
    queue_name: Scoped
    item_id: Name
    namespace: Text = ""


# --- signals: recorded, and no state changes -----------------------------------------------------------------------


class CommandRun(DaemonEvent, frozen=True, tag="command:run"):
    command: Name
    args: dict[str, Any] = {}
    pipeline_id: Name | None = None
    project_root: Text = ""
    namespace: Text = ""


class TimerStart(DaemonEvent, frozen=True, tag="timer:start"):
    id: Name
    duration_ms: Count = 0


class SessionInput(DaemonEvent, frozen=True, tag="session:input"):
    id: Name
    input: str


class PipelineResume(DaemonEvent, frozen=True, tag="pipeline:resume"):
    id: Name
    message: str | None = None
    vars: dict[str, Any] = {}


class PipelineCancel(DaemonEvent, frozen=True, tag="pipeline:cancel"):
    id: Name


class WorkspaceDrop(DaemonEvent, frozen=True, tag="workspace:drop"):
    id: Name


class Shutdown(DaemonEvent, frozen=True, tag="shutdown"):
    reason: str | None = None


class Custom(DaemonEvent, frozen=True, tag="custom"):
    name: Name
    data: Any = None


class WorkerWake(DaemonEvent, frozen=True, tag="worker:wake"):
    worker_name: Scoped
    namespace: Text = ""


class WorkerPollComplete(DaemonEvent, frozen=True, tag="worker:poll_complete"):
    worker_name: Scoped
    items: list[Any] = []
    namespace: Text = ""


event_types: tuple[type[DaemonEvent], ...] = tuple(DaemonEvent.__subclasses__())


class UnknownEvent(DaemonEvent, frozen=True, tag="unknown"):
    """A stored event of a type that this version does not know. It is kept as it is, and changes nothing."""

    kind: str
    members: dict[str, Any]
    """All of its JSON."""


def tag_of(event: DaemonEvent) -> str:
    return event.kind if isinstance(event, UnknownEvent) else str(event.__struct_config__.tag)
