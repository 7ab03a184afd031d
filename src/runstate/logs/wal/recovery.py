"""Opening a stream for writing: read its WAL once, cut off what a crash has left, rotate away what is damaged.

Evidence comes first: a torn tail is kept as `wal.jsonl.torn`, a damaged WAL whole as the newest of three `.bak` files.
What a reader may see is made durable here before the first append: a process that was killed may have left entries that
it never flushed, and a retry is about to be told that they are stored.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from runstate.logs.disk import Disk, File, replace_durably
from runstate.logs.log import Finding, StreamInfo
from runstate.logs.wal.archive import segments
from runstate.logs.wal.entries import (
    ENTRY_DAMAGED,
    OUT_OF_ORDER,
    Damage,
    Entry,
    Envelope,
    intact_envelopes,
    read_entry,
    whole_entry,
    write_entry,
)
from runstate.logs.wal.files import StreamFiles, keep_copy, move_aside, remove_leftovers
from runstate.logs.wal.ledger import Ledger, OldKey, Removed, read_ledger, read_old_keys, write_ledger
from runstate.logs.wal.reading import file_blocks, is_torn, last_entry, numbered_lines
from runstate.logs.wal.snapshots import CorruptSnapshot, snapshot_seqs

logger = logging.getLogger("runstate.logs.wal")
TORN_TAIL = "log.torn_tail"
EVENTS_MISSING = "log.events_missing"


class Held:
    """What a writer knows of its stream. All of it is durable, but keys may also stand for what is on its way."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.file: File | None = None
        self.end = 0
        self.tail_seq = 0
        """Of the last entry in the WAL, or else of the archive; 0 where there is none."""
        self.events = 0 if ledger.removed is None else ledger.removed.events
        self.tenant = self.first_at = self.last_at = ""
        if (gone := ledger.removed) is not None:
            self.tenant, self.first_at, self.last_at = gone.tenant, gone.first_persisted_at, gone.last_persisted_at
        self.keys: dict[str, int] = {}
        self.old_keys: dict[str, OldKey] = {}
        self.previous: bytes | None = None
        """The last event's line."""

    @property
    def last_seq(self) -> int:
        """The last seq that was given out; the next append goes on from it."""
        return max(self.tail_seq, self.ledger.last_seq, self.ledger.floor_seq)

    @property
    def model(self) -> str:
        """The model that the stream records. The ledger may name one before the first append is stored."""
        return (self.ledger.model or "") if self.last_seq else ""

    @property
    def lost_seq(self) -> int:
        """The last seq that was given out to an entry which is gone, for the ledger."""
        return self.last_seq if self.last_seq > self.tail_seq else self.ledger.floor_seq

    def add(self, events: int, last_seq: int, ends: tuple[Envelope, Envelope], size: int) -> None:
        """Take note of entries that stand in the WAL now; `ends` are what the first and the last of them tell."""
        self.events += events
        first, last = ends
        if not self.first_at:
            self.tenant, self.first_at = first.tenant, first.persisted_at
        self.last_at, self.tail_seq = last.persisted_at, last_seq
        self.end += size

    def info(self, stream: str) -> StreamInfo | None:
        if not self.last_seq:
            return None
        return StreamInfo(stream, self.tenant, self.last_seq, self.events, self.first_at, self.last_at, self.model)


class _Stretch(NamedTuple):
    """Entries in a row: what each tells, and how many bytes it takes."""

    seqs: Sequence[int]
    envelopes: Sequence[Envelope]
    sizes: Sequence[int]


class _Scan(NamedTuple):
    held: Held
    seq: int
    """Of the last intact entry; 0: there is none."""
    end: int
    """Where that ends. Behind `held.end` where its append is not whole."""
    damage: Damage | None
    """What is wrong with the whole line behind it."""


def load(disk: Disk, files: StreamFiles, report: list[Finding]) -> Held:
    """Read a stream, recover it from a crash or from damage, and make sure of everything in it.

    Raises:
        OSError: nothing that was acknowledged is lost.
    """
    ledger = read_ledger(disk, files)
    try:
        file = disk.open(files.wal)
    except (FileNotFoundError, NotADirectoryError):
        return _loaded(disk, files, Held(ledger or Ledger(floor_seq=_last_known(disk, files))), report)
    try:
        size = file.size()
        ledger = ledger or _first_ledger(disk, files, file, size)
        scan = _scan(files.stream, file, size, ledger)
        if scan.held.end < size:
            # What was known to be durable is not what a crash takes away.
            is_crash = scan.held.tail_seq >= ledger.last_seq and is_torn(files.stream, file, scan.end, size)
            (_cut if is_crash else _rotate)(disk, files, file, scan, report)
        elif ledger.swapping:
            replace_wal(disk, files, ledger, file.read_at(0, size))
        else:
            file.sync()
            remove_leftovers(disk, files)
            disk.sync_directory(files.home)
            disk.sync_directory(files.root)
            entry = last_entry(files.stream, file, scan.held.end)
            scan.held.file, scan.held.previous = file, None if entry is None else entry.body
            return _loaded(disk, files, scan.held, report)
    except BaseException:
        file.close()
        raise
    file.close()
    return load(disk, files, report)


