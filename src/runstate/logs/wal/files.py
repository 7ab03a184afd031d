"""Where everything lives: the names of a stream's directory and of the files in it, and where evidence is kept."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from urllib.parse import quote

from runstate.logs.stream_directories import LOCKS, directory_name
from runstate.storage.disk import TEMP, Disk, write_new
from runstate.storage.target_directory import remove_own

WAL = "wal.jsonl"
LEDGER = "ledger.json"
KEYS = "keys.json"
backups = (".bak", ".bak.2", ".bak.3")
"""What the names of evidence end with, the newest first."""
SEGMENT = r"(\d{16})-(\d{16})-([0-9a-f]{64})\.jsonl\.(gz|zst)"
PREVIOUS = ".previous"
"""What the name of the checkpoint before the newest one ends with."""
_name = rf"(wal\.jsonl|ledger\.json|keys\.json|snapshot(\.[^/]+)?\.json(\.zst)?({re.escape(PREVIOUS)})?)"
_file = rf"({_name}(\.bak(\.[23])?|\.torn|\.salvaged|\.quarantined)?|archive/{SEGMENT})"
own_files = re.compile(rf"{_file}({TEMP})?|archive/")
"""The files of a stream's directory that a log writes."""
_temporary = re.compile(rf"{_file}{TEMP}|archive/")


@dataclass(frozen=True)
class StreamFiles:
    """The places of one stream."""

    root: PurePath
    stream: str

    @cached_property
    def home(self) -> PurePath:
        return self.root / directory_name(self.stream)

    @cached_property
    def wal(self) -> PurePath:
        return self.home / WAL

    @cached_property
    def ledger(self) -> PurePath:
        return self.home / LEDGER

    @cached_property
    def keys(self) -> PurePath:
        return self.home / KEYS

    @cached_property
    def archive(self) -> PurePath:
        return self.home / "archive"

    @property
    def torn(self) -> PurePath:
        return self.home / f"{WAL}.torn"

    @property
    def salvaged(self) -> PurePath:
        return self.home / f"{WAL}.salvaged"

    @property
    def quarantined(self) -> PurePath:
        return self.home / f"{WAL}.quarantined"

    @property
    def lock(self) -> PurePath:
        return self.root / LOCKS / self.home.name

    def snapshot(self, model: str) -> PurePath:
        return self.home / ("snapshot.json" if model == "daemon" else f"snapshot.{quote(model, safe='')}.json")


def read_or_none(disk: Disk, path: PurePath) -> bytes | None:
    try:
        return disk.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def remove_leftovers(disk: Disk, files: StreamFiles) -> None:
    """Remove the temporary files of a writer that was killed. The caller holds the stream's lock."""
    remove_own(files.home, _temporary, keep={"archive/"}, disk=disk)


def newest_backup(path: PurePath) -> PurePath:
    return path.with_name(path.name + backups[0])


def keep_copy(disk: Disk, path: PurePath, data: bytes) -> PurePath:
    """Keep evidence as the newest `.bak` of a file; once this returns, it survives a power cut.

    The oldest of three makes room. What is kept already, because an earlier recovery was cut short, is not kept twice.
    """
    newest = newest_backup(path)
    if read_or_none(disk, newest) != data:
        temp = disk.temp_name(newest)
        write_new(disk, temp, data)
        try:
            _make_room(disk, path)
            disk.rename(temp, newest)
        except BaseException:
            with suppress(OSError):
                disk.remove(temp)
            raise
    disk.sync_directory(path.parent)
    return newest


def move_aside(disk: Disk, path: PurePath) -> PurePath:
    """Make a file the newest `.bak` of itself; once this returns, that survives a power cut."""
    _make_room(disk, path)
    newest = newest_backup(path)
    disk.rename(path, newest)
    disk.sync_directory(path.parent)
    return newest


def _make_room(disk: Disk, path: PurePath) -> None:
    """Let each `.bak` become the next older one, up to the first place that is free."""
    kept = [path.with_name(path.name + suffix) for suffix in backups]
    free = next((number for number, place in enumerate(kept) if not disk.exists(place)), len(kept) - 1)
    for number in range(free, 0, -1):
        disk.rename(kept[number - 1], kept[number])
