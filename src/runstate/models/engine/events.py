"""The events of both contracts: how they are typed, checked, written down and upcast.

The JSON Schemas in `specs/schemas` are the authority; a property test proves that `parse_*` here accepts
and refuses exactly what they do. Unknown types and unknown members are kept: they come back in `extra`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from runstate.errors import InvalidEvent
from runstate.models.canonical import check_value, integer_max, is_text
from runstate.models.model import check_stream

run_types = frozenset(
    ["RunQueued", "RunApproved", "RunStarted", "RunPaused", "RunResumed", "RunCompleted", "RunFailed", "RunCancelled"]
)
step_types = frozenset(["StepStarted", "StepCompleted", "StepFailed", "StepSkipped"])

text_max = 256
"""Characters in any one name, id or version."""

attempt_max = 10**15 - 1
"""The highest attempt: fifteen digits, in both contracts, so that each can say what the other says."""

unknown_scope = "unknown"
"""What an upcast event says where contract v1 has no such field."""


Extra = Annotated[dict[str, Any], Meta(min_length=1, max_length=0)]
"""Never decoded: no JSON object has both lengths, so the decoder refuses a member that is named `extra` itself."""


class RunEventWrite(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """An event of contract v2, as a producer writes it: no place in the order yet, no time of storage."""

    event_id: str
    event_type: str
    emitted_at: str
    run_id: str
    tenant_id: str
    project_id: str
    environment_id: str
    plan_id: str
    plan_version: str
    engine_attempt_id: int
    logical_attempt_id: int
    idempotency_key: str
    step_id: str | UnsetType = UNSET
    payload: dict[str, Any] | UnsetType = UNSET
    extra: Extra = {}
    """Members that this version does not know; written at the top level of the JSON, as they came."""


class RunEventRecord(
    RunEventWrite, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """An event of contract v2, as the store gives it back."""

    run_seq: int
    persisted_at: str


class CanonicalEngineEvent(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """An event of contract v1.

    The append authority assigns `run_seq` and `persisted_at`. A caller may send both, with any number from 0; they are
    ignored.
    """

    run_id: str
    event_id: str
    event_type: str
    event_data: Any
    idempotency_key: str
    emitted_at: str
    run_seq: int | UnsetType = UNSET
    persisted_at: str | UnsetType = UNSET
    step_id: str | UnsetType = UNSET
    engine_attempt_id: str | UnsetType = UNSET
    logical_attempt_id: str | UnsetType = UNSET
    adapter_version: str | UnsetType = UNSET
    engine_run_ref: Any = UNSET
    caused_by_signal_id: str | UnsetType = UNSET
    parent_event_id: str | UnsetType = UNSET
    extra: dict[str, Any] = {}


Event = TypeVar("Event", RunEventWrite, RunEventRecord, CanonicalEngineEvent)


def is_v1(members: Mapping[str, Any]) -> bool:
    """Whether an event's JSON is of contract v1: it alone has `eventData`, and it has no tenant."""
    return "eventData" in members and "tenantId" not in members


def from_members(kind: type[Event], members: Any, *, stored: bool = False) -> Event:
    """A typed and checked event from parsed JSON.

    `stored`: the log holds it already. It may have been written under an earlier, looser rule.

    Raises:
        InvalidEvent: with the path of the member that breaks the schema.
    """
    event = _typed(kind, members)
    check(event, stored=stored)
    return event


def _typed(kind: type[Event], members: Any) -> Event:
    if not isinstance(members, dict):
        raise InvalidEvent(f"An event is a JSON object, not {type(members).__name__}")
    known = _wire_names[kind]
    given = {name: _integral(value) for name, value in members.items() if name in known}
    extra = {name: value for name, value in members.items() if name not in known}
    try:
        event = msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise InvalidEvent(str(error)) from error
    event.extra = extra
    return event


def decode_record(body: bytes) -> RunEventRecord:
    """A stored line as a record of contract v2. It was checked when it was appended, so its rules are not run again."""
    try:
        return _record_decoder.decode(body)
    except msgspec.ValidationError:
        pass  # An event of v1, or one with members that this version does not know.
    members = msgspec.json.decode(body)
    if is_v1(members):
        return upcast(from_members(CanonicalEngineEvent, members, stored=True))
    return _typed(RunEventRecord, members)


