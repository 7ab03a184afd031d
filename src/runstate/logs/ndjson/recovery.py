"""Opening a run for writing: read it once, cut off what a crash has left, keep that as evidence, refuse damage.

Whatever a reader may see is made durable here before the first append: a process that was killed may have left
lines that it never flushed, and a retry is about to be told that they are stored.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import PurePath

import msgspec

from runstate.logs.frames import Damage
from runstate.logs.log import Finding
from runstate.logs.ndjson.files import EVENTS, RunFiles, remove_leftovers
from runstate.logs.ndjson.held import Held
from runstate.logs.ndjson.index import Index, read_index
from runstate.logs.ndjson.keys import read_keys
from runstate.logs.ndjson.lines import Envelope, body_of, check_line, envelope_of, model_of, read_line
from runstate.logs.ndjson.reading import (
    changed_event,
    chunk_bytes,
    damaged,
    extent,
    is_torn,
    missing_events,
    salvage,
    whole_lines,
)
from runstate.logs.set_aside import free_number
from runstate.storage.disk import Disk, File

logger = logging.getLogger("runstate.logs.ndjson")
TORN_TAIL = "log.torn_tail"


def load(disk: Disk, files: RunFiles, report: list[Finding]) -> Held:
    """Read a run, recover it from a crash, and make sure of everything in it.

    Raises:
        LogDamaged: something in it has changed since it was written, or is gone; nothing was touched.
        OSError: nothing that was acknowledged is lost.
    """
    index = read_index(disk, files)
    try:
        file = disk.open(files.events)
    except FileNotFoundError:
        if index.end is not None:
            raise missing_events(files.stream, index.end.seq, 0, 0) from None
        return Held()
    try:
        held = _resume(disk, files, file, index) or _read(files.stream, file, extent(disk, files, file), index)
        tail = find_tail(disk, files, file, held.seq, held.end, held.previous)
        if index.end is not None and index.end.offset > tail.end:
            raise missing_events(files.stream, index.end.seq, held.seq, held.end)
        _cut(disk, files, file, held, tail, report)
        file.sync()
        _forget_announcement(disk, files)
        remove_leftovers(disk, files)
        disk.sync_directory(files.home)
        disk.sync_directory(files.root)
    except BaseException:
        file.close()
        raise
    held.file = file
    return held


def _resume(disk: Disk, files: RunFiles, file: File, index: Index) -> Held | None:
    """A run that is as its last writer closed it, by its key file and the lines behind that; None: read all of it."""
    if not index.stamp or index.end is None or disk.stamp(files.events) != (index.end.offset, index.stamp):
        return None
    base = read_keys(disk, files)
    last = None if base is None else base.end.line_in(file, index.end.offset)
    if base is None or last is None or extent(disk, files, file) != index.end.offset:
        return None
    held = Held(base, file)
    held.previous = body_of(last)
    try:
        first = read_line(files.stream, 1, held.line(1), None)
        held.tenant, held.first_at, held.model = first.tenant, first.persisted_at, model_of(held.line(1))
        held.last_at = envelope_of(last).persisted_at
        for line in whole_lines(file, base.end.offset, index.end.offset):
            record = read_line(files.stream, held.seq + 1, line, held.previous)
            held.add((line, record.body, Envelope(record.key, record.tenant, record.persisted_at)))
    except (Damage, LookupError):
        return None
    return held if (held.seq, held.end, held.crc) == (index.end.seq, index.end.offset, index.crc) else None


def _read(stream: str, file: File, end: int, index: Index) -> Held:
    """Every line of a run, checked: against the index's checksum as far as that goes, else each in full."""
    held, known = Held(), index.end
    is_trusted = known is not None and known.line_in(file, end) is not None
    for line in whole_lines(file, 0, end):
        seq = held.seq + 1
        is_covered = known is not None and held.end < known.offset
        try:
            if is_covered and is_trusted:
                held.add((line, check_line(seq, line, held.previous), envelope_of(line)))
            else:
                record = read_line(stream, seq, line, held.previous)
                held.add((line, record.body, Envelope(record.key, record.tenant, record.persisted_at)))
        except Damage as damage:
            if not is_torn(stream, file, seq, held.end, end, held.previous):
                raise damaged(stream, damage, seq, held.end) from damage
            break
        if is_covered and known is not None and held.end >= known.offset and held.crc != index.crc:
            _read(stream, file, end, Index())  # It finds the line, if a checksum or a hash covers the change.
            raise changed_event(stream, known.seq)
    return held


