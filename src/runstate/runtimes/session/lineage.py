"""Where sessions go: create one, start runs in it, go forward, fork, rewind, and look at where one is.

What an operation writes, it writes as one plan. Operations that name an attempt, by an ack token or an id, may be
repeated: the outcome is the recorded one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

import msgspec

from runstate.errors import InvalidEvent, InvalidTransition
from runstate.logs.log import BlobRef, EventLog
from runstate.models.model import Alert
from runstate.models.session import Projections, ids
from runstate.models.session.ids import AttemptId, GapId, NodeId, SessionId
from runstate.models.session.payloads import Artifact, Capability, NodeKind, Output, Preferences
from runstate.models.session.projections import RunStatus
from runstate.models.session.rules import edge_kind
from runstate.models.session.state import CapabilityReport, Gap, NodeOutput, Session
from runstate.runtimes.session import node_snapshots, plans
from runstate.runtimes.session.journal import Journal, Plan, SessionStore
from runstate.runtimes.session.keyring import Keyring
from runstate.runtimes.session.places import Place, first_attempt, node_of, place, standing
from runstate.runtimes.session.refusals import CapabilityLocked, InvalidStep
from runstate.runtimes.session.results import answered, fresh_id, telling
from runstate.runtimes.session.tokens import AckToken, StateToken, check
from runstate.runtimes.session.workflow import Step, Workflow, checked


class Rehydrated(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything that somebody who goes on at a node needs to know."""

    place: Place
    title: str | None
    lineage: list[NodeId]
    """From the start of the run to this node."""
    outputs: list[NodeOutput]
    """What was said at those nodes and not superseded, in order."""
    preferences: Preferences
    capabilities: dict[Capability, CapabilityReport]
    """What is known, by whatever evidence. Only what is strong unlocks a step."""
    open_gaps: dict[GapId, Gap]
    """Of the run."""
    status: RunStatus
    """Of the run."""


