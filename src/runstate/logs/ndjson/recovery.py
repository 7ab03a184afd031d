"""Opening a run for writing: read it once, cut off what a crash has left, keep that as evidence, refuse damage.

Whatever a reader may see is made durable here before the first append: a process that was killed may have left
lines that it never flushed, and a retry is about to be told that they are stored.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import PurePath
from zlib import crc32

from runstate.errors import LogDamaged
from runstate.logs.disk import Disk, File
from runstate.logs.frames import Damage
from runstate.logs.log import Finding, StreamInfo
from runstate.logs.ndjson.files import EVENTS, RunFiles, remove_leftovers
from runstate.logs.ndjson.index import Index, read_index
from runstate.logs.ndjson.lines import Envelope, check_line, envelope_of, model_of, read_line
from runstate.logs.ndjson.reading import (
    Mark,
    View,
    chunk_bytes,
    damage_finding,
    damaged,
    extent,
    is_torn,
    salvage,
    whole_lines,
)

logger = logging.getLogger("runstate.logs.ndjson")
TORN_TAIL = "log.torn_tail"


class Held:
    """What a writer knows of its run: every key, and where every line begins. All of it is durable."""

    __slots__ = ("bounds", "crc", "file", "first_at", "keys", "last_at", "model", "previous", "tenant")

    def __init__(self) -> None:
        self.file: File | None = None
        self.crc = 0
        self.bounds = array("q", [0])
        """Where each line begins, and where the last one ends. It alone tells readers how far they may read."""
        self.keys: dict[str, int] = {}
        self.previous: bytes | None = None
        self.tenant = self.first_at = self.last_at = self.model = ""

    @property
    def seq(self) -> int:
        return len(self.bounds) - 1

    @property
    def end(self) -> int:
        return self.bounds[-1]

    def add(self, *lines: tuple[bytes, bytes, Envelope]) -> None:
        """Take note of lines, each with the model's line in it. A reader sees all of them at once, or none."""
        seq, end, bounds = self.seq, self.end, array("q")
        for line, body, envelope in lines:
            seq, end = seq + 1, end + len(line) + 1
            bounds.append(end)
            self.keys.setdefault(envelope.key, seq)
            if seq == 1:
                self.tenant, self.first_at, self.model = envelope.tenant, envelope.persisted_at, model_of(line)
            self.last_at, self.previous = envelope.persisted_at, body
            self.crc = crc32(b"\n", crc32(line, self.crc))
        self.bounds.extend(bounds)

    def span(self, seq: int) -> tuple[int, int]:
        """Where a line begins, and where the next one does."""
        return self.bounds[seq - 1], self.bounds[seq]

    def mark(self, seq: int, file: File) -> Mark | None:
        """The mark after a line of the run's file; None where there is no such line."""
        if not 0 < seq <= self.seq:
            return None
        start, stop = self.span(seq)
        return Mark(seq, stop, start, crc32(file.read_at(start, stop - start)))

    def info(self, stream: str) -> StreamInfo | None:
        if not self.seq:
            return None
        return StreamInfo(stream, self.tenant, self.seq, self.seq, self.first_at, self.last_at, self.model)


def load(disk: Disk, files: RunFiles, report: list[Finding]) -> Held:
    """Read a run, recover it from a crash, and make sure of everything in it.

    Raises:
        LogDamaged: something in it has changed since it was written; nothing was touched.
        OSError: nothing that was acknowledged is lost.
    """
    try:
        file = disk.open(files.events)
    except FileNotFoundError:
        return Held()
    try:
        held = _read(files.stream, file, extent(disk, files, file), read_index(disk, files))
        _cut(disk, files, file, held, report)
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


