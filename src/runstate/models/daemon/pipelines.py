"""What events do to pipelines, their steps and agents, and to runbooks, sessions and workspaces."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from runstate.models.daemon import events as e
from runstate.models.daemon.lines import id_of
from runstate.models.daemon.state import (
    MaterializedState,
    Pipeline,
    Session,
    Signal,
    Step,
    StepStatus,
    StoredRunbook,
    Workspace,
)

R = TypeVar("R", Pipeline, Step, Workspace)


def pipeline_created(state: MaterializedState, event: e.PipelineCreated) -> None:
    step = _fresh(event.initial_step, "")
    made = Pipeline(
        event.id,
        event.kind,
        event.name,
        event.namespace,
        event.vars,
        event.runbook_hash,
        event.cwd,
        event.created_at_epoch_ms,
        step,
        (),
        None,
        None,
    )
    _put(state, event.id, made)


def pipeline_advanced(state: MaterializedState, event: e.PipelineAdvanced) -> None:
    pipeline = state.pipelines.get(event.id)
    if pipeline is None:
        return
    begun_by = id_of(event)
    way = (*pipeline.history, pipeline.current)
    before = next((place for place, step in enumerate(way) if step.begun_by == begun_by), len(way))
    history = (*way[:-1], _finalized(pipeline.current))[:before]
    _put(state, event.id, _with(pipeline, current=_fresh(event.step, begun_by), history=history))


def pipeline_deleted(state: MaterializedState, event: e.PipelineDeleted) -> None:
    if event.id in state.pipelines:
        _put(state, event.id, None)


def pipeline_updated(state: MaterializedState, event: e.PipelineUpdated) -> None:
    pipeline = state.pipelines.get(event.id)
    if pipeline is not None:
        state.pipelines[event.id] = _with(pipeline, vars=pipeline.vars | event.vars)


def step_started(state: MaterializedState, event: e.StepStarted) -> None:
    pipeline = _at_step(state, event)
    if pipeline is not None:
        begun_by = pipeline.current.begun_by
        current = Step(event.step, begun_by, "running", event.agent_id, None, None, None)
        _put(state, pipeline.id, _with(pipeline, current=current))


def step_waiting(state: MaterializedState, event: e.StepWaiting) -> None:
    pipeline = _at_step(state, event)
    if pipeline is not None:
        _set_step(state, pipeline, "waiting", reason=event.reason)


def step_completed(state: MaterializedState, event: e.StepCompleted) -> None:
    pipeline = _at_step(state, event)
    if pipeline is not None:
        _set_step(state, pipeline, "completed")


def step_failed(state: MaterializedState, event: e.StepFailed) -> None:
    pipeline = _at_step(state, event)
    if pipeline is not None:
        _set_step(state, pipeline, "failed", error=event.error)


def shell_exited(state: MaterializedState, event: e.ShellExited) -> None:
    pipeline = _at_step(state, event)
    if pipeline is not None:
        _exited(state, pipeline, event.exit_code)


def runbook_loaded(state: MaterializedState, event: e.RunbookLoaded) -> None:
    # Kept by the hash of its content: what is there already is the same.
    state.runbooks.setdefault(event.hash, StoredRunbook(event.hash, event.version, event.runbook))


def _at_step(
    state: MaterializedState, event: e.StepStarted | e.StepWaiting | e.StepCompleted | e.StepFailed | e.ShellExited
) -> Pipeline | None:
    pipeline = state.pipelines.get(event.pipeline_id)
    return pipeline if pipeline is not None and pipeline.current.name == event.step else None


def _set_step(
    state: MaterializedState,
    pipeline: Pipeline,
    status: StepStatus,
    *,
    reason: str | None = None,
    error: str | None = None,
) -> None:
    current = _with(pipeline.current, status=status, reason=reason, error=error)
    state.pipelines[pipeline.id] = _with(pipeline, current=current)


def _exited(state: MaterializedState, pipeline: Pipeline, exit_code: int | None) -> None:
    if exit_code == 0:
        _set_step(state, pipeline, "completed")
    else:
        how = "without an exit code" if exit_code is None else f"with {exit_code}"
        _set_step(state, pipeline, "failed", error=f"exited {how}")


def _fresh(name: str, begun_by: str) -> Step:
    return Step(name, begun_by, "pending", None, None, None, None)


def _finalized(step: Step) -> Step:
    return step if step.status in ("completed", "failed") else _with(step, status="completed", reason=None)


def _put(state: MaterializedState, pipeline_id: str, pipeline: Pipeline | None) -> None:
    """Keep a pipeline whose agent may have changed, or forget it; the index of agents follows."""
    agents = state.agents  # Before the pipeline goes: an index that is made only now would lack it.
    known = state.pipelines.pop(pipeline_id, None) if pipeline is None else state.pipelines.get(pipeline_id)
    if known is not None and known.current.agent_id is not None:
        agents[known.current.agent_id].discard(pipeline_id)
        if not agents[known.current.agent_id]:
            del agents[known.current.agent_id]
    if pipeline is not None:
        state.pipelines[pipeline_id] = pipeline
        if pipeline.current.agent_id is not None:
            agents.setdefault(pipeline.current.agent_id, set()).add(pipeline_id)


# --- agents --------------------------------------------------------------------------------------------------------


def agent_working(state: MaterializedState, event: e.AgentWorking) -> None:
    for pipeline in _run_by(state, event.agent_id):
        _set_step(state, pipeline, "running")


def agent_exited(state: MaterializedState, event: e.AgentExited) -> None:
    for pipeline in _run_by(state, event.agent_id):
        _exited(state, pipeline, event.exit_code)


def agent_failed(state: MaterializedState, event: e.AgentFailed) -> None:
    for pipeline in _run_by(state, event.agent_id):
        _set_step(state, pipeline, "failed", error=event.error)


def agent_gone(state: MaterializedState, event: e.AgentGone) -> None:
    for pipeline in _run_by(state, event.agent_id):
        _set_step(state, pipeline, "failed", error="session terminated")


def agent_signal(state: MaterializedState, event: e.AgentSignal) -> None:
    for pipeline in _run_by(state, event.agent_id):
        current = _with(pipeline.current, agent_signal=Signal(event.kind, event.message))
        state.pipelines[pipeline.id] = _with(pipeline, current=current)


def _run_by(state: MaterializedState, agent_id: str) -> list[Pipeline]:
    return [state.pipelines[pipeline_id] for pipeline_id in state.agents.get(agent_id, ())]


# --- sessions and workspaces ---------------------------------------------------------------------------------------


def session_created(state: MaterializedState, event: e.SessionCreated) -> None:
    _drop_session(state, event.id)
    state.sessions[event.id] = Session(event.id, event.pipeline_id)
    pipeline = state.pipelines.get(event.pipeline_id)
    if pipeline is not None:
        state.pipelines[pipeline.id] = _with(pipeline, session_id=event.id)


def session_deleted(state: MaterializedState, event: e.SessionDeleted) -> None:
    _drop_session(state, event.id)


def _drop_session(state: MaterializedState, session_id: str) -> None:
    known = state.sessions.pop(session_id, None)
    pipeline = None if known is None else state.pipelines.get(known.pipeline_id)
    if pipeline is not None and pipeline.session_id == session_id:
        state.pipelines[pipeline.id] = _with(pipeline, session_id=None)


def workspace_created(state: MaterializedState, event: e.WorkspaceCreated) -> None:
    _drop_workspace(state, event.id)
    made = Workspace(event.id, event.path, event.branch, event.owner, event.mode, "creating", None)
    state.workspaces[event.id] = made
    pipeline = None if event.owner is None else state.pipelines.get(event.owner)
    if pipeline is not None:
        state.pipelines[pipeline.id] = _with(pipeline, workspace_id=event.id)


def workspace_ready(state: MaterializedState, event: e.WorkspaceReady) -> None:
    known = state.workspaces.get(event.id)
    if known is not None:
        state.workspaces[event.id] = _with(known, status="ready", reason=None)


def workspace_failed(state: MaterializedState, event: e.WorkspaceFailed) -> None:
    known = state.workspaces.get(event.id)
    if known is not None:
        state.workspaces[event.id] = _with(known, status="failed", reason=event.reason)


def workspace_deleted(state: MaterializedState, event: e.WorkspaceDeleted) -> None:
    _drop_workspace(state, event.id)


def _drop_workspace(state: MaterializedState, workspace_id: str) -> None:
    known = state.workspaces.pop(workspace_id, None)
    pipeline = None if known is None or known.owner is None else state.pipelines.get(known.owner)
    if pipeline is not None and pipeline.workspace_id == workspace_id:
        state.pipelines[pipeline.id] = _with(pipeline, workspace_id=None)


def _with(record: R, **changes: Any) -> R:
    return msgspec.structs.replace(record, **changes)
