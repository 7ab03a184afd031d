"""Whether a snapshot still holds what checkpoints have removed, and how a stream goes on when none does."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from runstate.errors import SnapshotTooNew
from runstate.logs.log import Finding
from runstate.logs.wal.archive import leading_to, segments
from runstate.logs.wal.entries import Entry, whole_entry, write_entry
from runstate.logs.wal.files import StreamFiles, keep_copy, newest_backup, read_or_none
from runstate.logs.wal.findings import EVENTS_MISSING, STATE_LOST, report_finding, wal_finding
from runstate.logs.wal.held import Held
from runstate.logs.wal.ledger import Ledger, Removed, replace_wal, write_ledger
from runstate.logs.wal.lines import count_lines, last_entry, numbered_lines
from runstate.logs.wal.snapshots import (
    CorruptSnapshot,
    checkpointed_model,
    read_snapshot,
    snapshot_paths,
    snapshot_seqs,
)
from runstate.storage.disk import Disk


class Lost(NamedTuple):
    """Events that checkpoints have removed, and whose state no snapshot holds any more."""

    events: int
    after_seq: int
    """The state up to here is in a snapshot; 0: there is none."""
    last_seq: int
    kept: int
    """How many events stand in the WAL."""
    first_kept: int
    last_kept: int

    def finding(self, stream: str) -> Finding:
        kept = f", seq {self.first_kept} to {self.last_kept}" if self.kept else ""
        return Finding(
            code=STATE_LOST,
            message=(
                f"No intact checkpoint holds the state of seq {self.after_seq + 1} to {self.last_seq}. Lost events: "
                f"{self.events}. Intact events: {self.kept}{kept}; a repaired stream goes on with them alone"
            ),
            stream=stream,
            seq=self.after_seq + 1,
            details={"lost": self.events, "last_lost": self.last_seq, "kept": self.kept, "first_seq": self.first_kept},
        )


def find_lost(disk: Disk, files: StreamFiles, ledger: Ledger | None) -> Lost | None:
    """What is lost with the snapshots of a stream; None where nothing is.

    A WAL that was truncated by the seed's daemon, as the first ledger notes it, has lost nothing that we know of.
    """
    removed = None if ledger is None else ledger.removed
    if ledger is None or removed is None or not removed.events:
        return None
    first, last, kept = wal_entries(disk, files)
    begins_after = removed.before_seq - 1 if first is None else first.previous_seq
    if leading_to(segments(disk, files), begins_after) or not begins_after:
        return None
    after_seq, model = 0, checkpointed_model(disk, files, ledger.model or "")
    for path in snapshot_paths(disk, files):
        try:
            snapshot = read_snapshot(disk, path, model)
        except SnapshotTooNew:
            return None
        except CorruptSnapshot:
            continue
        after_seq = max(after_seq, 0 if snapshot is None else snapshot.seq)
    if after_seq >= begins_after:
        return None
    first_kept, last_kept = (0 if entry is None else entry.seq for entry in (first, last))
    events = begins_after - after_seq if after_seq else removed.events
    return Lost(events, after_seq, begins_after, kept, first_kept, last_kept)


def begin_anew(disk: Disk, files: StreamFiles, ledger: Ledger, after_seq: int) -> None:
    """Let the first entry of a WAL stand behind `after_seq`: nothing in between is missed any more."""
    ledger = ledger if after_seq else msgspec.structs.replace(ledger, removed=None)
    data = read_or_none(disk, files.wal)
    if not data:
        floor_seq = max(ledger.last_seq, ledger.floor_seq)
        write_ledger(disk, files, msgspec.structs.replace(ledger, last_seq=after_seq, floor_seq=floor_seq))
        return
    line, newline, rest = data.lstrip(b"\r\n").partition(b"\n")
    first = whole_entry(files.stream, line)
    if first is not None:
        line = write_entry(first.seq, first.body, msgspec.structs.replace(first.envelope, after=after_seq))
        data = line.removesuffix(b"\n") + newline + rest
    replace_wal(disk, files, ledger, data)


def snapshot_ahead(disk: Disk, files: StreamFiles, held: Held) -> int:
    """The seq of the newest snapshot, if entries up to it are lost; 0 where they are not, or an archive has some."""
    seqs = snapshot_seqs(disk, files, checkpointed_model(disk, files, held.ledger.model or ""))
    seq = max((seq for seq in seqs if seq <= held.last_seq), default=0)
    gone = held.ledger.quarantined
    if gone and gone.tail_seq <= held.tail_seq and seq <= gone.last_seq:
        return 0  # Behind the last entry, there are only seqs of entries that were quarantined.
    return seq if seq > held.tail_seq and not segments(disk, files) else 0


def begin_behind(disk: Disk, files: StreamFiles, held: Held, seq: int, report: list[Finding]) -> None:
    """Let a stream begin behind a snapshot. What is left of the entries before it would lead to another state."""
    data, newest = (read_or_none(disk, path) or b"" for path in (files.wal, newest_backup(files.wal)))
    if not newest.startswith(data):
        keep_copy(disk, files.wal, data)
    removed = Removed(seq + 1, held.events, held.tenant, held.first_at, held.last_at)
    ledger = msgspec.structs.replace(held.ledger, removed=removed, last_seq=seq, floor_seq=held.last_seq)
    replace_wal(disk, files, ledger, b"")
    message = (
        f"Events {held.tail_seq + 1} to {seq} are lost, and the checkpoint at seq {seq} holds their state: the stream "
        f"begins behind it. What was left before it is in {newest_backup(files.wal).name}"
    )
    report_finding(report, wal_finding(files, EVENTS_MISSING, message, held.tail_seq + 1, last_seq=seq))


def wal_entries(disk: Disk, files: StreamFiles) -> tuple[Entry | None, Entry | None, int]:
    """The first and the last entry of the WAL, and how many there are."""
    try:
        file = disk.open(files.wal, read_only=True)
    except (FileNotFoundError, NotADirectoryError):
        return None, None, 0
    with file:
        end = file.size()
        first = next((whole_entry(files.stream, line) for _, line in numbered_lines(file, 0, end)), None)
        return first, last_entry(files.stream, file, end), count_lines(file, 0, end)
