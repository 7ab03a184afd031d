"""Which events of a damaged session can still be proven, by what is left of its manifest and its segments.

A digest that stands anywhere in the manifest proves the lines that have it, whatever became of the lines around it. A
lost line of the manifest is written anew from its segment, and is proven where it fits into the chain of checksums. The
checksum of a frame proves its line. A bare line without any of these is at most in its place: it names its session and
its index, and stands in a segment whose name and lines agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from zlib import crc32

import msgspec

from runstate.logs.frames import OPENING, whole_parts
from runstate.logs.segments.files import SessionFiles, segment_name, span_of
from runstate.logs.segments.lines import locate_line, openings
from runstate.logs.segments.manifest import Pin, Segment, closing_bytes, head_of, read_entry
from runstate.logs.set_aside import pattern as set_aside
from runstate.models.canonical import digest
from runstate.storage.directories import names_in
from runstate.storage.disk import Disk

_digest = re.compile(rb'"sha256":"([0-9a-f]{64})"')
_closing = re.compile(rb',"crc":"([0-9a-f]{8})"}')
_number = re.compile(rb'{"manifestIndex":(\d{1,18}),')
_set_aside = re.compile(rf"(.+\.jsonl){set_aside}")
Lines = dict[int, bytes]
"""Lines by the index of their event."""


class Remains:
    """What is left of a manifest, each line by itself."""

    def __init__(self, data: bytes | None) -> None:
        self.lines = (data or b"").split(b"\n")
        """The last one is what stands behind the last newline."""
        entries = [read_entry(line) for line in self.lines]
        self.segments = sorted({entry for entry in entries if isinstance(entry, Segment)}, key=lambda each: each.first)
        self.pins = {entry.ref for entry in entries if isinstance(entry, Pin)}
        self.digests = {found.decode() for found in _digest.findall(data or b"")}
        self.told = {index for part in self.segments for index in range(part.first, part.last + 1)}
        """The indexes of the events that it has a digest of."""
        self.events = max((segment.last + 1 for segment in self.segments), default=0)
        """How many events it tells of."""
        *whole, rest = self.lines
        before = _crc_in(whole[-2]) if len(whole) > 1 else 0
        self.has_end = bool(whole) and not rest and before is not None and _fits(whole[-1], before)
        """Whether its last line is the last that was written: a segment behind that never happened."""

    def proves(self, segment: Segment) -> bool:
        """Whether this is what a line of the manifest closed."""
        return segment.sha256 in self.digests or any(self._fits_between(at, segment) for at in range(len(self.lines)))

    def _fits_between(self, at: int, segment: Segment) -> bool:
        """Whether the segment's line, written anew, fits before a line of the manifest, or in that line's place."""
        before, number = 0, 0
        if at:
            found, recorded = _number.match(self.lines[at - 1]), _crc_in(self.lines[at - 1])
            if recorded is None:
                return False
            before, number = recorded, int(found[1]) + 1 if found else at
        crc = crc32(head_of(number, segment), before)
        return _crc_in(self.lines[at]) == crc or any(_fits(line, crc) for line in self.lines[at : at + 2])


class Evidence:
    """Every line of a session that is in its place, and which of them are proven."""

    def __init__(self, disk: Disk, files: SessionFiles) -> None:
        data: bytes | None = None
        with suppress(FileNotFoundError):
            data = disk.read(files.manifest)
        self.remains = Remains(data)
        self.files: dict[str, Lines] = {}
        """The lines in each segment's file, as far as they are events in their place."""
        self.whole: dict[str, Segment] = {}
        """The files that hold what their names tell, all of it and nothing else."""
        self.aside: list[Lines] = []
        """The same of files that were set aside: perhaps of another history, so only a digest counts there."""
        for name in names_in(disk, files.events):
            if (span := span_of(name)) is not None:
                content = disk.read(files.events / name)
                self.files[name] = lines = lines_in(files.stream, content)
                if is_whole(lines, content, *span):
                    self.whole[name] = Segment(*span, digest(content), len(content))
            elif (original := _set_aside.fullmatch(name)) and span_of(original[1]) is not None:
                self.aside.append(lines_in(files.stream, disk.read(files.events / name)))
        self.events_named = self.remains.events
        """How many events there were, by the manifest, and by the names of segments where its end is not intact."""
        if not self.remains.has_end:
            self.events_named = max([self.events_named, *((span_of(name) or (0, -1))[1] + 1 for name in self.files)])
        self.lines: Lines = {}
        self.proven: set[int] = set()
        for found in (self._by_digest(), self._by_checksum()):
            self._take(found)
            self.proven |= self.lines.keys()
        self._take(self._in_place())

    def _take(self, found: Iterable[Lines]) -> None:
        for lines in found:
            for index, line in lines.items():
                self.lines.setdefault(index, line)

    def _by_digest(self) -> Iterator[Lines]:
        for name, segment in self.whole.items():
            if self.remains.proves(segment):
                yield self.files[name]
        for lines in (*self.files.values(), *self.aside):
            for part in self.remains.segments:
                if part.first in lines and part.last in lines:
                    held = {index: lines[index] for index in range(part.first, part.last + 1) if index in lines}
                    if digest(joined(held.values())) == part.sha256:
                        yield held

    def _by_checksum(self) -> Iterator[Lines]:
        """A frame does not name its stream: a file of frames that is whole and has another digest is another's."""
        for name, lines in self.files.items():
            held = self._untold(name) if name in self.whole else lines
            yield {index: line for index, line in held.items() if line.startswith(OPENING)}

    def _in_place(self) -> Iterator[Lines]:
        for name in self.whole:
            yield self._untold(name)

    def _untold(self, name: str) -> Lines:
        """The events in a file that no line of the manifest gives a digest."""
        told = self.remains.told
        return {index: line for index, line in self.files[name].items() if index not in told}


