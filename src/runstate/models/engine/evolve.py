"""How a run's events change its state, and which of them are impossible.

An impossible event changes nothing: the run is marked `inconsistent`, the watermark moves on, and an alert
says what was attempted. The tables below are the whole truth about what is possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from runstate.models.engine.events import RunEventRecord
from runstate.models.engine.state import Attempt, RootCause, RunSnapshot, Step, StepError
from runstate.models.model import Alert
from runstate.models.times import elapsed_ns

_open_states = ("PENDING", "APPROVED", "RUNNING", "PAUSED")
terminal_states = frozenset({"COMPLETED", "FAILED", "CANCELLED"})

run_transitions: dict[str, dict[str, str]] = {
    "RunQueued": {"PENDING": "PENDING"},
    "RunApproved": {"PENDING": "APPROVED"},
    "RunStarted": {"PENDING": "RUNNING", "APPROVED": "RUNNING"},
    "RunPaused": {"RUNNING": "PAUSED"},
    "RunResumed": {"PAUSED": "RUNNING"},
    "RunCompleted": {"RUNNING": "COMPLETED"},
    "RunFailed": dict.fromkeys(_open_states, "FAILED"),
    "RunCancelled": dict.fromkeys(_open_states, "CANCELLED"),
}
"""Event type → state before → state after. What is not here is impossible."""

step_transitions: dict[str, tuple[str, str]] = {
    "StepStarted": ("PENDING", "RUNNING"),
    "StepCompleted": ("RUNNING", "SUCCESS"),
    "StepFailed": ("RUNNING", "FAILED"),
    "StepSkipped": ("PENDING", "SKIPPED"),
}
"""The same per logical attempt at a step: each type has one state before it, and one after."""

_attempted_run_state = {kind: next(iter(pairs.values())) for kind, pairs in run_transitions.items()}


class RunFact(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """The members of a stored v2 line that decide what it does; decoding no more than these halves the cost."""

    run_seq: int
    event_type: str
    emitted_at: str
    engine_attempt_id: int
    logical_attempt_id: int
    tenant_id: msgspec.Raw  # Not looked at: it is there so that a line of v1, which has no tenant, is told apart.
    step_id: str | UnsetType = UNSET
    payload: msgspec.Raw | UnsetType = UNSET
    engine_run_ref: msgspec.Raw | UnsetType = UNSET


class FoldedEvent(Protocol):
    """What the fold needs of an event; `RunFact` and `RunEventRecord` both have it, each in its own way."""

    run_seq: int
    event_type: str
    emitted_at: str
    engine_attempt_id: int
    logical_attempt_id: int
    step_id: Any
    payload: Any


Steps = dict[str, Step]
Refused = Callable[[RunSnapshot, Steps], None]
"""Told that the event just met has changed nothing, with the state that it met and its steps by id."""


def fold(state: RunSnapshot, events: Iterable[FoldedEvent], refused: Refused | None = None) -> RunSnapshot:
    """Apply events in order, in place. Events at or below the watermark were applied before: they are skipped."""
    steps = {step.step_id: step for step in state.steps}
    for event in events:
        if event.run_seq <= state.last_event_seq:
            continue
        state.last_event_seq = event.run_seq
        kind = event.event_type
        if kind in step_transitions:
            possible = _apply_to_step(state, steps, event)
        elif kind in run_transitions:
            possible = _apply_to_run(state, event)
        else:
            continue
        if possible:
            _take_engine_run_ref(state, event)
            continue
        state.inconsistent = True
        if refused is not None:
            refused(state, steps)
    return state


def refusals(state: RunSnapshot, event: RunEventRecord) -> list[Alert]:
    """Why the event is impossible in this state; empty when it is possible, or changes no state at all."""
    steps = {step.step_id: step for step in state.steps}
    if event.event_type in step_transitions:
        before, _ = step_transitions[event.event_type]
        possible = _step_state(steps, event) == before
    elif event.event_type in run_transitions:
        possible = state.status in run_transitions[event.event_type]
    else:
        possible = True
    return [] if possible else alerts(state, steps, event)


def _apply_to_run(state: RunSnapshot, event: FoldedEvent) -> bool:
    after = run_transitions[event.event_type].get(state.status)
    if after is None:
        return False
    state.status = after
    if event.event_type == "RunStarted":
        state.started_at = event.emitted_at
    elif after in terminal_states:
        payload = _payload(event)
        state.completed_at = event.emitted_at
        state.total_duration_ms = _elapsed_ms(state.started_at, event.emitted_at)
        state.artifacts.extend(_artifacts(payload))
        state.artifact_refs.extend(_artifact_refs(payload))
        if after == "FAILED":
            state.root_cause = _root_cause(state.steps, _error(payload))
    return True


def _apply_to_step(state: RunSnapshot, steps: Steps, event: FoldedEvent) -> bool:
    before, after = step_transitions[event.event_type]
    step = steps.get(event.step_id)
    attempt: Attempt | None = step
    if step is None or step.logical_attempt_id != event.logical_attempt_id:
        attempt = _other_attempt(step, event)
    if attempt is None:
        if before != "PENDING":
            return False
        attempt = _new_attempt(state, steps, event)
    elif attempt.status != before:
        return False
    attempt.status = after
    attempt.engine_attempt_id = event.engine_attempt_id
    if after == "RUNNING":
        attempt.started_at = event.emitted_at
        return True
    attempt.completed_at = event.emitted_at
    if event.payload is not UNSET:
        payload = _payload(event)
        if artifacts := _artifacts(payload):
            attempt.artifacts = artifacts
            state.artifacts.extend(artifacts)
        if refs := _artifact_refs(payload):
            attempt.artifact_refs = refs
            state.artifact_refs.extend(refs)
        if after == "FAILED":
            attempt.error = _error(payload)
        elif after == "SKIPPED":
            attempt.skip_reason = _skip_reason(payload)
    return True


def _other_attempt(step: Step | None, event: FoldedEvent) -> Attempt | None:
    """An earlier attempt that is still on record: its late events belong to it, not to the newest one."""
    if step is None:
        return None
    return next((a for a in step.attempts if a.logical_attempt_id == event.logical_attempt_id), None)


def _new_attempt(state: RunSnapshot, steps: Steps, event: FoldedEvent) -> Attempt:
    step = steps.get(event.step_id)
    if step is None:
        step = Step(event.logical_attempt_id, event.engine_attempt_id, step_id=event.step_id)
        steps[event.step_id] = step
        state.steps.append(step)
        return step
    fresh = Attempt(event.logical_attempt_id, event.engine_attempt_id)
    if event.logical_attempt_id < step.logical_attempt_id:
        # An attempt that nobody had heard of, older than the newest one: it goes straight into history.
        step.attempts.append(fresh)
        step.attempts.sort(key=lambda attempt: attempt.logical_attempt_id)
        return fresh
    step.attempts.append(_as_history(step))
    for field in Attempt.__struct_fields__:
        setattr(step, field, getattr(fresh, field))
    return step


def _as_history(step: Step) -> Attempt:
    return Attempt(*(getattr(step, field) for field in Attempt.__struct_fields__))


def _step_state(steps: Steps, event: FoldedEvent) -> str:
    step = steps.get(event.step_id)
    if step is not None and step.logical_attempt_id == event.logical_attempt_id:
        return step.status
    other = _other_attempt(step, event)
    return "PENDING" if other is None else other.status


def alerts(state: RunSnapshot, steps: Steps, event: RunEventRecord) -> list[Alert]:
    """What an impossible event raises: which run, which event, from what to what."""
    of_step = event.event_type in step_transitions
    prior = _step_state(steps, event) if of_step else state.status
    attempted = step_transitions[event.event_type][1] if of_step else _attempted_run_state[event.event_type]
    details = {
        "runId": state.run_id,
        "tenantId": event.tenant_id,
        "projectId": event.project_id,
        "environmentId": event.environment_id,
        "eventId": event.event_id,
        "eventType": event.event_type,
        "runSeq": event.run_seq,
        "persistedAt": event.persisted_at,
        "priorState": prior,
        "attemptedState": attempted,
    }
    codes: list[tuple[str, Any]] = [("INVALID_TRANSITION", "P2")]
    if of_step and prior == "PENDING" and attempted in ("SUCCESS", "FAILED"):
        codes.append(("PROJECTOR_CAUSAL_VIOLATION", "P3"))
    return [
        Alert(code=code, level=level, subject=state.run_id, event_id=event.event_id, details=details)
        for code, level in codes
    ]


def _payload(event: FoldedEvent) -> dict[str, Any]:
    payload = event.payload
    if payload is UNSET:
        return {}
    decoded = msgspec.json.decode(payload) if isinstance(payload, msgspec.Raw) else payload
    return decoded if isinstance(decoded, dict) else {}


def _artifacts(payload: dict[str, Any]) -> list[Any]:
    artifacts = payload.get("artifacts")
    return artifacts if isinstance(artifacts, list) else []


def _artifact_refs(payload: dict[str, Any]) -> list[Any]:
    refs = payload.get("artifactRefs")
    return refs if isinstance(refs, list) else []


def _skip_reason(payload: dict[str, Any]) -> str | None:
    reason = payload.get("reason")
    return reason if isinstance(reason, str) else None


def _root_cause(steps: list[Step], error: StepError | None) -> RootCause | None:
    """The first step, by appearance, whose newest attempt has failed, and its error; else the run's own error.

    Steps appear in the order in which work reached them: what fails later may have failed because of what came first.
    """
    failed = next((step for step in steps if step.status == "FAILED"), None)
    if failed is not None:
        return RootCause(failed.error or error, failed.logical_attempt_id, failed.step_id)
    return None if error is None else RootCause(error)


def _take_engine_run_ref(state: RunSnapshot, event: FoldedEvent) -> None:
    """Keep how the engine itself names the run: the newest name that an event gave."""
    if isinstance(event, RunFact):
        ref = None if event.engine_run_ref is UNSET else msgspec.json.decode(event.engine_run_ref)
    elif isinstance(event, RunEventRecord):
        ref = event.extra.get("engineRunRef")
    else:
        ref = None
    if ref is None and event.event_type == "RunStarted" and may_hold_ref(event.payload):
        ref = _payload(event).get("engineRunRef")
    if ref is not None:
        state.engine_run_ref = ref


def may_hold_ref(payload: Any) -> bool:
    """Whether a payload may have an `engineRunRef`; False spares decoding it. An escape may hide the name."""
    if isinstance(payload, msgspec.Raw):
        text = bytes(payload)
        return b"engineRunRef" in text or b"\\" in text
    return payload is not UNSET


def _error(payload: dict[str, Any]) -> StepError | None:
    error = payload.get("error")
    if not isinstance(error, dict):
        return None
    code, message, retryable = error.get("code"), error.get("message"), error.get("retryable")
    return StepError(
        code if isinstance(code, str) else "UNKNOWN",
        message if isinstance(message, str) else "",
        retryable is True,
    )


def _elapsed_ms(start: str | None, end: str) -> int | None:
    """Whole milliseconds between two producers' clocks, rounded half up; None where the clocks do not allow one."""
    if start is None:
        return None
    try:
        nanoseconds = elapsed_ns(start, end)
    except ValueError:  # The year 0000, which RFC 3339 allows and Python does not know.
        return None
    return (nanoseconds + 500_000) // 1_000_000 if nanoseconds >= 0 else None
