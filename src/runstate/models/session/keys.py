"""Dedupe keys: which events are the same event, however often they are sent.

A key is made of the kind and of stable ids, never of a time or of the event's own id, so that whoever tries again after
a crash arrives at the same key. Kinds that bring an id of their own need no more than that. The others may say the same
thing twice (a branch that is left and returned to), so the attempt that says it is part of their key.
"""

from __future__ import annotations

from runstate.models.session.events import (
    CapabilityObserved,
    DecisionTraceAppended,
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
from runstate.models.session.ids import AttemptId, DedupeKey, GapId, NodeId, OutputId, RunId
from runstate.models.session.payloads import Capability, ObservationKind, observation_kinds


def session_created() -> DedupeKey:
    return DedupeKey("session_created")


def run_started(run: RunId) -> DedupeKey:
    return _key("run_started", run)


def node_created(run: RunId, node: NodeId) -> DedupeKey:
    return _key("node_created", run, node)


def edge_created(run: RunId, parent: NodeId, child: NodeId) -> DedupeKey:
    return _key("edge_created", run, f"{parent}>{child}")


def node_output_appended(node: NodeId, output: OutputId) -> DedupeKey:
    return _key("node_output_appended", node, output)


def gap_recorded(gap: GapId) -> DedupeKey:
    return _key("gap_recorded", gap)


def observation_recorded(kind: ObservationKind, attempt: AttemptId, node: NodeId | None = None) -> DedupeKey:
    return _key("observation_recorded", kind, *_scope(node), attempt)


def preferences_changed(attempt: AttemptId, node: NodeId | None = None) -> DedupeKey:
    return _key("preferences_changed", *_scope(node), attempt)


def capability_observed(node: NodeId, capability: Capability, attempt: AttemptId) -> DedupeKey:
    return _key("capability_observed", node, capability, attempt)


def divergence_recorded(node: NodeId, attempt: AttemptId) -> DedupeKey:
    return _key("divergence_recorded", node, attempt)


def decision_trace_appended(node: NodeId, attempt: AttemptId) -> DedupeKey:
    return _key("decision_trace_appended", node, attempt)


def expected(event: SessionEvent) -> DedupeKey | None:
    """The key that an event's own ids give; None for a kind whose key needs the attempt, which no event tells."""
    match event:
        case SessionCreated():
            return session_created()
        case RunStarted(data=run):
            return run_started(run.run_id)
        case NodeCreated(data=node):
            return node_created(event.run_id, node.node_id)
        case EdgeCreated(data=edge):
            return edge_created(event.run_id, edge.parent_node_id, edge.child_node_id)
        case NodeOutputAppended():
            return node_output_appended(event.node_id, event.data.output.output_id)
        case GapRecorded(data=gap):
            return gap_recorded(gap.gap_id)
        case _:
            return None


def fits(event: SessionEvent) -> bool:
    """Whether an event stands under a key of its own. Under another's, it would keep that event from being stored."""
    attempt = AttemptId(event.dedupe_key.rpartition(":")[2])
    own: DedupeKey | None
    match event:
        case ObservationRecorded():
            own = observation_recorded(observation_kinds[type(event.data)], attempt, event.node_id or None)
        case PreferencesChanged():
            own = preferences_changed(attempt, event.node_id or None)
        case CapabilityObserved():
            own = capability_observed(event.node_id, event.data.capability, attempt)
        case DivergenceRecorded():
            own = divergence_recorded(event.node_id, attempt)
        case DecisionTraceAppended():
            own = decision_trace_appended(event.node_id, attempt)
        case _:
            own = expected(event)
    return event.dedupe_key == own


def _key(kind: str, *parts: str) -> DedupeKey:
    # No id holds a colon, so no two rows of parts give one key.
    return DedupeKey(":".join((kind, *parts)))


def _scope(node: NodeId | None) -> tuple[str, ...]:
    return () if node is None else (node,)
