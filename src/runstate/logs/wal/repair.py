"""Repairing a stream: recovery, the acknowledgement of what is lost, and a rehearsal of both that changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from runstate.errors import SnapshotTooNew
from runstate.logs.log import Finding
from runstate.logs.sealed import unsealed
from runstate.logs.wal.archive import SEGMENT_MISSING, missing_ranges, segments
from runstate.logs.wal.coverage import begin_anew, begin_behind, find_lost, snapshot_ahead, wal_entries
from runstate.logs.wal.files import StreamFiles, keep_copy, read_or_none
from runstate.logs.wal.findings import FILE_DAMAGED, Rehearsal, report_finding, wal_finding
from runstate.logs.wal.held import Held
from runstate.logs.wal.ledger import Ledger, OldKeys, write_old_keys
from runstate.logs.wal.options import WalOptions
from runstate.logs.wal.quarantine import quarantine_entry
from runstate.logs.wal.recovery import set_aside
from runstate.logs.wal.salvage import salvage_evidence
from runstate.logs.wal.snapshots import CorruptSnapshot, read_snapshot, snapshot_paths
from runstate.logs.wal.writer import Writer
from runstate.storage.disk import Disk
from runstate.storage.overlay_disk import NoLock, OverlayDisk


def rehearse_repair(
    disk: Disk, files: StreamFiles, options: WalOptions, repair: Callable[[Writer, list[Finding]], None]
) -> list[Finding]:
    """What `repair_stream` would do and report, found by doing it in memory."""
    report = Rehearsal()
    writer = Writer(OverlayDisk(disk), files, NoLock(), options, report)
    repair(writer, report)
    writer.forget()
    return report


def repair_stream(writer: Writer, report: list[Finding], *, salvage: bool, quarantine: int = 0) -> None:
    """Recover a stream, and note that what is gone is gone. The caller leads, holds the gate, and has
    just read the stream.

    With `salvage`, what can be proven is kept, be it behind damage or in the evidence of earlier recoveries. With
    `quarantine`: see `quarantine_entry`.
    """
    if quarantine:
        quarantine_entry(writer, report, quarantine)
        return
    disk, files = writer.disk, writer.files
    held = writer.loaded(salvage=salvage)
    if salvage and salvage_evidence(disk, files, held, report):
        writer.forget()
        held = writer.loaded()
    if held.ledger.last_seq > held.tail_seq:  # Reported; its seqs are not used again.
        writer.amend_ledger(last_seq=held.tail_seq, floor_seq=held.lost_seq)
    _replace_damaged(writer, report)
    _note_missing_segments(writer, held, report)
    for path in snapshot_paths(disk, files):
        try:
            read_snapshot(disk, path, None)
        except SnapshotTooNew:
            continue
        except CorruptSnapshot as error:
            set_aside(disk, files, error, None, report)
    if (seq := snapshot_ahead(disk, files, held)) > 0:
        writer.forget()
        begin_behind(disk, files, held, seq, report)
        held = writer.loaded()
    lost = find_lost(disk, files, held.ledger)
    if lost is not None:
        ledger = held.ledger
        writer.forget()
        begin_anew(disk, files, ledger, lost.after_seq)
        report_finding(report, msgspec.structs.replace(lost.finding(files.stream), severity="warning"))
        writer.loaded()


def _note_missing_segments(writer: Writer, held: Held, report: list[Finding]) -> None:
    """Note in the ledger that segments of the archive are gone: the history that can be read begins behind them."""
    disk, files = writer.disk, writer.files
    found, (first, _, _) = segments(disk, files), wal_entries(disk, files)
    missing = missing_ranges(found, held.ledger, None if first is None else first.previous_seq)
    if not missing:
        return
    archived = held.ledger.archived
    last_seq = found[-1].last_seq if archived is msgspec.UNSET else archived[1]
    writer.amend_ledger(archived=(missing[-1][1] + 1, last_seq))
    for first_seq, last_lost in missing:
        message = f"The archive lacks events {first_seq} to {last_lost}, which are lost unless you restore the segments"
        report_finding(report, wal_finding(files, SEGMENT_MISSING, message, first_seq, last_seq=last_lost))


def _replace_damaged(writer: Writer, report: list[Finding]) -> None:
    """Write a damaged ledger again from everything else that tells of it, and forget the keys of a damaged list."""
    disk, files = writer.disk, writer.files
    for path, kind in ((files.ledger, Ledger), (files.keys, OldKeys)):
        data = read_or_none(disk, path)
        if data is None or unsealed(data, kind) is not None:
            continue
        evidence = keep_copy(disk, path, data)
        if kind is Ledger:
            writer.amend_ledger()
            result = "It is written again from the entries and snapshots"
        else:
            write_old_keys(disk, files, [])
            result = "A retry of an event that a checkpoint has removed is a new event from now on"
        message = f"{path.name} was changed and is kept as {evidence.name}. {result}"
        report_finding(report, wal_finding(files, FILE_DAMAGED, message, None, evidence=str(evidence)))