class Salvage(msgspec.Struct, frozen=True):
    """What a session can hold of its evidence: events from the first on, without a gap."""

    segments: list[Segment]
    written: dict[str, bytes]
    """Segments that need a new file."""
    unproven: list[tuple[int, int]]
    """First and last seq of what is held and only in its place."""
    behind: list[tuple[int, int]]
    """First and last seq of what is proven, and stands behind a gap."""

    @property
    def events(self) -> int:
        return self.segments[-1].last + 1 if self.segments else 0


def salvage(evidence: Evidence, events_told: int) -> Salvage:
    """What to hold. `events_told`: how many there were by another witness, such as a snapshot."""
    # Behind an intact end of the manifest, a segment is what a crash has left of an append that never happened.
    end = max(evidence.remains.events, events_told) if evidence.remains.has_end else len(evidence.lines)
    events = next(index for index in range(len(evidence.lines) + 1) if index not in evidence.lines or index >= end)
    segments, written = _segmented(evidence, events)
    return Salvage(
        segments,
        written,
        list(_ranges(index for index in range(events) if index not in evidence.proven)),
        list(_ranges(index for index in sorted(evidence.proven) if index >= events)),
    )


def _segmented(evidence: Evidence, events: int) -> tuple[list[Segment], dict[str, bytes]]:
    """Whole files as they are, the largest first, and new ones for what stands in none."""
    starting: dict[int, Segment] = {}
    for name, segment in evidence.whole.items():
        is_held = segment.last < events and all(evidence.lines[at] == line for at, line in evidence.files[name].items())
        if is_held and (segment.first not in starting or starting[segment.first].last < segment.last):
            starting[segment.first] = segment
    segments: list[Segment] = []
    written: dict[str, bytes] = {}
    index = 0
    while index < events:
        if (found := starting.get(index)) is None:
            last = next((at for at in range(index, events - 1) if at + 1 in starting), events - 1)
            data = joined(evidence.lines[at] for at in range(index, last + 1))
            written[segment_name(index, last)] = data
            found = Segment(index, last, digest(data), len(data))
        segments.append(found)
        index = found.last + 1
    return segments, written


def lines_in(stream: str, content: bytes) -> Lines:
    """The lines of a segment's file that are events of the stream, at the places that they name themselves."""
    found: Lines = {}
    for line in content.split(b"\n"):
        for part in whole_parts(line, openings, lambda part: locate_line(stream, part) is not None):
            if (record := locate_line(stream, part)) is not None:
                found.setdefault(record.seq - 1, part)
    return found


def is_whole(lines: Lines, content: bytes, first: int, last: int) -> bool:
    return [*lines] == [*range(first, last + 1)] and joined(lines.values()) == content


def joined(lines: Iterable[bytes]) -> bytes:
    return b"".join([line + b"\n" for line in lines])


def _ranges(indexes: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The seqs of ascending indexes, as ranges."""
    first = last = None
    for index in indexes:
        if last is not None and first is not None and index != last + 1:
            yield first + 1, last + 1
            first = index
        first, last = index if first is None else first, index
    if first is not None and last is not None:
        yield first + 1, last + 1


def _crc_in(line: bytes) -> int | None:
    found = _closing.fullmatch(line[-closing_bytes:])
    return None if found is None else int(found[1], 16)


def _fits(line: bytes, before: int) -> bool:
    return len(line) > closing_bytes and _crc_in(line) == crc32(line[:-closing_bytes], before)