def _loaded(disk: Disk, files: StreamFiles, held: Held, report: list[Finding]) -> Held:
    held.old_keys = {old.key: old for old in read_old_keys(disk, files)}
    if not held.end:
        # Whatever else stood there was lost to damage: a snapshot still leads up to what comes next.
        removed, archived = held.ledger.removed, segments(disk, files)
        held.tail_seq = archived[-1].last_seq if archived else 0 if removed is None else removed.before_seq - 1
    if held.ledger.last_seq > held.tail_seq:
        message = f"There were entries up to {held.ledger.last_seq}, and the WAL ends with {held.tail_seq}"
        _tell(report, _finding(files, EVENTS_MISSING, message, held.tail_seq + 1, last_seq=held.ledger.last_seq))
    return held


def _first_ledger(disk: Disk, files: StreamFiles, file: File, size: int) -> Ledger:
    """The ledger of a WAL that has none. What is not in it when we first see it, the seed's daemon has truncated."""
    first = next((whole_entry(files.stream, line) for _, line in numbered_lines(file, 0, size)), None)
    removed = None
    if first is not None and first.previous_seq:
        at = first.envelope.persisted_at
        removed = Removed(first.seq, 0, first.envelope.tenant, at, at)
    return Ledger(floor_seq=_last_known(disk, files), removed=removed)


def _last_known(disk: Disk, files: StreamFiles) -> int:
    """Where a stream without a ledger may have come to, by everything else that tells of it."""
    archived = [segment.last_seq for segment in segments(disk, files)]
    return max([0, *archived, *snapshot_seqs(disk, files), *(old.seq for old in read_old_keys(disk, files))])


def _scan(stream: str, file: File, size: int, ledger: Ledger) -> _Scan:
    """Every entry up to the first that is damaged, checked in full."""
    held, end, unfinished = Held(ledger), 0, list[_Stretch]()
    previous: int | None = None
    for block in file_blocks(file, 0, size):
        envelopes = None if previous is None else intact_envelopes(previous + 1, block.lines)
        if envelopes is not None and previous is not None:
            sizes = [len(line) + 1 for line in block.lines]
            seqs = range(previous + 1, previous + 1 + len(envelopes))
            _add_whole(held, unfinished, _Stretch(seqs, envelopes, sizes))
            previous, end = previous + len(envelopes), end + sum(sizes)
            continue
        for line in block.lines:
            try:
                entry = read_entry(stream, line, previous)
                if previous is None:
                    check_beginning(entry, ledger)
            except Damage as damage:
                return _Scan(held, previous or 0, end, damage)
            _add_whole(held, unfinished, _Stretch([entry.seq], [entry.envelope], [len(line) + 1]))
            previous, end = entry.seq, end + len(line) + 1
    return _Scan(held, previous or 0, end, None)


def check_beginning(first: Entry, ledger: Ledger | None) -> None:
    """
    Raises:
        Damage: the WAL begins behind entries that no checkpoint has removed.
    """
    begin = 1 if ledger is None or ledger.removed is None else ledger.removed.before_seq
    if ledger is not None and first.previous_seq >= begin:
        message = f"Entries {begin} to {first.previous_seq} are missing in front of entry {first.seq}"
        raise Damage(OUT_OF_ORDER, message)


def _add_whole(held: Held, unfinished: list[_Stretch], stretch: _Stretch) -> None:
    """Take note of entries whose appends are whole by now; the rest is left `unfinished`."""
    seqs, envelopes, sizes = stretch
    removed = held.ledger.removed
    whole = next((number for number in range(len(envelopes), 0, -1) if not envelopes[number - 1].more), 0)
    if whole:
        for earlier in (*unfinished, _Stretch(seqs[:whole], envelopes[:whole], sizes[:whole])):
            told = earlier.envelopes
            keys = [e.event_id if e.key is None else e.key for e in told]
            held.keys.update(zip(keys, earlier.seqs, strict=True))
            events = len(keys) if removed is None else sum(seq >= removed.before_seq for seq in earlier.seqs)
            held.add(events, earlier.seqs[-1], (told[0], told[-1]), sum(earlier.sizes))
        unfinished.clear()
    if whole < len(envelopes):
        unfinished.append(_Stretch(seqs[whole:], envelopes[whole:], sizes[whole:]))


