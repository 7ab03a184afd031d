"""Sessions: everything that can be done with them. Each operation answers with data: `Ok`, or `Failed` with a code.

    with open_sessions("segments:sessions", "keyring.json") as sessions:
        created = sessions.create(title="Fix the parser")

What is said at a node (outputs, preferences, gaps, …) is written by the operations here; where the session goes, by
those of `Lineage`. Nothing is ever changed: an output is superseded by a later one, a gap is resolved by another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Self

import msgspec
from msgspec import UNSET, Meta

from runstate.errors import InvalidTransition, RunstateError, SequenceConflict, StreamNotFound
from runstate.models.canonical import digest
from runstate.models.session import SESSION, Projections, ids, payloads
from runstate.models.session.ids import GapId, OutputId, SessionId
from runstate.models.session.payloads import Artifact, Output, PreferenceDelta, Preferences
from runstate.models.session.plain import plain
from runstate.models.session.state import Session
from runstate.runtimes.session import plans
from runstate.runtimes.session.bundles import Imported, Opened, pack, unpack
from runstate.runtimes.session.finding import Search, Wanted, rank
from runstate.runtimes.session.journal import Plan
from runstate.runtimes.session.keyring import Keyring
from runstate.runtimes.session.lineage import Lineage
from runstate.runtimes.session.places import node_of
from runstate.runtimes.session.refusals import InvalidToken
from runstate.runtimes.session.results import Failed, answered, failed, fresh_id, taken, telling
from runstate.runtimes.session.tokens import StateToken, check
from runstate.store import open as open_store

_snapshot_every = 50
"""Events. A snapshot is as large as its session: with every append, a long one would be written over and over."""


def open_sessions(url: str, keyring: str | Path, *, create: bool = True) -> Sessions:
    """The sessions in the log at `url`, with tokens signed by the keyring in a file. Close it when done.

    Raises:
        InvalidUrl, LogNotFound, NotALog, LogTooNew, LogFailed: nothing was opened or changed.
    """
    store = open_store(url, SESSION, create=create, snapshot_every=_snapshot_every)
    return Sessions(store, Keyring(keyring))


class Sessions(Lineage):
    """Sessions in one store, with the tokens of one keyring. Safe to share between threads."""

    def close(self) -> None:
        self._journal.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- outputs ---------------------------------------------------------------------------------------

    @answered
    def keep_artifact(self, name: str, data: bytes, content_type: str = "application/octet-stream") -> Artifact:
        """Keep bytes under their digest, for an output to name. What no output names is collected some day.

        Fails with: request.invalid (no output could name it so), log.full.
        """
        kept = ids.content_digest(f"sha256:{digest(data)}")
        made = Artifact(name=name, digest=kept, content_type=content_type, byte_length=len(data))
        artifact: Artifact = taken("artifact", plain(made), Artifact)
        self.log.put_blob(data)
        return artifact

    @answered
    def append_output(
        self, state_token: str, notes: str, *, artifacts: Sequence[Artifact] = (), output_id: str | None = None
    ) -> OutputId:
        """Say something at a node. With an id that was used before at this node, nothing is written.

        Fails with: token.invalid, event.invalid, event.invalid_transition, blob.not_found (an artifact is not kept).
        """
        return self._output(state_token, plans.output(ids.output_id(output_id), notes, artifacts))

    @answered
    def supersede_output(
        self,
        state_token: str,
        superseded: str,
        notes: str,
        *,
        artifacts: Sequence[Artifact] = (),
        output_id: str | None = None,
    ) -> OutputId:
        """Correct an output of this node by another. The first stays in the history.

        Fails with: token.invalid, event.invalid, event.invalid_transition (that output is not this node's), and
        blob.not_found (an artifact is not kept).
        """
        output = plans.output(ids.output_id(output_id), notes, artifacts, ids.output_id(superseded))
        return self._output(state_token, output)

    # --- what was seen, wanted and missed --------------------------------------------------------------

    @answered
    def observe(
        self,
        session_id: str,
        observation: payloads.Observation,
        *,
        state_token: str | None = None,
        attempt_id: str | None = None,
    ) -> None:
        """Record what is so around the session, or, with a token, at one node.

        Fails with: stream.not_found, token.invalid, event.invalid.
        """
        session, attempt = ids.session_id(session_id), ids.attempt_id(attempt_id)
        at = self._scope(session, state_token)
        self._journal.append(session, lambda _: Plan([plans.observed(session, observation, attempt, at)]))

    @answered
    def set_preferences(
        self,
        session_id: str,
        delta: PreferenceDelta,
        *,
        state_token: str | None = None,
        attempt_id: str | None = None,
    ) -> Preferences:
        """Change preferences for the whole session, or, with a token, from one node on. What is in force there now.

        Fails with: stream.not_found, token.invalid, session.node_not_found, event.invalid.
        """
        session, attempt = ids.session_id(session_id), ids.attempt_id(attempt_id)
        at = self._scope(session, state_token)

        def decide(state: Session) -> Plan:
            return Plan([plans.preferred(session, delta, _with(_in_force(state, at), delta), attempt, at)])

        self._journal.append(session, decide)
        with self._journal.reading(session) as state:
            return _in_force(state, at)

    @answered
    def report_capability(
        self,
        state_token: str,
        capability: payloads.Capability,
        status: payloads.CapabilityStatus,
        provenance: payloads.Provenance,
        *,
        attempt_id: str | None = None,
    ) -> None:
        """Record whether something can be done at a node, and how that is known. Only strong evidence unlocks steps.

        Fails with: token.invalid, event.invalid.
        """
        at, attempt = check(self._keyring, state_token, StateToken), ids.attempt_id(attempt_id)
        data = payloads.CapabilityObservedData(capability=capability, status=status, provenance=provenance)
        self._journal.append(at.session_id, lambda _: Plan([plans.capability_seen(at, data, attempt)]))

    @answered
    def record_gap(
        self,
        state_token: str,
        reason: payloads.GapReason,
        severity: payloads.Severity,
        summary: str,
        *,
        how_to_resolve: str | None = None,
        related_step_id: str | None = None,
        gap_id: str | None = None,
    ) -> GapId:
        """Disclose what is missing at a node, instead of stopping there. With an id that was used before at this node,
        nothing is written.

        Fails with: token.invalid, event.invalid, event.invalid_transition (another gap has that id).
        """
        at = check(self._keyring, state_token, StateToken)
        data = payloads.GapRecordedData(
            gap_id=ids.gap_id(gap_id),
            reason=reason,
            severity=severity,
            summary=summary,
            how_to_resolve=UNSET if how_to_resolve is None else how_to_resolve,
            related_step_id=UNSET if related_step_id is None else ids.step_id(related_step_id),
        )

        def decide(state: Session) -> Plan:
            known = state.gaps.get(data.gap_id)
            # A gap's key is its id alone: the log would take this for a retry of what was said elsewhere.
            if known is not None and (known.node_id != at.node_id or known.resolves_gap_id is not None):
                raise InvalidTransition(
                    f"There is a gap {data.gap_id} already, at {known.node_id}", reason="gap_exists", gap_id=data.gap_id
                )
            return Plan([plans.gap_told(at, data)])

        self._journal.append(at.session_id, decide)
        return data.gap_id

    @answered
    def resolve_gap(self, state_token: str, gap_id: str, summary: str) -> GapId:
        """Record at a node that an earlier gap is closed. Resolving it again changes nothing.

        Fails with: token.invalid, event.invalid, event.invalid_transition (there is no such gap).
        """
        at, resolved = check(self._keyring, state_token, StateToken), ids.gap_id(gap_id)

        def decide(state: Session) -> Plan:
            gap = state.gaps.get(resolved)
            data = payloads.GapRecordedData(
                gap_id=plans.resolution_of(resolved),
                # A gap that is not there has no reason; the model refuses to resolve it.
                reason="unexpected_failure" if gap is None else gap.reason,
                severity="warning" if gap is None else gap.severity,
                summary=summary,
                resolves_gap_id=resolved,
            )
            return Plan([plans.gap_told(at, data)])

        self._journal.append(at.session_id, decide)
        return plans.resolution_of(resolved)

    @answered
    def record_divergence(
        self,
        state_token: str,
        reason: payloads.DivergenceReason,
        summary: str,
        *,
        related_step_id: str | None = None,
        attempt_id: str | None = None,
    ) -> None:
        """Mark that a node's step was not done as the workflow says.

        Fails with: token.invalid, event.invalid.
        """
        at, attempt = check(self._keyring, state_token, StateToken), ids.attempt_id(attempt_id)
        data = payloads.DivergenceRecordedData(
            reason=reason,
            summary=summary,
            related_step_id=UNSET if related_step_id is None else ids.step_id(related_step_id),
        )
        self._journal.append(at.session_id, lambda _: Plan([plans.diverged(at, data, attempt)]))

    @answered
    def trace(self, state_token: str, items: Sequence[payloads.TraceItem], *, attempt_id: str | None = None) -> None:
        """Record why something was decided at a node, for people. Nothing is ever derived from it.

        Fails with: token.invalid, event.invalid.
        """
        at, attempt = check(self._keyring, state_token, StateToken), ids.attempt_id(attempt_id)
        data = payloads.DecisionTraceAppendedData(items=tuple(items))
        self._journal.append(at.session_id, lambda _: Plan([plans.traced(at, data, attempt)]))

    # --- many sessions ---------------------------------------------------------------------------------

    @answered
    def find(self, wanted: Wanted, *, limit: Annotated[int, Meta(ge=1)] = 20) -> Search:
        """Sessions to resume, the best first; the same log and question always give the same answer."""
        unreadable: dict[SessionId, Failed] = {}
        found = rank(self._states(unreadable), taken("wanted", plain(wanted), Wanted))
        return Search(found=found[:limit], unreadable=unreadable)

    @answered
    def export(self, session_id: str) -> bytes:
        """A whole session as one bundle. It holds no token and no key.

        Fails with: stream.not_found, log.damaged, blob.not_found (an artifact that an output names, or a snapshot).
        """
        return pack(self.log, ids.session_id(session_id))

    @answered
    def import_(self, bundle: bytes) -> Imported:
        """Take a session over from a bundle: under its own id, or under a new one where there is such a session.

        Everything is checked before anything is written; the session appears whole, or not at all. Tokens that were
        made for it before are void here, whatever keyring they were made with.

        Fails with: bundle.invalid, bundle.too_new, event.invalid, event.invalid_transition, snapshot.other_workflow, ….
        """
        opened = unpack(bundle)
        session = opened.session_id
        if not self._take_over(opened, session):
            session = SessionId(fresh_id("sess"))
            if not self._take_over(opened, session):
                raise SequenceConflict(f"The log does not take the events of {opened.session_id!r} under any name")
        with self._journal.reading(session) as state:
            seen = Projections(state)
            tips = [tip for run in state.runs if (tip := seen.preferred_tip(run)) is not None]
        return Imported(
            session_id=session,
            imported_from=opened.session_id,
            events=len(opened.events),
            events_digest=opened.events_digest,
            bundle_digest=opened.digest,
            tips=[self._place(session, tip) for tip in tips],
        )

    # --- how -------------------------------------------------------------------------------------------

    def _output(self, state_token: str, output: Output) -> OutputId:
        at = check(self._keyring, state_token, StateToken)

        def decide(state: Session) -> Plan:
            blobs = [] if output.output_id in state.outputs else self._artifacts(output)
            return Plan([plans.output_given(at, output)], blobs)

        self._journal.append(at.session_id, decide)
        return output.output_id

    def _scope(self, session: SessionId, state_token: str | None) -> StateToken | None:
        """
        Raises:
            InvalidToken: it is none, or one of another session.
        """
        at = None if state_token is None else check(self._keyring, state_token, StateToken)
        if at is not None and at.session_id != session:
            raise InvalidToken(f"The token is not one of the session {session!r}")
        return at

    def _take_over(self, opened: Opened, session: SessionId) -> bool:
        """Write a session as one plan. False: there is one of that id already, or somebody has begun one just now."""

        def adopt() -> bool:
            for blob in opened.blobs:
                self.log.put_blob(blob)
            return self.log.adopt(session, opened.records(session), model=SESSION.name) > 0

        try:
            with telling(session_id=session):
                return self._begun_anew(session, adopt)
        except SequenceConflict:
            return False

    def _states(self, unreadable: dict[SessionId, Failed]) -> Iterator[Session]:
        for session in (SessionId(head.stream) for head in self.log.heads(versions=False)):
            try:
                with self._journal.reading(session) as state:
                    yield state
            except StreamNotFound:
                continue  # Its first append was never finished, or it was deleted just now.
            except RunstateError as error:
                unreadable[session] = failed(error)


def _in_force(state: Session, at: StateToken | None) -> Preferences:
    """
    Raises:
        NodeNotFound: the session has no such node any more.
    """
    if at is not None:
        node_of(state, at.node_id, at.run_id)
    return Projections(state).effective_preferences(None if at is None else at.node_id)


def _with(before: Preferences, delta: PreferenceDelta) -> Preferences:
    changed = {name: value for name, value in msgspec.structs.asdict(delta).items() if value is not UNSET}
    return msgspec.structs.replace(before, **changed)
