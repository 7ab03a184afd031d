"""What compaction removes from the WAL, kept: `archive/<first>-<last>-<sha256>.jsonl.gz` (or `.zst`).

A segment holds the very lines of the WAL. Its name tells its seqs and the SHA-256 of its bytes, so it needs no
manifest, and none can be damaged or swapped unnoticed.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePath
from typing import NamedTuple

from runstate.errors import LogDamaged
from runstate.logs.log import Finding
from runstate.logs.wal.compression import compressed, decompressed, gunzipped
from runstate.logs.wal.files import SEGMENT, StreamFiles
from runstate.models.canonical import digest
from runstate.storage.directories import names_in
from runstate.storage.disk import Disk, replace_durably

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


def segment_lines(disk: Disk, stream: str, segment: Segment) -> list[bytes]:
    """The lines of a segment.

    Raises:
        LogDamaged: it is not what was archived.
    """
    data = disk.read(segment.path)
    if digest(data) != segment.digest:
        raise _not_as_archived(stream, segment)
    try:
        return unpack(data, segment.path).split(b"\n")[:-1]
    except ValueError as error:
        raise _not_as_archived(stream, segment) from error


def _not_as_archived(stream: str, segment: Segment) -> LogDamaged:
    return LogDamaged(
        f"{segment.path.name} is not what was archived (stream {stream!r}, events {segment.first_seq} to "
        f"{segment.last_seq}). What is before and behind it is intact; restore it from a backup",
        stream=stream,
        seq=segment.first_seq,
        reason="archive.digest_mismatch",
        path=str(segment.path),
    )


def unpack(data: bytes, path: PurePath) -> bytes:
    """
    Raises:
        ValueError: the bytes are not what was packed.
    """
    return decompressed(data) if path.suffix == ".zst" else gunzipped(data)


def write_segment(disk: Disk, files: StreamFiles, first_seq: int, last_seq: int, lines: bytes, *, zstd: bool) -> None:
    """Keep lines; once this returns, they survive a power cut."""
    data = compressed(lines) if zstd else gzip.compress(lines, 6, mtime=0)
    with suppress(FileExistsError):
        disk.make_directory(files.archive)
    disk.sync_directory(files.home)
    name = f"{first_seq:016d}-{last_seq:016d}-{digest(data)}.jsonl.{'zst' if zstd else 'gz'}"
    replace_durably(disk, files.archive / name, data)


def verify_segments(disk: Disk, files: StreamFiles) -> Iterator[Finding]:
    previous = 0
    for segment in segments(disk, files):
        if previous and segment.first_seq > previous + 1:
            yield Finding(
                code="archive.segment_missing",
                message=f"The archive lacks events {previous + 1} to {segment.first_seq - 1}",
                stream=files.stream,
                seq=previous + 1,
            )
        previous = segment.last_seq
        try:
            segment_lines(disk, files.stream, segment)
        except LogDamaged as error:
            yield Finding(
                code="archive.digest_mismatch", message=str(error), stream=files.stream, seq=segment.first_seq
            )
