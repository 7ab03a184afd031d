"""`index.json`: what lets a run be opened without reading it from its beginning, and what snapshots there are.

It can be thrown away. Every mark in it is checked against the file before it is used, so an index that was left
behind by a crash, a repair or a restored backup costs time and nothing else.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePath

import msgspec

from runstate.logs.log import StoredSnapshot
from runstate.logs.ndjson.files import RunFiles
from runstate.logs.ndjson.reading import Mark, checksum
from runstate.logs.sealed import refuse_newer, sealed, unsealed
from runstate.models.canonical import digest
from runstate.storage.disk import Disk, File, write_new

format_version = 1
_tries = 4


class Entry(msgspec.Struct, frozen=True):
    """A snapshot that is, or was until just now, in its file."""

    version: int
    seq: int
    digest: str
    mark: Mark | None


class Index(msgspec.Struct):
    end: Mark | None = None
    """The end of the file when this was written."""
    crc: int = 0
    """CRC-32 over the file up to there. It covers what the hash chain does not: trace ids and the like."""
    stamp: str = ""
    """The version of the file at that time: with it, nobody has touched the file since."""
    snapshots: dict[str, list[Entry]] = {}
    """Of each model the newest, and the one before it, which a crash may have left in the file."""
    format: int = format_version

    def marks(self) -> list[Mark]:
        found = [entry.mark for entries in self.snapshots.values() for entry in entries if entry.mark is not None]
        return found if self.end is None else [*found, self.end]

    def covers(self, file: File, size: int) -> bool:
        """Whether the bytes that this has a checksum of are still those, where there are as many."""
        return self.end is None or self.end.offset > size or checksum(file, self.end.offset) == self.crc


def read_index(disk: Disk, files: RunFiles) -> Index:
    """The index, or an empty one.

    Raises:
        LogTooNew: a newer Runstate wrote it.
    """
    try:
        data = disk.read(files.index)
    except OSError:
        return Index()
    refuse_newer(data, files.index, format_version)
    return unsealed(data, Index) or Index()


def read_known(disk: Disk, files: RunFiles) -> tuple[int, int]:
    """Up to where the index has a checksum of the file, and the checksum."""
    index = read_index(disk, files)
    return (0, 0) if index.end is None else (index.end.offset, index.crc)


def write_index(disk: Disk, files: RunFiles, index: Index) -> None:
    """Replace the index. Its name needs a sync of the directory; until then a crash may leave the old one."""
    _rename(disk, _written(disk, files.index, sealed(index)), files.index)


def find_snapshot(disk: Disk, files: RunFiles, file: File, model: str) -> StoredSnapshot | None:
    """The snapshot in a model's file, if this log has put it there and its events still are in the log."""
    for _ in range(_tries):
        entries = read_index(disk, files).snapshots.get(model, [])
        try:
            body = disk.read(files.snapshot(model)) if entries else b""
        except FileNotFoundError:
            return None
        found = digest(body) if entries else ""
        for entry in entries:
            if entry.digest == found:
                # Up to where the file ends now: a writer may have gone on since it was opened.
                if entry.mark is not None and entry.mark.line_in(file, file.size()) is None:
                    return None
                return StoredSnapshot(model, entry.version, entry.seq, entry.digest, body)
        if not entries or read_index(disk, files).snapshots.get(model, []) == entries:
            return None
        # A writer has replaced the file between our two looks.
    return None


def put_snapshot(disk: Disk, files: RunFiles, index: Index, snapshot: StoredSnapshot) -> None:
    """Put a snapshot into its file: after a crash there is the old one, the new one, or none that is believed."""
    path = files.snapshot(snapshot.model)
    temp = _written(disk, path, snapshot.body)
    try:
        # The index first: it knows the old snapshot and the new one, the old index only the old one.
        write_index(disk, files, index)
    except BaseException:
        with suppress(OSError):
            disk.remove(temp)
        raise
    _rename(disk, temp, path)
    disk.sync_directory(files.home)


def _written(disk: Disk, path: PurePath, data: bytes) -> PurePath:
    temp = disk.temp_name(path)
    write_new(disk, temp, data)
    return temp


def _rename(disk: Disk, temp: PurePath, path: PurePath) -> None:
    try:
        disk.rename(temp, path)
    except BaseException:
        with suppress(OSError):
            disk.remove(temp)
        raise
