"""The daemon model: pipelines, sessions, workspaces, runbooks, workers and queues of one daemon."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from runstate.models.activity import Activity
from runstate.models.canonical import canonical
from runstate.models.daemon import activity as daemon_activity
from runstate.models.daemon import evolve as daemon_evolve
from runstate.models.daemon import state as daemon_state
from runstate.models.daemon.events import DaemonEvent, UnknownEvent, tag_of
from runstate.models.daemon.lines import check, decode, encode, from_line, id_of
from runstate.models.daemon.refusals import refusal
from runstate.models.daemon.state import MaterializedState
from runstate.models.describing import describe_members
from runstate.models.envelope import Envelope
from runstate.models.model import Alert, AlertSink, Description, Draft, Model
from runstate.models.model_errors import UNKNOWN_EVENT

_subjects = ("item_id", "id", "step", "agent_id", "session_id", "worker_name", "queue_name", "pipeline_id", "hash")
"""The member that an event is about, the most particular first."""
_volatile = frozenset({"created_at_epoch_ms", "pushed_at_epoch_ms"})


class DaemonDraft(Draft, frozen=True, kw_only=True, gc=False):
    """An event of a daemon on its way. Its line is whole: where it stands is for the log to say."""

    def render(self, seq: int, persisted_at: str, previous: bytes | None = None) -> bytes:
        return self.tail

    def same_content(self, stored: bytes) -> bool:
        return _comparable(self.tail) == _comparable(stored)


class DaemonModel(Model[DaemonEvent, DaemonEvent, MaterializedState]):
    """What a daemon keeps in memory, and its log can give back."""

    name = "daemon"
    version = 1

    def parse(self, line: bytes) -> DaemonEvent:
        return from_line(line)

    def envelope(self, line: bytes) -> Envelope:
        event = decode(line)
        event_id = id_of(event)
        return Envelope(event.daemon, None, event_id, tag_of(event), event_id, "", "", None)

    def draft(self, event: DaemonEvent) -> tuple[str, Draft]:
        check(event)
        event_id = id_of(event)
        made = DaemonDraft(
            event_id=event_id,
            type=tag_of(event),
            key=event_id,
            tenant="",
            emitted_at="",
            prefix=b"",
            tail=encode(event),
            model=self.name,
        )
        return event.daemon, made

    def decode(self, body: bytes) -> DaemonEvent:
        return decode(body)

    def initial(self, stream: str) -> MaterializedState:
        return MaterializedState()

    def evolve(self, state: MaterializedState, event: DaemonEvent) -> MaterializedState:
        after = state.copy()
        daemon_evolve.apply(after, event)
        return after

    def refusals(self, state: MaterializedState, event: DaemonEvent) -> list[Alert]:
        if isinstance(event, UnknownEvent):
            details = {"eventType": event.kind, "why": "this version of the model does not know it"}
            return [Alert(code=UNKNOWN_EVENT, level="P3", subject=event.daemon, event_id=id_of(event), details=details)]
        why = refusal(state, event)
        if why is None:
            return []
        details = {"eventType": tag_of(event), "priorState": why, "attemptedState": tag_of(event), "why": why}
        return [
            Alert(code="INVALID_TRANSITION", level="P3", subject=event.daemon, event_id=id_of(event), details=details)
        ]

    def fold(
        self, state: MaterializedState, lines: Iterable[bytes], alert: AlertSink | None = None
    ) -> MaterializedState:
        if alert is None:
            daemon_evolve.apply_lines(state, lines)
            return state
        for line in lines:
            event = decode(line)
            for refused in self.refusals(state, event):
                alert(refused)
            daemon_evolve.apply(state, event)
        return state

    def dump(self, state: MaterializedState) -> bytes:
        return b"".join(daemon_state.pieces(state))

    def load(self, data: bytes) -> MaterializedState:
        return daemon_state.load(data)

    def status(self, state: MaterializedState) -> str:
        return "working" if state.pipelines or state.queue_items else "idle"

    def describe(self, event: DaemonEvent) -> Description:
        members = dict(event.members) if isinstance(event, UnknownEvent) else msgspec.to_builtins(event, str_keys=True)
        for shown_elsewhere in ("type", "event_id", "daemon"):
            members.pop(shown_elsewhere, None)
        return describe_members(members, *_subjects)

    def activities(self, event: DaemonEvent) -> list[Activity]:
        return daemon_activity.activities(event)


def _comparable(line: bytes) -> bytes:
    """What a line says, apart from the times that a retry may tell anew."""
    members = msgspec.json.decode(line)
    return canonical({name: value for name, value in members.items() if name not in _volatile})


DAEMON = DaemonModel()
