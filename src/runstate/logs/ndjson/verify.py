"""What `verify` looks at in a run: every line in full, the checksum of the whole, the remains, the snapshots."""

from __future__ import annotations

from collections.abc import Iterator

from runstate.errors import LogDamaged
from runstate.logs.log import Finding
from runstate.logs.ndjson.files import RunFiles
from runstate.logs.ndjson.index import Index, read_index
from runstate.logs.ndjson.reading import Mark, View, changed_event, damage_finding, missing_events
from runstate.logs.ndjson.recovery import TORN_TAIL, find_tail
from runstate.logs.set_aside import list_set_aside
from runstate.models.canonical import digest
from runstate.storage.disk import Disk


def verify_run(disk: Disk, files: RunFiles, index: Index, view: View | None) -> Iterator[Finding]:
    """Findings for one run, whose index was read before the view was opened. No view: the file is not there."""
    if view is None:
        if index.end is not None:
            yield damage_finding(missing_events(files.stream, index.end.seq, 0, 0))
        yield from list_set_aside(disk, files.stream, files.home)
        return
    keys: set[str] = set()
    previous: bytes | None = None
    try:
        for record in view.records(0):
            previous = record.body
            if record.key in keys:
                yield Finding(
                    code="log.key_twice",
                    message=f"The key {record.key[:80]!r} stands for two events",
                    stream=files.stream,
                    seq=record.seq,
                )
            keys.add(record.key)
    except LogDamaged as error:
        yield damage_finding(error)
    else:
        yield from _remains(disk, files, view, index, previous)
        yield from _whole(files, view, index)
    yield from _snapshots(disk, files, index, view.last)
    yield from list_set_aside(disk, files.stream, files.home)


def _remains(disk: Disk, files: RunFiles, view: View, index: Index, previous: bytes | None) -> Iterator[Finding]:
    """What stands behind the last whole line, unless it is the plain stub that every killed writer may leave."""
    seq, offset = (0, 0) if view.last is None else (view.last.seq, view.last.offset)
    tail = find_tail(disk, files, view.file, seq, offset, previous)
    if index.end is not None and index.end.offset > tail.end:
        yield damage_finding(missing_events(files.stream, index.end.seq, seq, offset))
        return
    remnant = view.file.read_at(offset, max(0, view.end - offset))
    if b"\0" in remnant or (remnant and tail.line):
        yield Finding(
            code=TORN_TAIL,
            message=f"{len(remnant)} bytes behind event {seq} are no whole line; the next append keeps and cuts them",
            severity="warning",
            stream=files.stream,
            seq=seq + 1,
            details={"offset": offset, "bytes": len(remnant), "intact": seq},
        )


def _whole(files: RunFiles, view: View, index: Index) -> Iterator[Finding]:
    if index.end is not None and view.last is not None and not index.covers(view.file, view.last.offset):
        yield damage_finding(changed_event(files.stream, index.end.seq))


def _snapshots(disk: Disk, files: RunFiles, index: Index, last: Mark | None) -> Iterator[Finding]:
    # A power cut may keep a new snapshot and lose the index that names it. Such an index ends before the events do.
    is_current = index.end is not None and last is not None and index.end.seq >= last.seq
    for model, entries in index.snapshots.items():
        try:
            found = digest(disk.read(files.snapshot(model)))
        except FileNotFoundError:
            continue
        # A writer at work may have replaced both files since.
        now = read_index(disk, files).snapshots.get(model, [])
        if found not in {entry.digest for entry in [*entries, *now]}:
            yield Finding(
                code="snapshot.digest_mismatch",
                message=f"{files.snapshot(model).name} is not what was saved; rebuild it with 'runstate replay'",
                severity="damage" if is_current else "warning",
                stream=files.stream,
                seq=entries[0].seq if entries else None,
            )