def members_json(event: RunEventWrite | CanonicalEngineEvent) -> bytes:
    """The event's JSON object, members that this version does not know at its end."""
    if not event.extra:
        return msgspec.json.encode(event)
    encoded = msgspec.json.encode(msgspec.structs.replace(event, extra={}))
    return encoded[:-1] + b"," + msgspec.json.encode(event.extra)[1:]


def check(event: RunEventWrite | CanonicalEngineEvent, *, stored: bool = False) -> None:
    """Refuse an event that breaks its schema, however it was made.

    Raises:
        InvalidEvent: naming the member and the rule.
    """
    for attribute, wire, required, rule in _rules[type(event)]:
        value = getattr(event, attribute)
        if stored and value == "0" and attribute == "engine_attempt_id":
            continue  # Earlier versions took it.
        if value is not UNSET:
            rule(value, wire)
        elif required:
            raise InvalidEvent(f"{wire} is required")
    check_level(event.event_type, event.step_id is not UNSET)
    if event.extra:
        _check_extra(event)


def upcast(old: CanonicalEngineEvent) -> RunEventRecord:
    """An event of contract v1 as contract v2 would have recorded it. What v1 does not know is `unknown`."""
    payload = old.event_data if isinstance(old.event_data, dict) else {"eventData": old.event_data}
    kept = {
        name: value
        for name, value in (
            ("adapterVersion", old.adapter_version),
            ("engineRunRef", old.engine_run_ref),
            ("causedBySignalId", old.caused_by_signal_id),
            ("parentEventId", old.parent_event_id),
        )
        if value is not UNSET
    }
    return RunEventRecord(
        event_id=old.event_id,
        event_type=old.event_type,
        emitted_at=old.emitted_at,
        run_id=old.run_id,
        tenant_id=unknown_scope,
        project_id=unknown_scope,
        environment_id=unknown_scope,
        plan_id=unknown_scope,
        plan_version=unknown_scope,
        engine_attempt_id=int(old.engine_attempt_id or 1),
        logical_attempt_id=int(old.logical_attempt_id or 1),
        idempotency_key=old.idempotency_key,
        step_id=old.step_id,
        payload=payload,
        extra=kept | _apart(old.extra, RunEventRecord, "v1"),
        run_seq=old.run_seq or 0,
        persisted_at=old.persisted_at or "",
    )


def decode_v1(line: bytes) -> CanonicalEngineEvent:
    """A stored line as contract v1 sees it: its own events as they were written, those of v2 downcast."""
    members = msgspec.json.decode(line)
    if is_v1(members):
        return from_members(CanonicalEngineEvent, members, stored=True)
    new = decode_record(line)
    return CanonicalEngineEvent(
        run_id=new.run_id,
        event_id=new.event_id,
        event_type=new.event_type,
        event_data={} if new.payload is UNSET else new.payload,
        idempotency_key=new.idempotency_key,
        emitted_at=new.emitted_at,
        run_seq=new.run_seq,
        persisted_at=new.persisted_at,
        step_id=new.step_id,
        engine_attempt_id=str(new.engine_attempt_id),
        logical_attempt_id=str(new.logical_attempt_id),
        extra=_apart(new.extra, CanonicalEngineEvent, "v2"),
    )


def _apart(extra: dict[str, Any], kind: type, origin: str) -> dict[str, Any]:
    """Members that one contract does not know and the other does, under a name that is no member of either."""
    return {f"{origin}.{name}" if name in _wire_names[kind] else name: value for name, value in extra.items()}


# --- the rules of the schemas, as functions -------------------------------------------------------------

_uuid = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_uuid4 = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-4[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}")
_date = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_clock = r"[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
_utc = re.compile(_date + _clock + r"(?:[Zz]|[+-]00:00)")
_zoned = re.compile(_date + _clock + r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])")
_attempt_text = re.compile(r"[1-9][0-9]{0,14}")


def _text(value: Any, name: str) -> None:
    if type(value) is not str or not 0 < len(value) <= text_max or not is_text(value):
        raise InvalidEvent(f"{name} must be text of 1 to {text_max} characters")


def _key_field(value: Any, name: str) -> None:
    _text(value, name)
    if "|" in value:
        raise InvalidEvent(f"{name} may not hold '|', which separates the fields of an idempotency key")


def _run_id(value: Any, name: str) -> None:
    if type(value) is not str or "|" in value:
        raise InvalidEvent(f"{name} must be text without '|', which separates the fields of an idempotency key")
    check_stream(value)


def _matching(pattern: re.Pattern[str], words: str) -> Any:
    def rule(value: Any, name: str) -> None:
        if type(value) is not str or not pattern.fullmatch(value):
            raise InvalidEvent(f"{name} must be {words}, got {str(value)[:80]!r}")

    return rule


