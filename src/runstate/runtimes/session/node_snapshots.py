"""Node snapshots: where in its workflow a node stands, and nothing else.

A snapshot is typed, versioned, immutable, and known by the digest of its RFC 8785 bytes. It names no session, run or
node: those are in the events. So equal places share one blob, and a session that is imported under another name
keeps its snapshots as they are. It is checked against the run's pinned workflow whenever it is written or read.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from runstate.errors import SnapshotTooNew
from runstate.models.canonical import canonical, digest, parse
from runstate.models.session.ids import SnapshotRef, StepId, WorkflowHash
from runstate.runtimes.session.refusals import InvalidSnapshot, InvalidStep, SnapshotOfAnotherWorkflow
from runstate.runtimes.session.workflow import Step, Workflow

snapshot_version = 1


class NodeSnapshot(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A place in a workflow."""

    schema_version: Annotated[int, Meta(ge=1, le=snapshot_version)] = snapshot_version
    workflow_hash: WorkflowHash
    step_id: StepId | None
    """The step to be done here; None once the workflow has ended."""
    visits: dict[StepId, Annotated[int, Meta(ge=1)]] = {}
    """How often the line of nodes up to this one has come to each step, for the bounds of loops."""

    def to_bytes(self) -> bytes:
        return canonical(msgspec.to_builtins(self))

    @property
    def ref(self) -> SnapshotRef:
        return SnapshotRef(f"sha256:{digest(self.to_bytes())}")


def first(workflow: Workflow) -> NodeSnapshot:
    """Where a run begins."""
    step = workflow.steps[0].id
    return NodeSnapshot(workflow_hash=workflow.hash, step_id=step, visits={step: 1})


def after(workflow: Workflow, snapshot: NodeSnapshot, chosen: str | None) -> tuple[NodeSnapshot, Step | None]:
    """The place after a node's step, and the step there; None at the end.

    Raises:
        InvalidStep: the workflow does not lead there, or not once more, or it has ended, or a choice is needed.
    """
    step = None if snapshot.step_id is None else workflow.step(snapshot.step_id)
    if step is None:
        raise InvalidStep("The workflow has ended at this node; rewind to an earlier one to go another way")
    if not step.next and chosen is None:
        return msgspec.structs.replace(snapshot, step_id=None), None
    if chosen is None and len(step.next) > 1:
        raise InvalidStep(f"After {step.id!r} comes one of {', '.join(step.next)}; say which", choices=step.next)
    follower = workflow.step(step.next[0] if chosen is None else chosen)
    if follower is None or follower.id not in step.next:
        raise InvalidStep(f"{chosen!r} does not follow {step.id!r}", choices=step.next)
    visits = snapshot.visits.get(follower.id, 0) + 1
    if visits > follower.visits_max:
        raise InvalidStep(f"{follower.id!r} was come to {visits - 1} times, which is its limit", choices=step.next)
    return (
        msgspec.structs.replace(snapshot, step_id=follower.id, visits=snapshot.visits | {follower.id: visits}),
        follower,
    )


def check_snapshot(snapshot: NodeSnapshot, workflow: Workflow) -> None:
    """
    Raises:
        SnapshotOfAnotherWorkflow: it names another one.
        InvalidSnapshot: it names steps that the workflow does not have.
    """
    if snapshot.workflow_hash != workflow.hash:
        raise SnapshotOfAnotherWorkflow(
            f"The snapshot is of the workflow {snapshot.workflow_hash}, the run is pinned to {workflow.hash}",
            snapshot_workflow=snapshot.workflow_hash,
            run_workflow=workflow.hash,
        )
    named = {*snapshot.visits, *([snapshot.step_id] if snapshot.step_id is not None else [])}
    if unknown := named - {step.id for step in workflow.steps}:
        raise InvalidSnapshot(f"The snapshot names the step {min(unknown)!r}, which its workflow does not have")


def check_end(snapshot: NodeSnapshot, is_terminal: bool) -> None:
    """
    Raises:
        InvalidSnapshot: the node says that the workflow ends there and its snapshot does not, or the other way round.
    """
    if is_terminal != (snapshot.step_id is None):
        at = "at the end of" if snapshot.step_id is None else "in"
        raise InvalidSnapshot(f"The snapshot is {at} its workflow, and the node's isTerminal says otherwise")


def read_snapshot(data: bytes, workflow: Workflow) -> NodeSnapshot:
    """The snapshot in a blob, checked against the workflow that the run is pinned to.

    Raises:
        InvalidJson, InvalidSnapshot, SnapshotTooNew, SnapshotOfAnotherWorkflow: why it is refused.
    """
    value = parse(data)
    version = value.get("schemaVersion") if isinstance(value, dict) else None
    if isinstance(version, int) and version > snapshot_version:
        raise SnapshotTooNew(f"The node's snapshot has version {version}, this Runstate reads up to {snapshot_version}")
    try:
        snapshot = msgspec.convert(value, NodeSnapshot)
    except msgspec.ValidationError as error:
        raise InvalidSnapshot(f"The node's snapshot is refused: {error}") from error
    if snapshot.to_bytes() != data:
        raise InvalidSnapshot("The node's snapshot is refused: its bytes are not the canonical ones")
    check_snapshot(snapshot, workflow)
    return snapshot
