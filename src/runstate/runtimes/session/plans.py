"""What is written for each operation on a session: plans, as pure functions of ids and facts.

Every id in it is handed in, or derived from what is, so the same operation, tried again after a crash, gives the same
plan, event for event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from runstate.errors import InvalidEvent, InvalidJson
from runstate.models.session import events, keys, payloads
from runstate.models.session.events import SessionEvent
from runstate.models.session.ids import (
    AttemptId,
    DedupeKey,
    EventId,
    GapId,
    NodeId,
    OutputId,
    RunId,
    SessionId,
    derived,
)
from runstate.models.session.plain import plain
from runstate.runtimes.session.journal import Plan
from runstate.runtimes.session.node_snapshots import NodeSnapshot
from runstate.runtimes.session.tokens import AckToken, StateToken
from runstate.runtimes.session.workflow import Workflow


def session_begun(session_id: SessionId, title: str | None, session_key: str | None) -> Plan:
    data = payloads.SessionCreatedData(
        title=UNSET if title is None else title, session_key=UNSET if session_key is None else session_key
    )
    return Plan([events.SessionCreated(**_envelope(session_id, keys.session_created()), data=data)])


def start_node(session_id: SessionId, run_id: RunId) -> NodeId:
    return NodeId(derived("node", session_id, run_id, "start"))


def run_begun(session_id: SessionId, run_id: RunId, workflow: Workflow, snapshot: NodeSnapshot) -> Plan:
    node_id = start_node(session_id, run_id)
    data = payloads.RunStartedData(
        run_id=run_id, workflow_id=workflow.workflow_id, workflow_hash=workflow.hash, start_node_id=node_id
    )
    started = events.RunStarted(**_envelope(session_id, keys.run_started(run_id)), data=data)
    node = _node(session_id, run_id, node_id, "step", snapshot)
    return Plan([started, node], [workflow.to_bytes(), snapshot.to_bytes()])


def child_node(ack: AckToken, kind: payloads.NodeKind) -> NodeId:
    """The node that an attempt leads to: known before it is there, and the same however often it is tried."""
    return NodeId(derived("node", ack.session_id, ack.node_id, ack.attempt_id, kind))


def grown(ack: AckToken, kind: payloads.NodeKind, snapshot: NodeSnapshot, edge_kind: payloads.EdgeKind) -> Plan:
    """A new node after the one that the attempt was made at."""
    child = child_node(ack, kind)
    data = payloads.EdgeCreatedData(parent_node_id=ack.node_id, child_node_id=child, edge_kind=edge_kind)
    key = keys.edge_created(ack.run_id, ack.node_id, child)
    edge = events.EdgeCreated(**_envelope(ack.session_id, key), run_id=ack.run_id, data=data)
    return Plan([_node(ack.session_id, ack.run_id, child, kind, snapshot), edge], [snapshot.to_bytes()])


def acked_output(ack: AckToken) -> OutputId:
    """The output that an attempt leaves at the node that it leads to."""
    return OutputId(derived("out", ack.session_id, ack.node_id, ack.attempt_id))


def output(
    output_id: OutputId, notes: str, artifacts: Sequence[payloads.Artifact], supersedes: OutputId | None = None
) -> payloads.Output:
    """
    Raises:
        InvalidEvent: the notes or one of the artifacts is none.
    """
    made = payloads.Output(
        output_id=output_id,
        notes=notes,
        artifacts=tuple(artifacts),
        supersedes_output_id=UNSET if supersedes is None else supersedes,
    )
    try:
        return msgspec.convert(plain(made), payloads.Output)
    except (InvalidJson, msgspec.ValidationError) as error:
        raise InvalidEvent(f"No output of a node: {error}") from error


def output_given(at: StateToken, output: payloads.Output) -> SessionEvent:
    key = keys.node_output_appended(at.node_id, output.output_id)
    return events.NodeOutputAppended(**_at_node(at, key), data=payloads.NodeOutputAppendedData(output=output))


def observed(
    session_id: SessionId, observation: payloads.Observation, attempt: AttemptId, at: StateToken | None
) -> SessionEvent:
    kind = payloads.observation_kinds[type(observation)]
    key = keys.observation_recorded(kind, attempt, None if at is None else at.node_id)
    scope = _envelope(session_id, key) if at is None else _at_node(at, key)
    return events.ObservationRecorded(**scope, data=observation)


def preferred(
    session_id: SessionId,
    delta: payloads.PreferenceDelta,
    effective: payloads.Preferences,
    attempt: AttemptId,
    at: StateToken | None,
) -> SessionEvent:
    key = keys.preferences_changed(attempt, None if at is None else at.node_id)
    scope = _envelope(session_id, key) if at is None else _at_node(at, key)
    data = payloads.PreferencesChangedData(preference_delta=delta, effective_preferences_snapshot=effective)
    return events.PreferencesChanged(**scope, data=data)


def capability_seen(at: StateToken, data: payloads.CapabilityObservedData, attempt: AttemptId) -> SessionEvent:
    key = keys.capability_observed(at.node_id, data.capability, attempt)
    return events.CapabilityObserved(**_at_node(at, key), data=data)


def gap_told(at: StateToken, data: payloads.GapRecordedData) -> SessionEvent:
    return events.GapRecorded(**_at_node(at, keys.gap_recorded(data.gap_id)), data=data)


def resolution_of(gap_id: GapId) -> GapId:
    """The gap event that resolves a gap: one for each, so that resolving it twice is resolving it once."""
    return GapId(derived("gap", gap_id, "resolved"))


def diverged(at: StateToken, data: payloads.DivergenceRecordedData, attempt: AttemptId) -> SessionEvent:
    return events.DivergenceRecorded(**_at_node(at, keys.divergence_recorded(at.node_id, attempt)), data=data)


def traced(at: StateToken, data: payloads.DecisionTraceAppendedData, attempt: AttemptId) -> SessionEvent:
    return events.DecisionTraceAppended(**_at_node(at, keys.decision_trace_appended(at.node_id, attempt)), data=data)


def _node(
    session_id: SessionId, run_id: RunId, node_id: NodeId, kind: payloads.NodeKind, snapshot: NodeSnapshot
) -> SessionEvent:
    data = payloads.NodeCreatedData(
        node_id=node_id,
        node_kind=kind,
        snapshot_ref=snapshot.ref,
        workflow_hash=snapshot.workflow_hash,
        is_terminal=snapshot.step_id is None,
    )
    return events.NodeCreated(**_envelope(session_id, keys.node_created(run_id, node_id)), run_id=run_id, data=data)


def _at_node(at: StateToken, key: DedupeKey) -> dict[str, Any]:
    return _envelope(at.session_id, key) | {"run_id": at.run_id, "node_id": at.node_id}


def _envelope(session_id: SessionId, key: DedupeKey) -> dict[str, Any]:
    return {"event_id": EventId(derived("ev", session_id, key)), "session_id": session_id, "dedupe_key": key}