class Tail(msgspec.Struct, frozen=True):
    """What stands behind the last whole line of a file: left by a crash, or by whoever cut the file."""

    stream: str
    seq: int
    offset: int
    line: bytes | None
    """A whole line in it, which stays."""
    evidence: str
    bytes: int

    @property
    def end(self) -> int:
        """Where the file ends after it was recovered."""
        return self.offset if self.line is None else self.offset + len(self.line) + 1

    def findings(self) -> list[Finding]:
        """What the next writer cuts off: the same before it is done and after it."""
        if not self.bytes:
            return []
        message = f"{self.bytes} bytes of an unfinished append behind event {self.seq}. Set aside: {self.evidence}"
        kept = {"setAside": [self.evidence], "intact": self.seq}
        finding = Finding(
            code=TORN_TAIL,
            message=message,
            severity="warning",
            stream=self.stream,
            seq=self.seq + 1,
            details={"offset": self.offset, "bytes": self.bytes, **kept},
        )
        return [finding]


def find_tail(disk: Disk, files: RunFiles, file: File, seq: int, offset: int, previous: bytes | None) -> Tail:
    size, line = file.size(), None
    if size > offset and extent(disk, files, file) == size:
        remnant = file.read_at(offset, min(size - offset, 64 * chunk_bytes))
        line = salvage(files.stream, seq + 1, remnant.removesuffix(b"\n"), previous)
    evidence = f"{EVENTS}.torn-{free_number(disk, (files.home,), 'torn')}"
    return Tail(files.stream, seq, offset, line, evidence, size - offset)


def _cut(disk: Disk, files: RunFiles, file: File, held: Held, tail: Tail, report: list[Finding]) -> None:
    """Cut off what stands behind the last whole line, having kept it; a whole line in it stays."""
    if not tail.bytes:
        return
    keep(disk, file, tail.offset, files.home / tail.evidence)
    file.truncate(tail.offset)
    if tail.line is not None:
        file.append(tail.line + b"\n")
        body = read_line(files.stream, held.seq + 1, tail.line, held.previous).body
        held.add((tail.line, body, envelope_of(tail.line)))
    for finding in tail.findings():
        logger.warning("%s: %s", files.stream, finding.message)
        report.append(finding)


def keep(disk: Disk, file: File, start: int, path: PurePath) -> None:
    """Copy a file from an offset on to another name; once this returns, the copy survives a power cut."""
    write_chunks(disk, path, chunks(file, start, file.size()))
    disk.sync_directory(path.parent)


def write_chunks(disk: Disk, path: PurePath, data: Iterable[bytes]) -> None:
    """Write a new file and flush it; where that fails, there is none."""
    new = disk.create(path)
    try:
        with closing(new):
            for chunk in data:
                new.append(chunk)
            new.sync()
    except BaseException:
        with suppress(OSError):
            disk.remove(path)
        raise


def chunks(file: File, start: int, end: int) -> Iterator[bytes]:
    while start < end and (chunk := file.read_at(start, min(chunk_bytes, end - start))):
        yield chunk
        start += len(chunk)


def drop_announcement(disk: Disk, files: RunFiles) -> None:
    """Make sure that an old announcement does not come back with a power cut. It is called before a file is cut: inside
    the append that was announced, what is left would pass for an unfinished one."""
    with suppress(FileNotFoundError), closing(disk.open(files.pending)) as pending:
        pending.truncate(0)
        pending.sync()


def _forget_announcement(disk: Disk, files: RunFiles) -> None:
    """An old announcement must not be taken for one of the bytes that come next."""
    try:
        with closing(disk.open(files.pending)) as pending:
            if pending.size():
                pending.truncate(0)
                pending.sync()
    except FileNotFoundError:
        return
