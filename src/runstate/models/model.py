"""The Model protocol: what a model must know, and the draft that carries an event into a log.

A model owns the JSON of its events and the fold over them. It knows nothing of storage, clocks, randomness
or I/O: the same lines always give the same state.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

import msgspec

from runstate.errors import InvalidEvent, InvalidStream, ModelFailed, RunstateError
from runstate.models.activity import Activity
from runstate.models.canonical import canonical, digest, parse
from runstate.models.envelope import Envelope
from runstate.models.envelope_checks import check_envelope
from runstate.models.places import where
from runstate.models.statuses import StatusGroup, usual_group

if TYPE_CHECKING:
    import pyarrow as pa

W = TypeVar("W")
"""What a producer writes."""
E = TypeVar("E")
"""What a reader gets: the event with its place and time."""
S = TypeVar("S")
"""What the events fold into."""


class Alert(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Something a person should know about, as data. Equal `alert_id`s are one alert, however often raised."""

    code: str
    level: Literal["P1", "P2", "P3"]
    subject: str
    """What the alert is about: a stream, or the projector."""
    event_id: str = ""
    details: dict[str, Any] = {}

    @property
    def alert_id(self) -> str:
        return f"{self.code}:{self.subject}:{self.event_id}"

    @property
    def why(self) -> str:
        """An alert of `Model.refusals` in words: what its details say, or else its code."""
        said = self.details.get("why")
        if not said and "priorState" in self.details:
            said = f"{self.details['priorState']} does not become {self.details.get('attemptedState')}"
        if not said:
            return self.code
        return str(said) if self.code == "INVALID_TRANSITION" else f"{said} ({self.code})"


AlertSink = Callable[[Alert], None]


