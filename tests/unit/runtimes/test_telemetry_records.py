"""Records: what others are told about an event, and what they are not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from runstate.models.rundir import RunEvent
from runstate.models.rundir.events import payload_types
from runstate.runtimes.telemetry import records


def event(kind: str, **payload: Any) -> RunEvent:
    return RunEvent(
        event_id="e-1",
        run_id="r-1",
        ts="2026-11-15T09:30:00.000Z",
        type=kind,
        payload=payload,
        trace_id="a" * 32,
        span_id="b" * 16,
        parent_span_id="c" * 16,
    )


envelope = {
    "event_id": "e-1",
    "run_id": "r-1",
    "ts": "2026-11-15T09:30:00.000Z",
    "trace_id": "a" * 32,
    "span_id": "b" * 16,
    "parent_span_id": "c" * 16,
    "version": 1,
}

item_id = {"work_item_id": "r-1:render:1:home"}
queued = item_id | {"worker": "render", "attempt": 1, "scope_key": "home", "inputs": ["a"], "outputs": ["b"]}
call = {"model": "m-1", "tokens": {"input": 12, "output": 3}, "cost": 0.01, "latency_ms": 250}


@pytest.mark.parametrize(
    ("kind", "payload", "expected"),
    [
        ("RUN_CREATED", {"config": {"key": "secret"}, "parameters": {}}, {"kind": "run", "state": "CREATED"}),
        ("RUN_STATE_CHANGED", {"old_state": "A", "new_state": "B"}, {"kind": "run", "old_state": "A", "state": "B"}),
        ("RUN_COMPLETED", {"result": {}}, {"kind": "run", "state": "COMPLETED"}),
        ("RUN_FAILED", {"error": {"message": "no"}}, {"kind": "run", "state": "FAILED", "error": "no"}),
        ("RUN_CANCELLED", {}, {"kind": "run", "state": "CANCELLED"}),
        ("SECTION_STATE_CHANGED", {"section": "s", "new_state": "B"}, {"kind": "node", "node": "s", "state": "B"}),
        ("WORK_ITEM_QUEUED", queued, {"kind": "work_item", "status": "queued", **queued}),
        ("WORK_ITEM_STARTED", item_id, {"kind": "work_item", "status": "running", **item_id}),
        (
            "WORK_ITEM_FINISHED",
            item_id | {"status": "finished"},
            {"kind": "work_item", "status": "finished", **item_id},
        ),
        (
            "WORK_ITEM_FINISHED",
            item_id | {"status": "failed", "error": ["x"]},
            {"kind": "work_item", "status": "failed", "error": '["x"]', **item_id},
        ),
        ("GATE_RUN_FINISHED", {"gate": "g", "passed": False}, {"kind": "gate", "gate": "g", "passed": False}),
        ("LLM_CALL_FINISHED", call | {"prompt": "private"}, {"kind": "llm_call", **call}),
    ],
)
def test_a_record_tells_what_happened(kind: str, payload: dict[str, Any], expected: dict[str, Any]) -> None:
    assert records(event(kind, **payload)) == [envelope | {"type": kind} | expected]


@pytest.mark.parametrize("kind", ["ARTIFACT_WRITTEN", "ISSUE_OPENED", "SOMETHING_NEW"])
def test_other_events_make_no_record(kind: str) -> None:
    assert records(event(kind)) == []


@pytest.mark.parametrize("kind", [*payload_types, "GATE_RUN_STARTED", "LLM_CALL_FAILED", "RUN_FAILED"])
@pytest.mark.parametrize("odd", [None, 7, [[{}]], {"deep": {"er": [1]}}, "x" * 100_000])
def test_a_strange_payload_makes_a_small_record(kind: str, odd: Any) -> None:
    names = ("section", "new_state", "work_item_id", "status", "error", "model", "tokens", "gate", "inputs")
    for record in records(event(kind, **dict.fromkeys(names, odd))):
        assert len(msgspec.json.encode(record)) < 50_000


def test_an_event_without_time_or_parent_has_neither() -> None:
    bare = RunEvent(event_id="e", run_id="r", type="RUN_CREATED", payload={}, trace_id="a" * 32, span_id="b" * 16)
    (record,) = records(bare)
    assert record["ts"] is None
    assert "parent_span_id" not in record
