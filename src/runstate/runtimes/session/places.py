"""A place: a node of a run, the step to be done there, and the tokens to look at it and to go on from it."""

from __future__ import annotations

import msgspec

from runstate.logs.log import BlobRef, EventLog
from runstate.models.session.ids import AttemptId, NodeId, RunId, SessionId, derived
from runstate.models.session.state import Node, Session
from runstate.runtimes.session.keyring import Keyring
from runstate.runtimes.session.node_snapshots import NodeSnapshot, check_end, read_snapshot
from runstate.runtimes.session.refusals import NodeNotFound
from runstate.runtimes.session.tokens import AckToken, StateToken, mint
from runstate.runtimes.session.workflow import Step, Workflow, load_workflow


class Place(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where somebody is in a session."""

    session_id: SessionId
    run_id: RunId
    node_id: NodeId
    step: Step | None
    """What is to be done here. None: the workflow has ended."""
    is_tip: bool
    """Whether nothing comes after this node yet; to advance from any other is to fork."""
    state_token: str
    ack_token: str | None
    """To advance with. None at the end of the workflow."""
    replayed: bool = False
    """True: this attempt was made before, and this is what came of it then."""


class Standing(msgspec.Struct, frozen=True):
    """A node, with what its snapshot says."""

    node: Node
    workflow: Workflow
    snapshot: NodeSnapshot


def standing(log: EventLog, state: Session, node_id: NodeId) -> Standing:
    """
    Raises:
        NodeNotFound: the session has no such node.
        BlobNotFound, LogDamaged, InvalidSnapshot, SnapshotOfAnotherWorkflow, …: what it stands on is not what it was.
    """
    node = node_of(state, node_id)
    workflow = load_workflow(log, state.runs[node.run_id].workflow_hash)
    snapshot = read_snapshot(log.get_blob(BlobRef(node.snapshot_ref)), workflow)
    check_end(snapshot, node.is_terminal)
    return Standing(node, workflow, snapshot)


def node_of(state: Session, node_id: NodeId, run_id: RunId | None = None) -> Node:
    """
    Raises:
        NodeNotFound: the session has no such node, or the run has not.
    """
    node = state.nodes.get(node_id)
    if node is None or run_id not in (None, node.run_id):
        where = f"session {state.session_id!r}" if run_id is None else f"run {run_id!r}"
        raise NodeNotFound(f"There is no node {node_id!r} in the {where}", node_id=node_id)
    return node


def place(
    log: EventLog, keyring: Keyring, state: Session, node_id: NodeId, attempt: AttemptId, *, replayed: bool = False
) -> Place:
    """The place at a node, with tokens. Reads, and writes nothing.

    Raises:
        what `standing` raises.
        KeyringExposed, KeyringDamaged, LogBusy: no token can be made now.
    """
    found = standing(log, state, node_id)
    step_id, run_id = found.snapshot.step_id, found.node.run_id
    ack = AckToken(session_id=state.session_id, run_id=run_id, node_id=node_id, attempt_id=attempt)
    return Place(
        session_id=state.session_id,
        run_id=run_id,
        node_id=node_id,
        step=None if step_id is None else found.workflow.step(step_id),
        is_tip=not found.node.children,
        state_token=mint(keyring, StateToken(session_id=state.session_id, run_id=run_id, node_id=node_id)),
        ack_token=None if step_id is None else mint(keyring, ack),
        replayed=replayed,
    )


def first_attempt(session_id: SessionId, node_id: NodeId) -> AttemptId:
    """The attempt that whoever made a node is handed: derived, so that a replay hands out the same token again."""
    return AttemptId(derived("attempt", session_id, node_id, "first"))
