"""Reading one stream, whoever is writing to it: what is archived, then `wal.jsonl` up to its last whole append.

Entries tell their seq and the lines ascend, so the place of a seq is found by halving the file; there is no index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from google_crc32c import value as crc32c

from runstate.errors import LogDamaged, Truncated
from runstate.logs.log import Head, Record, StreamInfo
from runstate.logs.wal.archive import Segment, leading_to, missing_ranges, segment_lines, segment_missing, segments
from runstate.logs.wal.entries import Damage, Entry, intact_bodies, read_entry, whole_entry
from runstate.logs.wal.files import StreamFiles
from runstate.logs.wal.findings import EVENTS_MISSING, damaged, truncated
from runstate.logs.wal.ledger import Ledger, read_ledger
from runstate.logs.wal.lines import (
    Block,
    count_lines,
    entry_before,
    file_blocks,
    is_blank,
    last_entry,
    numbered_lines,
    start_of,
)
from runstate.storage.disk import Disk, File

_opening = b'{"seq":'


def extent(stream: str, file: File, size: int, known_seq: Callable[[], int]) -> int:
    """Where a file of this size ends for a reader: behind the last whole append. Damage is left for it to meet.

    `known_seq`: up to where entries are known to have been durable. A crash does not take these away.
    """
    start = _last_flush(stream, file, size)
    end, previous = start, None
    for offset, line in numbered_lines(file, start, size):
        try:
            entry = read_entry(stream, line, previous)
        except Damage:
            is_crash = (previous or 0) >= known_seq() and is_torn(stream, file, offset, size)
            return end if is_crash else size
        previous = entry.seq
        if not entry.envelope.more:
            end = offset + len(line) + 1
    return size if is_blank(file, end, size) else end


def _last_flush(stream: str, file: File, size: int) -> int:
    """Where the last flush began: everything before it is durable. 0 where that cannot be told."""
    span = 1 << 16
    while True:
        start = max(0, size - span)
        data = file.read_at(start, size - start)
        stop = len(data)
        while (found := data.rfind(b',"flush":true', 0, stop)) >= 0:
            begin = data.rfind(b"\n", 0, found) + 1
            if start and not begin:
                break
            entry = whole_entry(stream, data[begin : data.find(b"\n", found)])
            if entry is not None and entry.envelope.flush:
                return start + begin
            stop = begin  # Each line is looked at once, however often its event has such a member.
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


class View:
    """A stream as one reader sees it."""

    def __init__(self, disk: Disk, files: StreamFiles, file: File, end: int, size: int = 0, known_seq: int = 0) -> None:
        """`size`: of the file, when `end` was found. What a writer has added since is none of this view's.
        `known_seq`: of the last entry that is known to have been durable."""
        self.stream, self.file, self.end, self._size, self._known_seq = files.stream, file, end, size, known_seq
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
        if previous is None or previous < until:
            self.check_end()

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
        self.check_end()

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

    def check_end(self) -> None:
        """
        Raises:
            LogDamaged: there were more entries than these.
        """
        last = self.last()
        if self._known_seq > (last_seq := 0 if last is None else last.seq):
            check_known(self.stream, read_ledger(self._disk, self._files), last_seq, self._known_seq, self.end)

    def last(self) -> Entry | None:
        """The last entry; None where there is none, or it is not intact."""
        return last_entry(self.stream, self.file, self.end)

    @property
    def lacks_newline(self) -> bool:
        """Whether the last entry is whole but for its newline."""
        return self._size < self.end and self._size > 0

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
        if ledger is not None and ledger.quarantined:  # The last entry does not tell of one that is gone before it.
            version += f".{ledger.quarantined.count:x}"
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
        is_later = self._begins_later(after_seq)
        missing = self._missing(after_seq) if is_later else None
        if missing is not None:  # What is before the first gap is read.
            chain = leading_to(segments(self._disk, self._files), missing[0] - 1)
        else:
            chain = self.archived() if is_later else []
        for segment in chain:
            if segment.last_seq > after_seq:
                for lines in segment_lines(self._disk, self.stream, segment):
                    yield Block(lines, -1)
        if missing is not None:
            raise segment_missing(self.stream, *missing)
        if not self.end and not chain:
            self._check_emptied(after_seq)
        yield from file_blocks(self.file, entry_before(self.stream, self.file, self.end, after_seq), self.end)

    def _missing(self, after_seq: int) -> tuple[int, int] | None:
        """The first range behind `after_seq` that the archive held and does not hold now."""
        first, found = self.first(), segments(self._disk, self._files)
        ledger = read_ledger(self._disk, self._files)
        missing = missing_ranges(found, ledger, None if first is None else first.previous_seq)
        return next((each for each in missing if each[1] > after_seq), None)

    def _begins_later(self, after_seq: int) -> bool:
        first = self.first()
        return first is None or after_seq < first.previous_seq

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


def check_known(stream: str, ledger: Ledger | None, last_seq: int, known_seq: int, end: int) -> None:
    """
    Raises:
        LogDamaged: entries that were durable are gone, and no checkpoint has removed them.
    """
    removed = None if ledger is None else ledger.removed
    last_seq = max(last_seq, 0 if removed is None else removed.before_seq - 1)
    if last_seq < known_seq:
        message = f"There were events up to {known_seq}, now there are none behind {last_seq}"
        raise damaged(stream, Damage(EVENTS_MISSING, message), last_seq + 1, end)


def _model_in(ledger: Ledger | None) -> str:
    return "" if ledger is None else ledger.model or ""