def _read(stream: str, file: File, end: int, index: Index) -> Held:
    """Every line of a run, checked: against the index's checksum as far as that goes, else each in full."""
    held = Held()
    trusted = 0 if index.end is None or index.end.line_in(file, end) is None else index.end.offset
    for line in whole_lines(file, 0, end):
        seq = held.seq + 1
        try:
            if held.end < trusted:
                held.add((line, check_line(seq, line, held.previous), envelope_of(line)))
                if held.end >= trusted and held.crc != index.crc:
                    return _read(stream, file, end, Index())
            else:
                record = read_line(stream, seq, line, held.previous)
                held.add((line, record.body, Envelope(record.key, record.tenant, record.persisted_at)))
        except Damage as damage:
            if not is_torn(stream, file, seq, held.end, end, held.previous):
                raise damaged(stream, damage, seq, held.end) from damage
            break
    return held


def _cut(disk: Disk, files: RunFiles, file: File, held: Held, report: list[Finding]) -> None:
    """Cut off what stands behind the last whole line, having kept it; a whole line in it stays."""
    size = file.size()
    if size == held.end:
        return
    evidence = keep(disk, files, file, held.end, "torn")
    remnant = file.read_at(held.end, min(size - held.end, 64 * chunk_bytes))
    kept = None
    if extent(disk, files, file) == size:
        kept = salvage(files.stream, held.seq + 1, remnant.removesuffix(b"\n"), held.previous)
    finding = Finding(
        code=TORN_TAIL,
        message=f"{size - held.end} bytes of an unfinished append were cut off and are kept in {evidence.name}",
        severity="warning",
        stream=files.stream,
        seq=held.seq + 1,
        details={"offset": held.end, "bytes": size - held.end, "evidence": str(evidence), "intact": held.seq},
    )
    file.truncate(held.end)
    if kept is not None:
        file.append(kept + b"\n")
        held.add((kept, read_line(files.stream, held.seq + 1, kept, held.previous).body, envelope_of(kept)))
    logger.warning("%s: %s", files.stream, finding.message)
    report.append(finding)


def keep(disk: Disk, files: RunFiles, file: File, start: int, word: str) -> PurePath:
    """Copy the file from an offset on to a name beside it; once this returns, the copy survives a power cut."""
    taken = set(disk.names(files.home))
    number = next(n for n in range(1, len(taken) + 2) if f"{EVENTS}.{word}-{n}" not in taken)
    path = files.home / f"{EVENTS}.{word}-{number}"
    copy = disk.create(path)
    try:
        with closing(copy):
            for chunk in _chunks(file, start):
                copy.append(chunk)
            copy.sync()
        disk.sync_directory(files.home)
    except BaseException:
        with suppress(OSError):
            disk.remove(path)
        raise
    return path


def _chunks(file: File, start: int) -> Iterator[bytes]:
    while chunk := file.read_at(start, chunk_bytes):
        yield chunk
        start += len(chunk)


def _forget_announcement(disk: Disk, files: RunFiles) -> None:
    """An old announcement must not be taken for one of the bytes that come next."""
    try:
        with closing(disk.open(files.pending)) as pending:
            if pending.size():
                pending.truncate(0)
                pending.sync()
    except FileNotFoundError:
        return


def repair(disk: Disk, files: RunFiles, report: list[Finding], *, dry_run: bool) -> list[Finding]:
    """Cut a damaged run back to what is intact, having kept the whole file. The caller holds the run's lock.

    Raises:
        OSError: nothing that is intact was touched.
    """
    with closing(disk.open(files.events, read_only=dry_run)) as file:
        end = extent(disk, files, file)
        try:
            for _ in View(files.stream, file, end).records(0):
                pass
        except LogDamaged as error:
            finding = damage_finding(error)
            if not dry_run:
                evidence = keep(disk, files, file, 0, "damaged")
                # The index knows checksums of what is cut off now. It is rebuilt; a mistaken one would accuse the rest.
                with suppress(FileNotFoundError):
                    disk.remove(files.index)
                file.truncate(error.details["offset"])
                file.sync()
                finding.details["evidence"] = str(evidence)
            findings = [finding]
        else:
            findings = []
    if not dry_run:
        held = load(disk, files, findings)
        if held.file is not None:
            held.file.close()
        report += findings
    return findings
