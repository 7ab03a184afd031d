"""What the events of a session say: one closed struct for each kind, closed sets, and text with a budget.

A budget counts bytes of UTF-8; `max_length`, which counts characters, is the part of it that a schema can say. The
type of a text says what becomes of one that is longer: it is refused, or cut with a visible marker on its way in.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from runstate.models.canonical import integer_max
from runstate.models.session.ids import (
    ContentDigest,
    GapId,
    NodeId,
    OutputId,
    RunId,
    SnapshotRef,
    StepId,
    WorkflowHash,
    WorkflowId,
)

cut = {"too_long": "cut"}
refused = {"too_long": "refused"}

Title = Annotated[str, Meta(min_length=1, max_length=200, extra=cut)]
Summary = Annotated[str, Meta(min_length=1, max_length=1024, extra=cut)]
HowToResolve = Annotated[str, Meta(min_length=1, max_length=2048, extra=cut)]
SessionKey = Annotated[str, Meta(min_length=1, max_length=256, extra=refused)]
"""What an application finds its session by. A key that was cut would be another's."""
Notes = Annotated[str, Meta(min_length=1, max_length=16384, extra=refused)]
"""Markdown. What does not fit belongs into an artifact, not into the bin."""
ArtifactName = Annotated[str, Meta(min_length=1, max_length=256, extra=refused)]
BranchName = Annotated[str, Meta(min_length=1, max_length=256, extra=refused)]

artifacts_max = 64
"""Artifacts of one output."""
trace_items_max = 32
"""Items of one decision trace."""

NodeKind = Literal["step", "checkpoint"]
EdgeKind = Literal["acked_step", "forked_from_non_tip"]
Autonomy = Literal["guided", "full_auto_stop_on_user_deps", "full_auto_never_stop"]
RiskPolicy = Literal["conservative", "balanced", "aggressive"]
Capability = Literal["delegation", "web_browsing"]
CapabilityStatus = Literal["unknown", "available", "unavailable"]
Provenance = Literal["probe_step", "attempted_use", "manual_claim"]
"""How a capability was observed: by a step made to find out, by using it, or because somebody said so."""
Severity = Literal["warning", "critical"]
GapReason = Literal[
    "user_choice_needed",
    "user_approval_needed",
    "user_secret_needed",
    "user_artifact_needed",
    "user_action_needed",
    "required_output_missing",
    "required_output_invalid",
    "capability_unavailable",
    "capability_unknown",
    "unexpected_failure",
]
DivergenceReason = Literal[
    "user_instruction",
    "step_skipped",
    "step_reordered",
    "missing_user_context",
    "capability_unavailable",
    "safety_stop",
]
TraceItemKind = Literal[
    "selected_next_step",
    "evaluated_condition",
    "entered_loop",
    "exited_loop",
    "detected_non_tip_advance",
]

strong_provenance: frozenset[Provenance] = frozenset({"probe_step", "attempted_use"})
"""Enforcement-grade. Any other is weak: it may be shown, and unlocks nothing."""


class Payload(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """A closed part of an event."""


class SessionCreatedData(Payload, frozen=True, kw_only=True):
    title: Title | UnsetType = UNSET
    session_key: SessionKey | UnsetType = UNSET


class GitBranch(Payload, frozen=True, kw_only=True, tag_field="observationKind", tag="git_branch"):
    value: BranchName


class GitHeadSha(Payload, frozen=True, kw_only=True, tag_field="observationKind", tag="git_head_sha"):
    value: Annotated[str, Meta(pattern=r"^(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")]
    """A commit, in full: of SHA-1 or of SHA-256."""


class RepoRootDigest(Payload, frozen=True, kw_only=True, tag_field="observationKind", tag="repo_root_digest"):
    value: ContentDigest
    """Names a repository without telling where it lies."""


Observation = GitBranch | GitHeadSha | RepoRootDigest
ObservationKind = Literal["git_branch", "git_head_sha", "repo_root_digest"]
observation_kinds: dict[type[Payload], ObservationKind] = {
    GitBranch: "git_branch",
    GitHeadSha: "git_head_sha",
    RepoRootDigest: "repo_root_digest",
}


class RunStartedData(Payload, frozen=True, kw_only=True):
    run_id: RunId
    workflow_id: WorkflowId
    workflow_hash: WorkflowHash
    start_node_id: NodeId
    """The node that the run begins with: created next, and never the child of another."""


class NodeCreatedData(Payload, frozen=True, kw_only=True):
    node_id: NodeId
    node_kind: NodeKind
    snapshot_ref: SnapshotRef
    workflow_hash: WorkflowHash
    is_terminal: bool = False
    """Whether the workflow ends here: a run whose preferred tip is terminal is complete."""


class EdgeCreatedData(Payload, frozen=True, kw_only=True):
    parent_node_id: NodeId
    child_node_id: NodeId
    edge_kind: EdgeKind


class Artifact(Payload, frozen=True, kw_only=True):
    name: ArtifactName
    digest: ContentDigest
    content_type: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,63}\Z")]
    byte_length: Annotated[int, Meta(ge=0, le=integer_max)]


class Output(Payload, frozen=True, kw_only=True):
    output_id: OutputId
    notes: Notes
    artifacts: Annotated[tuple[Artifact, ...], Meta(max_length=artifacts_max)] = ()
    supersedes_output_id: OutputId | UnsetType = UNSET
    """An earlier output of the same node that this one corrects."""


class NodeOutputAppendedData(Payload, frozen=True, kw_only=True):
    output: Output


class PreferenceDelta(Payload, frozen=True, kw_only=True):
    autonomy: Autonomy | UnsetType = UNSET
    risk_policy: RiskPolicy | UnsetType = UNSET


class Preferences(Payload, frozen=True, kw_only=True, omit_defaults=False):
    """A value for every preference there is."""

    autonomy: Autonomy
    risk_policy: RiskPolicy


default_preferences = Preferences(autonomy="guided", risk_policy="conservative")


class PreferencesChangedData(Payload, frozen=True, kw_only=True):
    preference_delta: PreferenceDelta
    effective_preferences_snapshot: Preferences
    """What holds from here on, the delta included."""


class CapabilityObservedData(Payload, frozen=True, kw_only=True):
    capability: Capability
    status: CapabilityStatus
    provenance: Provenance


class GapRecordedData(Payload, frozen=True, kw_only=True):
    gap_id: GapId
    reason: GapReason
    severity: Severity
    summary: Summary
    how_to_resolve: HowToResolve | UnsetType = UNSET
    related_step_id: StepId | UnsetType = UNSET
    resolves_gap_id: GapId | UnsetType = UNSET
    """An earlier gap that is now closed. An event with this member is that gap's resolution, and opens none itself."""


class DivergenceRecordedData(Payload, frozen=True, kw_only=True):
    reason: DivergenceReason
    summary: Summary
    related_step_id: StepId | UnsetType = UNSET


class TraceItem(Payload, frozen=True, kw_only=True):
    kind: TraceItemKind
    summary: Annotated[str, Meta(min_length=1, max_length=512, extra=cut)]
    step_id: StepId | UnsetType = UNSET


class DecisionTraceAppendedData(Payload, frozen=True, kw_only=True):
    items: Annotated[tuple[TraceItem, ...], Meta(min_length=1, max_length=trace_items_max)]