class Draft(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event on its way into a log: its envelope, and the JSON that its model wrote for it.

    The line is whole only when the log has assigned `seq` and `persisted_at`, so the draft keeps the text
    around those two.
    """

    event_id: str
    type: str
    key: str
    tenant: str
    emitted_at: str
    prefix: bytes
    """The opening of the line, with places for `seq` and `persisted_at`: `{"seq":%d,"persistedAt":"%b",`."""
    tail: bytes
    """The rest of the line, up to and with its closing brace."""
    volatile: frozenset[str] = frozenset()
    """Names of the members that an honest retry may send differently."""
    model: str = ""
    """The name of the model. The log records it with the stream's first event; empty: nothing is recorded."""
    chained: ClassVar[bool] = False
    """Whether a line of this kind holds something of the line before it, as the links of a hash chain do."""
    tells_envelope: ClassVar[bool] = False
    """Whether a line of this kind holds its whole envelope, as those of run directories do."""

    def render(self, seq: int, persisted_at: str, previous: bytes | None = None) -> bytes:
        """The event's line, as every log stores it. `previous` is the line before it, which a chained draft needs."""
        return self.prefix % (seq, persisted_at.encode()) + self.tail

    def same_content(self, stored: bytes) -> bool:
        """Whether the stored line says what this draft says, apart from what a retry may change."""
        # As bytes, since Python takes 1 and True for the same.
        return self._content(b"{" + self.tail) == self._content(stored)

    def _content(self, line: bytes) -> bytes:
        members: dict[str, Any] = msgspec.json.decode(line)
        placed: dict[str, Any] = msgspec.json.decode((self.prefix % (0, b""))[:-1] + b"}")
        return canonical({n: v for n, v in members.items() if n not in self.volatile and n not in placed})


class Folded(msgspec.Struct, frozen=True, gc=False):
    """A stream's state, as a column-wise fold gives it."""

    seq: int
    """The last event's."""
    status: str
    body: bytes
    """What `Model.dump` writes."""


class ColumnFold(Protocol):
    """A faster way to fold many whole streams at once; never a different one."""

    @property
    def schema(self) -> pa.Schema:
        """The columns that `fold` needs beside `seq`, `type` and `emitted_at`."""

    def facts(self, lines: Sequence[bytes]) -> pa.RecordBatch:
        """The columns of `schema`, one row per stored line.

        Never raises: a line that is anything but usual gets nulls, and with them its stream is folded plainly.
        """

    def rows(self, lines: Sequence[bytes]) -> pa.RecordBatch:
        """All columns that `fold` needs, out of the lines alone. Never raises, as `facts`."""

    def fold(self, streams: Sequence[str], starts: Sequence[int], batch: pa.RecordBatch) -> list[Folded | None]:
        """Each stream's state after all its events; None for a stream that must be folded by `Model.fold`.

        `batch` holds whole streams from their first event on, sorted by stream and `seq`: stream i is the rows from
        `starts[i]` to `starts[i + 1]`, or to the batch's end. Its columns are `seq` (int64), `type` and `emitted_at`
        (strings), as the lines say them, and those of `schema`; any string may be dictionary-encoded.
        """


class Description(msgspec.Struct, frozen=True):
    """An event in a few words, for a list of events."""

    subject: str
    """What the event is about within its stream: a step, a work item, a node; empty for the stream itself."""
    details: Any
    """What else it says, as JSON values."""


class Model(ABC, Generic[W, E, S]):
    """What the events of one kind of run mean.

    Subclass it for full control, or `TaggedModel` to write a model in a dozen lines.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Raise it with every change of the fold or the state: snapshots of another version are rebuilt."""
    loads_versions: ClassVar[frozenset[int]] = frozenset()
    """Earlier versions whose states `load` still reads, for a stream whose events are gone: a log was compacted."""
    seq_name: ClassVar[str] = "seq"
    """What this model's JSON calls the sequence number."""
    assigned_names: ClassVar[frozenset[str]] = frozenset()
    """Members of a stored line that the log assigns, and that a producer leaves out."""

    @abstractmethod
    def parse(self, line: bytes) -> W:
        """One event from outside, checked against its schema.

        Raises:
            InvalidJson, InvalidEvent: what is wrong, and where in the document.
        """

    def parse_stored(self, line: bytes) -> W:
        """The event of a stored line, as its producer would write it to append it to another log.

        Raises:
            InvalidJson, InvalidEvent: the line is not an event of this model.
        """
        members = parse(line)
        if isinstance(members, dict):
            line = msgspec.json.encode({n: value for n, value in members.items() if n not in self.assigned_names})
        return self.parse(line)

    def check_line(self, line: bytes) -> None:
        """Check a line of either shape: as a producer writes it, or as a log has stored it.

        Raises:
            InvalidJson, InvalidEvent, KeyMismatch: what is wrong, and where in the document.
        """
        self.parse(line)

    def envelope(self, line: bytes) -> Envelope:
        """What a line says about itself, for a line of either shape that `check_line` let through.

        A model whose stored lines tell their place and time overrides this; here, every line is a producer's.

        Raises:
            InvalidEvent: no draft can be made of the line.
        """
        stream, draft = self.draft(self.parse(line))
        return Envelope(stream, None, draft.event_id, draft.type, draft.key, draft.tenant, draft.emitted_at, None)

    @abstractmethod
    def draft(self, event: W) -> tuple[str, Draft]:
        """The stream that an event belongs to, and its draft.

        Raises:
            InvalidEvent: the event was put together wrongly.
        """

    def checked_draft(self, event: W) -> tuple[str, Draft]:
        """What `draft` says, for a caller who may pass anything.

        Raises:
            InvalidEvent: it is not an event of this model, or its envelope holds what no log keeps.
        """
        try:
            stream, draft = self.draft(event)
            envelope = {"id": draft.event_id, "type": draft.type, "key": draft.key, "tenant": draft.tenant}
            check_envelope(**envelope, time=draft.emitted_at)
            return stream, draft
        except RunstateError:
            raise
        except Exception as error:
            # A model that finds the kind of an event in a dictionary says no more than that it is not there.
            said = "" if isinstance(error, KeyError) else f": {error!r}{where(error)}"
            raise InvalidEvent(
                f"{type(event).__name__} is not an event of the model {self.name!r}{said}. "
                "Append an event object; to append JSON, read it with store.model.parse(line) first"
            ) from error

    def expected_key(self, event: W) -> str | None:
        """The idempotency key that the event's fields give, or None where it cannot be derived."""
        return None

    @abstractmethod
    def decode(self, body: bytes) -> E:
        """A stored line as a typed event, brought up to the newest version of its type."""

    @abstractmethod
    def initial(self, stream: str) -> S:
        """The state before the first event."""

    @abstractmethod
    def evolve(self, state: S, event: E) -> S:
        """The state after one more event. Pure: `state` is left as it was, and nothing else is looked at."""

    def refusals(self, state: S, event: E) -> list[Alert]:
        """Why the event is impossible in this state; empty when it is possible. `details["why"]` is for people."""
        return []

    def checked_refusals(self, state: S, event: E) -> list[Alert]:
        """What `refusals` says, for whoever asks a model that somebody else wrote.

        Raises:
            ModelFailed: it raises, or what it returns is no list of alerts.
        """
        try:
            found = list(self.refusals(state, event))
        except RunstateError:
            raise
        except Exception as error:
            raise ModelFailed(f"`refusals` of the model {self.name!r} fails: {error!r}{where(error)}") from error
        for each in found:
            if not isinstance(each, Alert):
                raise ModelFailed(
                    f"`refusals` of the model {self.name!r} must return a list of runstate.Alert, like "
                    f"[Alert(code=…, level='P3', subject=fact.stream)]; there is {each!r} in it"
                )
        return found

    def fold(self, state: S, lines: Iterable[bytes], alert: AlertSink | None = None) -> S:
        """Evolve over stored lines, in order. Takes `state` over: the caller goes on with the result alone.

        A model may do this faster than one `evolve` at a time, never differently.

        Raises:
            ModelFailed: the model raises at an event.
        """
        for line in lines:
            try:
                event = self.decode(line)
                refused = [] if alert is None else self.checked_refusals(state, event)
                state = self.evolve(state, event)
            except RunstateError:
                raise
            except Exception as error:
                raise ModelFailed(
                    f"The model {self.name!r} cannot fold an event: {error!r}{where(error)}; is it the right model?"
                ) from error
            # Told outside of the above: what a sink raises is no failure of the model.
            for refusal in refused:
                alert(refusal)  # type: ignore[misc]
        return state

    def column_fold(self) -> ColumnFold | None:
        """The same fold over columns, for a model that has one. It is here, not before, that pyarrow is imported."""
        return None

    @abstractmethod
    def dump(self, state: S) -> bytes:
        """The state's bytes: the same for the same state, on every machine."""

    @abstractmethod
    def load(self, data: bytes) -> S:
        """The state that `dump` wrote.

        Raises:
            InvalidJson: the bytes are not what `dump` wrote.
        """

    def upgrade(self, version: int, body: bytes) -> bytes | None:
        """A stored state as this version writes it; None where it cannot be read, and only the events tell."""
        if version == self.version:
            return body
        return self.dump(self.load(body)) if version in self.loads_versions else None

    def status(self, state: S) -> str:
        """One word for a list of streams."""
        return ""

    def status_group(self, status: str) -> StatusGroup:
        """What such a word means beside those of other models. By default the usual words mean what they say."""
        return usual_group(status)

    def is_over(self, state: S) -> bool:
        """Whether nothing more is expected of the stream. Retention takes no other; by default, it takes none."""
        return False

    def describe(self, event: E) -> Description:
        """What a list of events shows about an event. By default everything, about no subject in particular."""
        return Description("", msgspec.to_builtins(event, str_keys=True))

    def blob_refs(self, line: bytes) -> Iterable[str] | None:
        """The blobs that a stored line refers to; None: not known, since a string `sha256:…` may be any digest."""
        return None

    def activities(self, event: E) -> list[Activity]:
        """What the event says about work being done, for reports. Never raises, whatever the event holds."""
        return []


AnyModel = Model[Any, Any, Any]


stream_bytes_max = 512
_stream_pattern = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]+")

