"""The events of a session: a closed union, one struct for each kind.

The scope (`runId`, `nodeId`) names what is there already; the payload names what the event adds. A kind that is not
here is refused everywhere: when it is written, when it is read, and in the fold. The JSON Schemas
`specs/schemas/session.event.*.schema.json` are the authority; a property test holds this module to them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from runstate.models.session.ids import DedupeKey, EventId, EventIndex, NodeId, RunId, SessionId
from runstate.models.session.payloads import (
    CapabilityObservedData,
    DecisionTraceAppendedData,
    DivergenceRecordedData,
    EdgeCreatedData,
    GapRecordedData,
    NodeCreatedData,
    NodeOutputAppendedData,
    Observation,
    PreferencesChangedData,
    RunStartedData,
    SessionCreatedData,
)

Time = Annotated[
    str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|\+00:00)\Z")
]


class Event(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
    gc=False,
    tag_field="kind",
):
    """What every event has. `event_index` and `persisted_at` are the log's to fill; nobody else sets them."""

    event_index: EventIndex | UnsetType = UNSET
    persisted_at: Time | UnsetType = UNSET
    event_id: EventId
    session_id: SessionId
    dedupe_key: DedupeKey

    @property
    def kind(self) -> str:
        """As the event's JSON names it."""
        return str(self.__struct_config__.tag)


class InRun(Event, frozen=True, kw_only=True):
    """About a run that has been started."""

    run_id: RunId


class AtNode(InRun, frozen=True, kw_only=True):
    """About a node that has been created."""

    node_id: NodeId


class AtNodeOrSession(Event, frozen=True, kw_only=True):
    """About a node, with both members, or about the whole session, with neither."""

    run_id: RunId | UnsetType = UNSET
    node_id: NodeId | UnsetType = UNSET


class SessionCreated(Event, frozen=True, kw_only=True, tag="session_created"):
    data: SessionCreatedData


class ObservationRecorded(AtNodeOrSession, frozen=True, kw_only=True, tag="observation_recorded"):
    data: Observation


class RunStarted(Event, frozen=True, kw_only=True, tag="run_started"):
    data: RunStartedData


class NodeCreated(InRun, frozen=True, kw_only=True, tag="node_created"):
    data: NodeCreatedData


class EdgeCreated(InRun, frozen=True, kw_only=True, tag="edge_created"):
    data: EdgeCreatedData


class NodeOutputAppended(AtNode, frozen=True, kw_only=True, tag="node_output_appended"):
    data: NodeOutputAppendedData


class PreferencesChanged(AtNodeOrSession, frozen=True, kw_only=True, tag="preferences_changed"):
    data: PreferencesChangedData


class CapabilityObserved(AtNode, frozen=True, kw_only=True, tag="capability_observed"):
    data: CapabilityObservedData


class GapRecorded(AtNode, frozen=True, kw_only=True, tag="gap_recorded"):
    data: GapRecordedData


class DivergenceRecorded(AtNode, frozen=True, kw_only=True, tag="divergence_recorded"):
    data: DivergenceRecordedData


class DecisionTraceAppended(AtNode, frozen=True, kw_only=True, tag="decision_trace_appended"):
    data: DecisionTraceAppendedData


SessionEvent = (
    SessionCreated
    | ObservationRecorded
    | RunStarted
    | NodeCreated
    | EdgeCreated
    | NodeOutputAppended
    | PreferencesChanged
    | CapabilityObserved
    | GapRecorded
    | DivergenceRecorded
    | DecisionTraceAppended
)
