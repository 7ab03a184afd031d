"""What `verify` looks at in a stream: every entry, its archive, its ledger, its snapshots. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from runstate.errors import LogDamaged, SnapshotTooNew
from runstate.logs.log import Finding
from runstate.logs.sealed import unsealed
from runstate.logs.wal.archive import verify_segments
from runstate.logs.wal.coverage import find_lost
from runstate.logs.wal.entries import Damage, whole_entry
from runstate.logs.wal.files import StreamFiles, read_or_none
from runstate.logs.wal.findings import (
    EVENTS_MISSING,
    FILE_DAMAGED,
    SNAPSHOT_CORRUPT,
    TORN_TAIL,
    damage_finding,
    damaged,
)
from runstate.logs.wal.ledger import Ledger, OldKeys, read_ledger
from runstate.logs.wal.lines import numbered_lines
from runstate.logs.wal.reading import View
from runstate.logs.wal.recovery import check_beginning, salvage
from runstate.logs.wal.salvage import SET_ASIDE
from runstate.logs.wal.snapshots import CorruptSnapshot, read_snapshot, snapshot_paths
from runstate.storage.disk import Disk


def verify_stream(disk: Disk, files: StreamFiles, ledger: Ledger | None, view: View | None) -> Iterator[Finding]:
    """Findings for one stream, whose ledger was read before the view was opened. No view: there is no WAL."""
    # Read again behind the view: it tells of what compaction is about to remove, before that is gone.
    now = read_ledger(disk, files)
    ledger_end = 0 if now is None else max(now.last_seq, now.floor_seq)
    last_seq, first = 0, None
    if view is not None:
        keys: set[str] = set()
        try:
            for _, line in numbered_lines(view.file, 0, view.end):
                first = whole_entry(files.stream, line)
                break
            if first is not None:
                try:
                    check_beginning(first, now)
                except Damage as damage:
                    raise damaged(files.stream, damage, first.seq, 0) from damage
            start = first.previous_seq if first is not None else 0 if view.end else ledger_end
            for record in view.records(start):
                last_seq = record.seq
                if record.key in keys:
                    message = f"The key {record.key[:80]!r} stands for two events"
                    yield Finding(code="log.key_twice", message=message, stream=files.stream, seq=record.seq)
                keys.add(record.key)
        except LogDamaged as error:
            yield _with_loss(view, damage_finding(error))
            last_seq = ledger.last_seq if ledger is not None else 0
        else:
            yield from _remains(files, view, last_seq)
    removed = None if now is None else now.removed
    last_seq = max(last_seq, 0 if removed is None else removed.before_seq - 1)
    if ledger is not None and last_seq < ledger.last_seq:
        message = f"There were events up to {ledger.last_seq}, now there are none behind {last_seq}"
        yield Finding(code=EVENTS_MISSING, message=message, stream=files.stream, seq=last_seq + 1)
    if (lost := find_lost(disk, files, now)) is not None:
        yield lost.finding(files.stream)
    yield from verify_segments(disk, files, now, None if first is None else first.previous_seq)
    yield from _beside(disk, files)


def _with_loss(view: View, finding: Finding) -> Finding:
    """A finding, with how many whole entries stand behind the damage: the next recovery leaves them in `.bak`."""
    lines = numbered_lines(view.file, finding.details["offset"], view.end)
    finding.details["behind"] = sum(1 for _, line in lines if whole_entry(view.stream, line) is not None)
    return finding


def _remains(files: StreamFiles, view: View, last_seq: int) -> Iterator[Finding]:
    """What stands behind the last whole append, unless it is the plain stub that every killed writer may leave."""
    remnant = view.remnant()
    if view.lacks_newline:
        message = f"Event {last_seq} lacks its newline; it is read all the same, and the next append adds it"
        yield Finding(code=TORN_TAIL, message=message, severity="warning", stream=files.stream, seq=last_seq)
    if b"\0" in remnant or (remnant and salvage(files.stream, remnant, last_seq or None)):
        yield Finding(
            code=TORN_TAIL,
            message=f"{len(remnant)} bytes behind event {last_seq} are no whole append; the next keeps and cuts them",
            severity="warning",
            stream=files.stream,
            seq=last_seq + 1,
            details={"offset": view.end, "bytes": len(remnant)},
        )


def _beside(disk: Disk, files: StreamFiles) -> Iterator[Finding]:
    for path, kind in ((files.ledger, Ledger), (files.keys, OldKeys)):
        data = read_or_none(disk, path)
        if data is not None and unsealed(data, kind) is None:
            yield Finding(
                code=FILE_DAMAGED,
                message=f"{path.name} was changed; it is written again by 'runstate repair', or the next checkpoint",
                severity="warning",
                stream=files.stream,
            )
    for path in (files.salvaged, files.quarantined):
        if (aside := read_or_none(disk, path)) is None:
            continue
        count = aside.count(b"\n")
        message = f"{path.name} holds {count} events that a repair set aside; remove it once it is not needed"
        yield Finding(code=SET_ASIDE, message=message, severity="warning", stream=files.stream)
    yield from _verify_snapshots(disk, files)


def _verify_snapshots(disk: Disk, files: StreamFiles) -> Iterator[Finding]:
    for path in snapshot_paths(disk, files):
        try:
            read_snapshot(disk, path, None)
        except SnapshotTooNew as error:
            yield Finding(code=error.code, message=str(error), severity="warning", stream=files.stream)
        except CorruptSnapshot as error:
            message = f"{error}; the next recovery keeps it as .bak"
            yield Finding(code=SNAPSHOT_CORRUPT, message=message, stream=files.stream, details={"path": str(path)})
