"""The engine model: contracts v1 and v2 put together as one `Model`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from runstate.errors import InvalidEvent, KeyMismatch
from runstate.models.activity import Activity
from runstate.models.canonical import parse
from runstate.models.engine import activity as engine_activity
from runstate.models.engine import evolve as engine_evolve
from runstate.models.engine import state as engine_state
from runstate.models.engine.events import (
    CanonicalEngineEvent,
    RunEventRecord,
    RunEventWrite,
    check,
    decode_record,
    from_members,
    is_v1,
    members_json,
)
from runstate.models.engine.keys import idempotency_key
from runstate.models.engine.state import RunSnapshot
from runstate.models.envelope import Envelope
from runstate.models.model import Alert, AlertSink, ColumnFold, Description, Draft, Model

EngineEvent = RunEventWrite | CanonicalEngineEvent

_prefix = b'{"runSeq":%d,"persistedAt":"%b",'
_volatile = frozenset({"eventId", "emittedAt", "engineAttemptId"})


class EngineModel(Model[EngineEvent, RunEventRecord, RunSnapshot]):
    """Runs and steps of a workflow engine."""

    name = "engine"
    version = 2
    loads_versions = frozenset({1})
    seq_name = "runSeq"
    assigned_names = frozenset({"runSeq", "persistedAt"})

    def parse(self, line: bytes) -> EngineEvent:
        members = parse(line)
        if isinstance(members, dict) and is_v1(members):
            return from_members(CanonicalEngineEvent, members)
        return from_members(RunEventWrite, members)

    def parse_stored(self, line: bytes) -> EngineEvent:
        members = parse(line)
        attempt = members.get("engineAttemptId") if isinstance(members, dict) else None
        if attempt in (0, "0") and attempt is not False:
            # Earlier versions stored 0. A runtime that has no attempts says 1.
            line = msgspec.json.encode(members | {"engineAttemptId": "1" if attempt == "0" else 1})
        return super().parse_stored(line)

    def check_line(self, line: bytes) -> None:
        members = parse(line)
        if isinstance(members, dict) and is_v1(members):
            from_members(CanonicalEngineEvent, members)
            return  # A v1 event does not carry the plan version that its key was made of.
        stored = isinstance(members, dict) and "runSeq" in members
        event = from_members(RunEventRecord if stored else RunEventWrite, members)
        if event.idempotency_key != self.expected_key(event):
            raise KeyMismatch()

    def envelope(self, line: bytes) -> Envelope:
        try:
            said = _said_decoder.decode(line)
        except msgspec.ValidationError:
            # JSON has one kind of number: a place may be written as 7.0.
            members = parse(line)
            said = msgspec.convert(members | {"runSeq": int(members["runSeq"])}, _Said)
        # A caller of contract v1 may send either of these, and 0 for a place; only a log writes both.
        stored = bool(said.run_seq) and said.persisted_at is not UNSET
        return Envelope(
            said.run_id,
            said.run_seq or None if stored else None,
            said.event_id,
            said.event_type,
            said.idempotency_key,
            said.tenant_id,
            said.emitted_at,
            said.persisted_at or None if stored else None,
        )

    def draft(self, event: EngineEvent) -> tuple[str, Draft]:
        if isinstance(event, RunEventRecord):
            raise InvalidEvent("A record has its place already; append a RunEventWrite, without runSeq and persistedAt")
        check(event)
        if isinstance(event, CanonicalEngineEvent):
            # The authority's own members are replaced, never taken over from a caller.
            event = msgspec.structs.replace(event, run_seq=UNSET, persisted_at=UNSET)
            tenant = ""
        else:
            tenant = event.tenant_id
        return event.run_id, Draft(
            event_id=event.event_id,
            type=event.event_type,
            key=event.idempotency_key,
            tenant=tenant,
            emitted_at=event.emitted_at,
            prefix=_prefix,
            tail=members_json(event)[1:],
            volatile=_volatile,
            model=self.name,
        )

    def expected_key(self, event: EngineEvent) -> str | None:
        if isinstance(event, CanonicalEngineEvent):
            return None
        return idempotency_key(
            run_id=event.run_id,
            step_id=None if event.step_id is UNSET else event.step_id,
            logical_attempt_id=event.logical_attempt_id,
            event_type=event.event_type,
            plan_id=event.plan_id,
            plan_version=event.plan_version,
        )

    decode = staticmethod(decode_record)  # A call less for each event that is read.

    def initial(self, stream: str) -> RunSnapshot:
        return RunSnapshot(stream)

    def evolve(self, state: RunSnapshot, event: RunEventRecord) -> RunSnapshot:
        return engine_evolve.fold(deepcopy(state), (event,))

    def refusals(self, state: RunSnapshot, event: RunEventRecord) -> list[Alert]:
        return engine_evolve.refusals(state, event)

    def fold(self, state: RunSnapshot, lines: Iterable[bytes], alert: AlertSink | None = None) -> RunSnapshot:
        current = b""

        def facts() -> Iterator[Any]:
            nonlocal current
            for current in lines:
                try:
                    yield _fact_decoder.decode(current)
                except msgspec.ValidationError:
                    # Only a line of contract v1 has no tenant; those are rare enough to take the long way.
                    yield self.decode(current)

        def refused(state: RunSnapshot, steps: engine_evolve.Steps) -> None:
            # The fact lacks what an alert tells; its line, the last that was taken, has all of it.
            for found in engine_evolve.alerts(state, steps, self.decode(current)):
                alert(found)  # type: ignore[misc]

        return engine_evolve.fold(state, facts(), None if alert is None else refused)

    def column_fold(self) -> ColumnFold:
        from runstate.models.engine.columns import EngineColumns

        return EngineColumns()

    def dump(self, state: RunSnapshot) -> bytes:
        return engine_state.dump(state)

    def load(self, data: bytes) -> RunSnapshot:
        return engine_state.load(data)

    def status(self, state: RunSnapshot) -> str:
        return state.status

    def is_over(self, state: RunSnapshot) -> bool:
        return state.status in engine_evolve.terminal_states

    def describe(self, event: RunEventRecord) -> Description:
        step = "" if event.step_id is UNSET else event.step_id
        attempt = f" (attempt {event.logical_attempt_id})" if event.logical_attempt_id != 1 else ""
        return Description(f"{step}{attempt}".strip(), {} if event.payload is UNSET else event.payload)

    def activities(self, event: RunEventRecord) -> list[Activity]:
        return engine_activity.activities(event)


class _Said(msgspec.Struct, rename="camel", gc=False):
    """The envelope of a line of either contract and of either shape."""

    run_id: str
    event_id: str
    event_type: str
    idempotency_key: str
    emitted_at: str
    tenant_id: str = ""
    run_seq: int | UnsetType = UNSET
    persisted_at: str | UnsetType = UNSET


_said_decoder = msgspec.json.Decoder(_Said)
_fact_decoder = msgspec.json.Decoder(engine_evolve.RunFact)

ENGINE = EngineModel()
