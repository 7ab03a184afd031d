"""Reading one stream, whoever is writing to it: what is archived, then `wal.jsonl` up to its last whole append.

Entries tell their seq and the lines ascend, so the place of a seq is found by halving the file; there is no index.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from google_crc32c import value as crc32c

from runstate.errors import LogDamaged, Truncated
from runstate.logs.disk import Disk, File
from runstate.logs.log import Finding, Head, Record, StreamInfo
from runstate.logs.wal.archive import Segment, leading_to, segment_lines, segments
from runstate.logs.wal.entries import Damage, Entry, intact_bodies, read_entry, whole_entry
from runstate.logs.wal.files import StreamFiles
from runstate.logs.wal.ledger import Ledger, read_ledger

chunk_bytes = 1 << 20
_probe_bytes = 1 << 12
_opening = b'{"seq":'
_seq_pattern = re.compile(rb'{"seq":(\d{1,19})[,}]')


class Block(NamedTuple):
    """Whole lines, and where the first of them stands in the WAL; lines of the archive stand at -1."""

    lines: Sequence[bytes]
    offset: int


def file_blocks(file: File, start: int, end: int) -> Iterator[Block]:
    """The lines between two offsets without their newlines; an unfinished last one is left out."""
    rest, offset, size = b"", start, _probe_bytes
    while start < end and (chunk := file.read_at(start, min(size, end - start))):
        start += len(chunk)
        size = min(4 * size, chunk_bytes)  # A small piece first: many readers want one line.
        data = rest + chunk
        *lines, rest = data.split(b"\n")
        if lines:
            yield Block(lines, offset)
            offset += len(data) - len(rest)


def numbered_lines(file: File, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Each line with its offset."""
    for block in file_blocks(file, start, end):
        offset = block.offset
        for line in block.lines:
            yield offset, line
            offset += len(line) + 1


def offset_after(file: File, end: int, seq: int) -> int:
    """An offset where a line begins, before which all entries have a seq up to `seq`; as far on as can be found.

    Only a hint: lines are taken at their word. Whoever begins there checks the first line that he finds.
    """
    low, high = 0, end
    while high - low > _probe_bytes:
        middle = (low + high) // 2
        found = _line_after(file, middle, high)
        if found is None:
            high = middle
        elif found[1] <= seq:
            low = found[0]
        else:
            high = middle
    for offset, line in numbered_lines(file, low, end):
        match = _seq_pattern.match(line)
        if match is None or int(match[1]) > seq:
            break
        low = offset
    return low


def _line_after(file: File, offset: int, end: int) -> tuple[int, int] | None:
    """The first line that begins behind an offset and looks like an entry: where, and its seq."""
    data = b""
    while offset + len(data) < end:
        data += file.read_at(offset + len(data), min(max(_probe_bytes, len(data)), end - offset - len(data)))
        start = data.find(b"\n") + 1
        while start and (stop := data.find(b"\n", start)) >= 0:
            if match := _seq_pattern.match(data, start):
                return offset + start, int(match[1])
            start = stop + 1
    return None


def extent(stream: str, file: File, size: int) -> int:
    """Where a file of this size ends for a reader: behind the last whole append. Damage is left for it to meet."""
    start = _last_flush(stream, file, size)
    end, previous = start, None
    for offset, line in numbered_lines(file, start, size):
        try:
            entry = read_entry(stream, line, previous)
        except Damage:
            return end if is_torn(stream, file, offset, size) else size
        previous = entry.seq
        if not entry.envelope.more:
            end = offset + len(line) + 1
    return end


def _last_flush(stream: str, file: File, size: int) -> int:
    """Where the last flush began: everything before it is durable. 0 where that cannot be told."""
    span = 1 << 16
    while True:
        start = max(0, size - span)
        data = file.read_at(start, size - start)
        stop = len(data)
        while (found := data.rfind(b',"flush":true', 0, stop)) >= 0:
            begin = data.rfind(b"\n", 0, found) + 1
            line = data[begin : data.find(b"\n", found)]
            entry = whole_entry(stream, line) if begin or not start else None
            if entry is not None and entry.envelope.flush:
                return start + begin
            stop = found
        if not start:
            return 0
        span *= 4


def is_torn(stream: str, file: File, offset: int, size: int) -> bool:
    """Whether the bad line at an offset is what a crash has left of the last flush, and not damage.

    A crash leaves the beginning of what was being written, or zeros in place of some of it, and no later flush behind
    it. Everything else was written once, and has changed since.
    """
    begun = file.read_at(offset, min(len(_opening), size - offset)).partition(b"\0")[0]
    bad: bytes | None = None
    for _, line in numbered_lines(file, offset, size):
        if bad is None:
            bad = line
        elif (entry := whole_entry(stream, line)) is not None and entry.envelope.flush:
            return False
    return _opening.startswith(begun) and (bad is None or b"\0" in bad)


