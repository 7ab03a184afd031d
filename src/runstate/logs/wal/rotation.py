"""Rotating a damaged WAL: the whole of it is kept as `.bak`, and a clean one takes its place.

The clean one holds the entries before the damage. Where a checkpoint behind the damage is intact, and so are the
entries from there on, it holds these instead: the state is whole, and nothing before the checkpoint is needed for it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from runstate.logs.log import Finding
from runstate.logs.wal.entries import ENTRY_DAMAGED, Damage, Entry, read_entry, whole_entry, write_entry
from runstate.logs.wal.files import StreamFiles, keep_copy
from runstate.logs.wal.findings import report_finding, wal_finding
from runstate.logs.wal.held import Scan
from runstate.logs.wal.ledger import Ledger, Removed, replace_wal
from runstate.logs.wal.lines import last_entry, numbered_lines
from runstate.logs.wal.salvage import gather, set_lines_aside
from runstate.logs.wal.snapshots import checkpointed_model, snapshot_seqs
from runstate.storage.disk import Disk, File


class _Tail(NamedTuple):
    """Intact entries behind damage, from a checkpoint on."""

    checkpoint_seq: int
    first: Entry
    last_seq: int
    start: int
    end: int


def rotate(
    disk: Disk, files: StreamFiles, file: File, scan: Scan, report: list[Finding], *, salvage: bool = False
) -> None:
    """Keep a damaged WAL as `.bak`, and put a clean one in its place; with `salvage`, of everything that is proven."""
    data, ledger = file.read_at(0, file.size()), scan.held.ledger
    evidence = keep_copy(disk, files.wal, data)
    behind = seqs_behind(files, file, scan, len(data))
    floor_seq = highest_given(files, file, scan, len(data), behind)
    tail = _covered_tail(disk, files, file, scan, len(data))
    if tail is not None:
        ledger = msgspec.structs.replace(ledger, removed=_removed_before(tail.first, ledger))
    gathered = gather(files.stream, data[: scan.end], data[scan.end :], ledger) if salvage else None
    if gathered is not None and gathered.entries:
        last_seq, lost = max(gathered.entries), 0
        new_wal = gathered.written(ledger)
        first_seq = scan.seq + 1 if tail is None else tail.first.seq
        salvaged = sum(seq >= first_seq for seq in gathered.entries)
        before = f"the entries up to {scan.seq}" if tail is None else f"the state up to {tail.checkpoint_seq}"
        kept = (
            f"{before} and all {salvaged} entries from {first_seq} to {last_seq} that their checksums prove are kept, "
            f"{last_seq - first_seq + 1 - salvaged} of these are lost"
        )
    elif tail is None:
        start, end, last_seq, lost = 0, scan.end, scan.seq, len(behind)
        kept = f"the entries up to {last_seq} stand in a new one, {lost} whole entries behind the damage only in it"
        new_wal = _closed(files.stream, file, start, end)
    else:
        start, end, last_seq = tail.start, tail.end, tail.last_seq
        lost = sum(seq > last_seq for seq in behind)
        kept = (
            f"the checkpoint at seq {tail.checkpoint_seq} holds the state of everything before it, and the entries "
            f"{tail.first.seq} to {last_seq} behind it stand in a new WAL, {lost} whole entries only in the old one"
        )
        new_wal = _closed(files.stream, file, start, end)
    damage = scan.damage or Damage(ENTRY_DAMAGED, "The last line is not whole, and no crash has left it so")
    message = f"{damage} (byte {scan.end}). The WAL is kept as {evidence.name}; {kept}. The next seq is {floor_seq + 1}"
    details = {"offset": scan.end, "evidence": str(evidence), "lost": lost, "last_seq": floor_seq}
    ledger = msgspec.structs.replace(ledger, last_seq=last_seq, floor_seq=floor_seq)
    if gathered is not None and gathered.conflicts:
        why = f"{len(gathered.conflicts)} proven entries cannot stand in the stream: their seq has another entry"
        set_lines_aside(disk, files, gathered.conflicts, why, report)
    replace_wal(disk, files, ledger, new_wal)
    report_finding(report, wal_finding(files, damage.code, message, scan.seq + 1, **details))


def highest_given(files: StreamFiles, file: File, scan: Scan, size: int, behind: list[int]) -> int:
    """The highest seq that may have been given out, by everything that tells of some."""
    end = last_entry(files.stream, file, size)
    # Where the end itself is damaged, nobody knows which seqs stood there: none that was reserved is used again.
    last = scan.held.ledger.reserved if end is None else end.seq
    return max(scan.held.last_seq, scan.seq, last, *behind)


def seqs_behind(files: StreamFiles, file: File, scan: Scan, size: int) -> list[int]:
    """The seqs of the whole entries behind the last one that is intact in its place."""
    lines = numbered_lines(file, scan.end, size)
    return [entry.seq for _, line in lines if (entry := whole_entry(files.stream, line)) is not None]


def _covered_tail(disk: Disk, files: StreamFiles, file: File, scan: Scan, size: int) -> _Tail | None:
    """The intact entries from the newest checkpoint on, if that is behind the damage and they lead on from it."""
    seq = max(snapshot_seqs(disk, files, checkpointed_model(disk, files, scan.held.ledger.model or "")), default=0)
    if not seq or seq < scan.seq:
        return None
    tail: _Tail | None = None
    for offset, line in numbered_lines(file, scan.end, size):
        end = offset + len(line) + 1
        try:
            entry = read_entry(files.stream, line, None if tail is None else tail.last_seq)
        except Damage:
            if tail is not None:
                break
            continue
        if tail is not None:
            tail = tail._replace(last_seq=entry.seq, end=end)
        elif entry.seq >= seq:
            if entry.previous_seq > seq:
                break
            tail = _Tail(seq, entry, entry.seq, offset, end)
    return tail


def _removed_before(first: Entry, ledger: Ledger) -> Removed:
    """What is to be remembered of the entries before one that a stream begins with from now on."""
    told, gone = first.envelope, ledger.removed
    if gone is None:
        return Removed(first.seq, first.seq - 1, told.tenant, told.persisted_at, told.persisted_at)
    events = gone.events + max(0, first.seq - gone.before_seq)
    return msgspec.structs.replace(gone, before_seq=max(first.seq, gone.before_seq), events=events)


def _closed(stream: str, file: File, start: int, end: int) -> bytes:
    """The file between two offsets. Its last entry no longer announces more of its append: they are lost."""
    data = file.read_at(start, end - start)
    entry = last_entry(stream, file, end) if data else None
    if entry is None or not entry.envelope.more:
        return data
    begin = data.rfind(b"\n", 0, -1) + 1
    return data[:begin] + write_entry(entry.seq, entry.body, msgspec.structs.replace(entry.envelope, more=0))
