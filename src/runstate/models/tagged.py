"""A model of your own, in a dozen lines: tagged structs for events, a struct for the state, and `evolve`.

class Opened(msgspec.Struct, tag="opened", frozen=True): ...

class Door(TaggedModel[Opened | Closed, DoorState]):
    name, version = "door", 1
    events, state = Opened | Closed, DoorState

    def evolve(self, state, fact): ...
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from runstate.errors import InvalidEvent, InvalidJson
from runstate.models.canonical import canonical, check_value, parse
from runstate.models.envelope import Envelope
from runstate.models.model import Description, Draft, Model, S, check_stream, stable_uuid

T = TypeVar("T")

_prefix = b'{"seq":%d,"persistedAt":"%b",'
_volatile = frozenset({"emittedAt"})


class Fact(msgspec.Struct, Generic[T], frozen=True, rename="camel", omit_defaults=True):
    """One event with its envelope. `seq` and `persisted_at` are the log's to fill."""

    stream: str
    event: T
    key: str
    """Names this fact within its stream: sending the same key again changes nothing."""
    tenant: str = ""
    emitted_at: str = ""
    seq: int = 0
    persisted_at: str = ""

    @property
    def event_id(self) -> str:
        return stable_uuid(self.stream, self.key)


class TaggedModel(Model[Fact[T], Fact[T], S], Generic[T, S]):
    """A model whose events are tagged `msgspec` structs. A subclass names them and writes `evolve`."""

    assigned_names = frozenset({"seq", "persistedAt"})
    events: ClassVar[Any]
    """The union of the event structs."""
    state: ClassVar[Any]
    """The struct of the state; it must be possible to make one without arguments."""

    def initial(self, stream: str) -> S:
        made: S = self.state()
        return made

    def parse(self, line: bytes) -> Fact[T]:
        fact = self._converted(line)
        if fact.seq or fact.persisted_at:
            raise InvalidEvent("seq and persistedAt are assigned by the log; leave them out")
        return fact

    def check_line(self, line: bytes) -> None:
        fact = self._converted(line)
        if fact.seq < 0 or bool(fact.seq) != bool(fact.persisted_at):
            raise InvalidEvent("seq and persistedAt are assigned by the log: a line has both of them, or neither")
        self.draft(fact)

    def envelope(self, line: bytes) -> Envelope:
        fact = self._converted(line)
        kind = str(type(fact.event).__struct_config__.tag)  # type: ignore[attr-defined]
        seq, persisted_at = (fact.seq, fact.persisted_at) if fact.persisted_at else (None, None)
        return Envelope(fact.stream, seq, fact.event_id, kind, fact.key, fact.tenant, fact.emitted_at, persisted_at)

    def draft(self, event: Fact[T]) -> tuple[str, Draft]:
        check_stream(event.stream)
        if not event.key or len(event.key) > 256:
            raise InvalidEvent("A fact needs a key of 1 to 256 characters that names it within its stream")
        # Read from one log, a fact can be appended to another: its place and time are the log's to give.
        event = msgspec.structs.replace(event, seq=0, persisted_at="")
        try:
            check_value(msgspec.to_builtins(event, str_keys=True))
            encoded = msgspec.json.encode(event)
            # Decoding what was encoded catches a struct that was filled with values of the wrong types.
            self._decoder.decode(encoded)
        except (InvalidJson, msgspec.ValidationError, TypeError, UnicodeEncodeError) as error:
            raise InvalidEvent(f"{error}") from error
        return (
            event.stream,
            Draft(
                event_id=event.event_id,
                type=str(type(event.event).__struct_config__.tag),  # type: ignore[attr-defined]
                key=event.key,
                tenant=event.tenant,
                emitted_at=event.emitted_at,
                prefix=_prefix,
                tail=encoded[1:],
                volatile=_volatile,
            ),
        )

    def decode(self, body: bytes) -> Fact[T]:
        fact: Fact[T] = self._decoder.decode(body)
        return fact

    def describe(self, event: Fact[T]) -> Description:
        members = msgspec.to_builtins(event.event, str_keys=True)
        members.pop(type(event.event).__struct_config__.tag_field, None)  # type: ignore[attr-defined]
        return Description("", members)

    def dump(self, state: S) -> bytes:
        return canonical(msgspec.to_builtins(state, str_keys=True, order="sorted"))

    def load(self, data: bytes) -> S:
        try:
            loaded: S = msgspec.json.decode(data, type=self.state)
        except msgspec.MsgspecError as error:
            raise InvalidJson(f"Not a state of the model {self.name}: {error}") from error
        return loaded

    def _converted(self, line: bytes) -> Fact[T]:
        try:
            fact: Fact[T] = msgspec.convert(parse(line), Fact[self.events])  # type: ignore[name-defined]
        except msgspec.ValidationError as error:
            raise InvalidEvent(f"{error}") from error
        return fact

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(Fact[self.events])  # type: ignore[name-defined]
