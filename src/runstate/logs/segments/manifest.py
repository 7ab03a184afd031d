"""`manifest.jsonl`: which segments a session consists of, with their digests, and which blobs it has pinned.

    {"manifestIndex":0,"kind":"segment_closed","firstEventIndex":0,"lastEventIndex":4,"path":"events/…","sha256":"…","bytes":N,"crc":"…"}
    {"manifestIndex":1,"kind":"snapshot_pinned","eventIndex":3,"snapshotRef":"sha256:…","createdByEventId":"…","crc":"…"}

`crc` is CRC-32 over everything before `,"crc"`, begun with the crc of the line before: a line that fits proves all
lines before it too. A later `segment_closed` that covers exactly a row of earlier segments stands in their place.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import PurePath
from zlib import crc32

import msgspec

from runstate.logs.frames import Damage
from runstate.logs.log import BlobRef
from runstate.logs.sealed import too_new
from runstate.logs.segments.damage import MANIFEST_DAMAGED, Spot
from runstate.logs.segments.files import EVENTS, MANIFEST, segment_name
from runstate.models.canonical import undecodable

closing_bytes = len(',"crc":"00000000"}')
_pin_index = re.compile(rb'"kind":"snapshot_pinned","eventIndex":(\d+),')
_encode = msgspec.json.Encoder().encode


class Segment(msgspec.Struct, frozen=True, gc=False):
    """A file of events that the manifest has closed."""

    first: int
    last: int
    sha256: str
    bytes: int

    @property
    def name(self) -> str:
        return segment_name(self.first, self.last)


class Pin(msgspec.Struct, frozen=True, gc=False):
    """A blob that an event of this session refers to."""

    index: int
    ref: BlobRef
    event_id: str


class _Closed(msgspec.Struct, tag_field="kind", tag="segment_closed", rename="camel", gc=False):
    manifest_index: int
    first_event_index: int
    last_event_index: int
    path: str
    sha256: str
    bytes: int


class _Pinned(msgspec.Struct, tag_field="kind", tag="snapshot_pinned", rename="camel", gc=False):
    manifest_index: int
    event_index: int
    snapshot_ref: str
    created_by_event_id: str


class _Any(msgspec.Struct):
    kind: str


_entries = msgspec.json.Decoder(_Closed | _Pinned)


def _refuse_newer(line: bytes, number: int) -> None:
    """
    Raises:
        LogTooNew: the line, whose checksum fits, is of a kind that this Runstate does not know.
    """
    with suppress(*undecodable):
        kind = msgspec.json.decode(line, type=_Any).kind
        if kind not in (_Closed.__struct_config__.tag, _Pinned.__struct_config__.tag):
            raise too_new(PurePath(MANIFEST), f"has the unknown kind {kind[:80]!r} in line {number}")


class Manifest:
    """A manifest as far as it was read. It only grows; where its file is another one, a new one is begun."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        """Those that stand, in order, without a gap. Only ever added to; where some are merged, it is another list."""
        self.closed: list[Segment] = []
        """All that were ever closed."""
        self.pins: dict[BlobRef, Pin] = {}
        self.lines = self.end = 0
        """How many lines fit, and the offset behind the last of them."""
        self.last_line = b""
        self.is_terminated = True
        """False: the last line lacks its newline, as a crash may leave it."""
        self.torn_bytes = 0
        """What a crash has left behind `end`. It never happened."""
        self.damage: Spot | None = None
        self._crc = 0

    @property
    def events(self) -> int:
        return self.segments[-1].last + 1 if self.segments else 0

    def extend(self, tail: bytes) -> None:
        """Take in what stands behind `end` now."""
        self.torn_bytes = 0
        if not self.is_terminated and tail.startswith(b"\n"):
            self.is_terminated, self.end, tail = True, self.end + 1, tail[1:]
        *lines, rest = tail.split(b"\n")
        at = 0
        for line in lines:
            try:
                self._take(line)
            except Damage as damage:
                self._stop(damage, tail[at:], len(line) + 1)
                return
            at += len(line) + 1
            self.end += 1
        if rest:
            self._take_unterminated(rest)

    def written(self, entries: Iterable[Segment | Pin]) -> bytes:
        """The lines that tell of these, to stand behind the last one."""
        number, crc, lines = self.lines, self._crc, []
        for entry in entries:
            line = head_of(number, entry)
            crc = crc32(line, crc)
            lines.append(b'%b,"crc":"%08x"}\n' % (line, crc))
            number += 1
        return b"".join(lines)

    # --- one line ------------------------------------------------------------------------------------------

    def _take(self, line: bytes) -> None:
        """
        Raises:
            Damage: it is not the line that was written there.
        """
        head = line[:-closing_bytes]
        crc = crc32(head, self._crc)
        if line[-closing_bytes:] != b',"crc":"%08x"}' % crc:
            raise Damage(MANIFEST_DAMAGED, f"Line {self.lines} of the manifest does not fit its checksum")
        try:
            entry = _entries.decode(line)
        except undecodable as error:
            _refuse_newer(line, self.lines)
            raise Damage(MANIFEST_DAMAGED, f"Line {self.lines} of the manifest is none: {error}") from error
        if entry.manifest_index != self.lines:
            raise Damage(MANIFEST_DAMAGED, f"Line {self.lines} of the manifest says that it is {entry.manifest_index}")
        if isinstance(entry, _Closed):
            self._close(entry)
        else:
            ref = BlobRef(entry.snapshot_ref)
            self.pins.setdefault(ref, Pin(entry.event_index, ref, entry.created_by_event_id))
        self.lines, self._crc, self.last_line = self.lines + 1, crc, line
        self.end += len(line)

    def _close(self, entry: _Closed) -> None:
        segment = Segment(entry.first_event_index, entry.last_event_index, entry.sha256, entry.bytes)
        if segment.last < segment.first or entry.path != f"{EVENTS}/{segment.name}":
            raise Damage(MANIFEST_DAMAGED, f"Line {self.lines} of the manifest closes {entry.path[:80]!r}")
        if segment.first == self.events:
            self.segments.append(segment)
        else:
            start, stop = place_of(self.segments, segment.first), place_of(self.segments, segment.last) + 1
            row = self.segments[start:stop]
            is_exact = len(row) > 1 and (row[0].first, row[-1].last) == (segment.first, segment.last)
            if not is_exact or sum(each.bytes for each in row) != segment.bytes:
                raise Damage(MANIFEST_DAMAGED, f"Line {self.lines} of the manifest overlaps others, or leaves a gap")
            self.segments = [*self.segments[:start], segment, *self.segments[stop:]]
        self.closed.append(segment)

    # --- where it ends -------------------------------------------------------------------------------------

    def _take_unterminated(self, rest: bytes) -> None:
        # A line that lacks only its newline is whole, whether it was never written or a zero stands in its place.
        for candidate in dict.fromkeys((rest, rest.removesuffix(b"\0"), rest[:-1])):
            try:
                self._take(candidate)
            except Damage as damage:
                found = damage
                continue
            if rest not in (candidate, candidate + b"\0"):
                break
            self.is_terminated, self.torn_bytes = False, len(rest) - len(candidate)
            return
        else:
            self._stop(found, rest, len(rest))
            return
        self.damage = self._spot("The last newline of the manifest was changed", 1)

    def _stop(self, damage: Damage, tail: bytes, line_bytes: int) -> None:
        if self._is_torn(tail):
            self.torn_bytes = len(tail)
        else:
            self.damage = self._spot(str(damage), line_bytes)

    def _spot(self, message: str, size: int) -> Spot:
        return Spot(MANIFEST_DAMAGED, message, self.events, MANIFEST, self.end, size)

    def _is_torn(self, tail: bytes) -> bool:
        """Whether what stands behind the last line that fits is what a crash has left of one write, and not damage.

        A write is one `segment_closed` or some `snapshot_pinned` lines. A crash leaves its beginning, or zeros before
        or behind a cut. Everything else was written once, and has changed since.
        """
        first, *others = tail.split(b"\n")
        if b"\0" not in tail:
            opening = b'{"manifestIndex":%d,"kind":"' % self.lines
            return not others and first[: len(opening)] == opening[: len(first)]
        if any(b'"kind":"segment_closed"' in line for line in others):
            return False
        # Pins are written when their segment is closed: one of a later event shows that its line was here.
        pinned = [int(found[1]) for found in map(_pin_index.search, others) if found]
        is_at_an_end = tail.startswith(b"\0") or tail.endswith(b"\0")
        return is_at_an_end and all(index < self.events for index in pinned)


def place_of(segments: Sequence[Segment], index: int) -> int:
    """Which of the segments holds an event, if there is such an event."""
    return bisect_right(segments, index, key=lambda segment: segment.first) - 1


def read_entry(line: bytes) -> Segment | Pin | None:
    """What a line says, whether or not it fits its checksum; None where it is not a line of a manifest."""
    try:
        entry = _entries.decode(line)
    except undecodable:
        return None
    if isinstance(entry, _Pinned):
        return Pin(entry.event_index, BlobRef(entry.snapshot_ref), entry.created_by_event_id)
    segment = Segment(entry.first_event_index, entry.last_event_index, entry.sha256, entry.bytes)
    return segment if 0 <= segment.first <= segment.last and entry.path == f"{EVENTS}/{segment.name}" else None


def head_of(number: int, entry: Segment | Pin) -> bytes:
    """A line up to its checksum."""
    if isinstance(entry, Pin):
        return (
            b'{"manifestIndex":%d,"kind":"snapshot_pinned","eventIndex":%d,"snapshotRef":%b,"createdByEventId":%b'
            % (
                number,
                entry.index,
                _encode(entry.ref),
                _encode(entry.event_id),
            )
        )
    return (
        b'{"manifestIndex":%d,"kind":"segment_closed","firstEventIndex":%d,"lastEventIndex":%d,'
        b'"path":"%b/%b","sha256":"%b","bytes":%d'
        % (
            number,
            entry.first,
            entry.last,
            EVENTS.encode(),
            entry.name.encode(),
            entry.sha256.encode(),
            entry.bytes,
        )
    )
