"""Is a session whole? What the log finds, and beyond it: that its events are possible, and what its nodes stand on."""

from __future__ import annotations

from collections.abc import Iterator

from runstate.errors import RunstateError
from runstate.logs.log import BlobRef, EventLog, Finding
from runstate.models.session import SESSION
from runstate.models.session.ids import SessionId, WorkflowHash
from runstate.models.session.keys import fits
from runstate.models.session.state import Session
from runstate.runtimes.session.node_snapshots import check_end, read_snapshot
from runstate.runtimes.session.workflow import Workflow, load_workflow


def findings(log: EventLog, session_id: SessionId) -> Iterator[Finding]:
    """Everything about a session that is not as it was written, or could never have been written by a session."""
    intact = True
    for finding in log.verify(session_id):
        intact = intact and finding.severity != "damage"
        yield finding
    if not intact:
        return  # What is behind the damage is not known; nothing can be said about the whole.
    try:
        lines = [*log.lines(session_id)]
        state = SESSION.fold(SESSION.initial(session_id), lines)
        foreign = [event for event in map(SESSION.decode, lines) if not fits(event)]
    except RunstateError as error:
        yield _finding(session_id, error.code, f"The session cannot be read: {error}")
        return
    if state.inconsistent:
        yield _finding(session_id, "session.inconsistent", "An event is impossible where it stands; it changes nothing")
    for event in foreign:
        why = f"The {event.kind} {event.event_id} stands under {event.dedupe_key}, which is none of its own keys"
        yield _finding(session_id, "event.key_mismatch", why)
    yield from _footing(log, state)
    yield from _artifacts(log, state)


def _footing(log: EventLog, state: Session) -> Iterator[Finding]:
    """What the runs are pinned to, and the snapshot of every node."""
    workflows: dict[WorkflowHash, Workflow] = {}
    for run_id, run in state.runs.items():
        try:
            workflows[run.workflow_hash] = load_workflow(log, run.workflow_hash)
        except RunstateError as error:
            yield _finding(state.session_id, error.code, f"The workflow of the run {run_id}: {error}")
    checked = set[tuple[str, str, bool]]()
    for node_id, node in state.nodes.items():
        pinned = state.runs[node.run_id].workflow_hash
        stands_on = (node.snapshot_ref, pinned, node.is_terminal)
        if pinned not in workflows or stands_on in checked:
            continue
        checked.add(stands_on)
        try:
            check_end(read_snapshot(log.get_blob(BlobRef(node.snapshot_ref)), workflows[pinned]), node.is_terminal)
        except RunstateError as error:
            yield _finding(state.session_id, error.code, f"The snapshot of the node {node_id}: {error}")


def _artifacts(log: EventLog, state: Session) -> Iterator[Finding]:
    """Every artifact that an output names is there. The log only knows of those that it once held."""
    for output_id, output in state.outputs.items():
        for artifact in output.artifacts:
            try:
                log.get_blob(BlobRef(artifact.digest))
            except RunstateError as error:
                yield _finding(state.session_id, error.code, f"An artifact of the output {output_id}: {error}")


def _finding(session_id: SessionId, code: str, message: str) -> Finding:
    return Finding(code=code, message=message, stream=session_id)
