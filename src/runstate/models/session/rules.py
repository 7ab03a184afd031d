"""Which events are impossible in the state that a session is in, and why.

Every rule costs the same, however long the session is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from msgspec import UNSET

from runstate.models.session.events import (
    AtNode,
    AtNodeOrSession,
    EdgeCreated,
    GapRecorded,
    NodeCreated,
    NodeOutputAppended,
    RunStarted,
    SessionEvent,
)
from runstate.models.session.facts import Fact
from runstate.models.session.payloads import EdgeKind
from runstate.models.session.state import Node, Session

Reason = Literal[
    "session_missing",
    "session_exists",
    "session_differs",
    "run_exists",
    "run_unknown",
    "node_exists",
    "node_unknown",
    "node_of_another_run",
    "workflow_differs",
    "parent_unknown",
    "parent_terminal",
    "child_unknown",
    "child_linked",
    "edge_across_runs",
    "edge_to_start",
    "edge_kind_wrong",
    "output_exists",
    "output_unknown",
    "output_of_another_node",
    "gap_exists",
    "gap_unknown",
]


class Refusal(NamedTuple):
    """Why an event is impossible."""

    reason: Reason
    why: str
    """In words for whoever sent it."""


def refusal(state: Session, event: SessionEvent | Fact) -> Refusal | None:
    """Why the event is impossible in this state; None when it is possible."""
    if event.session_id != state.session_id:
        return Refusal("session_differs", f"the event belongs to the session {event.session_id}")
    if event.kind == "session_created":
        exists = state.created_index is not None
        return Refusal("session_exists", "the session has been created already") if exists else None
    if state.created_index is None:
        return Refusal("session_missing", "the first event of a session is session_created")
    return _rules[event.kind](state, event)


def edge_kind(parent: Node) -> EdgeKind:
    """The kind of the next edge from a node: a node that has been advanced from is no tip, and another edge forks."""
    return "forked_from_non_tip" if parent.children else "acked_step"


def _run(state: Session, event: RunStarted) -> Refusal | None:
    if event.data.run_id in state.runs:
        return Refusal("run_exists", f"there is a run {event.data.run_id} already")
    if event.data.start_node_id in state.nodes:
        return Refusal("node_exists", f"there is a node {event.data.start_node_id} already")
    return None


def _node(state: Session, event: NodeCreated) -> Refusal | None:
    run = state.runs.get(event.run_id)
    if run is None:
        return Refusal("run_unknown", f"there is no run {event.run_id}")
    if event.data.node_id in state.nodes:
        return Refusal("node_exists", f"there is a node {event.data.node_id} already")
    if event.data.workflow_hash != run.workflow_hash:
        return Refusal("workflow_differs", f"the run {event.run_id} is pinned to {run.workflow_hash}")
    return None


def _edge(state: Session, event: EdgeCreated) -> Refusal | None:
    """A child has one parent and gets it before it gets children, so that no edges can ever close a circle."""
    run, edge = state.runs.get(event.run_id), event.data
    if run is None:
        return Refusal("run_unknown", f"there is no run {event.run_id}")
    parent, child = state.nodes.get(edge.parent_node_id), state.nodes.get(edge.child_node_id)
    if parent is None:
        return Refusal("parent_unknown", f"there is no node {edge.parent_node_id}")
    if child is None:
        return Refusal("child_unknown", f"there is no node {edge.child_node_id}")
    if not parent.run_id == child.run_id == event.run_id:
        return Refusal("edge_across_runs", f"both nodes of an edge belong to its run, {event.run_id}")
    if edge.child_node_id == run.start_node_id:
        return Refusal("edge_to_start", f"the run begins with {edge.child_node_id}")
    if child.parent_node_id is not None or child.children or parent is child:
        return Refusal("child_linked", f"the node {edge.child_node_id} has its place in the run already")
    if parent.is_terminal:
        return Refusal("parent_terminal", f"the workflow ends at {edge.parent_node_id}")
    if edge.edge_kind != edge_kind(parent):
        return Refusal("edge_kind_wrong", f"an edge from {edge.parent_node_id} is now {edge_kind(parent)}")
    return None


def _at_node(state: Session, event: AtNode | AtNodeOrSession) -> Refusal | None:
    if event.node_id is UNSET or event.run_id is UNSET:
        return None
    if event.run_id not in state.runs:
        return Refusal("run_unknown", f"there is no run {event.run_id}")
    node = state.nodes.get(event.node_id)
    if node is None:
        return Refusal("node_unknown", f"there is no node {event.node_id}")
    if node.run_id != event.run_id:
        return Refusal("node_of_another_run", f"the node {event.node_id} belongs to the run {node.run_id}")
    return None


def _output(state: Session, event: NodeOutputAppended) -> Refusal | None:
    output = event.data.output
    if (refused := _at_node(state, event)) is not None:
        return refused
    if output.output_id in state.outputs:
        return Refusal("output_exists", f"there is an output {output.output_id} already")
    if output.supersedes_output_id is UNSET:
        return None
    old = state.outputs.get(output.supersedes_output_id)
    if old is None:
        return Refusal("output_unknown", f"there is no output {output.supersedes_output_id}")
    if old.node_id != event.node_id:
        return Refusal(
            "output_of_another_node", f"the output {output.supersedes_output_id} belongs to the node {old.node_id}"
        )
    return None


def _gap(state: Session, event: GapRecorded) -> Refusal | None:
    if (refused := _at_node(state, event)) is not None:
        return refused
    if event.data.gap_id in state.gaps:
        return Refusal("gap_exists", f"there is a gap {event.data.gap_id} already")
    if event.data.resolves_gap_id is UNSET:
        return None
    resolved = state.gaps.get(event.data.resolves_gap_id)
    if resolved is None or resolved.resolves_gap_id is not None:
        return Refusal("gap_unknown", f"there is no gap {event.data.resolves_gap_id} to resolve")
    return None


_rules: dict[str, Callable[[Session, Any], Refusal | None]] = {
    "run_started": _run,
    "node_created": _node,
    "edge_created": _edge,
    "node_output_appended": _output,
    "gap_recorded": _gap,
    "observation_recorded": _at_node,
    "preferences_changed": _at_node,
    "capability_observed": _at_node,
    "divergence_recorded": _at_node,
    "decision_trace_appended": _at_node,
}
