"""Opening a stream for writing: read its WAL once, cut off what a crash has left, rotate away what is damaged.

Evidence comes first: a torn tail is kept as `wal.jsonl.torn`, a damaged WAL whole as the newest of three `.bak` files.
What a reader may see is made durable here before the first append: a process that was killed may have left entries that
it never flushed, and a retry is about to be told that they are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from runstate.errors import LogDamaged
from runstate.logs.log import Finding, StoredSnapshot
from runstate.logs.tombstone_files import find_tombstone
from runstate.logs.tombstones import if_counting
from runstate.logs.wal.archive import segments
from runstate.logs.wal.entries import (
    OUT_OF_ORDER,
    Damage,
    Entry,
    Envelope,
    intact_envelopes,
    read_entry,
    whole_entry,
)
from runstate.logs.wal.files import StreamFiles, move_aside, remove_leftovers
from runstate.logs.wal.findings import EVENTS_MISSING, SNAPSHOT_CORRUPT, TORN_TAIL, report_finding, wal_finding
from runstate.logs.wal.held import Held, Scan
from runstate.logs.wal.ledger import Ledger, Removed, read_ledger, read_old_keys, replace_wal, write_ledger
from runstate.logs.wal.lines import file_blocks, is_blank, last_entry, numbered_lines
from runstate.logs.wal.reading import is_torn
from runstate.logs.wal.rotation import highest_given, rotate, seqs_behind
from runstate.logs.wal.snapshots import CorruptSnapshot, snapshot_seqs
from runstate.storage.disk import Disk, File, replace_durably
from runstate.storage.file_proof import lock_in_place


class _Stretch(NamedTuple):
    """Entries in a row: what each tells, and how many bytes it takes."""

    seqs: Sequence[int]
    envelopes: Sequence[Envelope]
    sizes: Sequence[int]


def load(disk: Disk, files: StreamFiles, report: list[Finding], *, salvage: bool = False) -> Held:
    """Read a stream, recover it from a crash or from damage, and make sure of everything in it.

    With `salvage`, entries behind damage are kept too. That includes zeros that a crash may have left.

    Raises:
        OSError: nothing that was acknowledged is lost.
    """
    ledger = read_ledger(disk, files)
    try:
        file = disk.open(files.wal)
    except (FileNotFoundError, NotADirectoryError):
        return _loaded(disk, files, Held(ledger or Ledger(floor_seq=_last_known(disk, files))), report)
    try:
        # The lock file beside it may have been removed: this is the file that is written to.
        lock_in_place(disk, files.wal, file)
        size = file.size()
        ledger = ledger or _first_ledger(disk, files, file, size)
        scan = _scan(files.stream, file, size, ledger)
        if scan.held.end < size:
            # What was known to be durable is not what a crash takes away. But a newline alone may be.
            lacks_newline = scan.damage is None and _salvaged(files.stream, file, scan, size) is not None
            is_crash = scan.held.tail_seq >= ledger.last_seq and is_torn(files.stream, file, scan.end, size)
            if lacks_newline or (is_crash and not (salvage and b"\0" in file.read_at(scan.end, size - scan.end))):
                _cut(disk, files, file, scan, report)
            else:
                rotate(disk, files, file, scan, report, salvage=salvage)
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
    return load(disk, files, report, salvage=salvage)


def _loaded(disk: Disk, files: StreamFiles, held: Held, report: list[Finding]) -> Held:
    held.old_keys = {old.key: old for old in read_old_keys(disk, files)}
    if not held.end:
        # Whatever else stood there was lost to damage: a snapshot still leads up to what comes next.
        removed, archived = held.ledger.removed, segments(disk, files)
        held.tail_seq = archived[-1].last_seq if archived else 0 if removed is None else removed.before_seq - 1
    if held.ledger.last_seq > held.tail_seq:
        message = f"There were entries up to {held.ledger.last_seq}, and the WAL ends with {held.tail_seq}"
        report_finding(
            report, wal_finding(files, EVENTS_MISSING, message, held.tail_seq + 1, last_seq=held.ledger.last_seq)
        )
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


def _scan(stream: str, file: File, size: int, ledger: Ledger) -> Scan:
    """Every entry up to the first that is damaged, checked in full."""
    held, end, unfinished = Held(ledger), 0, list[_Stretch]()
    previous: int | None = None
    for block in file_blocks(file, 0, size):
        blank = block.offset - end  # Counted with the line behind it.
        envelopes = None if previous is None else intact_envelopes(previous + 1, block.lines)
        if envelopes is not None and previous is not None:
            sizes = [len(line) + 1 for line in block.lines]
            sizes[0] += blank
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
                return Scan(held, previous or 0, end, damage)
            _add_whole(held, unfinished, _Stretch([entry.seq], [entry.envelope], [blank + len(line) + 1]))
            previous, end, blank = entry.seq, end + blank + len(line) + 1, 0
    if held.end == end and is_blank(file, end, size):
        held.end = end = size
    return Scan(held, previous or 0, end, None)


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


def _cut(disk: Disk, files: StreamFiles, file: File, scan: Scan, report: list[Finding]) -> None:
    """Cut off what stands behind the last whole append, having kept it; an entry that lacks its newline stays."""
    start, size = scan.held.end, file.size()
    remnant = file.read_at(start, size - start)
    replace_durably(disk, files.torn, remnant)
    kept = None if scan.damage is not None else _salvaged(files.stream, file, scan, size)
    if kept is None:
        message = f"{size - start} bytes of an unfinished append were cut off and are kept in {files.torn.name}"
        may_come_again = scan.held.ledger.is_all_adopted or _is_restored(disk, files, scan.held.tail_seq)
        if b"\0" in remnant and not may_come_again:
            # A power cut leaves zeros in a write that it interrupts, and a disk that loses what it had flushed does so
            # too. Nobody can tell them apart, so no seq that may have been acknowledged there is used again. Noted
            # before the cut: behind it nothing tells of the zeros any more.
            floor_seq = highest_given(files, file, scan, size, seqs_behind(files, file, scan, size))
            write_ledger(disk, files, msgspec.structs.replace(scan.held.ledger, floor_seq=floor_seq))
            message += f"; zeros hide what stood there, so the next seq is {floor_seq + 1}"
        file.truncate(start)
    else:
        file.truncate(scan.end)
        file.append(kept + b"\n")
        message = f"The last entry lacked its newline and was kept; the bytes as they were are in {files.torn.name}"
    file.sync()
    seq = scan.held.tail_seq + 1
    report_finding(
        report, wal_finding(files, TORN_TAIL, message, seq, offset=start, bytes=size - start, evidence=str(files.torn))
    )


def _is_restored(disk: Disk, files: StreamFiles, last_seq: int) -> bool:
    """Whether the stream is being restored from an archive. Then nothing else was ever acknowledged there."""
    with suppress(LogDamaged):
        return if_counting(find_tombstone(disk, files.root, files.stream), last_seq) is not None
    return False


def _salvaged(stream: str, file: File, scan: Scan, size: int) -> bytes | None:
    return salvage(stream, file.read_at(scan.end, size - scan.end), scan.seq or None)


def salvage(stream: str, remnant: bytes, previous_seq: int | None) -> bytes | None:
    """A whole entry, the last of its append, that lacks only its newline, or has something else in its place."""
    for candidate in (remnant, remnant[:-1]):
        with suppress(Damage):
            if candidate and not read_entry(stream, candidate, previous_seq).envelope.more:
                return candidate
    return None


def set_aside(
    disk: Disk, files: StreamFiles, error: CorruptSnapshot, newest: StoredSnapshot | None, report: list[Finding]
) -> None:
    """Keep a corrupt snapshot as `.bak`. `newest`: the one that counts now. The caller has the stream's upkeep."""
    with suppress(FileNotFoundError):  # Another thread was here first.
        kept = move_aside(disk, error.path)
        message = f"{error}. It is kept as {kept.name}; {stands_in(newest)}"
        report_finding(report, wal_finding(files, SNAPSHOT_CORRUPT, message, None, evidence=str(kept)))


def stands_in(newest: StoredSnapshot | None) -> str:
    """What the state comes from when a snapshot is corrupt."""
    if newest is None:
        return "the state comes from the entries alone"
    return f"the state comes from the snapshot at seq {newest.seq} and the entries behind it"
