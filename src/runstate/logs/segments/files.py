"""Where everything lives: the names of a session's directory and of the files in it."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from urllib.parse import quote, unquote

from runstate.logs.directories import directory_name
from runstate.logs.disk import TEMP_SUFFIX, Disk, Lock

SESSIONS = "sessions"
BLOBS = "snapshots"
LOCKS = ".locks"
MANIFEST = "manifest.jsonl"
EVENTS = "events"
_tombstone = ".deleted"
_segment_pattern = re.compile(r"(\d{8,})-(\d{8,})\.jsonl")
_snapshot_pattern = re.compile(r"snapshot\.(.+)\.json")


@dataclass(frozen=True)
class SessionFiles:
    """The places of one session."""

    stream: str
    root: PurePath

    @cached_property
    def home(self) -> PurePath:
        return self.root / SESSIONS / directory_name(self.stream)

    @cached_property
    def manifest(self) -> PurePath:
        return self.home / MANIFEST

    @cached_property
    def events(self) -> PurePath:
        return self.home / EVENTS

    @cached_property
    def lock(self) -> PurePath:
        return self.root / LOCKS / directory_name(self.stream)

    def snapshot(self, model: str) -> PurePath:
        return self.home / f"snapshot.{quote(model, safe='')}.json"


def tombstone_in(disk: Disk, sessions: PurePath) -> PurePath:
    """What a session is renamed to when it is deleted."""
    return disk.temp_name(sessions / _tombstone)


def is_tombstone(name: str) -> bool:
    return name.startswith(f"{_tombstone}.") and name.endswith(TEMP_SUFFIX)


def segment_name(first: int, last: int) -> str:
    return f"{first:08d}-{last:08d}.jsonl"


def span_of(name: str) -> tuple[int, int] | None:
    """The indexes that a segment's name tells, or None where it is no segment's."""
    found = _segment_pattern.fullmatch(name)
    if found is None:
        return None
    first, last = int(found[1]), int(found[2])
    return (first, last) if first <= last and name == segment_name(first, last) else None


def model_of(name: str) -> str | None:
    """The model that a snapshot's file is named for, or None where it is no snapshot's."""
    found = _snapshot_pattern.fullmatch(name)
    return None if found is None else unquote(found[1])


def names_in(disk: Disk, directory: PurePath) -> list[str]:
    """What a directory holds; nothing where there is none."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return disk.names(directory)
    return []


def lock_in(disk: Disk, path: PurePath, *, shared: bool = False) -> Lock:
    """Take a lock whose directory is made with the first one.

    Raises:
        LockBusy: somebody holds it.
    """
    try:
        return disk.lock(path, shared=shared)
    except FileNotFoundError:
        with suppress(FileExistsError):
            disk.make_directory(path.parent)
        return disk.lock(path, shared=shared)