def _integer(minimum: int, maximum: int) -> Any:
    def rule(value: Any, name: str) -> None:
        if type(value) is not int or not minimum <= value <= maximum:
            raise InvalidEvent(f"{name} must be a whole number from {minimum} to {maximum}, got {str(value)[:80]!r}")

    return rule


def _payload(value: Any, name: str) -> None:
    if type(value) is not dict:
        raise InvalidEvent(f"{name} must be a JSON object")
    check_value(value, f"$.{name}", 1)


def _any_json(value: Any, name: str) -> None:
    check_value(value, f"$.{name}", 1)


_uuid_rule = _matching(_uuid, "a UUID")
check_attempt = _integer(1, attempt_max)
check_attempt_text = _matching(_attempt_text, "a counter in base 10, from 1")
_zoned_rule = _matching(_zoned, "an RFC 3339 time with a zone, such as 2026-11-15T09:30:00.000Z")
_utc_rule = _matching(_utc, "an RFC 3339 time in UTC, such as 2026-11-15T09:30:00.000Z")

_v2_rules = {
    "event_id": _matching(_uuid4, "a UUID of version 4"),
    "event_type": _key_field,
    "emitted_at": _utc_rule,
    "run_id": _run_id,
    "tenant_id": _text,
    "project_id": _text,
    "environment_id": _text,
    "plan_id": _key_field,
    "plan_version": _key_field,
    "engine_attempt_id": check_attempt,
    "logical_attempt_id": check_attempt,
    "idempotency_key": _text,
    "step_id": _key_field,
    "payload": _payload,
    "run_seq": _integer(1, integer_max),
    "persisted_at": _utc_rule,
}
_record_rules = _v2_rules | {"engine_attempt_id": _integer(0, attempt_max)}
"""What is read back may have been written by an earlier version, which took an engine attempt of 0."""
_v1_rules = {
    "run_id": _run_id,
    "event_id": _uuid_rule,
    "event_type": _key_field,
    "event_data": _any_json,
    "idempotency_key": _text,
    "emitted_at": _zoned_rule,
    "run_seq": _integer(0, integer_max),
    "persisted_at": _zoned_rule,
    "step_id": _key_field,
    "engine_attempt_id": check_attempt_text,
    "logical_attempt_id": check_attempt_text,
    "adapter_version": _text,
    "engine_run_ref": _any_json,
    "caused_by_signal_id": _uuid_rule,
    "parent_event_id": _uuid_rule,
}
_rules: dict[type, list[tuple[str, str, bool, Any]]] = {
    kind: [
        (field.name, field.encode_name, field.required, rules[field.name])
        for field in msgspec.structs.fields(kind)
        if field.name != "extra"
    ]
    for kind, rules in (
        (RunEventWrite, _v2_rules),
        (RunEventRecord, _record_rules),
        (CanonicalEngineEvent, _v1_rules),
    )
}
_wire_names = {kind: frozenset(wire for _, wire, _, _ in rules) for kind, rules in _rules.items()}
_assigned = frozenset({"runSeq", "persistedAt"})


def check_level(event_type: str, has_step: bool) -> None:
    """Refuse a run-level type with a step, and a step-level type without one.

    Raises:
        InvalidEvent: naming the type.
    """
    if event_type in run_types and has_step:
        raise InvalidEvent(f"stepId must be absent from {event_type}, which is about the whole run")
    if event_type in step_types and not has_step:
        raise InvalidEvent(f"stepId is required by {event_type}; name the step (step_id= in Python)")


def _check_extra(event: RunEventWrite | CanonicalEngineEvent) -> None:
    if assigned := _assigned & event.extra.keys():
        raise InvalidEvent(f"{min(assigned)} is assigned by the store; leave it out")
    if isinstance(event, CanonicalEngineEvent) and "tenantId" in event.extra:
        raise InvalidEvent("tenantId belongs to contract v2; an event that has eventData too is of neither")
    if clash := _wire_names[type(event)] & event.extra.keys():
        raise InvalidEvent(f"{min(clash)} has a field of its own and may not stand in extra")
    check_value(event.extra)


def _integral(value: Any) -> Any:
    """JSON has one kind of number: 1.0 is the integer 1."""
    return int(value) if type(value) is float and value.is_integer() and abs(value) <= integer_max else value


_record_decoder = msgspec.json.Decoder(RunEventRecord)
