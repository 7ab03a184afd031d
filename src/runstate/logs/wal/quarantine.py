"""Quarantine in a WAL: the entry goes to `wal.jsonl.quarantined`, as a record, and the next one records the gap.

Its seq is not given out again. A checkpoint that holds its effect is dropped, unless nothing else leads up to the WAL.
"""

from __future__ import annotations

from pathlib import PurePath

import msgspec

from runstate.errors import SnapshotTooNew, Unsupported
from runstate.logs.log import Finding
from runstate.logs.quarantine import QUARANTINED, absent_event, aside_lines
from runstate.logs.wal.archive import leading_to, segments
from runstate.logs.wal.entries import Entry
from runstate.logs.wal.files import StreamFiles, read_or_none
from runstate.logs.wal.findings import report_finding, wal_finding
from runstate.logs.wal.held import Held
from runstate.logs.wal.ledger import Quarantined, replace_wal
from runstate.logs.wal.salvage import gather
from runstate.logs.wal.snapshots import CorruptSnapshot, checkpointed_model, read_snapshot, snapshot_paths
from runstate.logs.wal.writer import Writer
from runstate.storage.disk import Disk, replace_durably


def quarantine_entry(writer: Writer, report: list[Finding], seq: int) -> None:
    """Take one entry out of an intact stream. The caller leads, holds the gate, and has just read the stream.

    Raises:
        EventNotFound: there is no such event.
        Unsupported: it is in the archive, or a checkpoint that cannot be made again holds its effect.
        OSError: the event is in the WAL, or in the file that was set aside, or in both.
    """
    disk, files = writer.disk, writer.files
    held = writer.loaded()
    gathered = gather(files.stream, read_or_none(disk, files.wal) or b"", b"", held.ledger)
    entry = gathered.entries.pop(seq, None)
    if entry is None:
        if any(segment.first_seq <= seq <= segment.last_seq for segment in segments(disk, files)):
            raise _unsupported(files, seq, "a checkpoint has moved it to the archive, which is never rewritten")
        raise absent_event(files.stream, seq)
    outdated = _outdated_snapshots(disk, files, held, seq)
    _set_aside(disk, files, entry)
    for path in outdated:
        disk.remove(path)
    disk.sync_directory(files.home)
    begin = 1 if held.ledger.removed is None else held.ledger.removed.before_seq
    last_seq = max(gathered.entries, default=begin - 1)
    count = held.ledger.quarantined.count if held.ledger.quarantined else 0
    ledger = msgspec.structs.replace(
        held.ledger,
        last_seq=last_seq,
        floor_seq=held.last_seq,
        quarantined=Quarantined(count + 1, last_seq, held.last_seq),
    )
    writer.forget()
    replace_wal(disk, files, ledger, gathered.written(ledger))
    kept = len(gathered.entries)
    message = f"Kept: {kept} events. Quarantined: event {seq}. Set aside: {files.quarantined.name}"
    details = {"kept": kept, "setAside": [files.quarantined.name], "behind": 0}
    report_finding(report, wal_finding(files, QUARANTINED, message, seq, **details))
    writer.loaded()


def _set_aside(disk: Disk, files: StreamFiles, entry: Entry) -> None:
    """Add an entry to the file of those that were quarantined. An interrupted quarantine may have done so already."""
    kept, line = read_or_none(disk, files.quarantined) or b"", aside_lines([entry.record(files.stream)])
    if line not in kept:
        replace_durably(disk, files.quarantined, kept + line)


def _outdated_snapshots(disk: Disk, files: StreamFiles, held: Held, seq: int) -> list[PurePath]:
    """The snapshots that hold the effect of an event.

    Raises:
        Unsupported: without them, nothing leads up to the first entry of the WAL.
    """
    removed = held.ledger.removed
    begins_after = 0 if removed is None else removed.before_seq - 1
    model = checkpointed_model(disk, files, held.ledger.model or "")
    outdated, leading = list[PurePath](), not begins_after or bool(leading_to(segments(disk, files), begins_after))
    for path in snapshot_paths(disk, files):
        try:
            snapshot = read_snapshot(disk, path, None)
        except SnapshotTooNew as error:
            raise _unsupported(files, seq, f"a newer Runstate wrote {path.name}") from error
        except CorruptSnapshot:
            continue  # It counts for nothing; `repair` sets it aside.
        if snapshot is not None and snapshot.seq >= seq:
            outdated.append(path)
        elif snapshot is not None and model in (None, snapshot.model):
            leading |= snapshot.seq >= begins_after
    if not leading:
        raise _unsupported(files, seq, "a checkpoint holds its effect, and the events before that are gone")
    return outdated


def _unsupported(files: StreamFiles, seq: int, why: str) -> Unsupported:
    return Unsupported(
        f"Event {seq} of {files.stream!r} cannot be quarantined: {why}. Append the event that corrects the state, or "
        "restore the log from a backup that is older than the checkpoint",
        stream=files.stream,
        seq=seq,
    )
