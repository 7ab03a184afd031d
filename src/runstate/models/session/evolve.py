"""How a session's events change its state.

An impossible event (see `rules.py`) changes nothing: the session is marked `inconsistent`, the watermark moves on, and
an alert says what was attempted. Every event costs the same, however long the session is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from msgspec import UNSET

from runstate.models.model import Alert, AlertSink
from runstate.models.session.events import (
    AtNode,
    CapabilityObserved,
    DivergenceRecorded,
    EdgeCreated,
    GapRecorded,
    NodeCreated,
    NodeOutputAppended,
    ObservationRecorded,
    PreferencesChanged,
    RunStarted,
    SessionCreated,
    SessionEvent,
)
from runstate.models.session.facts import Fact
from runstate.models.session.ids import EventIndex
from runstate.models.session.payloads import observation_kinds, strong_provenance
from runstate.models.session.rules import Refusal, refusal
from runstate.models.session.state import (
    CapabilityReport,
    Divergence,
    Gap,
    Node,
    NodeCapability,
    NodeOutput,
    Observed,
    Run,
    Session,
)


def fold(state: Session, events: Iterable[SessionEvent | Fact], alert: AlertSink | None = None) -> Session:
    """Apply events in order, in place. Events at or below the watermark were applied before: they are skipped."""
    for event in events:
        index = cast(EventIndex, event.event_index)
        if index <= state.last_event_index:
            continue
        refused = refusal(state, event)
        state.last_event_index = index
        if refused is None:
            _effects[event.kind](state, event, index)
        else:
            state.inconsistent = True
            if alert is not None:
                alert(alert_of(state, event, refused))
    return state


def alert_of(state: Session, event: SessionEvent | Fact, refused: Refusal) -> Alert:
    """What an impossible event raises: which session, which event, and why."""
    details = {
        "sessionId": state.session_id,
        "eventId": event.event_id,
        "eventType": event.kind,
        "eventIndex": event.event_index,
        "persistedAt": event.persisted_at,
        "reason": refused.reason,
        "why": refused.why,
    }
    return Alert(
        code="INVALID_TRANSITION", level="P2", subject=state.session_id, event_id=event.event_id, details=details
    )


def _created(state: Session, event: SessionCreated, index: EventIndex) -> None:
    state.created_index = index
    state.title, state.session_key = event.data.title or None, event.data.session_key or None


def _started(state: Session, event: RunStarted, index: EventIndex) -> None:
    data = event.data
    state.runs[data.run_id] = Run(data.workflow_id, data.workflow_hash, data.start_node_id, index)


def _added(state: Session, event: NodeCreated, index: EventIndex) -> None:
    data = event.data
    state.nodes[data.node_id] = Node(
        event.run_id,
        data.node_kind,
        data.snapshot_ref,
        data.is_terminal,
        index,
        index,
        None,
        None,
        [],
        None,
        None,
        {},
        {},
    )


def _linked(state: Session, event: EdgeCreated, index: EventIndex) -> None:
    edge = event.data
    parent, child = state.nodes[edge.parent_node_id], state.nodes[edge.child_node_id]
    parent.children.append(edge.child_node_id)
    child.parent_node_id, child.edge_kind = edge.parent_node_id, edge.edge_kind
    parent.touched_index = child.touched_index = index


def _said(state: Session, event: NodeOutputAppended, index: EventIndex) -> None:
    output, node = event.data.output, _touched(state, event, index)
    supersedes = output.supersedes_output_id or None
    state.outputs[output.output_id] = NodeOutput(event.node_id, index, output.notes, output.artifacts, supersedes, None)
    if supersedes is not None:
        state.outputs[supersedes].superseded_by_output_id = output.output_id
    # Nothing earlier can supersede what has just been said.
    node.current_output_id = output.output_id


def _observed(state: Session, event: ObservationRecorded, index: EventIndex) -> None:
    _owner(state, event, index).observations[observation_kinds[type(event.data)]] = Observed(event.data.value, index)


def _preferred(state: Session, event: PreferencesChanged, index: EventIndex) -> None:
    _owner(state, event, index).preferences = event.data.effective_preferences_snapshot


def _reported(state: Session, event: CapabilityObserved, index: EventIndex) -> None:
    node, data = _touched(state, event, index), event.data
    report = CapabilityReport(data.status, data.provenance, index)
    known = node.capabilities.get(data.capability)
    strong = None if known is None else known.latest_strong
    if data.provenance in strong_provenance:
        strong = report
    node.capabilities[data.capability] = NodeCapability(report, strong)


def _missed(state: Session, event: GapRecorded, index: EventIndex) -> None:
    _touched(state, event, index)
    data = event.data
    resolves = data.resolves_gap_id or None
    state.gaps[data.gap_id] = Gap(
        event.node_id,
        index,
        data.reason,
        data.severity,
        data.summary,
        data.how_to_resolve or None,
        data.related_step_id or None,
        resolves,
        None,
    )
    if resolves is not None:
        state.gaps[resolves].resolved_by_gap_id = data.gap_id


def _diverged(state: Session, event: DivergenceRecorded, index: EventIndex) -> None:
    _touched(state, event, index)
    data = event.data
    step = data.related_step_id or None
    state.divergences.append(Divergence(event.node_id, index, data.reason, data.summary, step))


def _touched(state: Session, event: AtNode, index: EventIndex) -> Node:
    node = state.nodes[event.node_id]
    node.touched_index = index
    return node


def _owner(state: Session, event: ObservationRecorded | PreferencesChanged, index: EventIndex) -> Session | Node:
    """What the event is about: its node, which it touches, or the whole session."""
    if event.node_id is UNSET:
        return state
    node = state.nodes[event.node_id]
    node.touched_index = index
    return node


_effects: dict[str, Callable[[Session, Any, EventIndex], Any]] = {
    "session_created": _created,
    "observation_recorded": _observed,
    "run_started": _started,
    "node_created": _added,
    "edge_created": _linked,
    "node_output_appended": _said,
    "preferences_changed": _preferred,
    "capability_observed": _reported,
    "gap_recorded": _missed,
    "divergence_recorded": _diverged,
    # A trace is for people to read: no projection may rest on it, so no more than its place is kept.
    "decision_trace_appended": _touched,
}