def last_entry(stream: str, file: File, end: int) -> Entry | None:
    """The entry before an offset; None where there is none, or it is not intact."""
    span = _probe_bytes
    while end:
        start = max(0, end - span)
        data = file.read_at(start, end - start)
        begin = data.rfind(b"\n", 0, len(data) - 1) + 1
        if begin or not start:
            return whole_entry(stream, data[begin:-1])
        span *= 4
    return None


def count_lines(file: File, start: int, end: int) -> int:
    offsets = range(start, end, chunk_bytes)
    return sum(file.read_at(offset, min(chunk_bytes, end - offset)).count(b"\n") for offset in offsets)


def start_of(file: File, end: int, first_seq: int) -> int:
    """Where the first entry with at least that seq begins, or where the file ends. Lines are taken at their word."""
    for offset, line in numbered_lines(file, offset_after(file, end, first_seq - 1), end):
        match = _seq_pattern.match(line)
        if match is None or int(match[1]) >= first_seq:
            return offset
    return end


class View:
    """A stream as one reader sees it."""

    def __init__(self, disk: Disk, files: StreamFiles, file: File, end: int, size: int = 0) -> None:
        """`size`: of the file, when `end` was found. What a writer has added since is none of this view's."""
        self.stream, self.file, self.end, self._size = files.stream, file, end, size
        self._disk, self._files = disk, files

    def bodies(self, after_seq: int, until_seq: int | None) -> Iterator[Sequence[bytes]]:
        """The models' lines with `after_seq < seq <= until_seq`, many at a time.

        Raises:
            Truncated: the stream begins later.
            LogDamaged: the walk met damage. What was before it has been yielded.
        """
        until = float("inf") if until_seq is None else until_seq
        previous: int | None = None
        for block in self._blocks(after_seq):
            lines, offset = block
            if previous is None:
                entry = self._first(lines[0], offset, after_seq)
                if after_seq < entry.seq <= until:
                    yield (entry.body,)
                previous, lines, offset = entry.seq, lines[1:], offset + len(lines[0]) + 1
            if previous >= until:
                return
            is_wanted = previous >= after_seq and previous + len(lines) <= until
            if is_wanted and (bodies := intact_bodies(previous + 1, lines)) is not None:
                previous += len(lines)
                yield bodies
                continue
            for line in lines:
                entry = self._entry(line, offset, previous)
                previous, offset = entry.seq, offset + len(line) + 1
                if after_seq < previous <= until:
                    yield (entry.body,)

    def records(self, after_seq: int, limit: int | None = None) -> Iterator[Record]:
        """The records with `seq > after_seq`, each fully checked.

        Raises:
            Truncated: the stream begins later.
            LogDamaged: the walk met damage. What was before it has been yielded.
        """
        left = limit
        for _, entry in self.entries(after_seq):
            if entry.seq > after_seq:
                yield entry.record(self.stream)
                left = None if left is None else left - 1
                if left == 0:
                    return

    def entries(self, after_seq: int = 0) -> Iterator[tuple[int, Entry]]:
        """Entries and their offsets, from a little before `after_seq` on."""
        previous: int | None = None
        for block in self._blocks(after_seq):
            offset = block.offset
            for line in block.lines:
                is_first = previous is None
                entry = self._first(line, offset, after_seq) if is_first else self._entry(line, offset, previous)
                yield offset, entry
                previous, offset = entry.seq, offset + len(line) + 1

    def last(self) -> Entry | None:
        """The last entry; None where there is none, or it is not intact."""
        return last_entry(self.stream, self.file, self.end)

    def remnant(self) -> bytes:
        """What stands behind the last whole append."""
        return self.file.read_at(self.end, max(0, self._size - self.end))

    def begins_after(self) -> int:
        """The seq behind which everything can be read: 0, or more where a checkpoint has removed what was before."""
        if chain := self.archived():
            return chain[0].first_seq - 1
        first = self.first()
        return 0 if first is None else first.previous_seq

    def info(self, ledger: Ledger | None) -> StreamInfo | None:
        """How far the stream has come; None where nothing was ever in it."""
        first, last = self.first(), self._last_intact()
        removed = None if ledger is None else ledger.removed
        last_seq = max(
            0 if last is None else last.seq, *(0, 0) if ledger is None else (ledger.last_seq, ledger.floor_seq)
        )
        if not last_seq and not self.end:
            return None
        start = 0 if removed is None else start_of(self.file, self.end, removed.before_seq)
        events = count_lines(self.file, start, self.end) + (0 if removed is None else removed.events)
        tenant, first_at, last_at = "", "", ""
        if removed is not None:
            tenant, first_at, last_at = removed.tenant, removed.first_persisted_at, removed.last_persisted_at
        elif first is not None:
            tenant, first_at = first.envelope.tenant, first.envelope.persisted_at
        times = (first_at, last_at if last is None else last.envelope.persisted_at)
        return StreamInfo(self.stream, tenant, last_seq, events, *times, _model_in(ledger))

    def head(self, ledger: Ledger | None) -> Head:
        last, model = self._last_intact(), _model_in(ledger)
        if last is None:
            return Head(self.stream, 1 if self.end else 0, f"unreadable.{self.end:x}", 0, model)
        version = f"{last.seq:x}.{last.envelope.persisted_at}.{crc32c(last.body):08x}"
        return Head(self.stream, last.seq, version, last.seq, model)

    def _last_intact(self) -> Entry | None:
        found = self.last()
        if found is None:
            with suppress(LogDamaged, Truncated):
                for _, entry in self.entries(self.begins_after()):
                    found = entry
        return found

    def first(self) -> Entry | None:
        """The first entry of the WAL; None where there is none, or it is not intact."""
        for _, line in numbered_lines(self.file, 0, self.end):
            return whole_entry(self.stream, line)
        return None

    def archived(self) -> list[Segment]:
        """The segments that lead without a gap to what the WAL begins with."""
        found = segments(self._disk, self._files)
        if not found:
            return []
        first = self.first()
        return leading_to(found, found[-1].last_seq if first is None else first.previous_seq)

    def _blocks(self, after_seq: int) -> Iterator[Block]:
        """Whole lines, from the last one with a seq up to `after_seq` on, or from the beginning."""
        chain = self.archived() if self._begins_later(after_seq) else []
        for segment in chain:
            if segment.last_seq > after_seq:
                yield Block(segment_lines(self._disk, self.stream, segment), -1)
        if not self.end and not chain:
            self._check_emptied(after_seq)
        start = offset_after(self.file, self.end, after_seq)
        if start and whole_entry(self.stream, self._line_at(start)) is None:
            start = 0
        yield from file_blocks(self.file, start, self.end)

    def _begins_later(self, after_seq: int) -> bool:
        first = self.first()
        return first is None or after_seq < first.previous_seq

    def _line_at(self, offset: int) -> bytes:
        return next((line for _, line in numbered_lines(self.file, offset, self.end)), b"")

    def _first(self, line: bytes, offset: int, after_seq: int) -> Entry:
        entry = self._entry(line, offset, None)
        if after_seq < entry.previous_seq and entry.seq > after_seq:
            raise truncated(self.stream, entry.seq)
        return entry

    def _check_emptied(self, after_seq: int) -> None:
        ledger = read_ledger(self._disk, self._files)
        removed = None if ledger is None else ledger.removed
        if ledger is not None and removed is not None and after_seq < removed.before_seq - 1:
            raise truncated(self.stream, max(ledger.last_seq, ledger.floor_seq) + 1)

    def _entry(self, line: bytes, offset: int, previous: int | None) -> Entry:
        try:
            return read_entry(self.stream, line, previous)
        except Damage as damage:
            raise damaged(self.stream, damage, (previous or 0) + 1, offset) from damage


def _model_in(ledger: Ledger | None) -> str:
    return "" if ledger is None else ledger.model or ""


def truncated(stream: str, first_seq: int) -> Truncated:
    return Truncated(
        f"The stream {stream!r} begins with seq {first_seq} now: a checkpoint has dropped what was before, which is in "
        "its snapshot. To keep all events of a WAL, open it with ?history=archive",
        stream=stream,
        first_seq=first_seq,
    )


def damaged(stream: str, damage: Damage, seq: int, offset: int) -> LogDamaged:
    return LogDamaged(
        f"{damage} (stream {stream!r}, entry {seq}, byte {offset}). What is before it is intact; the next append, or "
        "'runstate repair', keeps the whole file as .bak and goes on from there",
        stream=stream,
        seq=seq,
        offset=offset,
        reason=damage.code,
    )


def damage_finding(error: LogDamaged) -> Finding:
    details = dict(error.details)
    stream, seq, code = details.pop("stream"), details.pop("seq"), details.pop("reason")
    return Finding(code=code, message=str(error), stream=stream, seq=seq, details=details)
