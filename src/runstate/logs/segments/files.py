"""Where everything lives: the names of a session's directory and of the files in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from urllib.parse import quote, unquote

from runstate.logs.set_aside import pattern as set_aside
from runstate.logs.stream_directories import LOCKS, directory_name
from runstate.storage.disk import TEMP

SESSIONS = "sessions"
BLOBS = "snapshots"
MANIFEST = "manifest.jsonl"
EVENTS = "events"
_segment_pattern = re.compile(r"(\d{8,})-(\d{8,})\.jsonl")
_file = rf"(manifest\.jsonl({set_aside})?|snapshot\.[^/]+\.json|events/\d{{8,}}-\d{{8,}}\.jsonl({set_aside})?)"
own_files = re.compile(rf"{_file}({TEMP})?|events/")
"""The files of a session's directory that a log writes."""
temporary_files = re.compile(rf"{_file}{TEMP}|events/")
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
