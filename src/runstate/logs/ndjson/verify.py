"""What `verify` looks at in a run: every line in full, the checksum of the whole, the remains, the snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from runstate.errors import LogDamaged
from runstate.logs.disk import Disk
from runstate.logs.log import Finding
from runstate.logs.ndjson.files import RunFiles
from runstate.logs.ndjson.index import Index, read_index
from runstate.logs.ndjson.reading import Mark, View, chunk_bytes, damage_finding, salvage
from runstate.logs.ndjson.recovery import TORN_TAIL
from runstate.models.canonical import digest


def verify_run(disk: Disk, files: RunFiles, index: Index, view: View | None) -> Iterator[Finding]:
    """Findings for one run, whose index was read before the view was opened. No view: the file is not there."""
    if view is None:
        if index.end is not None:
            message = f"There were {index.end.seq} events, and the file is gone"
            yield Finding(code="log.events_missing", message=message, stream=files.stream, seq=1)
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
        yield from _remains(files, view, index, previous)
        yield from _whole(files, view, index)
    yield from _snapshots(disk, files, index, view.last)


def _remains(files: RunFiles, view: View, index: Index, previous: bytes | None) -> Iterator[Finding]:
    """What stands behind the last whole line, unless it is the plain stub that every killed writer may leave."""
    seq, offset = (0, 0) if view.last is None else (view.last.seq, view.last.offset)
    if index.end is not None and index.end.offset > offset:
        yield Finding(
            code="log.events_missing",
            message=f"There were {index.end.seq} events, now there are {seq}",
            stream=files.stream,
            seq=seq + 1,
            details={"offset": offset, "intact": seq},
        )
        return
    remnant = view.file.read_at(offset, max(0, view.end - offset))
    if b"\0" in remnant or (remnant and salvage(files.stream, seq + 1, remnant.removesuffix(b"\n"), previous)):
        yield Finding(
            code=TORN_TAIL,
            message=f"{len(remnant)} bytes behind event {seq} are no whole line; the next append keeps and cuts them",
            severity="warning",
            stream=files.stream,
            seq=seq + 1,
            details={"offset": offset, "bytes": len(remnant), "intact": seq},
        )


def _whole(files: RunFiles, view: View, index: Index) -> Iterator[Finding]:
    if index.end is None or view.last is None or index.end.offset > view.last.offset:
        return
    offset = crc = 0
    while offset < index.end.offset:
        chunk = view.file.read_at(offset, min(chunk_bytes, index.end.offset - offset))
        offset, crc = offset + len(chunk), crc32(chunk, crc)
        if not chunk:
            break
    if crc != index.crc:
        yield Finding(
            code="log.event_changed",
            message=f"Something that no hash covers has changed in the first {index.end.seq} lines, such as a trace id",
            stream=files.stream,
            details={"offset": index.end.offset},
        )


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