def _cut(disk: Disk, files: StreamFiles, file: File, scan: _Scan, report: list[Finding]) -> None:
    """Cut off what stands behind the last whole append, having kept it; an entry that lacks its newline stays."""
    start, size = scan.held.end, file.size()
    remnant = file.read_at(start, size - start)
    replace_durably(disk, files.torn, remnant)
    rest = remnant[scan.end - start :]
    kept = None if scan.damage is not None else salvage(files.stream, rest, scan.seq or None)
    if kept is None:
        message = f"{size - start} bytes of an unfinished append were cut off and are kept in {files.torn.name}"
        if b"\0" in remnant:
            # A power cut leaves zeros in a write that it interrupts, and a disk that loses what it had flushed does so
            # too. Nobody can tell them apart, so no seq that may have been acknowledged there is used again. Noted
            # before the cut: behind it nothing tells of the zeros any more.
            floor_seq = _highest_given(files, file, scan, size, _seqs_behind(files, file, scan, size))
            write_ledger(disk, files, msgspec.structs.replace(scan.held.ledger, floor_seq=floor_seq))
            message += f"; zeros hide what stood there, so the next seq is {floor_seq + 1}"
        file.truncate(start)
    else:
        file.truncate(scan.end)
        file.append(kept + b"\n")
        message = f"The last entry lacked its newline and was kept; the bytes as they were are in {files.torn.name}"
    file.sync()
    seq = scan.held.tail_seq + 1
    _tell(report, _finding(files, TORN_TAIL, message, seq, offset=start, bytes=size - start, evidence=str(files.torn)))


def salvage(stream: str, remnant: bytes, previous_seq: int | None) -> bytes | None:
    """A whole entry, the last of its append, that lacks only its newline, or has something else in its place."""
    for candidate in (remnant, remnant[:-1]):
        with suppress(Damage):
            if candidate and not read_entry(stream, candidate, previous_seq).envelope.more:
                return candidate
    return None


def _rotate(disk: Disk, files: StreamFiles, file: File, scan: _Scan, report: list[Finding]) -> None:
    """Keep a damaged WAL whole as `.bak`, and put a clean one with the entries before the damage in its place."""
    data = file.read_at(0, file.size())
    evidence = keep_copy(disk, files.wal, data)
    lost = _seqs_behind(files, file, scan, len(data))
    floor_seq = _highest_given(files, file, scan, len(data), lost)
    ledger = msgspec.structs.replace(scan.held.ledger, last_seq=scan.seq, floor_seq=floor_seq)
    damage = scan.damage or Damage(ENTRY_DAMAGED, "The last line is not whole, and no crash has left it so")
    message = (
        f"{damage} (byte {scan.end}). The WAL is kept as {evidence.name}; the entries up to {scan.seq} stand in a "
        f"new one, {len(lost)} whole entries behind the damage only in {evidence.name}. The next seq is {floor_seq + 1}"
    )
    details = {"offset": scan.end, "evidence": str(evidence), "lost": len(lost), "last_seq": floor_seq}
    replace_wal(disk, files, ledger, _closed(files.stream, file, scan.end))
    _tell(report, _finding(files, damage.code, message, scan.seq + 1, **details))


def _highest_given(files: StreamFiles, file: File, scan: _Scan, size: int, behind: list[int]) -> int:
    """The highest seq that may have been given out, by everything that tells of some."""
    end = last_entry(files.stream, file, size)
    # Where the end itself is damaged, nobody knows which seqs stood there: none that was reserved is used again.
    last = scan.held.ledger.reserved if end is None else end.seq
    return max(scan.held.last_seq, scan.seq, last, *behind)


def _seqs_behind(files: StreamFiles, file: File, scan: _Scan, size: int) -> list[int]:
    """The seqs of the whole entries behind the last one that is intact in its place."""
    lines = numbered_lines(file, scan.end, size)
    return [entry.seq for _, line in lines if (entry := whole_entry(files.stream, line)) is not None]


def _closed(stream: str, file: File, end: int) -> bytes:
    """The file up to an offset. Its last entry no longer announces more of its append: they are lost."""
    data = file.read_at(0, end)
    entry = last_entry(stream, file, end)
    if entry is None or not entry.envelope.more:
        return data
    start = data.rfind(b"\n", 0, -1) + 1
    return data[:start] + write_entry(entry.seq, entry.body, msgspec.structs.replace(entry.envelope, more=0))


def replace_wal(disk: Disk, files: StreamFiles, ledger: Ledger, data: bytes) -> Ledger:
    """Put another WAL in place of the old one; a crash at any point leaves one of them, and the ledger tells."""
    write_ledger(disk, files, msgspec.structs.replace(ledger, swapping=True))
    replace_durably(disk, files.wal, data)
    done = msgspec.structs.replace(ledger, swapping=False)
    write_ledger(disk, files, done)
    return done


def set_aside(disk: Disk, files: StreamFiles, error: CorruptSnapshot, report: list[Finding]) -> None:
    """Keep a corrupt snapshot as `.bak`. The caller has the stream's upkeep."""
    with suppress(FileNotFoundError):  # Another thread was here first.
        kept = move_aside(disk, error.path)
        message = f"{error}. It is kept as {kept.name}; the state comes from the entries alone"
        _tell(report, _finding(files, "snapshot.corrupt", message, None, evidence=str(kept)))


def _finding(files: StreamFiles, code: str, message: str, seq: int | None, **details: Any) -> Finding:
    return Finding(code=code, message=message, severity="warning", stream=files.stream, seq=seq, details=details)


def _tell(report: list[Finding], finding: Finding) -> None:
    logger.warning("%s: %s", finding.stream, finding.message)
    report.append(finding)
