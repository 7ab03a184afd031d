"""Stored lines of a session for tests: short to write, and with no more checks than a careless producer makes."""

from __future__ import annotations

from typing import Any

import msgspec

from runstate.models.session import SESSION
from runstate.models.session.events import SessionEvent

at = "2026-11-15T09:30:00.500Z"
workflow, other_workflow, snapshot = ("sha256:" + digit * 64 for digit in "abc")


def event(kind: str, data: dict[str, Any], run: str = "", node: str = "", **members: Any) -> bytes:
    """An event as a producer writes it. Its ids come from its content, unless they are given."""
    scope = ({"runId": run} if run else {}) | ({"nodeId": node} if node else {})
    made = {"eventId": "e-1", "sessionId": "s-1", "kind": kind, "dedupeKey": f"{kind}:1", **scope, "data": data}
    return msgspec.json.encode(made | members)


def stored(events: list[bytes], first: int = 0) -> list[bytes]:
    """The lines that a log makes of events."""
    lines = []
    for index, line in enumerate(events, first):
        numbered = msgspec.json.decode(line) | {"eventId": f"e-{index}", "dedupeKey": f"k:{index}"}
        draft = SESSION.draft(SESSION.parse(msgspec.json.encode(numbered)))[1]
        lines.append(draft.render(index + 1, at))
    return lines


def folded(events: list[bytes]) -> Any:
    """The session that events fold into. Of no type, so that tests may write ids as plain text."""
    return SESSION.fold(SESSION.initial("s-1"), stored(events))


def typed(line: bytes) -> SessionEvent:
    return SESSION.decode(stored([line], 99)[0])


def created() -> bytes:
    return event("session_created", {})


def started(run: str = "r", start: str = "n", workflow_hash: str = workflow) -> bytes:
    data = {"runId": run, "workflowId": "Fix", "workflowHash": workflow_hash, "startNodeId": start}
    return event("run_started", data)


def node(name: str, run: str = "r", workflow_hash: str = workflow, **more: Any) -> bytes:
    data = {"nodeId": name, "nodeKind": "step", "snapshotRef": snapshot, "workflowHash": workflow_hash, **more}
    return event("node_created", data, run)


def edge(parent: str, child: str, run: str = "r", kind: str = "acked_step") -> bytes:
    return event("edge_created", {"parentNodeId": parent, "childNodeId": child, "edgeKind": kind}, run)


def output(name: str, at_node: str = "n", run: str = "r", **more: Any) -> bytes:
    data = {"output": {"outputId": name, "notes": f"notes of {name}", **more}}
    return event("node_output_appended", data, run, at_node)


def gap(name: str, at_node: str = "n", run: str = "r", severity: str = "critical", **more: Any) -> bytes:
    data = {"gapId": name, "reason": "user_choice_needed", "severity": severity, "summary": "missing", **more}
    return event("gap_recorded", data, run, at_node)


def capability(status: str, provenance: str, at_node: str = "n", name: str = "delegation") -> bytes:
    data = {"capability": name, "status": status, "provenance": provenance}
    return event("capability_observed", data, "r", at_node)


def preferences(autonomy: str, at_node: str = "", run: str = "r", risk: str = "balanced") -> bytes:
    effective = {"autonomy": autonomy, "riskPolicy": risk}
    data = {"preferenceDelta": {"autonomy": autonomy}, "effectivePreferencesSnapshot": effective}
    return event("preferences_changed", data, run if at_node else "", at_node)


def branch(value: str, at_node: str = "") -> bytes:
    data = {"observationKind": "git_branch", "value": value}
    return event("observation_recorded", data, "r" if at_node else "", at_node)


def divergence(at_node: str = "n", run: str = "r") -> bytes:
    return event("divergence_recorded", {"reason": "step_skipped", "summary": "left out"}, run, at_node)


def trace(at_node: str = "n", run: str = "r") -> bytes:
    return event("decision_trace_appended", {"items": [{"kind": "entered_loop", "summary": "again"}]}, run, at_node)


begun = [created(), started(), node("n")]
"""A session with one run and its start node."""
