"""What the events of an engine say about work: runs, steps by attempt, and the model calls that a step reports.

A step's event may carry the calls of language models that its attempt made, by convention as

    "payload": {"calls": [{"model": "m-1", "tokensIn": 900, "tokensOut": 80, "cost": 0.012, "latencyMs": 830}]}

All members are optional. A call has failed if its `status` is `failed` or `error`, or its `error` is not null. One call
belongs on one event: a call that two events carry counts twice.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from runstate.models.activity import (
    Activity,
    ActivityKind,
    first_amount,
    first_count,
    read_count,
    read_name,
    read_scope,
)
from runstate.models.engine.events import RunEventRecord, step_types

_kinds: dict[str, ActivityKind] = {
    "RunQueued": "run_queued",
    "RunStarted": "run_started",
    "RunCompleted": "run_finished",
    "RunFailed": "run_failed",
    "RunCancelled": "run_cancelled",
    "StepStarted": "started",
    "StepCompleted": "finished",
    "StepFailed": "failed",
    "StepSkipped": "skipped",
}
"""A pause is part of its run's time, as in `totalDurationMs`: pausing and resuming are no activities."""


def activities(event: RunEventRecord) -> list[Activity]:
    """What the event says about work, the calls that it reports first. Never raises, whatever the payload holds."""
    kind = _kinds.get(event.event_type)
    if kind is None:
        return []
    attempt = read_count(event.logical_attempt_id) or 0
    if event.event_type not in step_types:
        return [Activity(kind=kind, name=read_name(event.plan_id), attempt=attempt, at=event.emitted_at)]
    step_id = read_scope(event.step_id)
    # An id cannot hold `|`, so no two attempts of two steps share a scope.
    scope = f"{step_id}|{attempt}"
    step = Activity(kind=kind, name=read_name(step_id), scope=scope, attempt=attempt, at=event.emitted_at)
    return [*_calls(event, attempt), step] if event.payload is not UNSET else [step]


def _calls(event: RunEventRecord, attempt: int) -> list[Activity]:
    calls = event.payload.get("calls") if isinstance(event.payload, dict) else None
    if not isinstance(calls, list):
        return []
    return [_call(call, event.emitted_at, attempt) for call in calls if isinstance(call, dict)]


def _call(call: dict[str, Any], at: str, attempt: int) -> Activity:
    failed = call.get("status") in ("failed", "error") or call.get("error") is not None
    return Activity(
        kind="call",
        name=read_name(call.get("model")),
        attempt=attempt,
        at=at,
        cost=first_amount(call, "cost"),
        tokens_in=first_count(call, "tokensIn"),
        tokens_out=first_count(call, "tokensOut"),
        duration_ms=first_amount(call, "latencyMs"),
        outcome="failed" if failed else "finished",
    )
