"""The lines of a daemon's events: how they are read, checked and written down."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from runstate.errors import InvalidEvent
from runstate.models.canonical import canonical, check_value, integer_max, parse
from runstate.models.daemon.events import DaemonEvent, UnknownEvent, event_types, tag_of
from runstate.models.model import check_file_stream, stable_uuid


def from_line(line: bytes) -> DaemonEvent:
    """A typed and checked event from outside.

    Raises:
        InvalidJson, InvalidEvent, InvalidStream: what is wrong, and where.
    """
    event = _from_members(parse(line))
    check(event)
    return event


def decode(line: bytes) -> DaemonEvent:
    """A stored line as a typed event. It was checked when it was appended, so its rules are not all run again.

    Another version may have written it: a type that this one does not know gives an `UnknownEvent`, and members that
    it does not know are left out.

    Raises:
        InvalidEvent: the line is no event of a daemon.
    """
    try:
        return decode_fast(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        try:
            # Rare, and right: an integer that is written as 1.0, or an event of another version.
            return _from_stored(msgspec.json.decode(line))
        except (msgspec.MsgspecError, UnicodeError, RecursionError, InvalidEvent):
            raise InvalidEvent(f"A stored line is no event of a daemon: {error}") from error


def check(event: DaemonEvent) -> None:
    """Refuse an event that breaks its schema, however it was made.

    Raises:
        InvalidEvent: naming the member and the rule.
        InvalidStream, InvalidJson: the daemon's name is no stream's, or a member cannot be written as JSON.
    """
    if type(event) not in event_types:
        raise InvalidEvent(f"{type(event).__name__} is not an event of a daemon")
    members = {name: getattr(event, name) for name in event.__struct_fields__}
    check_value(members)
    try:
        # Catches a struct that was filled with values of the wrong types.
        msgspec.convert(members | {"type": tag_of(event)}, type(event))
    except msgspec.ValidationError as error:
        raise InvalidEvent(f"{tag_of(event)}: {error}") from error
    check_file_stream(event.daemon)
    if event.event_id and not _id_pattern.fullmatch(event.event_id):
        raise InvalidEvent(f"event_id must be 1 to 128 printable characters, got {event.event_id[:80]!r}")
    for name in ("worker_name", "queue_name"):
        if "/" in members.get(name, ""):
            raise InvalidEvent(f"{name} may hold no slash, which separates a namespace from a name")


def encode(event: DaemonEvent) -> bytes:
    """The event's line, its tag first."""
    return msgspec.json.encode(event)


def id_of(event: DaemonEvent) -> str:
    """The event's id: its own, or the one that its stream and its content give."""
    members = event.members if isinstance(event, UnknownEvent) else msgspec.to_builtins(event)
    return event.event_id or stable_uuid(event.daemon, canonical(members).decode())


def _from_stored(members: Any) -> DaemonEvent:
    kind = members.get("type") if isinstance(members, dict) else None
    if not isinstance(kind, str):
        raise InvalidEvent("It has no type")
    if (found := _types.get(kind)) is not None:
        known = {"type", *found.__struct_encode_fields__}
        return _from_members({name: value for name, value in members.items() if name in known})
    named = {name: members[name] for name in ("daemon", "event_id") if name in members}
    return msgspec.convert({"type": "unknown", "kind": kind, "members": members, **named}, UnknownEvent)


def _from_members(members: Any) -> DaemonEvent:
    if not isinstance(members, dict):
        raise InvalidEvent(f"An event is a JSON object, not {type(members).__name__}")
    kind = members.get("type")
    found = _types.get(kind) if isinstance(kind, str) else None
    if found is None:
        known = ", ".join(sorted(_types))
        raise InvalidEvent(f"There is no event {str(kind)[:80]!r}; there are: {known}", type=str(kind)[:80])
    if members.get("event_id") == "":
        raise InvalidEvent("event_id may not be empty; leave it out")
    try:
        return msgspec.convert({name: _integral(value) for name, value in members.items()}, found)
    except msgspec.ValidationError as error:
        raise InvalidEvent(f"{kind}: {error}") from error


def _integral(value: Any) -> Any:
    """JSON has one kind of number: 1.0 is the integer 1."""
    return int(value) if type(value) is float and value.is_integer() and abs(value) <= integer_max else value


_types = {str(found.__struct_config__.tag): found for found in event_types}
_id_pattern = re.compile(r"[!-~]{1,128}")
_union: Any = event_types[0]
for _found in event_types[1:]:
    _union |= _found
decode_fast: Callable[[bytes], DaemonEvent] = msgspec.json.Decoder(_union).decode
"""A stored line as a typed event, or whatever msgspec raises."""
