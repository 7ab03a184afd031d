"""What compaction removes from the WAL, kept: `archive/<first>-<last>-<sha256>.jsonl.gz` (or `.zst`).

A segment holds the very lines of the WAL. Its name tells its seqs and the SHA-256 of its bytes, so it needs no
manifest, and none can be damaged or swapped unnoticed.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from hashlib import sha256
from io import BytesIO
from pathlib import PurePath
from typing import NamedTuple

from msgspec import UNSET

from runstate.errors import LogDamaged
from runstate.logs.log import Finding
from runstate.logs.wal.compression import compressed, gunzip, piece_bytes, unzstd
from runstate.logs.wal.files import SEGMENT, StreamFiles
from runstate.logs.wal.findings import damage_finding
from runstate.logs.wal.ledger import Ledger
from runstate.models.canonical import digest
from runstate.storage.directories import make_durable_directory, names_in
from runstate.storage.disk import Disk, File, replace_durably

SEGMENT_MISSING = "archive.segment_missing"
segment_pattern = re.compile(SEGMENT)


class Segment(NamedTuple):
    """An archived stretch of a stream."""

    first_seq: int
    last_seq: int
    digest: str
    path: PurePath


def segments(disk: Disk, files: StreamFiles) -> list[Segment]:
    """All segments, in order."""
    found = []
    for name in names_in(disk, files.archive):
        if match := segment_pattern.fullmatch(name):
            found.append(Segment(int(match[1]), int(match[2]), match[3], files.archive / name))
    return sorted(found)


def leading_to(found: list[Segment], previous_seq: int) -> list[Segment]:
    """The segments without a gap up to what the WAL begins with; none where they do not reach it.

    Those that go further were written by a compaction that was cut short: the WAL still holds what they do.
    """
    chain: list[Segment] = []
    for segment in reversed(found):
        if segment.last_seq == (chain[-1].first_seq - 1 if chain else previous_seq):
            chain.append(segment)
    return chain[::-1]


def missing_ranges(found: list[Segment], ledger: Ledger | None, begins_after: int | None) -> list[tuple[int, int]]:
    """The first and the last seq of each range that was archived, and that neither a segment nor the WAL holds.

    `begins_after`: the seq before the first entry of the WAL; None: there is none. What a compaction that was cut short
    has archived still stands in the WAL. Without a ledger that knows the range, only a gap between segments shows.
    """
    if ledger is not None and ledger.archived is not UNSET:
        first_seq, last_seq = ledger.archived
    elif found:
        first_seq, last_seq = found[0].first_seq, found[-1].last_seq
    else:
        return []
    last_seq = last_seq if begins_after is None else min(last_seq, begins_after)
    missing = []
    for segment in found:
        if first_seq < segment.first_seq <= last_seq:
            missing.append((first_seq, segment.first_seq - 1))
        first_seq = max(first_seq, segment.last_seq + 1)
    return [*missing, (first_seq, last_seq)] if first_seq <= last_seq else missing


def segment_missing(stream: str, first_seq: int, last_seq: int) -> LogDamaged:
    return LogDamaged(
        f"The archive of {stream!r} lacks the segments with events {first_seq} to {last_seq}. Restore them from a "
        f"backup, or let 'runstate repair' note that they are lost. What is behind them is read with --after {last_seq}"
        f" (after_seq={last_seq})",
        stream=stream,
        seq=first_seq,
        last_seq=last_seq,
        reason=SEGMENT_MISSING,
    )


def segment_lines(disk: Disk, stream: str, segment: Segment) -> Iterator[list[bytes]]:
    """The lines of a segment, some at a time. It takes the memory of one piece and one line, whatever the file holds.

    Raises:
        LogDamaged: it is not what was archived. Lines come before that only from a file whose name has its digest.
    """
    with closing(disk.open(segment.path, read_only=True)) as file:
        found, source = sha256(), _Source(file)
        while data := source.read(piece_bytes):
            found.update(data)
        if found.hexdigest() != segment.digest:
            raise _not_as_archived(stream, segment)
        source.offset = 0
        try:
            yield from _lines(unzstd(source) if segment.path.suffix == ".zst" else gunzip(source), segment)
        except ValueError as error:
            raise _not_as_archived(stream, segment) from error


def _lines(pieces: Iterable[bytes], segment: Segment) -> Iterator[list[bytes]]:
    """
    Raises:
        ValueError: they are no lines of a WAL, or more than the name of the segment says.
    """
    left = segment.last_seq - segment.first_seq + 1
    rest = BytesIO()  # Not bytes: a line that comes in many pieces would be copied with each.
    for piece in pieces:
        *lines, last = piece.split(b"\n")
        if lines:
            rest.write(lines[0])
            lines[0], rest = rest.getvalue(), BytesIO()
            left -= len(lines)
            if left < 0:
                raise ValueError("it holds more lines than its name says")
            yield lines
        if last and not rest.tell() and not last.startswith(b"{"):
            raise ValueError("a line is no entry")  # Before the rest of it takes memory.
        rest.write(last)
    if rest.tell():
        raise ValueError("its last line is not whole")


class _Source:
    """A file, read from its beginning on."""

    def __init__(self, file: File) -> None:
        self._file, self.offset = file, 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read_at(self.offset, self._file.size() if size < 0 else size)
        self.offset += len(data)
        return data


def _not_as_archived(stream: str, segment: Segment) -> LogDamaged:
    return LogDamaged(
        f"{segment.path.name} is not what was archived (stream {stream!r}, events {segment.first_seq} to "
        f"{segment.last_seq}). What is before and behind it is intact; restore it from a backup",
        stream=stream,
        seq=segment.first_seq,
        reason="archive.digest_mismatch",
        path=str(segment.path),
    )


def write_segment(disk: Disk, files: StreamFiles, first_seq: int, last_seq: int, lines: bytes, *, zstd: bool) -> None:
    """Keep lines; once this returns, they survive a power cut."""
    data = compressed(lines) if zstd else gzip.compress(lines, 6, mtime=0)
    make_durable_directory(disk, files.archive)
    name = f"{first_seq:016d}-{last_seq:016d}-{digest(data)}.jsonl.{'zst' if zstd else 'gz'}"
    replace_durably(disk, files.archive / name, data)


def verify_segments(
    disk: Disk, files: StreamFiles, ledger: Ledger | None, begins_after: int | None
) -> Iterator[Finding]:
    """Findings for the archive of a stream. `begins_after`: see `missing_ranges`."""
    found = segments(disk, files)
    for missing in missing_ranges(found, ledger, begins_after):
        yield damage_finding(segment_missing(files.stream, *missing))
    for segment in found:
        try:
            for _ in segment_lines(disk, files.stream, segment):
                pass
        except LogDamaged as error:
            yield Finding(
                code="archive.digest_mismatch", message=str(error), stream=files.stream, seq=segment.first_seq
            )
