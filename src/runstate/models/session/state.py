"""The snapshot of a session: runs, nodes, outputs, gaps and what was observed, each with the index of its event.

It holds facts by id, and no times: the order of everything is the order of event indexes. What follows from the facts
(tips, what is in force, statuses) is for `projections.py` to say.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from runstate.errors import InvalidJson, SnapshotTooNew
from runstate.models.canonical import integer_max
from runstate.models.session.ids import (
    EventIndex,
    GapId,
    NodeId,
    OutputId,
    RunId,
    SessionId,
    SnapshotRef,
    StepId,
    WorkflowHash,
    WorkflowId,
)
from runstate.models.session.payloads import (
    Artifact,
    Capability,
    CapabilityStatus,
    DivergenceReason,
    EdgeKind,
    GapReason,
    HowToResolve,
    NodeKind,
    Notes,
    ObservationKind,
    Preferences,
    Provenance,
    SessionKey,
    Severity,
    Summary,
    Title,
    artifacts_max,
)

schema_version = 1
"""Of the snapshot. A newer one is refused: its meaning is not known here."""


class Part(msgspec.Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    """A part of a session's snapshot. Nothing of it is ever left out; what there is not is null."""


class Observed(Part, gc=False):
    """The newest observation of one kind."""

    value: Annotated[str, Meta(min_length=1, max_length=256)]
    event_index: EventIndex


class CapabilityReport(Part, gc=False):
    status: CapabilityStatus
    provenance: Provenance
    event_index: EventIndex


class NodeCapability(Part, gc=False):
    """What is known about one capability at one node."""

    latest: CapabilityReport
    """By whatever provenance: to show."""
    latest_strong: CapabilityReport | None
    """By strong provenance: to decide by."""


class Run(Part, gc=False):
    workflow_id: WorkflowId
    workflow_hash: WorkflowHash
    """What the run is pinned to: each of its nodes names the same."""
    start_node_id: NodeId
    started_index: EventIndex


class Node(Part, gc=False):
    run_id: RunId
    node_kind: NodeKind
    snapshot_ref: SnapshotRef
    is_terminal: bool
    created_index: EventIndex
    touched_index: EventIndex
    """Of the newest event that created the node, gave it an edge, or is scoped to it."""
    parent_node_id: NodeId | None
    edge_kind: EdgeKind | None
    """Of the edge from its parent."""
    children: list[NodeId]
    """In the order of their edges. More than one: the run was forked here."""
    current_output_id: OutputId | None
    preferences: Preferences | None
    """Set at this node, and in force from here on."""
    capabilities: dict[Capability, NodeCapability]
    observations: dict[ObservationKind, Observed]


class NodeOutput(Part, gc=False):
    node_id: NodeId
    event_index: EventIndex
    notes: Notes
    artifacts: Annotated[tuple[Artifact, ...], Meta(max_length=artifacts_max)]
    supersedes_output_id: OutputId | None
    superseded_by_output_id: OutputId | None


class Gap(Part, gc=False):
    """Something that is missing, or the resolution of such a gap: `resolves_gap_id` tells them apart."""

    node_id: NodeId
    event_index: EventIndex
    reason: GapReason
    severity: Severity
    summary: Summary
    how_to_resolve: HowToResolve | None
    related_step_id: StepId | None
    resolves_gap_id: GapId | None
    resolved_by_gap_id: GapId | None

    @property
    def is_open(self) -> bool:
        return self.resolves_gap_id is None and self.resolved_by_gap_id is None


class Divergence(Part, gc=False):
    node_id: NodeId
    event_index: EventIndex
    reason: DivergenceReason
    summary: Summary
    related_step_id: StepId | None


class Session(Part):
    """A session as its events tell it, up to and with `last_event_index`."""

    session_id: SessionId
    created_index: EventIndex | None
    last_event_index: Annotated[int, Meta(ge=-1, le=integer_max - 1)]
    inconsistent: bool
    """Whether an event was met that is impossible. It has changed nothing else."""
    title: Title | None
    session_key: SessionKey | None
    observations: dict[ObservationKind, Observed]
    preferences: Preferences | None
    runs: dict[RunId, Run]
    nodes: dict[NodeId, Node]
    outputs: dict[OutputId, NodeOutput]
    gaps: dict[GapId, Gap]
    divergences: list[Divergence]
    """In the order of their events."""
    schema_version: Literal[1]


def before_the_first_event(session_id: SessionId) -> Session:
    return Session(session_id, None, -1, False, None, None, {}, None, {}, {}, {}, {}, [], 1)


def dump(state: Session) -> bytes:
    """RFC 8785 JSON: all names are ASCII and all numbers small integers, which msgspec writes as RFC 8785 does."""
    return _encoder.encode(state)


def load(data: bytes) -> Session:
    """
    Raises:
        InvalidJson: the bytes break `session.snapshot.schema.json`.
        SnapshotTooNew: a newer Runstate wrote them.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        # Of a newer version only the version can be understood, so it is what is told.
        _refuse_newer(data)
        raise InvalidJson(f"Not the snapshot of a session: {error}") from error


def _refuse_newer(data: bytes) -> None:
    try:
        version = _version_decoder.decode(data).schema_version
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return
    if version > schema_version:
        raise SnapshotTooNew(
            f"The snapshot has version {version}, this Runstate knows up to {schema_version}; upgrade it"
        )


class _Version(msgspec.Struct, rename="camel"):
    schema_version: int


_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder(Session)
_version_decoder = msgspec.json.Decoder(_Version)
