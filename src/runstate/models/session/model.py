"""The session model: events, rules, fold and snapshot put together as one `Model`."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any, cast

import msgspec
from msgspec import UNSET

from runstate.errors import InvalidEvent, InvalidJson
from runstate.models.activity import Activity
from runstate.models.canonical import parse
from runstate.models.describing import describe_members
from runstate.models.envelope import Envelope
from runstate.models.model import Alert, AlertSink, Description, Draft, Model
from runstate.models.session import activity as session_activity
from runstate.models.session import budgets, evolve, keys
from runstate.models.session import state as session_state
from runstate.models.session.events import NodeCreated, NodeOutputAppended, PreferencesChanged, RunStarted, SessionEvent
from runstate.models.session.facts import check_scope, decode, decode_stored, facts
from runstate.models.session.ids import SessionId
from runstate.models.session.plain import plain
from runstate.models.session.projections import Projections
from runstate.models.session.rules import refusal
from runstate.models.session.state import Session
from runstate.models.statuses import StatusGroup, usual_group

_prefix = b'{"eventIndex":%d,"persistedAt":"%b",'
_volatile = frozenset({"eventId"})
_over = frozenset({"complete", "complete_with_gaps"})


class SessionDraft(Draft, frozen=True, kw_only=True, gc=False):
    """An event of a session on its way: its line counts from 0 what the log counts from 1."""

    def render(self, seq: int, persisted_at: str, previous: bytes | None = None) -> bytes:
        return super().render(seq - 1, persisted_at)


class SessionModel(Model[SessionEvent, SessionEvent, Session]):
    """Sessions: runs that fork and rewind, with everything that was said and observed on the way."""

    name = "session"
    version = 1
    assigned_names = frozenset({"eventIndex", "persistedAt"})

    def parse(self, line: bytes) -> SessionEvent:
        return _entering(parse(line))

    def check_line(self, line: bytes) -> None:
        members = parse(line)
        if not isinstance(members, dict) or "eventIndex" not in members:
            _entering(members)
            return
        budgets.check(members)
        if _read(members).persisted_at is UNSET:
            raise InvalidEvent(
                "eventIndex and persistedAt are assigned by the log: a line has both of them, or neither"
            )

    def envelope(self, line: bytes) -> Envelope:
        event = decode(line)
        seq, persisted_at = None, None
        if event.event_index is not UNSET and event.persisted_at is not UNSET:
            seq, persisted_at = event.event_index + 1, event.persisted_at
        return Envelope(event.session_id, seq, event.event_id, event.kind, event.dedupe_key, "", "", persisted_at)

    def draft(self, event: SessionEvent) -> tuple[str, Draft]:
        try:
            members = plain(event)
        except InvalidJson as error:
            raise InvalidEvent(f"No event of a session: {error}") from error
        # A struct may have been filled with anything: it is read as if it had come from outside.
        event = _entering(members)
        return event.session_id, SessionDraft(
            event_id=event.event_id,
            type=event.kind,
            key=event.dedupe_key,
            tenant="",
            emitted_at="",
            prefix=_prefix,
            tail=msgspec.json.encode(event)[1:],
            volatile=_volatile,
            model=self.name,
        )

    def expected_key(self, event: SessionEvent) -> str | None:
        return keys.expected(event)

    def decode(self, body: bytes) -> SessionEvent:
        return decode_stored(body)

    def initial(self, stream: str) -> Session:
        return session_state.before_the_first_event(SessionId(stream))

    def evolve(self, state: Session, event: SessionEvent) -> Session:
        return evolve.fold(deepcopy(state), (event,))

    def refusals(self, state: Session, event: SessionEvent) -> list[Alert]:
        refused = refusal(state, event)
        return [] if refused is None else [evolve.alert_of(state, event, refused)]

    def fold(self, state: Session, lines: Iterable[bytes], alert: AlertSink | None = None) -> Session:
        return evolve.fold(state, facts(lines), alert)

    def dump(self, state: Session) -> bytes:
        return session_state.dump(state)

    def load(self, data: bytes) -> Session:
        return session_state.load(data)

    def status(self, state: Session) -> str:
        """How the run stands that was touched last; `created` without a run, empty before the first event."""
        seen = Projections(state)
        run = seen.latest_run()
        if run is not None:
            return seen.run_status(run)
        return "" if state.created_index is None else "created"

    def status_group(self, status: str) -> StatusGroup:
        return "completed" if status in _over else usual_group(status)

    def is_over(self, state: Session) -> bool:
        seen = Projections(state)
        return bool(state.runs) and all(seen.run_status(run) in _over for run in state.runs)

    def describe(self, event: SessionEvent) -> Description:
        members = msgspec.to_builtins(event)
        scope = {name: members[name] for name in ("runId", "nodeId") if name in members}
        return describe_members(scope | members["data"], "nodeId", "runId")

    def blob_refs(self, line: bytes) -> list[str]:
        event = decode_stored(line)
        if isinstance(event, RunStarted):
            return [event.data.workflow_hash]
        if isinstance(event, NodeCreated):
            return [event.data.snapshot_ref, event.data.workflow_hash]
        if isinstance(event, NodeOutputAppended):
            return [artifact.digest for artifact in event.data.output.artifacts]
        return []

    def activities(self, event: SessionEvent) -> list[Activity]:
        return session_activity.activities(event)


def _entering(members: Any) -> SessionEvent:
    """An event as its producer sends it, its text brought into its budgets.

    Raises:
        InvalidEvent: it breaks its schema.
    """
    if not isinstance(members, dict):
        raise InvalidEvent(f"An event is a JSON object, not {type(members).__name__}")
    if "eventIndex" in members or "persistedAt" in members:
        raise InvalidEvent("eventIndex and persistedAt are assigned by the log; leave them out")
    return _read(budgets.fit(members))


def _read(members: dict[str, Any]) -> SessionEvent:
    try:
        event = cast(SessionEvent, msgspec.convert(members, SessionEvent))
    except msgspec.ValidationError as error:
        raise InvalidEvent(f"No event of a session: {error}") from error
    check_scope(event)
    if isinstance(event, PreferencesChanged):
        _check_delta(event)
    return event


def _check_delta(event: PreferencesChanged) -> None:
    delta = msgspec.to_builtins(event.data.preference_delta)
    if not delta:
        raise InvalidEvent("preferenceDelta names at least one preference")
    effective = msgspec.to_builtins(event.data.effective_preferences_snapshot)
    for name, value in delta.items():
        if effective[name] != value:
            raise InvalidEvent(f"effectivePreferencesSnapshot has not the {name} of preferenceDelta: {value}")


SESSION = SessionModel()