# A slash or `..` would leave a log's directory, and longer names are too long once a suffix is added.
file_stream_bytes_max = 200
_file_stream_pattern = re.compile(r"(?!\.{1,2}\Z)[^/\\]+")


def check_stream(stream: str) -> None:
    """Refuse a stream id that no log takes: it is text of 1 to 512 bytes without control characters.

    Raises:
        InvalidStream: with the rule that it breaks.
    """
    if type(stream) is not str:
        raise InvalidStream(f"A stream id is text, not {type(stream).__name__}")
    if not _stream_pattern.fullmatch(stream):
        raise InvalidStream(
            f"The stream id {stream[:80]!r} is refused: it must not be empty, nor hold a control character or a lone "
            "surrogate",
            stream=stream[:stream_bytes_max],
        )
    if _is_longer(stream, stream_bytes_max):
        raise InvalidStream(
            f"The stream id {stream[:40]!r}… is refused: it is longer than {stream_bytes_max} bytes",
            stream=stream[:stream_bytes_max],
        )


def check_file_stream(stream: str) -> None:
    """Refuse a stream id that cannot be a file name, for logs that name files and directories by their streams.

    Raises:
        InvalidStream: with the rule that it breaks.
    """
    check_stream(stream)
    if not _file_stream_pattern.fullmatch(stream) or _is_longer(stream, file_stream_bytes_max):
        raise InvalidStream(
            f"The stream id {stream[:80]!r} cannot be a file name, which this log needs: no '/', no '\\', not '.' or "
            f"'..', at most {file_stream_bytes_max} bytes. Choose another id, or a database log such as sqlite:FILE",
            stream=stream,
        )


def _is_longer(stream: str, bytes_max: int) -> bool:
    return len(stream) > bytes_max or len(stream.encode("utf-8")) > bytes_max


def stable_uuid(*parts: str) -> str:
    """A UUID (of version 4's form) that the same parts always give, so that a retry needs no memory."""
    hexes = digest("\x1f".join(parts).encode("utf-8", "surrogatepass"))[:32]
    variant = "89ab"[int(hexes[16], 16) % 4]
    return f"{hexes[:8]}-{hexes[8:12]}-4{hexes[13:16]}-{variant}{hexes[17:20]}-{hexes[20:]}"
