"""Reading an archive: which runs it holds, and a run's events from its stretch of a pack, each line checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from typing import NamedTuple

from msgspec import UNSET

from runstate.errors import LogDamaged
from runstate.logs.archive.directory import ArchiveDirectory, translated
from runstate.logs.archive.packs import ArchivedRun, Broken, Manifest, decode_line
from runstate.logs.log import Finding, Record
from runstate.storage.disk import File

chunk_bytes = 1 << 20


class Copy(NamedTuple):
    """A run, and the pack that holds it."""

    pack: str
    run: ArchivedRun


class Contents:
    """What an archive held when this was made. A run may be in several packs: the longest copy counts, and of two
    that are as long the one with more blobs."""

    def __init__(self, directory: ArchiveDirectory) -> None:
        self.manifests: dict[str, Manifest] = {}
        self.broken: list[Finding] = []
        self.runs: dict[str, Copy] = {}
        self.others: list[Copy] = []
        """Copies that do not count: the same run again, or an earlier state of it."""
        for pack, found in directory.manifests():
            if isinstance(found, Broken):
                message = f"{directory.manifest(pack)}: {found}; the runs of this pack are not known"
                self.broken.append(
                    Finding(
                        code="archive.manifest_damaged",
                        message=message,
                        details={"file": str(directory.manifest(pack))},
                    )
                )
                continue
            self.manifests[pack] = found
            for run in found.runs:
                self._add(Copy(pack, run))

    def _add(self, copy: Copy) -> None:
        known = self.runs.get(copy.run.stream)
        if known is None:
            self.runs[copy.run.stream] = copy
            return
        is_better = _rank(copy.run) > _rank(known.run)
        self.runs[copy.run.stream] = copy if is_better else known
        self.others.append(known if is_better else copy)

    def check(self) -> None:
        """
        Raises:
            LogDamaged: a manifest cannot be believed, so nobody knows all runs.
        """
        if self.broken:
            raise LogDamaged(self.broken[0].message, **self.broken[0].details)


def _rank(run: ArchivedRun) -> tuple[int, int]:
    return run.last_seq, -1 if run.blobs is UNSET else len(run.blobs)


def records(
    file: File, run: ArchivedRun, after_seq: int = 0, start: tuple[int, int] = (0, 0)
) -> Iterator[tuple[Record, int]]:
    """The events of a run after a seq, each with where its line ends, counted from where the run begins.

    `start` is a seq, and where its line ends: a place to begin at.

    Raises:
        LogDamaged: the walk met damage. What was before it has been yielded.
    """
    seq, offset = start
    count = 0
    for line in _lines(file, run, offset):
        count += 1
        try:
            record = decode_line(line)
        except Broken as error:
            raise damaged(run, seq + 1, offset, str(error)) from error
        if record.stream != run.stream or record.seq <= seq:
            raise damaged(run, seq + 1, offset, f"event {record.seq} of {record.stream!r} stands there")
        seq, offset = record.seq, offset + len(line) + 1
        if seq > after_seq:
            yield record, offset
    if seq != run.last_seq or offset != run.bytes or (not start[0] and count != run.events):
        raise damaged(run, seq + 1, offset, "the pack ends before the run does")


def _lines(file: File, run: ArchivedRun, offset: int) -> Iterator[bytes]:
    """A run's whole lines without their newlines."""
    rest = b""
    for chunk in chunks(file, run.offset + offset, run.offset + run.bytes):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def chunks(file: File, start: int, end: int) -> Iterator[bytes]:
    while start < end and (chunk := file.read_at(start, min(chunk_bytes, end - start))):
        yield chunk
        start += len(chunk)


def damaged(run: ArchivedRun, seq: int, offset: int, how: str) -> LogDamaged:
    return LogDamaged(
        f"The archived run {run.stream!r} is damaged at event {seq}: {how} (byte {run.offset + offset} of its pack)",
        stream=run.stream,
        seq=seq,
        offset=run.offset + offset,
    )


def digest_of(file: File, start: int, size: int) -> str:
    found = sha256()
    for chunk in chunks(file, start, start + size):
        found.update(chunk)
    return found.hexdigest()


def is_intact(directory: ArchiveDirectory, copy: Copy) -> bool:
    """Whether the pack still holds the run just as it was archived."""
    with translated():
        try:
            file = directory.disk.open(directory.pack(copy.pack), read_only=True)
        except FileNotFoundError:
            return False
        with closing(file):
            return digest_of(file, copy.run.offset, copy.run.bytes) == copy.run.sha256
