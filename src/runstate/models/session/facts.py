"""Lines back into events: whole, for whoever reads them, and as far as the fold needs them.

The fold does not check the form of every id again: it meets each where its payload brings it in, and after that an id
is either one that the state knows or part of an impossible event. That takes half the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from runstate.errors import InvalidEvent
from runstate.models.session.events import AtNode, AtNodeOrSession, InRun, SessionEvent
from runstate.models.session.ids import EventIndex


class Fact(msgspec.Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    """A stored line, its payload typed and checked, its envelope as it stands."""

    event_index: EventIndex
    persisted_at: str
    event_id: str
    session_id: str
    kind: str
    dedupe_key: str
    data: Any
    run_id: str | UnsetType = UNSET
    node_id: str | UnsetType = UNSET


class _Line(Fact, rename="camel", forbid_unknown_fields=True, gc=False):
    data: msgspec.Raw


def decode(line: bytes) -> SessionEvent:
    """
    Raises:
        InvalidEvent: the line, of either shape, is no event of a session.
    """
    try:
        event = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidEvent(f"The line is no event of a session: {error}") from error
    check_scope(event)
    return event


def check_scope(event: SessionEvent) -> None:
    """
    Raises:
        InvalidEvent: the event names a run without a node, or a node without its run.
    """
    if isinstance(event, AtNodeOrSession) and (event.run_id is UNSET) is not (event.node_id is UNSET):
        raise InvalidEvent("runId and nodeId stand together, or neither does: the event is then about the session")


def decode_stored(line: bytes) -> SessionEvent:
    """
    Raises:
        InvalidEvent: the line is no event of a session that a log has stored.
    """
    event = decode(line)
    if event.event_index is UNSET or event.persisted_at is UNSET:
        raise InvalidEvent("The line is no stored event of a session: it lacks eventIndex or persistedAt")
    return event


def facts(lines: Iterable[bytes]) -> Iterator[SessionEvent | Fact]:
    """
    Raises:
        InvalidEvent: a line is no event of a session that a log has stored.
    """
    read, payloads = _fact_decoder.decode, _payloads
    for line in lines:
        try:
            fact = read(line)
            decode_payload, scopes = payloads[fact.kind]
            fact.data = decode_payload(fact.data)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, KeyError):
            yield decode_stored(line)  # Which says what is wrong with it.
            continue
        yield fact if (fact.run_id is not UNSET, fact.node_id is not UNSET) in scopes else decode_stored(line)


def _scopes(kind: type) -> frozenset[tuple[bool, bool]]:
    """Whether an event of this kind has a `runId`, and whether it has a `nodeId`."""
    if issubclass(kind, AtNodeOrSession):
        return frozenset({(True, True), (False, False)})
    return frozenset({(issubclass(kind, InRun), issubclass(kind, AtNode))})


_decoder: msgspec.json.Decoder[SessionEvent] = msgspec.json.Decoder(SessionEvent)
_fact_decoder: msgspec.json.Decoder[Fact] = msgspec.json.Decoder(_Line)
_payloads = {
    str(kind.__struct_config__.tag): (msgspec.json.Decoder(get_type_hints(kind)["data"]).decode, _scopes(kind))
    for kind in get_args(SessionEvent)
}