class Lineage:
    """Where sessions go. `Sessions` adds what is said on the way."""

    def __init__(self, store: SessionStore, keyring: Keyring) -> None:
        self._journal, self._keyring = Journal(store), keyring

    @property
    def log(self) -> EventLog:
        return self._journal.store.log

    @answered
    def create(
        self, *, title: str | None = None, session_key: str | None = None, session_id: str | None = None
    ) -> SessionId:
        """Begin a session. With the id of one that is there already, nothing is written.

        Tokens of an earlier session of that id, which was deleted, are void from then on.

        Fails with: event.invalid, log.busy (retry).
        """
        created = SessionId(fresh_id("sess")) if session_id is None else ids.session_id(session_id)
        plan = plans.session_begun(created, title, session_key)
        with telling(session_id=created):
            for event in plan.events:
                self._journal.store.check_event(event)

            def begin() -> bool:
                self._journal.begin(created, plan)
                return True

            # Nobody can have had a token for an id that was made up just now.
            if session_id is None or not self._begun_anew(created, begin):
                begin()
        return created

    @answered
    def start_run(self, session_id: str, workflow: Workflow, *, run_id: str | None = None) -> Place:
        """Start a run, pinned to a workflow. With the id of a run that was started so before, the place where it began.

        Fails with: stream.not_found, workflow.invalid, event.invalid, event.invalid_transition (another run has that
        id), keyring.exposed, log.busy (retry).
        """
        session, run, compiled = ids.session_id(session_id), ids.run_id(run_id), checked(workflow)
        snapshot, start, replayed = node_snapshots.first(compiled), plans.start_node(session, run), False

        def decide(state: Session) -> Plan:
            nonlocal start, replayed
            pinned = state.runs.get(run)
            replayed = pinned is not None
            if pinned is None:
                self._keyring.prepare()
                return plans.run_begun(session, run, compiled, snapshot)
            if pinned.workflow_hash != compiled.hash:
                raise InvalidTransition(
                    f"There is a run {run!r} already, pinned to {pinned.workflow_hash}", reason="run_exists", run_id=run
                )
            # Not derived again: an imported session keeps its nodes, and may have another id than they were made under.
            start = pinned.start_node_id
            return Plan()

        self._journal.append(session, decide)
        return self._place(session, start, replayed=replayed)

    @answered
    def advance(
        self, ack_token: str, notes: str | None = None, *, artifacts: Sequence[Artifact] = (), step: str | None = None
    ) -> Place:
        """Acknowledge a node's step with what came of it, and go on to the next: `step`, where several may follow.

        What came of it is an output of the node that this leads to. From a node that others follow already, this is a
        fork; both lines live on. Replaying a token gives the recorded outcome and writes nothing, whatever output comes
        with it this time.

        Fails with: token.invalid, session.invalid_step, session.capability_locked, event.invalid, blob.not_found (an
        artifact is not kept here), log.busy (retry).
        """
        ack = check(self._keyring, ack_token, AckToken)
        if notes is None and artifacts:
            raise InvalidEvent("Artifacts come with notes that say what they are")
        output = None if notes is None else plans.output(plans.acked_output(ack), notes, artifacts)
        child = StateToken(session_id=ack.session_id, run_id=ack.run_id, node_id=plans.child_node(ack, "step"))
        replayed = False

        def decide(state: Session) -> Plan:
            nonlocal replayed
            node = node_of(state, ack.node_id, ack.run_id)
            replayed = child.node_id in state.nodes
            if replayed:
                self._tell_if_other(state, ack, output)
                return Plan()
            found = standing(self.log, state, ack.node_id)
            snapshot, entered = node_snapshots.after(found.workflow, found.snapshot, step)
            _check_unlocked(state, ack.node_id, entered)
            plan = plans.grown(ack, "step", snapshot, edge_kind(node))
            if output is not None:
                # At the new node, not at the one before it: that one may be advanced from again, with another outcome.
                plan.events.append(plans.output_given(child, output))
                plan.blobs.extend(self._artifacts(output))
            self._keyring.prepare()
            return plan

        self._journal.append(ack.session_id, decide)
        return self._place(child.session_id, child.node_id, replayed=replayed)

    @answered
    def checkpoint(self, ack_token: str) -> Place:
        """Mark a place on the way: a node of its own after this one, at the same step. Go on from there.

        Fails with: token.invalid, session.node_not_found, log.busy (retry).
        """
        return self._grow_in_place(check(self._keyring, ack_token, AckToken))

    @answered
    def fork(self, session_id: str, node_id: str, *, attempt_id: str | None = None) -> Place:
        """Begin another line at any node: a node after it, at the same step, from which to go on.

        The same attempt always gives the same node; without one, every call begins another line.

        Fails with: stream.not_found, session.node_not_found, log.busy (retry).
        """
        session, node, attempt = ids.session_id(session_id), ids.node_id(node_id), ids.attempt_id(attempt_id)
        with self._journal.reading(session) as state:
            run = node_of(state, node).run_id
        return self._grow_in_place(AckToken(session_id=session, run_id=run, node_id=node, attempt_id=attempt))

    @answered
    def rewind(self, session_id: str, node_id: str) -> Place:
        """Go back to any node, for a new attempt at its step. Writes nothing: it is the next advance that forks.

        Fails with: stream.not_found, session.node_not_found.
        """
        session, node = ids.session_id(session_id), ids.node_id(node_id)
        return self._place(session, node, attempt=AttemptId(fresh_id("attempt")))

    @answered
    def rehydrate(self, state_token: str) -> Rehydrated:
        """What there is to know at a node. Writes nothing, however often it is asked.

        Its ack token is the one that was given out when the node was made. So somebody who was killed while advancing
        and advances again forks nothing; whoever wants to try another way rewinds instead.

        Fails with: token.invalid, stream.not_found, session.node_not_found.
        """
        at = check(self._keyring, state_token, StateToken)
        with self._journal.reading(at.session_id) as state:
            node_of(state, at.node_id, at.run_id)
            seen = Projections(state)
            lineage = [*seen.lineage(at.node_id)][::-1]
            nodes = set(lineage)
            said = [o for o in state.outputs.values() if o.node_id in nodes and o.superseded_by_output_id is None]
            known = {name: seen.capability(at.node_id, name) for name in get_args(Capability)}
            return Rehydrated(
                place=self._place(at.session_id, at.node_id),
                title=state.title,
                lineage=lineage,
                outputs=sorted(said, key=lambda output: output.event_index),
                preferences=seen.effective_preferences(at.node_id),
                capabilities={name: report for name, report in known.items() if report is not None},
                open_gaps={gap: state.gaps[gap] for gap in seen.open_gaps(at.run_id)},
                status=seen.run_status(at.run_id),
            )

    # --- how -------------------------------------------------------------------------------------------

    def _begun_anew(self, session: SessionId, begin: Callable[[], bool]) -> bool:
        """Begin a session where none is, and make all tokens void that may ever have been made for one of that id.

        False: something is there, be it damaged, or came in between; nothing was written.
        """
        # Alone with the keyring: of two who begin one session at once, the second would void the tokens of the first.
        with self._journal.turn, self._keyring.held():
            if self.log.stream(session) is not None:
                return False
            # Before there is anything to use them on, so that no crash can leave them in force.
            self._keyring.renew(session)
            return begin()

    def _artifacts(self, output: Output) -> list[bytes]:
        """The artifacts that an output names, to be put once more with its plan: so no collector takes them before it.

        Raises:
            BlobNotFound, LogDamaged: the log does not hold one of them.
        """
        return [self.log.get_blob(BlobRef(artifact.digest)) for artifact in output.artifacts]

    def _grow_in_place(self, ack: AckToken) -> Place:
        kind: NodeKind = "checkpoint"
        child, replayed = plans.child_node(ack, kind), False

        def decide(state: Session) -> Plan:
            nonlocal replayed
            node = node_of(state, ack.node_id, ack.run_id)
            replayed = child in state.nodes
            if replayed:
                return Plan()
            snapshot = standing(self.log, state, ack.node_id).snapshot
            if snapshot.step_id is None:
                raise InvalidStep("The workflow has ended at this node; nothing can come after it")
            self._keyring.prepare()
            return plans.grown(ack, kind, snapshot, edge_kind(node))

        self._journal.append(ack.session_id, decide)
        return self._place(ack.session_id, child, replayed=replayed)

    def _place(
        self, session: SessionId, node: NodeId, *, attempt: AttemptId | None = None, replayed: bool = False
    ) -> Place:
        with self._journal.reading(session) as state:
            made = attempt or first_attempt(session, node)
            return place(self.log, self._keyring, state, node, made, replayed=replayed)

    def _tell_if_other(self, state: Session, ack: AckToken, output: Output | None) -> None:
        """The first output stands; that another was sent under the same attempt is something a person should know."""
        recorded = state.outputs.get(plans.acked_output(ack))
        said = None if recorded is None else (recorded.notes, recorded.artifacts)
        if said != (None if output is None else (output.notes, output.artifacts)):
            alert = Alert(
                code="IDEMPOTENCY_CONTENT_MISMATCH",
                level="P2",
                subject=ack.session_id,
                details={"nodeId": ack.node_id, "attemptId": ack.attempt_id},
            )
            self._journal.store.alerts.raise_once(alert)


def _check_unlocked(state: Session, node: NodeId, entered: Step | None) -> None:
    """
    Raises:
        CapabilityLocked: no strong evidence at this node, or before it, says that what the step requires is available.
    """
    if entered is None:
        return
    for capability in entered.requires:
        if not Projections(state).is_unlocked(node, capability):
            raise CapabilityLocked(
                f"{entered.id!r} requires {capability}, and nothing strong enough has shown that it is available",
                capability=capability,
                step_id=entered.id,
            )
