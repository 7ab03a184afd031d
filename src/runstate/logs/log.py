"""The port: what every log promises. The conformance kit holds each of them to it.

A log keeps lines in order and knows nothing of what they mean. `seq` is a place in one stream, `position` a
place in the whole log. Once `append` returns, its events survive a power cut; nothing is ever updated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import lru_cache
from time import gmtime, strftime, time_ns
from typing import Any, Literal, NewType, Protocol, Self

import msgspec

from runstate.errors import (
    InvalidArgument,
    SequenceConflict,
    Truncated,
    Unsupported,
)
from runstate.logs.tombstones import Tombstone as Tombstone  # Part of the port.
from runstate.models.canonical import digest
from runstate.models.model import Draft as Draft  # Part of the port, as `check_stream` is.
from runstate.models.model import check_stream as check_stream

Position = NewType("Position", str)
"""A place in the whole log. Opaque: keep it and hand it back, but read nothing into it."""


BlobRef = NewType("BlobRef", str)
"""`sha256:` and the hex digest of a blob's bytes."""


class Capability(StrEnum):
    """What a log may offer beyond appending and reading. What it does not declare, it refuses."""

    DURABLE = "durable"
    """Acknowledged events survive the end of the process, and a power cut."""
    MULTI_PROCESS = "multi_process"
    """Several processes may append to it at once."""
    FEED = "feed"
    """All streams can be followed in one order."""
    SNAPSHOTS = "snapshots"
    BLOBS = "blobs"
    """Such a log is also a `BlobCollectingLog`."""
    DELETE = "delete"
    REPAIR = "repair"
    """A damaged stream can be cut back to what is intact, and its damaged bytes are kept."""
    ADOPT = "adopt"
    """Records of another log can be taken over as they are."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """An event as a log holds it: its envelope, its place, and the line that its model wrote."""

    stream: str
    seq: int
    event_id: str
    type: str
    key: str
    tenant: str
    emitted_at: str
    persisted_at: str
    body: bytes


class AppendResult(msgspec.Struct, frozen=True, gc=False):
    """What became of one draft."""

    event_id: str
    seq: int
    persisted_at: str
    idempotent: bool = False
    """True: the stream held this key already, and these are the first event's data."""
    persisted: bool = True
    """True: the event was written by this append."""
    mismatch: bool = False
    """True: the stream holds other content under this key. The first content stays."""


class FeedPage(msgspec.Struct, frozen=True):
    """A stretch of the feed. Asking again after `next` continues it; nothing can appear before `next` later."""

    records: list[Record]
    next: Position | None


class StreamInfo(msgspec.Struct, frozen=True, rename="camel"):
    """One stream, for a list of them."""

    stream: str
    tenant: str
    last_seq: int
    events: int
    first_persisted_at: str
    last_persisted_at: str
    model: str = ""
    """The name of the model that its first append recorded; empty where none is: an older version wrote the stream."""
    damaged: bool = False
    """What comes right behind `last_seq` is damaged: a read from there raises LogDamaged, and says what it is. Other
    damage is not looked for."""


class Head(msgspec.Struct, frozen=True, gc=False):
    """How far a stream has come, as cheaply as its log can tell."""

    stream: str
    weight: int
    """About how many events there are to read."""
    version: str
    """Opaque. Changes whenever the stream does, and when it is deleted and begun again. Empty if not asked for."""
    last_seq: int | None = None
    """None where only a walk would tell. The seqs of such a log are the numbers of its lines, from 1 without a gap."""
    model: str | None = None
    """As `StreamInfo.model`; None where only a look at the stream would tell, and versions were not asked for."""


class StoredSnapshot(msgspec.Struct, frozen=True):
    """A state on file. It can be thrown away at any time: the log is the truth."""

    model: str
    version: int
    """The model's version. A state of another version means nothing to this one."""
    seq: int
    digest: str
    """SHA-256 of `body`."""
    body: bytes
    first_persisted_at: str = ""
    """When the stream that it is of began, where that is known. Only looked at by `save_snapshot`, and not stored."""

    @property
    def is_intact(self) -> bool:
        """Whether `body` still has its digest. In a database, a careless edit may even have changed its type."""
        return isinstance(self.body, bytes) and digest(self.body) == self.digest


