"""Reading one `events.ndjson`, whoever is writing to it: whole lines only, and never past damage.

`Mark` is a place in the file that can be trusted after a look at the one line before it: it lets a reader begin
anywhere. `View` is the file as one reader sees it, up to an end that was fixed when it was opened.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from threading import Lock
from zlib import crc32

import msgspec

from runstate.errors import LogDamaged
from runstate.logs.frames import OPENING, Damage, read_first_frame
from runstate.logs.log import Finding, Head, Record, StreamInfo
from runstate.logs.ndjson.files import RunFiles, event_bytes_guessed
from runstate.logs.ndjson.lines import (
    are_hashed,
    body_of,
    check_bare,
    check_line,
    envelope_of,
    intact_bodies,
    looks_whole,
    model_of,
    openings,
    read_line,
)
from runstate.logs.sealed import unsealed
from runstate.storage.disk import Disk, File

chunk_bytes = 1 << 20
EVENTS_MISSING = "log.events_missing"
EVENT_CHANGED = "log.event_changed"
_hashed_bytes_max = 1 << 14
"""Fewer bytes than these are always hashed line by line: to look for a checksum costs as much."""
_hash_cost = 8
"""How much longer it takes to hash lines than to compute a checksum over as many bytes."""
_starts_max = 16
_marks_max = 4
_marked_streams_max = 1024


class Mark(msgspec.Struct, frozen=True, gc=False):
    """The end of a line: how many lines there are up to it, and how to know that line again."""

    seq: int
    offset: int
    line_offset: int
    line_crc: int

    def line_in(self, file: File, end: int) -> bytes | None:
        """The line before the mark, or None where it is another line."""
        if not 0 <= self.line_offset < self.offset <= end:
            return None
        line = file.read_at(self.line_offset, self.offset - self.line_offset)
        return line[:-1] if crc32(line) == self.line_crc and line.endswith(b"\n") else None


class RecentMarks:
    """Where walks through runs have ended, for those who read in pages."""

    def __init__(self) -> None:
        self._marks: OrderedDict[str, list[Mark]] = OrderedDict()
        self._gate = Lock()

    def of(self, stream: str) -> list[Mark]:
        return list(self._marks.get(stream, ()))

    def add(self, stream: str, mark: Mark | None) -> None:
        if mark is None:
            return
        with self._gate:
            self._marks[stream] = [mark, *self._marks.pop(stream, ())][:_marks_max]
            if len(self._marks) > _marked_streams_max:
                self._marks.popitem(last=False)

    def forget(self, stream: str) -> None:
        with self._gate:
            self._marks.pop(stream, None)


class Announcement(msgspec.Struct, frozen=True):
    """An append of several lines, told before it is made, so that a crash cannot leave a part of it."""

    offset: int
    bytes: int


def extent(disk: Disk, files: RunFiles, file: File) -> int:
    """Where the file ends for a reader: before an append of several lines that is not, or was never, finished."""
    # The size first: an announcement that is made after this tells of bytes beyond it.
    size = file.size()
    announced = announcement(disk, files)
    if announced is None or not announced.offset < size <= announced.offset + announced.bytes:
        return size
    is_short = size < announced.offset + announced.bytes
    # No line holds a zero byte: it stands where data never came.
    if is_short or b"\0" in file.read_at(announced.offset, announced.bytes):
        return announced.offset
    return size


def announcement(disk: Disk, files: RunFiles) -> Announcement | None:
    if not disk.exists(files.pending):  # Nearly always, and cheaper to learn than by an error.
        return None
    try:
        return unsealed(disk.read(files.pending), Announcement)
    except FileNotFoundError:
        return None


def whole_lines(file: File, start: int, end: int, *, chunk_bytes: int = chunk_bytes) -> Iterator[bytes]:
    """The lines between two offsets without their newlines; an unfinished last one is left out."""
    for block in _blocks(file, start, end, chunk_bytes):
        yield from block


def _blocks(file: File, start: int, end: int, size: int = chunk_bytes) -> Iterator[list[bytes]]:
    """`whole_lines`, many at a time. The first comes alone, since only it may have no line before it."""
    rest, alone = b"", 1
    while start < end and (chunk := file.read_at(start, min(size, end - start))):
        start += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        yield from filter(None, (lines[:alone], lines[alone:]))
        alone = alone and not lines


def checksum(file: File, end: int) -> int:
    """CRC-32 over a file from its beginning to an offset."""
    offset = crc = 0
    while offset < end and (chunk := file.read_at(offset, min(chunk_bytes, end - offset))):
        offset, crc = offset + len(chunk), crc32(chunk, crc)
    return crc


def read_head(disk: Disk, files: RunFiles) -> Head:
    """About how many events a run has, its file's version and its model; a file that is gone has a version too."""
    try:
        size, version = disk.stamp(files.events)
        with closing(disk.open(files.events, read_only=True)) as file:
            model = model_of(read_first_frame(file)) if size else ""
    except (FileNotFoundError, NotADirectoryError):
        return Head(files.stream, 0, "gone", model="")
    return Head(files.stream, size // event_bytes_guessed + 1, version, model=model)


class View:
    """A run's file as one reader sees it."""

    def __init__(
        self,
        stream: str,
        file: File,
        end: int,
        marks: Iterable[Mark] = (),
        known: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        """`known`: up to where the checksum of the file is known, and the checksum."""
        self._known = known
        self.stream, self.file, self.end = stream, file, end
        self.marks = sorted(marks, key=lambda mark: -mark.seq)
        self.last: Mark | None = None
        """Where the last walk ended, for the next one to begin."""

    def bodies(self, after_seq: int, until_seq: int | None) -> Iterator[Sequence[bytes]]:
        """The models' lines with `after_seq < seq <= until_seq`, many at a time, each as fully checked as by `records`.

        Raises:
            LogDamaged: the walk met damage. What was before it has been yielded.
        """
        seq, offset, previous = self._start(after_seq)
        until = float("inf") if until_seq is None else until_seq
        proven = self._proven(offset, until - seq)
        for block in _blocks(self.file, offset, self.end):
            if seq >= until:
                return
            end = offset + sum(map(len, block)) + len(block)
            is_proven = end <= proven
            is_wanted = seq >= after_seq and seq + len(block) <= until
            bodies = intact_bodies(seq + 1, block, previous) if is_wanted else None
            if bodies is not None and (is_proven or bodies is not block or are_hashed(self.stream, block)):
                seq, offset, previous = seq + len(block), end, bodies[-1]
                yield bodies
                continue
            for line in block:
                seq += 1
                try:
                    if seq > after_seq and not is_proven and not line.startswith(OPENING):
                        check_bare(self.stream, line)
                    previous = check_line(seq, line, previous)
                except Damage as damage:
                    self._stop(damage, seq, offset, previous)
                    return
                offset += len(line) + 1
                if seq > after_seq:
                    yield (previous,)
                if seq >= until:
                    return

    def records(self, after_seq: int, limit: int | None = None, *, strict: bool = True) -> Iterator[Record]:
        """The records with `seq > after_seq`, each fully checked; not `strict`: up to the damage, without a word.

        Raises:
            LogDamaged: the walk met damage. What was before it has been yielded.
        """
        seq, offset, previous = self._start(after_seq)
        for line in whole_lines(self.file, offset, self.end):
            seq += 1
            try:
                if seq > after_seq:
                    record = read_line(self.stream, seq, line, previous)
                    previous = record.body
                else:
                    record, previous = None, check_line(seq, line, previous)
            except Damage as damage:
                if strict:
                    self._stop(damage, seq, offset, previous)
                return
            offset += len(line) + 1
            self.last = Mark(seq, offset, offset - len(line) - 1, crc32(b"\n", crc32(line)))
            if record is not None:
                yield record
                if limit is not None and seq - after_seq >= limit:
                    return

    def _proven(self, offset: int, lines: float) -> int:
        """The end of what a known checksum proves to be as it was written: then no line of it needs to be hashed.

        0: there is no checksum that fits, or for so many lines behind an offset it costs more than their hashes.
        """
        span = min(self.end - offset, lines * event_bytes_guessed)
        if span < _hashed_bytes_max:
            return 0
        end, crc = self._known()
        if not offset < end <= min(self.end, span * _hash_cost):
            return 0
        return end if checksum(self.file, end) == crc else 0

    def mark_at(self, seq: int) -> Mark | None:
        """The mark after that many lines, or None where there are fewer that are intact."""
        for record in self.records(seq - 1, 1, strict=False):
            return self.last if record.seq == seq else None
        return None

    def info(self) -> StreamInfo | None:
        """How far the intact part of the stream goes; None where there is nothing."""
        try:
            first = next(View(self.stream, self.file, self.end).records(0, 1), None)
        except LogDamaged:
            return StreamInfo(self.stream, "", 0, 0, "", "", damaged=True)
        if first is None:
            return None
        seq, offset, previous = self._start(1 << 63)
        last: bytes | None = None
        damaged = False
        for line in whole_lines(self.file, offset, self.end):
            try:
                previous = check_line(seq + 1, line, previous)
            except Damage:
                damaged = True
                break
            seq, last = seq + 1, line
        last_at = self._last_at(last)
        times = (first.persisted_at, last_at or first.persisted_at)
        return StreamInfo(self.stream, first.tenant, seq, seq, *times, model_of(read_first_frame(self.file)), damaged)

    def _last_at(self, last: bytes | None) -> str | None:
        if last is None:
            start = self._best(1 << 63)
            last = None if start is None else start[1]
        try:
            return None if last is None else envelope_of(last).persisted_at
        except Damage:
            return None

    def _best(self, after_seq: int) -> tuple[Mark, bytes] | None:
        """The last mark up to a seq that fits the file, and its line."""
        for mark in self.marks:
            if mark.seq <= after_seq and (line := mark.line_in(self.file, self.end)) is not None:
                return mark, line
        return None

    def _start(self, after_seq: int) -> tuple[int, int, bytes | None]:
        """Where a walk to what is after a seq may begin: a seq, its offset, and the model's line before it."""
        if (best := self._best(after_seq)) is None:
            return 0, 0, None
        mark, line = best
        return mark.seq, mark.offset, body_of(line)

    def _stop(self, damage: Damage, seq: int, offset: int, previous: bytes | None) -> None:
        if not is_torn(self.stream, self.file, seq, offset, self.end, previous):
            raise damaged(self.stream, damage, seq, offset)


def damaged(stream: str, damage: Damage, seq: int, offset: int) -> LogDamaged:
    return LogDamaged(
        f"{damage} (run {stream!r}, line {seq}, byte {offset}). {seq - 1} events before it are intact. "
        "'runstate repair --dry-run' says what a repair keeps, and with --salvage how much more",
        stream=stream,
        seq=seq,
        offset=offset,
        intact=seq - 1,
        reason=damage.code,
        what=str(damage),
    )


def is_torn(stream: str, file: File, seq: int, offset: int, end: int, previous: bytes | None) -> bool:
    """Whether a bad line is what a crash has left of the last append, and not damage.

    A crash leaves the beginning of what was being written, or zeros in place of some of it, and nothing whole after
    it. Everything else was written once, and has changed since.
    """
    lines, zeros, stub = 0, False, b""
    for line in whole_lines(file, offset, end):
        if lines and looks_whole(line):
            return False
        lines, zeros, stub = lines + 1, zeros or b"\0" in line, line
    if not lines or zeros:
        return True
    return lines == 1 and salvage(stream, seq, stub, previous) is not None


def salvage(stream: str, seq: int, remnant: bytes, previous: bytes | None) -> bytes | None:
    """A whole line in what a crash has left: one that lacks only its newline, or is welded to the stub of another."""
    starts = [0, *(match.start() for match in islice(openings.finditer(remnant, 1), _starts_max))]
    for candidate in (remnant[start:stop] for start in starts for stop in (None, -1)):
        if b"\n" in candidate:
            continue
        try:
            read_line(stream, seq, candidate, previous)
        except Damage:
            continue
        return candidate
    return None


def damage_finding(error: LogDamaged) -> Finding:
    details = dict(error.details)
    stream, seq, code, what = (details.pop(name) for name in ("stream", "seq", "reason", "what"))
    message = f"{what} (line {seq}, byte {details['offset']})"
    return Finding(code=code, message=message, stream=stream, seq=seq, details=details)


def missing_events(stream: str, had: int, intact: int, offset: int) -> LogDamaged:
    """The error for a file that ends before what its index knows was stored."""
    return damaged(
        stream, Damage(EVENTS_MISSING, f"There were {had} events, now there are {intact}"), intact + 1, offset
    )


def changed_event(stream: str, seq: int) -> LogDamaged:
    """The error for lines that are whole, and not what the index has a checksum of."""
    what = f"Something that no hash covers has changed in the first {seq} lines, such as a trace id"
    return damaged(stream, Damage(EVENT_CHANGED, what), 1, 0)
