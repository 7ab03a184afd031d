"""What others are told about an event of a run: one flat JSON object, or nothing.

A record is a function of its event alone, so the same event always gives the same record, and a receiver that keeps
one record for each `event_id` may be sent any of them again. Records tell what happened and how it went. What a run
was given (config, parameters, prompts) stays in the log: it may hold secrets, and telemetry leaves the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET

from runstate.models.rundir.events import RunEvent
from runstate.models.rundir.evolve import terminal_states

record_version = 1
"""Of the shape of a record. A receiver ignores members that it doesn't know; a change of meaning is a new version."""

text_chars_max = 4096
"""Characters of a text in a record; more is cut, and ends with an ellipsis."""

list_items_max = 1000
"""Entries of a list in a record."""

Record = dict[str, Any]


def records(event: RunEvent) -> list[Record]:
    """The records of an event: one for a run, node, work item, gate or model call, none for anything else.

    Whatever the payload lacks, the record lacks too; this never raises for an event that a log has stored.
    """
    found = _kinds.get(event.type)
    if found is None:
        return []
    kind, members = found
    record: Record = {"event_id": event.event_id, "kind": kind, "type": event.type, "run_id": event.run_id}
    record["ts"] = None if event.ts is UNSET else event.ts
    record |= {"trace_id": event.trace_id, "span_id": event.span_id}
    if event.parent_span_id is not UNSET:
        record["parent_span_id"] = event.parent_span_id
    known = members(event.type, event.payload)
    return [record | {name: value for name, value in known.items() if value is not None} | {"version": record_version}]


def text_of(error: Any) -> str | None:
    """An error as text, whatever its worker made of it: its message where it has one, else its JSON."""
    if error is None:
        return None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        error = error["message"]
    text = error if isinstance(error, str) else msgspec.json.encode(error).decode()
    return text if len(text) <= text_chars_max else text[: text_chars_max - 1] + "…"


def _run(kind: str, payload: dict[str, Any]) -> Record:
    if kind == "RUN_STATE_CHANGED":
        return _picked(payload, "old_state", "node") | {"state": _plain(payload.get("new_state"))}
    return {"state": terminal_states.get(kind, "CREATED"), "error": text_of(payload.get("error"))}


def _node(kind: str, payload: dict[str, Any]) -> Record:
    named = {"node": _plain(payload.get("section")), "state": _plain(payload.get("new_state"))}
    return named | {"error": text_of(payload.get("error"))}


_item_status = {"WORK_ITEM_QUEUED": "queued", "WORK_ITEM_STARTED": "running"}


def _work_item(kind: str, payload: dict[str, Any]) -> Record:
    picked = _picked(payload, "work_item_id", "worker", "attempt", "scope_key", "inputs", "outputs")
    status = _item_status.get(kind) or _plain(payload.get("status"))
    return picked | {"status": status, "error": text_of(payload.get("error"))}


def _gate(kind: str, payload: dict[str, Any]) -> Record:
    picked = _picked(payload, "gate", "work_item_id", "status", "passed", "issues", "issue_count", "duration_ms")
    return picked | {"error": text_of(payload.get("error"))}


_counts = ("tokens", "input_tokens", "output_tokens", "prompt_tokens", "completion_tokens", "total_tokens")
_prices = ("cost", "cost_usd", "currency", "latency", "latency_ms", "latency_s")


def _llm_call(kind: str, payload: dict[str, Any]) -> Record:
    picked = _picked(payload, "model", "provider", "call_id", "work_item_id", "status", *_counts, *_prices)
    return picked | {"error": text_of(payload.get("error"))}


def _picked(payload: dict[str, Any], *names: str) -> Record:
    return {name: _plain(payload[name]) for name in names if name in payload}


def _plain(value: Any) -> Any:
    """A value without depth or great length: a record stays small whatever a payload holds."""
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, list):
        return [text_of(item) for item in value[:list_items_max]]
    if isinstance(value, dict):
        return {name: number for name, number in value.items() if isinstance(number, int | float)}
    return value


_kinds: dict[str, tuple[str, Callable[[str, dict[str, Any]], Record]]] = {
    "RUN_CREATED": ("run", _run),
    "RUN_STATE_CHANGED": ("run", _run),
    **dict.fromkeys(terminal_states, ("run", _run)),
    "SECTION_STATE_CHANGED": ("node", _node),
    "WORK_ITEM_QUEUED": ("work_item", _work_item),
    "WORK_ITEM_STARTED": ("work_item", _work_item),
    "WORK_ITEM_FINISHED": ("work_item", _work_item),
    "GATE_RUN_STARTED": ("gate", _gate),
    "GATE_RUN_FINISHED": ("gate", _gate),
    "LLM_CALL_STARTED": ("llm_call", _llm_call),
    "LLM_CALL_FINISHED": ("llm_call", _llm_call),
    "LLM_CALL_FAILED": ("llm_call", _llm_call),
}