class Finding(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Damage: what it is, where, and how much before it is intact."""

    code: str
    message: str
    severity: Literal["damage", "warning"] = "damage"
    stream: str | None = None
    seq: int | None = None
    details: dict[str, Any] = {}


class EventLog(Protocol):
    """Where events live, and in what order."""

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        """Append `drafts` to one stream, all or none.

        Once this returns, they survive a process kill and a power cut. A draft whose key the stream already
        holds changes nothing and returns the first result, so a caller may always retry: `expected_seq` is
        looked at only when there is something new to write. The first append records the model of its drafts.

        Raises:
            ModelMismatch: the stream records another model than the drafts, or the drafts are of several; nothing was
                written, and the answer is the same for a retry.
            StreamDeleted: the stream has a tombstone; nothing was written. A store answers a retry from the archive.
            SequenceConflict: the stream is not at `expected_seq`; read again and decide again.
            AppendOutcomeUnknown: the batch may or may not be stored; send the same keys again.
            LogBusy, LogFull, LogClosed: nothing was written.
        """
        ...

    def adopt(self, stream: str, records: Sequence[Record], *, model: str = "") -> int:
        """Take over records as another log holds them: seq, event id, key, times and line. All or none.

        `model` is what the other log records for the stream; it is recorded as by an append.

        For copies and restored archives, never for new facts. They are of this stream, ascending. Those that the stream
        holds already, just so, are passed over; the rest is appended with its own seqs, and is as durable as an append.
        A stream that has a tombstone comes back. Returns how many were new.

        Raises:
            ModelMismatch: the stream records another model than `model`.
            SequenceConflict: the stream holds something else at one of these places, or under one of these keys.
            Unsupported: the log does not offer it, or cannot keep such places (gaps, where lines are numbered).
            AppendOutcomeUnknown: they may or may not be stored; adopt the same records again.
            LogBusy, LogFull, LogClosed: nothing was written.
        """
        ...

    def read(self, stream: str, *, after_seq: int = 0, limit: int = 1000) -> list[Record]:
        """At most `limit` records with `seq > after_seq`, ascending. Empty for a stream that is not there.

        Raises:
            Truncated: the log was compacted, and its first event is later than that.
        """
        ...

    def lines(self, stream: str, *, after_seq: int = 0, until_seq: int | None = None) -> Iterator[bytes]:
        """The bodies alone, ascending, to the end or to `until_seq`: what a fold needs, at half the cost of `read`."""
        ...

    def find(self, stream: str, key: str) -> Record | None:
        """The event that a key stands for, or None."""
        ...

    def feed(self, *, after: Position | None = None, limit: int = 1000) -> FeedPage:
        """All streams in one order, in which no event can later commit behind a position handed out."""
        ...

    def streams(self, *, after: str = "", limit: int = 1000) -> list[StreamInfo]:
        """Streams in the order of their ids (by code point), those after `after`."""
        ...

    def stream(self, stream: str) -> StreamInfo | None:
        """One stream, or None."""
        ...

    def heads(self, *, after: str = "", until: str | None = None, versions: bool = True) -> Iterator[Head]:
        """All streams with `after < id <= until`, by code point, for those who go through a whole log.

        It costs far less than `streams`, and less again without `versions`: weights may then be guesses. A stream whose
        first append was never finished may be among them.
        """
        ...

    def load_snapshot(self, stream: str, model: str) -> StoredSnapshot | None: ...

    def save_snapshot(self, stream: str, snapshot: StoredSnapshot) -> None:
        """Keep a snapshot.

        One that is older than what is kept, by the same version of its model, is ignored, unless what is kept lies
        beyond the end of the stream. So is one of an earlier stream of that id, which was deleted meanwhile.
        """
        ...

    def delete_stream(
        self,
        stream: str,
        *,
        expected_seq: int | None = None,
        first_persisted_at: str = "",
        tombstone: Tombstone | None = None,
    ) -> None:
        """Delete a whole stream with its snapshots. Never a single event.

        With `expected_seq`, only if the stream ends there: what was appended after the caller has looked is not lost.
        With `first_persisted_at`, only if the stream began then: one that was begun again under its id is not lost.
        With `tombstone`, the log keeps it in the same step, and refuses appends that would begin the stream again.
        Without, an earlier tombstone is forgotten, also where it is all that is left.

        Raises:
            StreamNotFound: there is no such stream, and no tombstone to forget.
            SequenceConflict: the stream is not at `expected_seq`, or began at another time; nothing was deleted.
        """
        ...

    def tombstone(self, stream: str) -> Tombstone | None:
        """What is remembered of a deleted stream; None if there is such a stream, or never was one."""
        ...

    def verify(self, stream: str | None = None) -> Iterator[Finding]:
        """Everything in the log that no append of this log wrote, or that is no longer there."""
        ...

    def verify_rest(self) -> Iterator[Finding]:
        """What `verify` finds beyond single streams: in the file's own structure, in blobs, events of no stream."""
        ...

    def repair(
        self, stream: str, *, dry_run: bool = False, salvage: bool = False, quarantine: int = 0
    ) -> list[Finding]:
        """Cut a damaged stream back to what is intact, having kept the damaged bytes. What was found, and done.

        With `dry_run` nothing changes, and the findings say what would be done. With `salvage`, events behind the
        damage are kept too where their own checksums, digests and places prove them: in the stream, or in a file
        beside it where the stream cannot hold them. With `quarantine`, the seq of an event in an intact stream, this
        event is set aside, with those behind it where the log cannot hold a gap; snapshots that know it are dropped.

        Raises:
            StreamNotFound: there is no such stream.
            EventNotFound: it has no event to quarantine at that seq.
            LogDamaged: an event is to be quarantined, and the stream is damaged: repair that first.
            LogBusy: another writer holds it.
        """
        ...

    def put_blob(self, data: bytes) -> BlobRef:
        """Keep bytes under their digest, as durable as an event. The same bytes are kept once."""
        ...

    def get_blob(self, ref: BlobRef) -> bytes:
        """The bytes of a blob.

        Raises:
            BlobNotFound: there is none of that digest.
            LogDamaged: its bytes no longer have that digest.
        """
        ...

    def close(self) -> None:
        """Finish what was accepted, then let go of files and threads. A closed log refuses everything."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


def now(ahead_ms: int = 0) -> str:
    """The time as `persisted_at` writes it (RFC 3339 in UTC, milliseconds), by a clock that is so far ahead of ours."""
    second, millisecond = divmod(time_ns() // 1_000_000 + ahead_ms, 1000)
    return f"{_until_second(second)}.{millisecond:03d}Z"


@lru_cache(maxsize=2)
def _until_second(second: int) -> str:
    # Formatting a date costs more than an append has to spare; it changes once a second.
    return strftime("%Y-%m-%dT%H:%M:%S", gmtime(second))


def begins_after(log: EventLog, stream: str) -> int:
    """The seq behind which a log holds a whole stream: 0, but for a log that was compacted."""
    try:
        log.read(stream, limit=1)
    except Truncated as truncated:
        return int(truncated.details["first_seq"]) - 1
    return 0


def check_limit(limit: int) -> None:
    """
    Raises:
        InvalidArgument: it is not a whole number from 1.
    """
    if type(limit) is not int or limit < 1:
        raise InvalidArgument(f"limit must be a whole number from 1, got {limit!r:.80}")


def check_after(after_seq: int) -> None:
    """
    Raises:
        InvalidArgument: it is not a whole number from 0.
    """
    if type(after_seq) is not int or after_seq < 0:
        raise InvalidArgument(
            f"after_seq must be a whole number from 0, got {after_seq!r:.80}; leave it out to read from the beginning"
        )


def check_expected(stream: str, actual_seq: int, expected_seq: int | None) -> None:
    """
    Raises:
        SequenceConflict: with where the stream is.
    """
    if expected_seq is not None and actual_seq != expected_seq:
        raise SequenceConflict(
            f"The stream {stream!r} is at seq {actual_seq}, not at {expected_seq}; read it again and decide again",
            stream=stream,
            actual_seq=actual_seq,
            expected_seq=expected_seq,
        )


def check_same_stream(stream: str, actual: str, expected: str) -> None:
    """Whether a stream that began at `actual` is the one that the caller knows to have begun at `expected`.

    Raises:
        SequenceConflict: it was deleted, and another one was begun under its id.
    """
    if not is_same_stream(actual, expected):
        raise SequenceConflict(
            f"The stream {stream!r} was deleted and begun again at {actual}; read it again and decide again",
            stream=stream,
        )


def is_same_stream(actual: str, expected: str) -> bool:
    """Whether a stream that began at `actual` is the one that began at `expected`; empty where that is not known."""
    return expected in ("", actual)


def is_outdated(snapshot: StoredSnapshot, version: int, seq: int, last_seq: int) -> bool:
    """Whether the kept snapshot, of that version and seq, is newer. One beyond the end of the stream is not: its seq
    was changed, or the events that it is of were lost."""
    return version == snapshot.version and snapshot.seq < seq <= last_seq


def refuse(capability: Capability, log: str) -> Unsupported:
    """The error for an operation that a log has not declared."""
    return Unsupported(f"The {log} log offers no {capability.value}", capability=capability.value)
