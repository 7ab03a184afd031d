"""What the events of a run directory say about work: the run, its work items, and the model calls within them.

`LLM_CALL_…` payloads are open. Read from them are `model`; `input_tokens`, `prompt_tokens` or `tokens.input`;
`output_tokens`, `completion_tokens` or `tokens.output`; `cost` or `cost_usd`; `latency_ms`, `duration_ms` or
`latency_s`. A bare `tokens` or `total_tokens` that nothing splits counts as input, so that sums stay right. A plain
`latency` has no unit and is left alone: the time since the call's `LLM_CALL_STARTED` is measured instead. A call is
told apart by its `call_id`, else by its event's `span_id`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from runstate.models.activity import (
    Activity,
    ActivityKind,
    first_amount,
    first_count,
    read_amount,
    read_count,
    read_name,
    read_scope,
)
from runstate.models.rundir.events import RunEvent

_ends: dict[str, ActivityKind] = {
    "RUN_COMPLETED": "run_finished",
    "RUN_FAILED": "run_failed",
    "RUN_CANCELLED": "run_cancelled",
}
_states: dict[str, ActivityKind] = {
    "COMPLETED": "run_finished",
    "FAILED": "run_failed",
    "CANCELLED": "run_cancelled",
}
_item_ends: dict[str, ActivityKind] = {"finished": "finished", "failed": "failed", "skipped": "skipped"}


def activities(event: RunEvent) -> list[Activity]:
    """What the event says about work. Never raises, whatever the payload holds."""
    found = _readers.get(event.type)
    if found is None or not isinstance(event.payload, dict):
        return []
    activity = found(event, event.payload, "" if event.ts is UNSET else event.ts)
    return [] if activity is None else [activity]


def _created(event: RunEvent, payload: dict[str, Any], at: str) -> Activity:
    config = payload.get("config")
    # The orchestrator notes there which graph the run goes through.
    name = read_name(config.get("graph")) if isinstance(config, dict) else ""
    return Activity(kind="run_queued", name=name, at=at)


def _state_changed(event: RunEvent, payload: dict[str, Any], at: str) -> Activity | None:
    new = payload.get("new_state")
    if not isinstance(new, str) or not new or new == "CREATED":
        return None
    return Activity(kind=_states.get(new, "run_resumed"), at=at)


def _ended(event: RunEvent, payload: dict[str, Any], at: str) -> Activity:
    return Activity(kind=_ends[event.type], at=at)


def _queued(event: RunEvent, payload: dict[str, Any], at: str) -> Activity | None:
    scope = read_scope(payload.get("work_item_id"))
    name, attempt = read_name(payload.get("worker")), read_count(payload.get("attempt")) or 0
    return Activity(kind="queued", name=name, scope=scope, attempt=attempt, at=at) if scope else None


def _started(event: RunEvent, payload: dict[str, Any], at: str) -> Activity | None:
    return _of_item("started", event, payload, at)


def _finished(event: RunEvent, payload: dict[str, Any], at: str) -> Activity | None:
    status = payload.get("status")
    kind = _item_ends.get(status) if isinstance(status, str) else None
    return None if kind is None else _of_item(kind, event, payload, at)


def _of_item(kind: ActivityKind, event: RunEvent, payload: dict[str, Any], at: str) -> Activity | None:
    scope = read_scope(payload.get("work_item_id"))
    if not scope:
        return None
    # These events name nothing but the item. Its id tells the worker by convention, which is better than nothing for an
    # item that was never queued; what an earlier activity of the same scope said comes first.
    prefix = f"{event.run_id}:"
    parts = scope.removeprefix(prefix).split(":") if scope.startswith(prefix) else []
    if len(parts) < 3 or not (parts[1].isascii() and parts[1].isdigit() and len(parts[1]) < 16):
        return Activity(kind=kind, scope=scope, at=at)
    return Activity(kind=kind, name=read_name(parts[0]), scope=scope, attempt=int(parts[1]), at=at)


def _call_started(event: RunEvent, payload: dict[str, Any], at: str) -> Activity:
    return Activity(kind="call_started", name=read_name(payload.get("model")), scope=_call_scope(event), at=at)


def _call_ended(event: RunEvent, payload: dict[str, Any], at: str) -> Activity:
    tokens = payload.get("tokens")
    split = tokens if isinstance(tokens, dict) else {}
    tokens_in = first_count(payload, "input_tokens", "prompt_tokens", "tokens_in")
    tokens_out = first_count(payload, "output_tokens", "completion_tokens", "tokens_out")
    tokens_in = first_count(split, "input") if tokens_in is None else tokens_in
    tokens_out = first_count(split, "output") if tokens_out is None else tokens_out
    if tokens_in is None and tokens_out is None:
        tokens_in = first_count(payload, "total_tokens", "tokens")
    seconds = first_amount(payload, "latency_s")
    duration_ms = first_amount(payload, "latency_ms", "duration_ms")
    failed = event.type == "LLM_CALL_FAILED" or payload.get("status") in ("failed", "error")
    return Activity(
        kind="call",
        name=read_name(payload.get("model")),
        scope=_call_scope(event),
        attempt=read_count(payload.get("attempt")) or 0,
        at=at,
        cost=first_amount(payload, "cost", "cost_usd"),
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        duration_ms=read_amount(seconds * 1000) if duration_ms is None and seconds is not None else duration_ms,
        outcome="failed" if failed else "finished",
    )


def _call_scope(event: RunEvent) -> str:
    return read_scope(event.payload.get("call_id")) or read_scope(event.span_id)


_readers: dict[str, Callable[[RunEvent, dict[str, Any], str], Activity | None]] = {
    "RUN_CREATED": _created,
    "RUN_STATE_CHANGED": _state_changed,
    **dict.fromkeys(_ends, _ended),
    "WORK_ITEM_QUEUED": _queued,
    "WORK_ITEM_STARTED": _started,
    "WORK_ITEM_FINISHED": _finished,
    "LLM_CALL_STARTED": _call_started,
    "LLM_CALL_FINISHED": _call_ended,
    "LLM_CALL_FAILED": _call_ended,
}
